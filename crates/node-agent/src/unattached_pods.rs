//! Detection of unattached pods: pods that run without the networks they select, because weft was not called.
//!
//! The container runtime creates such pods when another CNI configuration is the first in the directory: after a
//! reboot, while the default network is updated, or before weft was installed. The kubelet reports them as Running and
//! Ready.
//!
//! - An unattached pod selects a network, has addresses, and is missing from the journal for some time.
//! - A pod whose network-status contains the pod address is attached, for example by Multus before weft was installed.
//! - Each pod is reported once and counted while it runs. Nothing is repaired; recreate the pod to attach it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use npwg::metadata::Pod;
use npwg::selection::{Annotation, Reading};
use npwg::status::{self, NETWORK_STATUS};
use tracing::warn;

use crate::agent_state::AgentState;
use node_support::sandboxes::Sandboxes;

/// Interval of the detection.
const INTERVAL: Duration = Duration::from_secs(5);
/// Time for which a pod must be unattached before it is reported: the journal is read with a delay.
const GRACE: Duration = Duration::from_secs(20);

/// Runs until the agent ends.
pub(crate) async fn follow(agent: Arc<AgentState>, sandboxes: Arc<Sandboxes>) {
    let mut unattached = Unattached::default();
    loop {
        tokio::time::sleep(INTERVAL).await;
        // A pod counts as missing only if the pods and the journal are completely known.
        if !agent.planner.sees_cluster() || sandboxes.has_broken() {
            continue;
        }
        let pods = agent.planner.pods.all();
        let uids: BTreeSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
        let failing = agent.planner.events.failing(|uid| uids.contains(uid));
        agent.metrics.failing(failing.into_iter().map(|pod| (pod.namespace, pod.name, pod.reason)));
        let due = sandboxes.with(|all| {
            let whole = all.values().filter(|sandbox| sandbox.entry.complete);
            let attached: BTreeSet<&str> = whole.map(|sandbox| sandbox.entry.plan.pod.uid.as_str()).collect();
            unattached.update(pods, &attached, Instant::now())
        });
        for pod in due {
            warn!(pod = %format_args!("{}/{}", pod.namespace, pod.name), "pod runs without the networks it selects");
            agent.planner.events.unattached(&pod);
        }
        agent.metrics.unattached(unattached.count());
    }
}

/// Unattached pods by uid.
#[derive(Debug, Default)]
struct Unattached(BTreeMap<String, Seen>);

#[derive(Debug)]
struct Seen {
    since: Instant,
    reported: bool,
}

impl Unattached {
    /// Updates the pods and returns those to report now. `attached` contains the uids in the journal.
    fn update(&mut self, pods: Vec<Arc<Pod>>, attached: &BTreeSet<&str>, now: Instant) -> Vec<Arc<Pod>> {
        let lacks = |pod: &Arc<Pod>| !attached.contains(pod.uid.as_str()) && runs_without(pod);
        let found: Vec<Arc<Pod>> = pods.into_iter().filter(lacks).collect();
        self.0.retain(|uid, _| found.iter().any(|pod| pod.uid == *uid));
        let mut due = Vec::new();
        for pod in found {
            let seen = self.0.entry(pod.uid.clone()).or_insert(Seen { since: now, reported: false });
            if !seen.reported && now.saturating_duration_since(seen.since) >= GRACE {
                seen.reported = true;
                due.push(pod);
            }
        }
        due
    }

    /// Returns the number of reported pods.
    fn count(&self) -> usize {
        self.0.values().filter(|seen| seen.reported).count()
    }
}

/// Whether a pod has addresses and selects a network, but has no network-status that contains one of these addresses.
fn runs_without(pod: &Pod) -> bool {
    let selects = |annotation: Annotation| {
        let text = pod.annotations.get(annotation.key());
        text.is_some_and(|text| !Reading::of(annotation, text, &pod.namespace).elements.is_empty())
    };
    let has_status = || {
        let text = pod.annotations.get(NETWORK_STATUS).map_or("", String::as_str);
        let entries: Vec<status::Entry> = serde_json::from_str(text).unwrap_or_default();
        entries.iter().flat_map(|entry| &entry.ips).any(|ip| {
            let address = ip.split_once('/').map_or(ip.as_str(), |(address, _)| address);
            pod.addresses.iter().any(|known| known == address)
        })
    };
    !pod.host_network
        && !pod.addresses.is_empty()
        && (selects(Annotation::Networks) || selects(Annotation::DefaultNetwork))
        && !has_status()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(networks: &str) -> Pod {
        Pod {
            namespace: "n".into(),
            name: "p".into(),
            uid: "1".into(),
            annotations: BTreeMap::from([(Annotation::Networks.key().to_owned(), networks.to_owned())]),
            addresses: vec!["10.0.0.2".into()],
            ..Pod::default()
        }
    }

    fn with_status(ip: &str) -> Pod {
        let mut pod = pod("red");
        let text = format!(r#"[{{"name":"cbr0","interface":"eth0","ips":["{ip}"],"default":true}}]"#);
        pod.annotations.insert(NETWORK_STATUS.to_owned(), text);
        pod
    }

    #[test]
    fn unattached_pod_selects_a_network_and_has_no_status() {
        assert!(runs_without(&pod("red")));
        // The status is that of an earlier sandbox, before a reboot.
        assert!(runs_without(&with_status("10.0.0.9")));
        for other in [
            pod(""),
            pod("[]"),
            pod("[{"),
            Pod { addresses: Vec::new(), ..pod("red") },
            Pod { host_network: true, ..pod("red") },
            with_status("10.0.0.2"),
            with_status("10.0.0.2/24"),
        ] {
            assert!(!runs_without(&other), "{other:?}");
        }
    }

    #[test]
    fn unattached_pod_is_reported_once_until_attached_or_deleted() {
        let (mut unattached, start) = (Unattached::default(), Instant::now());
        let pods = || vec![Arc::new(pod("red"))];
        let none = BTreeSet::new();
        assert_eq!(unattached.update(pods(), &none, start).len(), 0);
        assert_eq!((unattached.update(pods(), &none, start + GRACE).len(), unattached.count()), (1, 1));
        assert_eq!((unattached.update(pods(), &none, start + 2 * GRACE).len(), unattached.count()), (0, 1));
        unattached.update(pods(), &BTreeSet::from(["1"]), start + 3 * GRACE);
        assert_eq!(unattached.count(), 0);
        unattached.update(pods(), &none, start + 4 * GRACE);
        unattached.update(Vec::new(), &none, start + 5 * GRACE);
        assert_eq!(
            unattached.update(pods(), &none, start + 6 * GRACE).len(),
            0,
            "its grace period begins again"
        );
    }
}
