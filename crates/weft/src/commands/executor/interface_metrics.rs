//! Traffic on each pod's interfaces by network, for Prometheus.
//!
//! The counters are in the pods' network namespaces, which only a privileged process can enter: so the
//! executor serves them, and not the agent. The names are those in the journal; `weft-cni sandbox counters`
//! reads the kernel.
//!
//! - A scrape costs at most one run of `weft-cni`, and one request to the kernel for each interface. Scrapes
//!   within [`FRESH`] get the same page.
//! - A pod's series end with the sandbox. At most [`SERIES_MAX`] interfaces have series; the others are counted.
//! - Counters are from the pod's point of view: `receive` is traffic to the pod.
//! - Sandboxes with network policies cost a second run, for the rule counters ([`super::policy_metrics`]).

use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube_support::health::HealthStatus;
use node_support::metric_labels;
use node_support::sandboxes::Sandboxes;
use node_support::weft_cni::WeftCni;
use rpc::diagnosis::{CountersRequest, InterfaceCounters, SandboxNamespace};
use rpc::journal::Entry;

use super::policy_metrics;
use crate::policy_counters;

/// Time for which a page is served again.
const FRESH: Duration = Duration::from_secs(5);
/// Maximum number of interfaces with series.
const SERIES_MAX: usize = 4096;

/// Metrics about a node's interfaces.
pub(super) struct InterfaceMetrics {
    weft_cni: WeftCni,
    sandboxes: Sandboxes,
    page: Mutex<Option<(Instant, String)>>,
}

/// Labels for an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Labels {
    namespace: String,
    pod: String,
    interface: String,
    network: String,
}

/// Function that returns a metric's value.
type Field = fn(&InterfaceCounters) -> u64;

/// Metrics for an interface: name, help, value.
const METRICS: [(&str, &str, Field); 8] = [
    ("receive_bytes", "Number of bytes that an interface of a pod received", |all| all.received.bytes),
    ("receive_packets", "Number of packets that an interface of a pod received", |all| all.received.packets),
    ("receive_errors", "Number of faulty packets that an interface of a pod received", |all| {
        all.received.errors
    }),
    ("receive_packets_dropped", "Number of received packets that an interface of a pod dropped", |all| {
        all.received.dropped
    }),
    ("transmit_bytes", "Number of bytes that an interface of a pod sent", |all| all.sent.bytes),
    ("transmit_packets", "Number of packets that an interface of a pod sent", |all| all.sent.packets),
    ("transmit_errors", "Number of packets that an interface of a pod failed to send", |all| all.sent.errors),
    ("transmit_packets_dropped", "Number of packets to send that an interface of a pod dropped", |all| {
        all.sent.dropped
    }),
];

impl InterfaceMetrics {
    /// Returns the metrics for a journal's sandboxes.
    pub(super) fn new(weft_cni: WeftCni, sandboxes: Sandboxes) -> InterfaceMetrics {
        InterfaceMetrics { weft_cni, sandboxes, page: Mutex::default() }
    }

    fn read(&self) -> String {
        self.sandboxes.read_all();
        let mut requests = Vec::new();
        let mut labels = Vec::new();
        let mut omitted = 0;
        self.sandboxes.with(|all| {
            for entry in all.values().map(|sandbox| &sandbox.entry).filter(|entry| !entry.netns.is_empty()) {
                let own = labels_of(entry);
                if labels.len() + own.len() > SERIES_MAX {
                    omitted += own.len();
                    continue;
                }
                let sandbox =
                    SandboxNamespace { netns: entry.netns.clone(), namespace: entry.namespace.clone() };
                let interfaces = own.iter().map(|labels| labels.interface.clone()).collect();
                requests.push(CountersRequest { sandbox, interfaces });
                labels.extend(own);
            }
        });
        let (counters, failed) = match self.weft_cni.counters(&requests) {
            Ok(counters) => (counters.into_iter().flatten().collect(), false),
            Err(_) => (Vec::new(), true),
        };
        let policies = self.sandboxes.with(|all| {
            let entries: Vec<&Entry> = all.values().map(|sandbox| &*sandbox.entry).collect();
            policy_counters::requests(&entries)
        });
        let policies = policies.read(&self.weft_cni).ok();
        page(&labels, &counters, (omitted, failed)) + &policy_metrics::page(policies.as_ref())
    }
}

