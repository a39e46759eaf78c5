//! Sandboxes that are not as they were attached: an interface that vanished, an address that was taken away.
//!
//! Only the hands can look, so this orders CHECKs, a few with each reply, and keeps what they find. The same is shown
//! by `weft doctor`. Nothing is repaired: what changed it may have had its reasons, and a pod that is made anew is whole.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cni::name::ContainerId;
use npwg::exchange::{Order, Outcome};

use super::sandboxes::Sandboxes;

/// Most orders in one reply.
const ORDERS_MAX: usize = 4;

/// Who looks for them.
#[derive(Debug)]
pub(crate) struct Drift {
    interval: Duration,
    seen: Mutex<BTreeMap<ContainerId, Seen>>,
}

#[derive(Debug)]
struct Seen {
    /// When its check was ordered last, or when it was first seen.
    at: Instant,
    wrong: bool,
}

impl Drift {
    /// One that has every sandbox checked each `interval`; zero for never.
    pub(crate) fn new(interval: Duration) -> Drift {
        Drift { interval, seen: Mutex::default() }
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The checks that are due now.
    pub(crate) fn due(&self, sandboxes: &Sandboxes) -> Vec<Order> {
        if self.interval.is_zero() {
            return Vec::new();
        }
        let (now, all) = (Instant::now(), sandboxes.all());
        let mut seen = self.seen();
        seen.retain(|container, _| all.contains_key(container));
        let mut orders = Vec::new();
        for (container, sandbox) in all {
            let known = seen.entry(container.clone()).or_insert(Seen { at: now, wrong: false });
            if orders.len() == ORDERS_MAX || !sandbox.entry.complete || now - known.at < self.interval {
                continue;
            }
            known.at = now;
            orders.push(Order::Check { container, uid: sandbox.entry.plan.pod.uid.clone() });
        }
        orders
    }

    /// Keeps what was found; is it news?
    pub(crate) fn heard(&self, outcome: &Outcome) -> bool {
        let mut seen = self.seen();
        let Some(known) = seen.get_mut(&outcome.container) else { return false };
        let wrong = outcome.error.is_some();
        std::mem::replace(&mut known.wrong, wrong) != wrong
    }

    /// How many are wrong.
    pub(crate) fn count(&self) -> usize {
        self.seen().values().filter(|known| known.wrong).count()
    }
}
