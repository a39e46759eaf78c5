//! IPAM controller: runs [`IpamReconciler`] periodically and counts the results.

mod gone_nodes;
mod pool_deletion;
mod pool_metrics;
pub(crate) mod reconciler;
mod round_error;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::Mutex;
use tracing::{info, warn};

use crate::ipam::pool_metrics::PoolMetrics;
use crate::ipam::reconciler::{IpamReconciler, Round};
use kube_support::health::HealthStatus;

/// Time without a successful reconciliation, besides three intervals, after which the controller is stuck. One may take
/// minutes in a large cluster.
const STALLED_MAX: Duration = Duration::from_secs(300);

/// IPAM controller.
pub(crate) struct IpamController {
    reconciler: Mutex<IpamReconciler>,
    every: Duration,
    metrics: IpamMetrics,
    /// End of the last successful round, and why later ones failed.
    last_round: std::sync::Mutex<(Option<Instant>, String)>,
}

/// Metrics of the controller.
pub(crate) struct IpamMetrics {
    registry: Registry,
    leader: Gauge,
    rounds: Counter,
    failed: Counter,
    reclaimed: Counter,
    ended: Counter,
    pools: Gauge,
    leased: Gauge,
    findings: Gauge<u64, AtomicU64>,
    usage: PoolMetrics,
}

// === impl IpamMetrics ===

impl IpamMetrics {
    /// Registers the metrics.
    pub(crate) fn new() -> IpamMetrics {
        let mut registry = Registry::with_prefix("weft_ipam");
        let (rounds, failed) = (Counter::default(), Counter::default());
        let (reclaimed, ended) = (Counter::default(), Counter::default());
        let (leader, pools, leased) = (Gauge::default(), Gauge::default(), Gauge::default());
        let findings = Gauge::default();
        for (name, help, counter) in [
            ("reconciliations", "Number of reconciliations of all pools and addresses", &rounds),
            ("reconciliation_failures", "Number of failed reconciliations", &failed),
            ("reclaimed_blocks", "Number of blocks reclaimed from deleted nodes", &reclaimed),
            (
                "released_claims",
                "Number of addresses released because their claim or sticky pod no longer exists",
                &ended,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
        for (name, help, gauge) in [
            ("leader", "Whether this controller holds the Lease (1) or waits for it (0)", &leader),
            ("pools", "Number of pools", &pools),
            ("leased_blocks", "Number of blocks leased by nodes", &leased),
        ] {
            registry.register(name, help, gauge.clone());
        }
        registry.register("findings", "Number of findings, as in weft ipam check", findings.clone());
        let usage = PoolMetrics::register(&mut registry);
        IpamMetrics { registry, leader, rounds, failed, reclaimed, ended, pools, leased, findings, usage }
    }

    /// Returns metrics in which each family has a series, for the reference of metrics.
    pub(crate) fn example() -> IpamMetrics {
        let metrics = IpamMetrics::new();
        metrics.usage.set(&BTreeMap::from([("POOL".to_owned(), pool_metrics::example())]));
        metrics
    }

    /// Returns the metrics page.
    pub(crate) fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }

    fn count(&self, round: &Round) {
        let Round { reclaimed, ended, findings, pools, leased, usage } = round;
        if *reclaimed > 0 || *ended > 0 {
            info!(reclaimed, ended, "reclaimed blocks and ended claims");
        }
        self.rounds.inc();
        self.reclaimed.inc_by(*reclaimed);
        self.ended.inc_by(*ended);
        self.pools.set(i64::try_from(*pools).unwrap_or(i64::MAX));
        self.leased.set(i64::try_from(*leased).unwrap_or(i64::MAX));
        self.findings.set(findings.len() as u64);
        self.usage.set(usage);
    }
}

// === impl IpamController ===

impl IpamController {
    /// Returns a controller that reconciles each `every`.
    pub(crate) fn new(reconciler: IpamReconciler, every: Duration) -> IpamController {
        IpamController {
            reconciler: Mutex::new(reconciler),
            every,
            metrics: IpamMetrics::new(),
            last_round: std::sync::Mutex::default(),
        }
    }

    /// Runs until the process ends.
    pub(crate) async fn run(self: Arc<Self>) {
        self.metrics.leader.set(1);
        self.rounds().0 = Some(Instant::now());
        let mut reconciler = self.reconciler.lock().await;
        let follow = reconciler.follow();
        let rounds = async {
            loop {
                self.round(&mut reconciler).await;
                tokio::time::sleep(self.every).await;
            }
        };
        tokio::select! {
            () = follow => {}
            () = rounds => {}
        }
    }

    async fn round(&self, reconciler: &mut IpamReconciler) {
        match reconciler.round().await {
            Ok(round) => {
                *self.rounds() = (Some(Instant::now()), String::new());
                self.metrics.count(&round);
            }
            Err(error) => {
                self.rounds().1 = format!(": {error}");
                warn!(%error, "reconciliation failed; the next one continues");
                self.metrics.failed.inc();
            }
        }
    }
}

impl IpamController {
    fn rounds(&self) -> MutexGuard<'_, (Option<Instant>, String)> {
        self.last_round.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HealthStatus for IpamController {
    fn page(&self) -> String {
        self.metrics.page()
    }

    fn waits_for(&self) -> Vec<String> {
        Vec::new()
    }

    fn stalled(&self) -> Option<String> {
        let rounds = self.rounds();
        let since = rounds.0?.elapsed();
        (since >= STALLED_MAX + 3 * self.every)
            .then(|| format!("no reconciliation succeeded for {} s{}", since.as_secs(), rounds.1))
    }
}
