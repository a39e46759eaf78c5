//! Who acts when nobody calls: sandboxes whose pod is gone, and teardowns that failed.
//!
//! The agent only decides; the hands carry it out when they have answered their runtime. Nothing is ordered while
//! the cluster cannot be seen: a pod that we do not hear of is not a pod that is gone.
//!
//! Rules: a pod must have been gone for a while, because its runtime calls first; a failed order is repeated less
//! and less often; the hands leave alone what still has its namespace.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cni::name::ContainerId;
use npwg::exchange::{Certainty, Order};
use npwg::journal::Entry;
use npwg::metadata::Pod;

use super::brain::place;
use super::cache::Cache;
use super::sandboxes::Sandboxes;

/// How soon an order is repeated first, and at most.
const REPEAT_MIN: Duration = Duration::from_secs(10);
const REPEAT_MAX: Duration = Duration::from_secs(600);
/// Most orders in one reply.
const ORDERS_MAX: usize = 4;

/// Who looks for what is left behind.
#[derive(Debug)]
pub(crate) struct Overseer {
    sandboxes: Arc<Sandboxes>,
    grace: Duration,
    suspects: Mutex<BTreeMap<ContainerId, Suspect>>,
}

/// A sandbox whose pod is gone.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    since: Instant,
    ordered: Option<Instant>,
    times: u32,
}

impl Overseer {
    /// One that waits for `grace` before anything is ordered.
    pub(crate) fn new(sandboxes: Arc<Sandboxes>, grace: Duration) -> Overseer {
        Overseer { sandboxes, grace, suspects: Mutex::default() }
    }

    /// What is to be done now.
    pub(crate) fn due(&self, pods: &Cache<Pod>) -> Vec<Order> {
        self.due_at(pods, Instant::now())
    }

    fn due_at(&self, pods: &Cache<Pod>, now: Instant) -> Vec<Order> {
        if !pods.is_synced() || !pods.age().is_zero() {
            return Vec::new();
        }
        let gone = self.gone(pods);
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        suspects.retain(|container, _| gone.contains_key(container));
        let mut orders = Vec::new();
        for (container, entry) in gone {
            let suspect = suspects.entry(container.clone());
            let suspect = suspect.or_insert(Suspect { since: now, ordered: None, times: 0 });
            // The runtime has called already, and failed: it need not be waited for.
            let failed = entry.attachments.iter().any(|attachment| attachment.failure.is_some());
            let grace = if failed { Duration::ZERO } else { self.grace };
            let pause = REPEAT_MAX.min(REPEAT_MIN * 2_u32.saturating_pow(suspect.times.min(10)));
            let repeated = suspect.ordered.is_none_or(|last| now.duration_since(last) >= pause);
            if orders.len() < ORDERS_MAX && now.duration_since(suspect.since) >= grace && repeated {
                suspect.ordered = Some(now);
                suspect.times = suspect.times.saturating_add(1);
                let uid = entry.plan.pod.uid.clone();
                orders.push(Order::TakeDown { container, uid, certainty: Certainty::PodGone });
            }
        }
        orders
    }

    /// The sandboxes whose pod is not in the cluster any more.
    fn gone(&self, pods: &Cache<Pod>) -> BTreeMap<ContainerId, Arc<Entry>> {
        let all = self.sandboxes.all().into_iter();
        let is_gone = |entry: &Entry| {
            let pod = &entry.plan.pod;
            !pod.uid.is_empty() && pods.find(&place(pod)).is_none_or(|known| known.uid != pod.uid)
        };
        let gone = all.filter(|(_, sandbox)| is_gone(&sandbox.entry));
        gone.map(|(container, sandbox)| (container, sandbox.entry)).collect()
    }
}
