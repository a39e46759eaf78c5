//! `weft list --failed`: the pods whose networks fail now, one row for each pod, from pods and Events of the cluster.
//!
//! ```text
//!   pods ── annotation, network-status, phase ──┐
//!   Events of weft ── newest of each pod ───────┼──► failing pods, newest failure first
//!   Events of the kubelet (FailedCreatePodSandBox) ┘
//! ```
//!
//! - A pod fails if it runs without a network that it selects, if the annotation is invalid, or if the newest Event
//!   says that a network failed ([`event_effect`]) and the pod is not ready. The row counts repetitions.
//! - Without an agent no Event of weft is sent: then the kubelet's Event has the error of `weft-cni`.
//! - A pod that only waits is not failing.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Event as EventObject;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt};
use kube_support::event_effect::{EventEffect, event_effect};
use npwg::selection::Annotation;
use npwg::status::{self, MissingNetwork, NETWORK_STATUS, missing_networks};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cluster::{ListedPods, PAGE};
use crate::cluster_access::ClusterAccess;
use cli_support::async_runtime::runtime;
use cli_support::failure::Failure;
use cli_support::output::{self, Format};
use cli_support::table;
use cli_support::timestamp::{age_of, parse_utc};
use kube_support::resources::PodObject;
use kube_support::{api_error, resource};

/// Events of weft, and those of the kubelet about sandboxes that it could not create.
const OF_WEFT: &str = "source=weft";
const OF_KUBELET: &str = "reason=FailedCreatePodSandBox";
/// Text before `weft-cni`'s error in a kubelet Event, after the sandbox identifier.
const CALLED: &str = "plugin type=\"weft\"";
/// Reason for a pod without an Event: it runs without a network, or the annotation is invalid.
const MISSING: &str = "NetworksMissing";
const INVALID: &str = "AnnotationInvalid";

/// Pod, reduced to the fields in use.
#[derive(Clone, Debug, Deserialize)]
struct CandidatePod {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: CandidateSpec,
    #[serde(default)]
    status: CandidateStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CandidateSpec {
    node_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct CandidateStatus {
    phase: String,
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
}

resource!(CandidatePod as PodObject);

/// Summary of one pod's Events.
#[derive(Clone, Debug, Default)]
struct PodEvents {
    /// Newest failure: time, reason and message.
    failure: Option<(u64, String, String)>,
    /// Time at which the networks were last reported to work.
    works_since: u64,
    /// Number of failures, with repetitions.
    failures: u64,
}

/// Row and document for a failing pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct FailingPod {
    namespace: String,
    name: String,
    node: String,
    /// Networks that fail, as far as the error names them; else those that the pod lacks.
    networks: Vec<String>,
    reason: String,
    message: String,
    hint: String,
    /// Number of failures in Events from the last hour; zero if there is no Event.
    failures: u64,
    /// Time of the newest failure, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_failure: Option<u64>,
}

/// Lists the failing pods.
///
/// # Errors
/// The cluster cannot be read; a quiet failure if pods fail.
pub(super) fn list(access: &ClusterAccess, listed: ListedPods<'_>, format: Format) -> Result<(), Failure> {
    let pods = runtime()?.block_on(async { failing(access.client().await?, listed).await })?;
    match format {
        Format::Json | Format::Yaml => output::print_document(format, &pods)?,
        Format::Text | Format::Wide if pods.is_empty() => output::print("no pod fails\n")?,
        Format::Text | Format::Wide => output::print(&lay_out(&pods))?,
    }
    match pods.len() {
        0 => Ok(()),
        1 => Err(Failure::quiet("1 pod fails")),
        count => Err(Failure::quiet(format!("{count} pods fail"))),
    }
}

async fn failing(client: Client, listed: ListedPods<'_>) -> Result<Vec<FailingPod>, Failure> {
    let pods: Vec<CandidatePod> = all(&listed.api(client.clone()), listed.field_selector(), "pods").await?;
    let mut events: BTreeMap<String, PodEvents> = BTreeMap::new();
    for selector in [OF_WEFT, OF_KUBELET] {
        let selector = Some(format!("involvedObject.kind=Pod,{selector}"));
        let found: Vec<EventObject> = all(&listed.api(client.clone()), selector, "events").await?;
        for event in &found {
            let uid = event.involved_object.uid.clone().unwrap_or_default();
            events.entry(uid).or_default().add(event);
        }
    }
    let none = PodEvents::default();
    let of = |pod: &CandidatePod| events.get(pod.metadata.uid.as_deref()?);
    let mut rows: Vec<FailingPod> =
        pods.iter().filter_map(|pod| FailingPod::of(pod, of(pod).unwrap_or(&none))).collect();
    rows.sort_by_key(|row| (row.last_failure.is_none(), std::cmp::Reverse(row.last_failure)));
    Ok(rows)
}

/// Returns all objects, page by page.
async fn all<K>(api: &Api<K>, selector: Option<String>, what: &str) -> Result<Vec<K>, Failure>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let (mut parameters, mut objects) = (ListParams::default().limit(PAGE), Vec::new());
    parameters.field_selector = selector;
    loop {
        let page = api.list(&parameters).await;
        let page = page.map_err(|error| api_error::failure(format_args!("list {what}"), &error))?;
        objects.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(objects),
        }
    }
}

