//! Sandboxes that are not as they were attached: an interface that vanished, an address that was taken away.
//!
//! Only the hands can look, so this orders CHECKs, a few with each reply, and keeps what they find. The same is shown
//! by `weft doctor`. Nothing is repaired: what changed it may have had its reasons, and a pod that is made anew is whole.
//!
//! Rules:
//! - no kubelet ever calls CHECK, so a plugin that finds fault with what it has just made is met here first: what is wrong
//!   the first time is no change;
//! - the first time comes soon, and so does that of a network that came to a running pod;
//! - what was good once and is wrong now has changed, also for the next agent: what was wrong from the first is written down,
//!   until the node starts again. Who cannot read it begins anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cni::name::{ContainerId, IfName};
use rpc::task::{Task, TaskResult};
use tracing::warn;

use node_support::sandboxes::Sandboxes;

/// How soon a sandbox is checked for the first time.
const FIRST: Duration = Duration::from_secs(10);
/// Most orders in one reply.
const ORDERS_MAX: usize = 4;
/// Longest memory that is read, in bytes: some thousand sandboxes.
const MEMORY_MAX: u64 = 1 << 20;

/// Of each sandbox that was checked: what has been wrong since the first time.
type Memory = BTreeMap<ContainerId, BTreeSet<IfName>>;

/// Who looks for them.
#[derive(Debug)]
pub(crate) struct Drift {
    interval: Duration,
    /// The file of what outlives us.
    memory: PathBuf,
    /// What the agent before us knew of sandboxes that we have not seen yet.
    remembered: Mutex<Memory>,
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
    /// One that has every sandbox checked each `interval`; zero for never. What the next one has to know is in the file
    /// `memory`.
    pub(crate) fn new(interval: Duration, memory: PathBuf) -> Drift {
        let is_short = fs::metadata(&memory).is_ok_and(|metadata| metadata.len() <= MEMORY_MAX);
        let read = is_short.then(|| fs::read(&memory).ok()).flatten();
        let remembered = read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Drift { interval, memory, remembered: Mutex::new(remembered), seen: Mutex::default() }
    }

    fn remembered(&self) -> MutexGuard<'_, Memory> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, memory: &Memory) {
        let text = serde_json::to_string(memory).map_err(Into::into);
        if let Err(error) = text.and_then(|text| cli_support::atomic_file::write(&self.memory, &text)) {
            warn!(%error, file = %self.memory.display(), "the next agent will not know what was right");
        }
    }

    fn seen(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The checks that are due now.
    pub(crate) fn due(&self, sandboxes: &Sandboxes) -> Vec<Task> {
        if self.interval.is_zero() {
            return Vec::new();
        }
        let (now, all) = (Instant::now(), sandboxes.all());
        let (mut seen, mut remembered) = (self.seen(), self.remembered());
        seen.retain(|container, _| all.contains_key(container));
        if !all.is_empty() {
            remembered.retain(|container, _| all.contains_key(container));
        }
        let mut orders = Vec::new();
        for (container, sandbox) in all {
            let known = seen.entry(container.clone()).or_insert_with(|| Seen {
                due: now + self.interval.min(FIRST),
                always: remembered.remove(&container),
                fresh: BTreeSet::new(),
                changed: BTreeSet::new(),
            });
            if orders.len() == ORDERS_MAX || !sandbox.entry.complete || now < known.due {
                continue;
            }
            known.due = now + self.interval;
            orders.push(Task::Check { container, uid: sandbox.entry.plan.pod.uid.clone() });
        }
        orders
    }

    /// Keeps what was found; what is new of it?
    pub(crate) fn heard(&self, result: &TaskResult) -> Heard {
        let mut seen = self.seen();
        let Some(known) = seen.get_mut(&result.container) else { return Heard::Same };
        let wrong: BTreeSet<IfName> = result.wrong.iter().cloned().collect();
        let fresh = std::mem::take(&mut known.fresh);
        let first = known.always.is_none();
        let knew = known.always.clone();
        let always = known.always.get_or_insert_with(|| wrong.clone());
        let found = always.len();
        always.retain(|ifname| wrong.contains(ifname));
        always.extend(wrong.intersection(&fresh).cloned());
        let never_good = if first { !always.is_empty() } else { always.len() > found };
        let changed: BTreeSet<IfName> = wrong.difference(always).cloned().collect();
        let before = std::mem::replace(&mut known.changed, changed);
        let heard = match (known.changed == before, known.changed.is_empty()) {
            (true, _) if never_good => Heard::WrongFromTheFirst,
            (true, _) => Heard::Same,
            (false, true) => Heard::Restored,
            (false, false) => Heard::Changed,
        };
        if knew != known.always {
            let mut memory = self.remembered().clone();
            let checked =
                |(container, seen): (&ContainerId, &Seen)| Some((container.clone(), seen.always.clone()?));
            memory.extend(seen.iter().filter_map(checked));
            self.remember(&memory);
        }
        heard
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
    use rpc::task::TaskKind;

    use super::*;

    fn drift() -> Drift {
        let drift = Drift::new(Duration::from_secs(300), "/dev/null/checked.json".into());
        let known =
            Seen { due: Instant::now(), always: None, fresh: BTreeSet::new(), changed: BTreeSet::new() };
        drift.seen().insert(ContainerId::new("c").unwrap(), known);
        drift
    }

    fn found(wrong: &[&str]) -> TaskResult {
        let error = (!wrong.is_empty()).then(|| cni::Error::internal("wrong"));
        let wrong = wrong.iter().map(|name| IfName::new(name).unwrap()).collect();
        let container = ContainerId::new("c").unwrap();
        TaskResult { kind: TaskKind::Check, container, uid: "u".into(), changes: Vec::new(), error, wrong }
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
    fn what_was_right_is_known_to_the_next_agent() {
        let directory = std::env::temp_dir().join(format!("weft-drift-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (memory, container) = (directory.join("checked.json"), ContainerId::new("c").unwrap());
        let next = |memory: &PathBuf| {
            let drift = Drift::new(Duration::from_secs(300), memory.clone());
            let always = drift.remembered().remove(&container);
            let (fresh, changed) = (BTreeSet::new(), BTreeSet::new());
            drift.seen().insert(container.clone(), Seen { due: Instant::now(), always, fresh, changed });
            drift
        };
        assert_eq!(next(&memory).heard(&found(&["eth0"])), Heard::WrongFromTheFirst);
        let second = next(&memory);
        assert_eq!(second.heard(&found(&["eth0"])), Heard::Same);
        assert_eq!((second.heard(&found(&["eth0", "net1"])), second.count()), (Heard::Changed, 1));
        assert_eq!((next(&memory).heard(&found(&["eth0", "net1"]))), Heard::Changed);
        // What cannot be read is nothing.
        fs::write(&memory, "{").unwrap();
        assert_eq!(next(&memory).heard(&found(&["eth0"])), Heard::WrongFromTheFirst);
        fs::remove_dir_all(&directory).unwrap();
    }
}