impl HealthStatus for InterfaceMetrics {
    fn page(&self) -> String {
        let mut page = self.page.lock().unwrap_or_else(PoisonError::into_inner);
        match &*page {
            Some((at, page)) if at.elapsed() < FRESH => page.clone(),
            _ => {
                let fresh = self.read();
                *page = Some((Instant::now(), fresh.clone()));
                fresh
            }
        }
    }

    fn waits_for(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Returns the labels for a sandbox's interfaces.
fn labels_of(entry: &Entry) -> Vec<Labels> {
    let pod = &entry.plan.pod;
    let attached = entry.network_status.iter().filter(|status| !status.interface.is_empty());
    let labels = attached.map(|status| Labels {
        namespace: pod.namespace.clone(),
        pod: pod.name.clone(),
        interface: status.interface.clone(),
        network: status.name.clone(),
    });
    let mut all: Vec<Labels> = labels.collect();
    // Two rows of the status can have one interface; a page with a repeated series is invalid.
    all.dedup_by(|one, other| one.interface == other.interface);
    all
}

/// Returns the page. An interface without counters is gone, and has no series.
fn page(
    labels: &[Labels],
    counters: &[Option<InterfaceCounters>],
    (omitted, failed): (usize, bool),
) -> String {
    let mut page = String::new();
    for (name, help, value) in METRICS {
        let name = format!("weft_interface_{name}_total");
        // Writing to a string cannot fail.
        let _ = writeln!(page, "# HELP {name} {help}.\n# TYPE {name} counter");
        for (labels, counters) in labels.iter().zip(counters) {
            let Some(counters) = counters else { continue };
            let Labels { namespace, pod, interface, network } = labels;
            let pairs =
                [("namespace", namespace), ("pod", pod), ("interface", interface), ("network", network)];
            let labels = metric_labels::labels(pairs.map(|(name, value)| (name, value.as_str())));
            let _ = writeln!(page, "{name}{labels} {}", value(counters));
        }
    }
    let states = [
        ("interfaces_omitted", "Number of interfaces without series, because there are too many", omitted),
        (
            "interface_read_failed",
            "Whether the last reading of the counters of interfaces failed",
            usize::from(failed),
        ),
    ];
    for (name, help, value) in states {
        let _ = writeln!(page, "# HELP weft_{name} {help}.\n# TYPE weft_{name} gauge\nweft_{name} {value}");
    }
    page
}

/// Returns a page with a series for each family, for the metrics reference.
#[cfg(test)]
pub(crate) fn example() -> String {
    let word = |text: &str| text.to_owned();
    let labels = Labels {
        namespace: word("NAMESPACE"),
        pod: word("POD"),
        interface: word("INTERFACE"),
        network: word("NETWORK"),
    };
    let interfaces = page(&[labels], &[Some(InterfaceCounters::default())], (0, false));
    interfaces + &policy_metrics::page(Some(&policy_metrics::example()))
}

#[cfg(test)]
mod tests {
    use rpc::diagnosis::Traffic;

    use super::*;

    #[test]
    fn interface_metrics_have_a_series_for_each_present_interface() {
        let labels = |pod: &str| Labels {
            namespace: "blue".into(),
            pod: pod.into(),
            interface: "net1".into(),
            network: "blue/a\"\n".into(),
        };
        let received = Traffic { bytes: 7, packets: 3, errors: 2, dropped: 1 };
        let present = InterfaceCounters { received, ..InterfaceCounters::default() };
        let page = page(&[labels("web"), labels("gone")], &[Some(present), None], (5, true));
        for line in [
            r#"weft_interface_receive_bytes_total{namespace="blue",pod="web",interface="net1",network="blue/a\"\n"} 7"#,
            r#"weft_interface_receive_packets_dropped_total{namespace="blue",pod="web",interface="net1",network="blue/a\"\n"} 1"#,
            r#"weft_interface_transmit_bytes_total{namespace="blue",pod="web",interface="net1",network="blue/a\"\n"} 0"#,
            "weft_interfaces_omitted 5",
            "weft_interface_read_failed 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        assert!(!page.contains("gone"), "{page}");
    }
}