/// Returns the names of networks that a message names, by name or by interface; all of them if it names none.
fn named(message: &str, missing: &[MissingNetwork]) -> Vec<String> {
    let is_word = |text: &str| {
        message.match_indices(text).any(|(start, _)| {
            let is_end =
                |letter: Option<char>| letter.is_none_or(|letter| !letter.is_alphanumeric() && letter != '-');
            is_end(message[..start].chars().next_back())
                && is_end(message[start + text.len()..].chars().next())
        })
    };
    let is_named = |one: &&MissingNetwork| is_word(&one.network) || is_word(&one.interface);
    let named: Vec<&MissingNetwork> = missing.iter().filter(is_named).collect();
    let shown = if named.is_empty() { missing.iter().collect() } else { named };
    shown.into_iter().map(|one| one.network.clone()).collect()
}

/// Returns the next step for a reason.
fn hint(reason: &str, message: &str, (namespace, pod, node): (&str, &str, &str)) -> String {
    let rule = message.strip_suffix(']').and_then(|text| text.rsplit_once('[')).map(|(_, rule)| rule);
    match (reason, rule) {
        ("NoNetworkFound", _) => "kubectl get network-attachment-definitions -A".to_owned(),
        (_, Some(rule)) => format!("weft lint --explain {rule}"),
        (MISSING | "InterfaceDrifted", _) => "recreate the pod".to_owned(),
        (INVALID, _) => format!("kubectl get pod -n {namespace} {pod} -o yaml | weft lint -"),
        ("DetachFailed", _) => format!("sudo weft detach {namespace}/{pod} on node {node}"),
        _ => format!("weft history {namespace}/{pod} on node {node}"),
    }
}

fn lay_out(pods: &[FailingPod]) -> String {
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let cells = |pod: &FailingPod| {
        let FailingPod { namespace, name, node, networks, reason, message, hint, failures, last_failure } =
            pod;
        vec![
            namespace.clone(),
            name.clone(),
            or_dash(node),
            or_dash(&networks.join(",")),
            reason.clone(),
            if *failures == 0 { "-".to_owned() } else { failures.to_string() },
            last_failure.map_or("-".to_owned(), age_of),
            format!("{message}; {hint}"),
        ]
    };
    let headings = ["namespace", "pod", "node", "network", "reason", "failures", "last", "message and hint"];
    table::lay_out(&headings, &pods.iter().map(cells).collect::<Vec<_>>(), 0)
}

// === impl PodEvents ===

