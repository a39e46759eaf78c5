//! Sandboxes that are not as they were attached: an interface that vanished, an address that was taken away.
//!
//! Only the hands can look, so this orders CHECKs, a few with each reply, and keeps what they find. The same is shown
//! by `weft doctor`. Nothing is repaired: what changed it may have had its reasons, and a pod that is made anew is whole.
//!
//! Rules:
//! - no kubelet ever calls CHECK, so a plugin that finds fault with what it has just made is met here first: what is wrong
//!   the first time is no change;
//! - the first time comes soon, and so does that of a network that came to a running pod;
//! - what was good once and is wrong now has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cni::name::{ContainerId, IfName};
use npwg::exchange::{Order, Outcome};

use super::sandboxes::Sandboxes;

/// How soon a sandbox is checked for the first time.
const FIRST: Duration = Duration::from_secs(10);
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
    /// When its check is due.
    due: Instant,
    /// What has been wrong since its first check; nothing before that.
    always: Option<BTreeSet<IfName>>,
    /// What came since the last check: its first one is still to be.
    fresh: BTreeSet<IfName>,
    /// What was good and is wrong.
    changed: BTreeSet<IfName>,
}

/// What a check says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Nothing new.
    Same,
    /// Something is wrong, and never was otherwise.
    WrongFromTheFirst,
    /// Something is not as it was.
    Changed,
    /// Everything is as it was again.
    Restored,
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
            let known = seen.entry(container.clone()).or_insert_with(|| Seen {
                due: now + self.interval.min(FIRST),
                always: None,
                fresh: BTreeSet::new(),
                changed: BTreeSet::new(),
            });
            if orders.len() == ORDERS_MAX || !sandbox.entry.complete || now < known.due {
                continue;
            }
            known.due = now + self.interval;
            orders.push(Order::Check { container, uid: sandbox.entry.plan.pod.uid.clone() });
        }
        orders
    }

    /// Keeps what was found; what is new of it?
    pub(crate) fn heard(&self, outcome: &Outcome) -> Heard {
        let mut seen = self.seen();
        let Some(known) = seen.get_mut(&outcome.container) else { return Heard::Same };
        let wrong: BTreeSet<IfName> = match (outcome.wrong.is_empty(), &outcome.error) {
            // Hands that do not say which.
            (true, Some(_)) => IfName::new("sandbox").into_iter().collect(),
            _ => outcome.wrong.iter().cloned().collect(),
        };
        let fresh = std::mem::take(&mut known.fresh);
        let first = known.always.is_none();
        let always = known.always.get_or_insert_with(|| wrong.clone());
        let found = always.len();
        always.retain(|ifname| wrong.contains(ifname));
        always.extend(wrong.intersection(&fresh).cloned());
        let never_good = if first { !always.is_empty() } else { always.len() > found };
        let changed: BTreeSet<IfName> = wrong.difference(always).cloned().collect();
        let before = std::mem::replace(&mut known.changed, changed);
        match (known.changed == before, known.changed.is_empty()) {
            (true, _) if never_good => Heard::WrongFromTheFirst,
            (true, _) => Heard::Same,
            (false, true) => Heard::Restored,
            (false, false) => Heard::Changed,
        }
    }

    /// A network came to a running pod: its first check is still to be.
    pub(crate) fn came(&self, container: &ContainerId, ifname: &IfName) {
        if let Some(known) = self.seen().get_mut(container) {
            known.due = known.due.min(Instant::now() + FIRST);
            known.fresh.insert(ifname.clone());
        }
    }

    /// How many are not as they were.
    pub(crate) fn count(&self) -> usize {
        self.seen().values().filter(|known| !known.changed.is_empty()).count()
    }
}

#[cfg(test)]
mod tests {
    use npwg::exchange::Work;

    use super::*;

    fn drift() -> Drift {
        let drift = Drift::new(Duration::from_secs(300));
        let known =
            Seen { due: Instant::now(), always: None, fresh: BTreeSet::new(), changed: BTreeSet::new() };
        drift.seen().insert(ContainerId::new("c").unwrap(), known);
        drift
    }

    fn found(wrong: &[&str]) -> Outcome {
        let error = (!wrong.is_empty()).then(|| cni::Error::internal("wrong"));
        let wrong = wrong.iter().map(|name| IfName::new(name).unwrap()).collect();
        let container = ContainerId::new("c").unwrap();
        Outcome { of: Work::Check, container, uid: "u".into(), done: Vec::new(), error, wrong }
    }

    #[test]
    fn what_is_wrong_the_first_time_is_no_change_and_hides_none() {
        let drift = drift();
        assert_eq!(drift.heard(&found(&["eth0"])), Heard::WrongFromTheFirst);
        assert_eq!((drift.heard(&found(&["eth0"])), drift.count()), (Heard::Same, 0));
        assert_eq!((drift.heard(&found(&["eth0", "net1"])), drift.count()), (Heard::Changed, 1));
        assert_eq!(drift.heard(&found(&["eth0", "net1"])), Heard::Same);
        assert_eq!((drift.heard(&found(&["eth0"])), drift.count()), (Heard::Restored, 0));
        // Good for once: from now on it can change.
        assert_eq!(drift.heard(&found(&[])), Heard::Same);
        assert_eq!(drift.heard(&found(&["eth0"])), Heard::Changed);
    }

    #[test]
    fn a_network_that_came_has_a_first_check_of_its_own() {
        let drift = drift();
        assert_eq!(drift.heard(&found(&[])), Heard::Same);
        drift.came(&ContainerId::new("c").unwrap(), &IfName::new("net1").unwrap());
        assert_eq!(drift.heard(&found(&["net1"])), Heard::WrongFromTheFirst);
        assert_eq!((drift.heard(&found(&["net1"])), drift.count()), (Heard::Same, 0));
        assert_eq!(drift.heard(&found(&["net1", "eth0"])), Heard::Changed);
    }

    #[test]
    fn hands_that_do_not_say_which_are_believed_as_a_whole() {
        let (drift, unsaid) = (drift(), Outcome { wrong: Vec::new(), ..found(&["eth0"]) });
        assert_eq!(drift.heard(&found(&[])), Heard::Same);
        assert_eq!(drift.heard(&unsaid), Heard::Changed);
        assert_eq!(drift.heard(&found(&[])), Heard::Restored);
    }
}
