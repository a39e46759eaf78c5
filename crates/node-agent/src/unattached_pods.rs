//! Pods that run without the networks they select, because their runtime made them without asking weft.
//!
//! It does so where another configuration is the first in its directory when a pod is made: after a reboot, while a default
//! network is updated, before weft came. Nobody else would tell: such a pod is Running and Ready.
//!
//! Rules:
//! - it is one whose annotation selects something, which has addresses, and of which the journal knows nothing, for a while;
//! - a network-status that has the pod's address was written by who attached it, for instance Multus before us;
//! - each is told once, and counted as long as it runs so. Nothing is repaired: a pod that is made anew is whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use npwg::metadata::Pod;
use npwg::selection::{Annotation, Reading};
use npwg::status::{self, NETWORK_STATUS};
use tracing::warn;

use crate::agent_state::AgentState;
use node_support::sandboxes::Sandboxes;

/// How often it is looked.
const PAUSE: Duration = Duration::from_secs(5);
/// How long one must be one: the journal is read a little after it is written.
const GRACE: Duration = Duration::from_secs(20);

/// Looks for ever.
pub(crate) async fn follow(agent: Arc<AgentState>, sandboxes: Arc<Sandboxes>) {
    let mut unattached = Unattached::default();
    loop {
        tokio::time::sleep(PAUSE).await;
        // What is not known is not missing.
        if !agent.planner.sees_cluster() || sandboxes.has_broken() {
            continue;
        }
        let all = sandboxes.all();
        let whole = all.values().filter(|sandbox| sandbox.entry.complete);
        let attached: BTreeSet<&str> = whole.map(|sandbox| sandbox.entry.plan.pod.uid.as_str()).collect();
        for pod in unattached.look(agent.planner.pods.all(), &attached, Instant::now()) {
            warn!(pod = %format_args!("{}/{}", pod.namespace, pod.name), "runs without the networks it selects");
            agent.planner.events.unattached(&pod);
        }
        agent.metrics.unattached(unattached.count());
    }
}

/// Those that were seen, by uid.
#[derive(Debug, Default)]
struct Unattached(BTreeMap<String, Seen>);

#[derive(Debug)]
struct Seen {
    since: Instant,
    told: bool,
}

impl Unattached {
    /// Those that are news; `attached` are the uids that the journal knows.
    fn look(&mut self, pods: Vec<Arc<Pod>>, attached: &BTreeSet<&str>, now: Instant) -> Vec<Arc<Pod>> {
        let lacks = |pod: &Arc<Pod>| !attached.contains(pod.uid.as_str()) && runs_without(pod);
        let found: Vec<Arc<Pod>> = pods.into_iter().filter(lacks).collect();
        self.0.retain(|uid, _| found.iter().any(|pod| pod.uid == *uid));
        let mut news = Vec::new();
        for pod in found {
            let seen = self.0.entry(pod.uid.clone()).or_insert(Seen { since: now, told: false });
            if !seen.told && now.saturating_duration_since(seen.since) >= GRACE {
                seen.told = true;
                news.push(pod);
            }
        }
        news
    }

    /// How many there are for certain.
    fn count(&self) -> usize {
        self.0.values().filter(|seen| seen.told).count()
    }
}

/// Does it run, select something, and have no status of its own time?
fn runs_without(pod: &Pod) -> bool {
    let selects = |annotation: Annotation| {
        let text = pod.annotations.get(annotation.key());
        text.is_some_and(|text| !Reading::of(annotation, text, &pod.namespace).elements.is_empty())
    };
    let is_told_of = || {
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
        && !is_told_of()
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
    fn it_selects_runs_and_nobody_attached_it() {
        assert!(runs_without(&pod("red")));
        // Of another sandbox, before a reboot.
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
    fn it_is_told_once_after_a_while_and_forgotten_when_it_is_attached_or_gone() {
        let (mut unattached, start) = (Unattached::default(), Instant::now());
        let pods = || vec![Arc::new(pod("red"))];
        let nobody = BTreeSet::new();
        assert_eq!(unattached.look(pods(), &nobody, start).len(), 0);
        assert_eq!((unattached.look(pods(), &nobody, start + GRACE).len(), unattached.count()), (1, 1));
        assert_eq!((unattached.look(pods(), &nobody, start + 2 * GRACE).len(), unattached.count()), (0, 1));
        unattached.look(pods(), &BTreeSet::from(["1"]), start + 3 * GRACE);
        assert_eq!(unattached.count(), 0);
        unattached.look(pods(), &nobody, start + 4 * GRACE);
        unattached.look(Vec::new(), &nobody, start + 5 * GRACE);
        assert_eq!(unattached.look(pods(), &nobody, start + 6 * GRACE).len(), 0, "its time begins anew");
    }
}