impl PodEvents {
    fn add(&mut self, event: &EventObject) {
        let reason = event.reason.as_deref().unwrap_or_default();
        let message = event.message.as_deref().unwrap_or_default();
        let is_of_kubelet = reason == OF_KUBELET.trim_start_matches("reason=");
        let (effect, message, reason) = if is_of_kubelet {
            let Some(start) = message.find(CALLED) else { return };
            (Some(EventEffect::Fails), &message[start..], "AttachFailed")
        } else {
            (event_effect(reason), message, reason)
        };
        let text = |time: Option<serde_json::Value>| time.and_then(|time| parse_utc(time.as_str()?));
        let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
        let times = [
            text(series.and_then(|time| serde_json::to_value(time).ok())),
            text(event.event_time.as_ref().and_then(|time| serde_json::to_value(time).ok())),
            text(event.last_timestamp.as_ref().and_then(|time| serde_json::to_value(time).ok())),
        ];
        let at = times.into_iter().flatten().max().unwrap_or_default();
        match effect {
            Some(EventEffect::Works) => self.works_since = self.works_since.max(at),
            Some(EventEffect::Fails) => {
                let counts = [event.series.as_ref().and_then(|series| series.count), event.count];
                let count = counts.into_iter().flatten().max().unwrap_or(1).max(1);
                // The kubelet repeats what weft says in its own Event: it is counted once.
                if !is_of_kubelet || self.failures == 0 {
                    self.failures += u64::try_from(count).unwrap_or_default();
                }
                let is_newer = self.failure.as_ref().is_none_or(|(known, ..)| at > *known);
                if is_newer && (!is_of_kubelet || self.failure.is_none()) {
                    self.failure = Some((at, reason.to_owned(), message.to_owned()));
                }
            }
            None => {}
        }
    }
}

// === impl FailingPod ===

impl FailingPod {
    /// Returns the row of a pod; `None` unless it fails.
    fn of(pod: &CandidatePod, events: &PodEvents) -> Option<FailingPod> {
        let CandidateStatus { phase, conditions } = &pod.status;
        if matches!(phase.as_str(), "Succeeded" | "Failed") {
            return None;
        }
        let namespace = pod.namespace().unwrap_or_default();
        let annotation = |key: &str| pod.annotations().get(key).map_or("", String::as_str);
        let entries: Vec<status::Entry> =
            serde_json::from_str(annotation(NETWORK_STATUS)).unwrap_or_default();
        let selected = missing_networks(annotation(Annotation::Networks.key()), &namespace, &entries);
        let is_ready = conditions.iter().any(|one| one.r#type == "Ready" && one.status == "True");
        let newest = events.failure.as_ref().filter(|(at, ..)| *at > events.works_since);
        let is_drift = newest.is_some_and(|(_, reason, _)| reason == "InterfaceDrifted");
        let (missing, fault) = match selected {
            Ok(missing) => (missing, None),
            Err(refusal) => (Vec::new(), Some(refusal.fault().to_string())),
        };
        let lacks_networks = phase == "Running" && !missing.is_empty();
        let (reason, message) = match (newest, fault) {
            (Some((_, reason, message)), _) if !is_ready || is_drift || lacks_networks => {
                (reason.clone(), message.clone())
            }
            (_, Some(fault)) => (INVALID.to_owned(), fault),
            _ if lacks_networks => {
                let names: Vec<&str> = missing.iter().map(|one| one.network.as_str()).collect();
                (MISSING.to_owned(), format!("runs without {}", names.join(", ")))
            }
            _ => return None,
        };
        let (name, node) = (pod.name_any(), pod.spec.node_name.clone());
        Some(FailingPod {
            networks: named(&message, &missing),
            hint: hint(&reason, &message, (&namespace, &name, &node)),
            failures: events.failures,
            last_failure: newest.map(|(at, ..)| *at),
            namespace,
            name,
            node,
            reason,
            message,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(phase: &str, networks: &str, status: &str, ready: &str) -> CandidatePod {
        serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "blue", "uid": "u", "annotations": {
                "k8s.v1.cni.cncf.io/networks": networks, NETWORK_STATUS: status,
            } },
            "spec": { "nodeName": "w1" },
            "status": { "phase": phase, "conditions": [{ "type": "Ready", "status": ready }] },
        }))
        .unwrap()
    }

