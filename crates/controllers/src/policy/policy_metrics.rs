//! Metrics of the policy controller.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Upper bounds of the histogram buckets for the delay of a write, in seconds.
const CLASSES: [f64; 10] = [0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 5.0, 60.0];

/// Metrics of the controller.
pub(crate) struct PolicyMetrics {
    registry: Registry,
    pub(super) leader: Gauge,
    pub(super) policies: Gauge<u64, AtomicU64>,
    pub(super) refused: Gauge<u64, AtomicU64>,
    pub(super) pods: Gauge<u64, AtomicU64>,
    pub(super) unverified: Gauge<u64, AtomicU64>,
    pub(super) written: Counter,
    pub(super) failed: Counter,
    pub(super) bytes: Counter,
    pub(super) delay: Histogram,
}

// === impl PolicyMetrics ===

impl PolicyMetrics {
    /// Registers the metrics.
    pub(crate) fn new() -> PolicyMetrics {
        let mut registry = Registry::with_prefix("weft_policy");
        let (leader, policies, refused) = (Gauge::default(), Gauge::default(), Gauge::default());
        let (pods, unverified) = (Gauge::default(), Gauge::default());
        let (written, failed, bytes) = (Counter::default(), Counter::default(), Counter::default());
        let delay = Histogram::new(CLASSES);
        registry.register(
            "leader",
            "Whether this controller holds the Lease (1) or waits for it (0)",
            leader.clone(),
        );
        for (name, help, gauge) in [
            ("policies", "Number of MultiNetworkPolicies", &policies),
            (
                "refused",
                "Number of policies that are invalid or have too many peers; their Events have the reason",
                &refused,
            ),
            ("pods", "Number of pods with additional networks", &pods),
            (
                "unverified_addresses",
                "Number of addresses of pods that are not counted, because their nodes do not lease them",
                &unverified,
            ),
        ] {
            registry.register(name, help, gauge.clone());
        }
        for (name, help, counter) in [
            ("address_set_writes", "Number of PolicyAddressSets written or deleted", &written),
            ("address_set_write_failures", "Number of failed writes of PolicyAddressSets", &failed),
            ("address_set_bytes", "Number of bytes of written PolicyAddressSets", &bytes),
        ] {
            registry.register(name, help, counter.clone());
        }
        registry.register(
            "address_set_delay_seconds",
            "Time from a change to its written PolicyAddressSet in seconds",
            delay.clone(),
        );
        PolicyMetrics { registry, leader, policies, refused, pods, unverified, written, failed, bytes, delay }
    }

    /// Returns the metrics page.
    pub(crate) fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }
}
