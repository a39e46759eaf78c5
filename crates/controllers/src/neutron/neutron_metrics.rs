//! Metrics about the Neutron controller, from figures that it has anyway.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Possible outcomes for an operation on a pod's ports.
const OPERATIONS: [&str; 4] = ["allocated", "activated", "released", "failed"];

/// Number of operations by outcome.
pub(crate) type Operations = BTreeMap<&'static str, u64>;

/// Figures at scrape time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NeutronFigures {
    /// Whether this controller holds the Lease.
    pub(crate) leads: bool,
    /// Number of requests to OpenStack.
    pub(crate) requests: u64,
    /// Number of unused ports in the pools.
    pub(crate) pool_ports: usize,
    /// Number of pods with Neutron ports.
    pub(crate) pods: usize,
    /// Number of pods with ports that are not all ACTIVE yet.
    pub(crate) pending: usize,
}

/// Returns the counts for a controller that has done nothing yet.
pub(crate) fn no_operations() -> Operations {
    OPERATIONS.into_iter().map(|outcome| (outcome, 0)).collect()
}

impl NeutronFigures {
    /// Returns the metrics page.
    pub(crate) fn page(&self, operations: &Operations) -> String {
        let NeutronFigures { leads, requests, pool_ports, pods, pending } = self;
        let mut page = String::new();
        let numbers = [
            (
                "leader",
                "gauge",
                "Whether this controller holds the Lease (1) or waits for it (0)",
                u64::from(*leads),
            ),
            ("api_requests_total", "counter", "Number of requests to OpenStack", *requests),
            ("pool_ports", "gauge", "Number of unused ports in the pools", *pool_ports as u64),
            ("pods", "gauge", "Number of pods with Neutron ports", *pods as u64),
            ("pods_pending", "gauge", "Number of pods whose ports are not all ACTIVE yet", *pending as u64),
        ];
        // Writing to a string cannot fail.
        for (name, kind, help, value) in numbers {
            let _ = write!(
                page,
                "# HELP weft_neutron_{name} {help}.\n# TYPE weft_neutron_{name} {kind}\nweft_neutron_{name} {value}\n"
            );
        }
        let name = "weft_neutron_port_operations_total";
        let help = "Number of operations on the ports of a pod, by outcome.";
        let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} counter\n");
        for (outcome, count) in operations {
            let _ = writeln!(page, "{name}{{outcome=\"{outcome}\"}} {count}");
        }
        page
    }
}
