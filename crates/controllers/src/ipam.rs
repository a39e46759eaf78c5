//! IPAM controller: runs [`IpamReconciler`] periodically and counts its results.

mod gone_nodes;
mod pool_metrics;
pub(crate) mod reconciler;
mod round_error;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::Mutex;
use tracing::{info, warn};

use crate::ipam::pool_metrics::PoolMetrics;
use crate::ipam::reconciler::{IpamReconciler, Round};
use kube_support::health::HealthStatus;

/// IPAM controller.
pub(crate) struct IpamController {
    reconciler: Mutex<IpamReconciler>,
    every: Duration,
    registry: Registry,
    rounds: Counter,
    failed: Counter,
    reclaimed: Counter,
    ended: Counter,
    pools: Gauge,
    leased: Gauge,
    findings: Gauge<u64, AtomicU64>,
    usage: PoolMetrics,
}

impl IpamController {
    /// Returns a controller that reconciles each `every`.
    pub(crate) fn new(reconciler: IpamReconciler, every: Duration) -> IpamController {
        let mut registry = Registry::with_prefix("weft_ipam");
        let (rounds, failed) = (Counter::default(), Counter::default());
        let (reclaimed, ended) = (Counter::default(), Counter::default());
        let (pools, leased, findings) = (Gauge::default(), Gauge::default(), Gauge::default());
        registry.register(
            "reconciliations",
            "Number of reconciliations of all pools and addresses",
            rounds.clone(),
        );
        registry.register("reconciliation_failures", "Number of failed reconciliations", failed.clone());
        registry.register(
            "reclaimed_blocks",
            "Number of blocks reclaimed from deleted nodes",
            reclaimed.clone(),
        );
        registry.register(
            "released_claims",
            "Number of addresses released because their claim or sticky pod no longer exists",
            ended.clone(),
        );
        registry.register("pools", "Number of pools", pools.clone());
        registry.register("leased_blocks", "Number of blocks leased by nodes", leased.clone());
        registry.register("findings", "Number of findings, as in weft ipam check", findings.clone());
        let usage = PoolMetrics::register(&mut registry);
        let reconciler = Mutex::new(reconciler);
        IpamController {
            reconciler,
            every,
            registry,
            rounds,
            failed,
            reclaimed,
            ended,
            pools,
            leased,
            findings,
            usage,
        }
    }

    /// Runs until the process ends.
    pub(crate) async fn run(self: Arc<Self>) {
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
            Ok(round) => self.count(&round),
            Err(error) => {
                warn!(%error, "reconciliation failed; the next one continues");
                self.failed.inc();
            }
        }
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

impl HealthStatus for IpamController {
    fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }

    fn waits_for(&self) -> Vec<String> {
        Vec::new()
    }
}