    fn events(all: &[(&str, &str, &str, u64)]) -> PodEvents {
        let mut events = PodEvents::default();
        for (reason, at, message, count) in all {
            let event: Value = json!({
                "metadata": {}, "involvedObject": {}, "reason": reason, "message": message,
                "eventTime": at, "series": { "count": count, "lastObservedTime": at },
            });
            events.add(&serde_json::from_value(event).unwrap());
        }
        events
    }

    const EARLY: &str = "2026-01-02T03:04:05.000000Z";
    const LATE: &str = "2026-01-02T03:05:05.000000Z";
    const STATUS: &str =
        r#"[{"name":"home","interface":"eth0","default":true},{"name":"blue/a","interface":"net1"}]"#;

    #[test]
    fn list_failed_has_a_row_for_a_pod_not_for_a_retry() {
        let why = "attach blue/web net2: macvlan: master \"eth9\": no such interface";
        let all = [("AttachFailed", LATE, why, 40), ("NetworkRefused", EARLY, "blue/a: no", 3)];
        let row = FailingPod::of(&pod("Pending", "a,b", "", "False"), &events(&all)).unwrap();
        assert_eq!(
            (row.reason.as_str(), row.message.as_str(), row.failures, row.networks),
            ("AttachFailed", why, 43, vec!["blue/b".to_owned()])
        );
        assert_eq!(row.hint, "weft history blue/web on node w1");
    }

    #[test]
    fn list_failed_takes_the_newest_event_of_a_pod() {
        let attached = pod("Running", "a", STATUS, "True");
        let failed = ("AttachFailed", EARLY, "why", 1);
        let works = ("AddedInterface", LATE, "Add eth0", 1);
        assert_eq!(FailingPod::of(&attached, &events(&[failed, works])), None, "a later attempt succeeded");
        let drifted = ("InterfaceDrifted", LATE, "net1 is missing", 1);
        let works = ("AddedInterface", EARLY, "Add eth0", 1);
        let row = FailingPod::of(&attached, &events(&[works, drifted])).unwrap();
        assert_eq!((row.reason.as_str(), row.hint.as_str()), ("InterfaceDrifted", "recreate the pod"));
        // A new sandbox of a pod that still shows the status of the old one.
        let again = ("AttachFailed", LATE, "why", 1);
        assert!(FailingPod::of(&pod("Running", "a", STATUS, "False"), &events(&[works, again])).is_some());
    }

    #[test]
    fn list_failed_knows_pods_without_an_event() {
        let none = PodEvents::default();
        let row = FailingPod::of(&pod("Running", "a,red/b", STATUS, "True"), &none).unwrap();
        assert_eq!((row.reason.as_str(), row.networks), (MISSING, vec!["red/b".to_owned()]));
        assert_eq!(FailingPod::of(&pod("Pending", "[{", "", "False"), &none).unwrap().reason, INVALID);
        assert_eq!(FailingPod::of(&pod("Pending", "a", "", "False"), &none), None, "it only waits");
        assert_eq!(FailingPod::of(&pod("Succeeded", "b", "", "False"), &none), None);
    }

    #[test]
    fn list_failed_reads_the_kubelet_where_no_agent_runs() {
        let text = "Failed to create pod sandbox: rpc error: failed to setup network for sandbox \"0a1b\": plugin \
                    type=\"weft\" name=\"weft\" failed (add): no node agent listens on /run/weft/agent.sock";
        let of_kubelet = ("FailedCreatePodSandBox", LATE, text, 9);
        let waits = pod("Pending", "a", "", "False");
        let row = FailingPod::of(&waits, &events(&[of_kubelet])).unwrap();
        assert!(row.message.starts_with("plugin type=\"weft\"") && row.failures == 9, "{row:?}");
        let of_weft = ("NoNetworkFound", EARLY, "network blue/a: no such definition", 4);
        let row = FailingPod::of(&waits, &events(&[of_weft, of_kubelet])).unwrap();
        assert_eq!((row.reason.as_str(), row.failures), ("NoNetworkFound", 4));
        let of_another = ("FailedCreatePodSandBox", LATE, "plugin type=\"calico\" failed", 9);
        assert_eq!(FailingPod::of(&waits, &events(&[of_another])), None);
    }
}
