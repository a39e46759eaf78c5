//! Cases of a run of `weft test`: a network between two nodes. Each case is a sequence of states, and ends with a verdict.
//!
//! ```text
//!   first pod created ─► it has the network ─► second pod created, sends to it ─► its report ─► verdict
//! ```
//!
//! - A case makes at most one step per look at the cluster, and only creates pods.
//! - The verdict depends on the pods as the API server shows them, and on nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use npwg::status::Entry;
use serde::Serialize;

use super::pods::{INTERFACE, NewPod, PodState, TestPod};
use super::targets::TestedNetwork;
use crate::commands::probe::{Reply, Report};

/// Network between two nodes.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) network: TestedNetwork,
    /// Nodes for the pod that answers and for the pod that sends.
    pub(super) nodes: [String; 2],
    /// Names that these pods have.
    pub(super) pods: [String; 2],
    progress: CaseProgress,
}

/// Progress in a case.
#[derive(Clone, Debug)]
enum CaseProgress {
    /// Nothing is created.
    Planned,
    /// The first pod is created.
    First,
    /// The second pod is created; the first one has this attachment.
    Second(Box<Entry>),
    /// The case has ended.
    Ended(Box<Outcome>),
}

/// Outcome of a case: its document, and a row in the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Outcome {
    pub(super) network: String,
    pub(super) nodes: [String; 2],
    pub(super) verdict: Verdict,
    /// Fault, or remark on a success; may be empty.
    pub(super) found: String,
    /// Addresses that both pods have on the network.
    pub(super) addresses: [Vec<String>; 2],
    /// MTU on the interface, in bytes.
    pub(super) mtu: Option<usize>,
    pub(super) replies: Vec<Reply>,
}

/// Verdict on a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Verdict {
    Ok,
    Failed,
}

/// Next action in a case.
#[derive(Debug)]
pub(super) enum Action<'a> {
    Wait,
    Create(NewPod<'a>),
}

// === impl Case ===

impl Case {
    pub(super) fn new(network: TestedNetwork, nodes: [String; 2], prefix: &str) -> Case {
        let pods = ["a", "b"].map(|end| format!("{prefix}-{end}"));
        Case { network, nodes, pods, progress: CaseProgress::Planned }
    }

