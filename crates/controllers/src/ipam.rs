//! Rounds of [`IpamReconciler`], one after the other, and their figures.

mod gone_nodes;
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

use crate::ipam::reconciler::{IpamReconciler, Round};
use kube_support::health::HealthStatus;

/// Who keeps addresses in order, again and again.
pub(crate) struct IpamController {
    keeper: Mutex<IpamReconciler>,
    every: Duration,
    registry: Registry,
    rounds: Counter,
    failed: Counter,
    reclaimed: Counter,
    ended: Counter,
    pools: Gauge,
    leased: Gauge,
    findings: Gauge<u64, AtomicU64>,
}

impl IpamController {
    /// A round every so often.
    pub(crate) fn new(keeper: IpamReconciler, every: Duration) -> IpamController {
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
        let keeper = Mutex::new(keeper);
        IpamController { keeper, every, registry, rounds, failed, reclaimed, ended, pools, leased, findings }
    }

    /// For ever.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut keeper = self.keeper.lock().await;
        let follow = keeper.follow();
        let rounds = async {
            loop {
                self.round(&mut keeper).await;
                tokio::time::sleep(self.every).await;
            }
        };
        tokio::select! {
            () = follow => {}
            () = rounds => {}
        }
    }

    async fn round(&self, keeper: &mut IpamReconciler) {
        match keeper.round().await {
            Ok(round) => self.count(&round),
            Err(why) => {
                warn!(%why, "a round failed; the next one goes on");
                self.failed.inc();
            }
        }
    }

    fn count(&self, round: &Round) {
        let Round { reclaimed, ended, findings, pools, leased } = round;
        if *reclaimed > 0 || *ended > 0 {
            info!(reclaimed, ended, "addresses given back");
        }
        self.rounds.inc();
        self.reclaimed.inc_by(*reclaimed);
        self.ended.inc_by(*ended);
        self.pools.set(i64::try_from(*pools).unwrap_or(i64::MAX));
        self.leased.set(i64::try_from(*leased).unwrap_or(i64::MAX));
        self.findings.set(findings.len() as u64);
    }
}

impl HealthStatus for IpamController {
    fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a text cannot fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }

    fn waits_for(&self) -> Vec<String> {
        Vec::new()
    }
}