    /// Returns the outcome, once the case has ended.
    pub(super) fn outcome(&self) -> Option<&Outcome> {
        match &self.progress {
            CaseProgress::Ended(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Makes a step with the run's pods as they are now.
    pub(super) fn advance(&mut self, pods: &BTreeMap<String, TestPod>) -> Action<'_> {
        let [first, second] = [0, 1].map(|index| self.pods.get(index).and_then(|name| pods.get(name)));
        match &self.progress {
            CaseProgress::Planned => {
                self.progress = CaseProgress::First;
                Action::Create(self.pod(0, &[]))
            }
            CaseProgress::First => match first.map(TestPod::state) {
                Some(PodState::Failed(why) | PodState::Ended(why)) => {
                    self.end(0, &format!("ended before it answered: {why}"))
                }
                Some(PodState::Running) => match first.and_then(|pod| pod.attachment(&self.network.name)) {
                    Some(entry) => {
                        self.progress = CaseProgress::Second(Box::new(entry));
                        Action::Create(self.pod(1, self.first_addresses()))
                    }
                    None => Action::Wait,
                },
                Some(PodState::Waiting(_)) | None => Action::Wait,
            },
            CaseProgress::Second(entry) => {
                let message = match second.map(TestPod::state) {
                    Some(PodState::Failed(why)) => return self.end(1, &format!("failed: {why}")),
                    Some(PodState::Ended(message)) => message,
                    // Without an address to send to, it only has to be attached.
                    Some(PodState::Running) if entry.ips.is_empty() => String::new(),
                    Some(PodState::Waiting(_) | PodState::Running) | None => return Action::Wait,
                };
                // Its program may end, and its sandbox with it, before the agent has written the network-status.
                let written = second.and_then(|pod| pod.attachment(&self.network.name));
                let is_written = written.is_some();
                if let Some(own) = written.or_else(|| self.reported(&message)) {
                    let mut outcome = self.judge(entry, &own, &message);
                    if !is_written {
                        outcome.found += "; the second pod ended before its network-status was written";
                    }
                    self.progress = CaseProgress::Ended(Box::new(outcome));
                }
                Action::Wait
            }
            CaseProgress::Ended(_) => Action::Wait,
        }
    }

    fn pod<'a>(&'a self, index: usize, to: &'a [String]) -> NewPod<'a> {
        let text = |texts: &'a [String; 2]| texts.get(index).map(String::as_str).unwrap_or_default();
        NewPod { name: text(&self.pods), node: text(&self.nodes), network: &self.network, to }
    }

    fn first_addresses(&self) -> &[String] {
        match &self.progress {
            CaseProgress::Second(entry) => &entry.ips,
            _ => &[],
        }
    }

    /// Ends the case because something is wrong with one of its pods.
    fn end(&mut self, index: usize, why: &str) -> Action<'static> {
        let name = self.pods.get(index).cloned().unwrap_or_default();
        self.fail(format!("pod {name} {why}"));
        Action::Wait
    }

    /// Ends the case with a fault.
    pub(super) fn fail(&mut self, found: String) {
        let first = self.first_addresses().to_vec();
        let outcome = Outcome { found, addresses: [first, Vec::new()], ..self.empty(Verdict::Failed) };
        self.progress = CaseProgress::Ended(Box::new(outcome));
    }

    /// Returns why the case has not ended, and the pod for which it waits.
    pub(super) fn waits_for(&self, pods: &BTreeMap<String, TestPod>) -> (String, String) {
        let index = usize::from(matches!(self.progress, CaseProgress::Second(_)));
        let name = self.pods.get(index).cloned().unwrap_or_default();
        let is_attached = pods.get(&name).is_some_and(|pod| pod.attachment(&self.network.name).is_some());
        let why = match pods.get(&name).map(TestPod::state) {
            None => "was not created".to_owned(),
            Some(PodState::Waiting(why)) if why.is_empty() => "does not start".to_owned(),
            Some(PodState::Waiting(why)) => format!("does not start: {why}"),
            // The API server did not accept the second pod.
            Some(PodState::Running) if is_attached && index == 0 => {
                format!("has the network, but pod {} was not created", self.pods[1])
            }
            Some(PodState::Running) if is_attached => "still sends packets; raise --timeout".to_owned(),
            Some(PodState::Running | PodState::Ended(_)) => {
                format!("has no network-status of {}: does weft serve the node?", self.network.name)
            }
            Some(PodState::Failed(why)) => format!("failed: {why}"),
        };
        (name, why)
    }

    /// Returns the second pod's attachment by its report, which names the own address for each reply.
    fn reported(&self, message: &str) -> Option<Entry> {
        let report: Report = serde_json::from_str(message).ok()?;
        let ips: BTreeSet<String> =
            report.replies.iter().filter_map(|reply| reply.from).map(|from| from.to_string()).collect();
        let (name, ips) = (self.network.name.to_string(), ips.into_iter().collect::<Vec<_>>());
        (!ips.is_empty()).then(|| Entry { name, interface: INTERFACE.to_owned(), ips, ..Entry::default() })
    }

    fn empty(&self, verdict: Verdict) -> Outcome {
        Outcome {
            network: self.network.name.to_string(),
            nodes: self.nodes.clone(),
            verdict,
            found: String::new(),
            addresses: [Vec::new(), Vec::new()],
            mtu: None,
            replies: Vec::new(),
        }
    }

    /// Returns the outcome for a case whose second pod has ended with a message.
    fn judge(&self, first: &Entry, second: &Entry, message: &str) -> Outcome {
        let mut outcome = self.empty(Verdict::Failed);
        outcome.addresses = [first.ips.clone(), second.ips.clone()];
        if let Some(entry) = [first, second].into_iter().find(|entry| entry.interface != INTERFACE) {
            outcome.found = format!("the interface is {:?} instead of {INTERFACE}", entry.interface);
            return outcome;
        }
        if let Some(address) = first.ips.iter().find(|address| second.ips.contains(address)) {
            outcome.found = format!("both pods have the address {address}");
            return outcome;
        }
        if first.ips.is_empty() {
            outcome.verdict = Verdict::Ok;
            "attached; the network has no addresses, so no packets were sent".clone_into(&mut outcome.found);
            return outcome;
        }
        let Ok(report) = serde_json::from_str::<Report>(message) else {
            outcome.found = format!("pod {} left no report: {message}", self.pods[1]);
            return outcome;
        };
        outcome.mtu = Some(report.mtu).filter(|mtu| *mtu > 0);
        let faults = faults(&first.ips, &report);
        outcome.replies = report.replies;
        if faults.is_empty() {
            outcome.verdict = Verdict::Ok;
        }
        outcome.found = faults.join("; ");
        outcome
    }
}

/// Returns what is wrong in a report about these addresses.
fn faults(addresses: &[String], report: &Report) -> Vec<String> {
    let mut faults = Vec::new();
    for address in addresses {
        let parsed = address.parse::<IpAddr>().ok();
        let reply = report.replies.iter().find(|reply| Some(reply.address) == parsed);
        let because = |reply: &Reply| match reply.error.as_str() {
            "" => String::new(),
            error => format!(" ({error})"),
        };
        match reply {
            None => faults.push(format!("no packet was sent to {address}")),
            Some(reply) if reply.microseconds.is_none() => {
                faults.push(format!("no reply from {address}{}", because(reply)));
            }
            Some(reply) if reply.largest.is_none() && report.mtu > 0 => {
                let size = report.mtu;
                faults.push(format!(
                    "packets of {size} bytes, the MTU of {INTERFACE}, do not reach {address}{}",
                    because(reply)
                ));
            }
            Some(_) => {}
        }
    }
    faults
}

// === impl Outcome ===

impl Outcome {
    /// Returns the cells in its row.
    pub(super) fn cells(&self) -> Vec<String> {
        let Outcome { network, nodes, verdict, found, addresses, mtu, replies } = self;
        let [first, second] = addresses;
        let fastest = replies.iter().filter_map(|reply| reply.microseconds).min();
        let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        let verdict = match verdict {
            Verdict::Ok => "ok",
            Verdict::Failed => "ERROR",
        };
        vec![
            network.clone(),
            nodes.join(","),
            or_dash(first.join(",")),
            or_dash(second.join(",")),
            or_dash(fastest.map(milliseconds).unwrap_or_default()),
            or_dash(mtu.map(|mtu| mtu.to_string()).unwrap_or_default()),
            verdict.to_owned(),
            or_dash(found.clone()),
        ]
    }
}

#[expect(clippy::cast_precision_loss, reason = "rounded to 0.01 ms for display")]
fn milliseconds(microseconds: u64) -> String {
    format!("{:.2} ms", microseconds as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn case() -> Case {
        let network = TestedNetwork { name: "blue/data".parse().unwrap(), resource: String::new() };
        Case::new(network, ["n1".into(), "n2".into()], "weft-test-x-0")
    }

    fn pod(name: &str, state: &Value, ips: &[&str]) -> (String, TestPod) {
        let status = json!([{ "name": "blue/data", "interface": "net1", "ips": ips }]).to_string();
        let annotations = json!({ "k8s.v1.cni.cncf.io/network-status": status });
        let pod = json!({
            "metadata": { "name": name, "annotations": annotations },
            "status": { "phase": "Running", "containerStatuses": [{ "state": state }] },
        });
        (name.to_owned(), serde_json::from_value(pod).unwrap())
    }

    /// Advances a case whose second pod ends with this report, and returns its outcome.
    fn outcome(first: &[&str], second: &[&str], report: &Value) -> Outcome {
        let mut case = case();
        assert!(matches!(case.advance(&BTreeMap::new()), Action::Create(pod) if pod.node == "n1"));
        assert!(matches!(case.advance(&BTreeMap::new()), Action::Wait));
        let mut pods = BTreeMap::from([pod("weft-test-x-0-a", &json!({ "running": {} }), first)]);
        match case.advance(&pods) {
            Action::Create(pod) => assert!(pod.node == "n2" && pod.to == first),
            Action::Wait => panic!("no second pod"),
        }
        let ended = json!({ "terminated": { "message": report.to_string() } });
        let ended = if first.is_empty() { json!({ "running": {} }) } else { ended };
        pods.extend([pod("weft-test-x-0-b", &ended, second)]);
        assert!(matches!(case.advance(&pods), Action::Wait));
        case.outcome().unwrap().clone()
    }

    #[test]
    fn test_case_with_all_replies_is_ok() {
        let report = json!({ "mtu": 1500, "replies": [{ "address": "10.0.0.2", "microseconds": 120, "largest": 1500 }] });
        let outcome = outcome(&["10.0.0.2"], &["10.0.0.3"], &report);
        assert_eq!((outcome.verdict, outcome.found.as_str()), (Verdict::Ok, ""));
        assert_eq!(outcome.cells()[4..7], ["0.12 ms", "1500", "ok"]);
    }

    #[test]
    fn test_case_of_a_pod_that_ends_early_uses_its_report() {
        let mut case = case();
        let _ = case.advance(&BTreeMap::new());
        let mut pods = BTreeMap::from([pod("weft-test-x-0-a", &json!({ "running": {} }), &["10.0.0.2"])]);
        let _ = case.advance(&pods);
        let replies =
            json!([{ "address": "10.0.0.2", "microseconds": 120, "largest": 1500, "from": "10.0.0.3" }]);
        let message = json!({ "mtu": 1500, "replies": replies }).to_string();
        let status = json!({ "phase": "Succeeded", "containerStatuses": [{ "state": { "terminated": { "message": message } } }] });
        let name = "weft-test-x-0-b";
        let second = json!({ "metadata": { "name": name }, "status": status });
        pods.insert(name.to_owned(), serde_json::from_value(second).unwrap());
        let _ = case.advance(&pods);
        let outcome = case.outcome().unwrap();
        assert_eq!((outcome.verdict, &outcome.addresses[1]), (Verdict::Ok, &vec!["10.0.0.3".to_owned()]));
    }

    #[test]
    fn test_case_faults_name_address_and_mtu() {
        let replies = json!([
            { "address": "10.0.0.2", "microseconds": 120, "largest": null, "error": "Message too long" },
            { "address": "fd00::2" },
        ]);
        let silent = outcome(
            &["10.0.0.2", "fd00::2", "10.9.0.2"],
            &["10.0.0.3"],
            &json!({ "mtu": 9000, "replies": replies }),
        );
        assert_eq!(silent.verdict, Verdict::Failed);
        for part in [
            "9000 bytes, the MTU of net1, do not reach 10.0.0.2 (Message too long)",
            "no reply from fd00::2",
            "no packet was sent to 10.9.0.2",
        ] {
            assert!(silent.found.contains(part), "{}", silent.found);
        }
        let same = outcome(&["10.0.0.2"], &["10.0.0.2"], &json!({}));
        assert!(same.found.contains("both pods have the address 10.0.0.2"), "{}", same.found);
        let bare = outcome(&[], &[], &json!({}));
        assert!(bare.verdict == Verdict::Ok && bare.found.contains("no addresses"), "{}", bare.found);
    }

    #[test]
    fn test_case_timeout_names_the_pod_and_the_reason() {
        let mut case = case();
        let waiting = json!({ "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } });
        assert!(matches!(case.advance(&BTreeMap::new()), Action::Create(_)));
        let pods = BTreeMap::from([pod("weft-test-x-0-a", &waiting, &[])]);
        let (name, why) = case.waits_for(&pods);
        assert_eq!(name, "weft-test-x-0-a");
        assert!(why.contains("ImagePullBackOff: no such image"), "{why}");
    }

    #[test]
    fn test_case_timeout_names_a_pod_that_still_sends() {
        let (mut case, running) = (case(), json!({ "running": {} }));
        assert!(matches!(case.advance(&BTreeMap::new()), Action::Create(_)));
        let mut pods = BTreeMap::from([pod("weft-test-x-0-a", &running, &["10.0.0.2"])]);
        let (name, why) = case.waits_for(&pods);
        assert_eq!(name, "weft-test-x-0-a");
        assert!(why.contains("pod weft-test-x-0-b was not created"), "{why}");
        assert!(matches!(case.advance(&pods), Action::Create(_)));
        pods.extend([pod("weft-test-x-0-b", &running, &["10.0.0.3"])]);
        assert!(matches!(case.advance(&pods), Action::Wait));
        let (name, why) = case.waits_for(&pods);
        assert_eq!(name, "weft-test-x-0-b");
        assert!(why.contains("still sends packets; raise --timeout"), "{why}");
        let bare = json!({ "metadata": { "name": "weft-test-x-0-b" },
            "status": { "phase": "Running", "containerStatuses": [{ "state": running }] } });
        pods.insert(name, serde_json::from_value(bare).unwrap());
        assert!(case.waits_for(&pods).1.contains("has no network-status of blue/data"));
    }
}
