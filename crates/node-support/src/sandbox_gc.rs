//! Garbage collection for sandboxes that no runtime will take down: the pod is deleted, or the runtime has lost them.
//!
//! This module only decides which sandboxes to take down. weft-cni executes the tasks after it has answered the
//! runtime. Without a complete view of the cluster the agent requests no decision: an unknown pod is not a deleted pod.
//! The CRI proxy, which sees no cluster, only requests the sandboxes that the runtime has lost.
//!
//! - A sandbox must be an orphan for the grace period, because the runtime normally calls DEL. If a DEL has failed, the
//!   grace period is zero. A task is repeated with growing pauses.
//! - weft-cni leaves a sandbox alone whose namespace exists, unless the runtime is known to have lost it: the runtime
//!   had it before, or the pod is on this node.
//! - While a runtime may still be creating a sandbox, the runtime has not lost it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cni::name::ContainerId;
use npwg::plan::PodIdentity;
use rpc::journal::Entry;
use rpc::task::{Certainty, Task};

use super::sandboxes::Sandboxes;
use cri::runtime_sandboxes::{Presence, RuntimeSandboxes};

/// Shortest pause before a task is repeated.
const REPEAT_MIN: Duration = Duration::from_secs(10);
/// Longest pause before a task is repeated.
const REPEAT_MAX: Duration = Duration::from_secs(600);
/// Maximum number of tasks in one response.
const TASKS_MAX: usize = 4;
/// Longest time from the response to an ADD until the runtime lists the sandbox.
const SHOWN_MAX: Duration = Duration::from_secs(15);
/// Longest time until a runtime gives up an ADD.
const ADD_MAX: Duration = Duration::from_secs(300);

/// Sandbox garbage collector.
#[derive(Debug)]
pub struct SandboxGc {
    sandboxes: Arc<Sandboxes>,
    runtime: Arc<RuntimeSandboxes>,
    grace: Duration,
    orphans: Mutex<BTreeMap<ContainerId, Orphan>>,
}

/// Sandbox that the runtime may never take down.
#[derive(Clone, Copy, Debug)]
struct Orphan {
    since: Instant,
    certainty: Certainty,
    sent: Option<Instant>,
    times: u32,
}

/// Observation that a sandbox is orphaned: how certain that is and since when. It must hold for `grace`.
#[derive(Clone, Copy, Debug)]
struct Observation {
    certainty: Certainty,
    as_of: Instant,
    grace: Duration,
}

impl SandboxGc {
    /// Returns a collector with a grace period.
    pub fn new(sandboxes: Arc<Sandboxes>, runtime: Arc<RuntimeSandboxes>, grace: Duration) -> SandboxGc {
        SandboxGc { sandboxes, runtime, grace, orphans: Mutex::default() }
    }

    /// Returns the tasks that are due; `is_here` tells whether the cluster has a pod on this node. Must be
    /// called only while the view of the cluster is complete.
    pub fn due(&self, is_here: impl Fn(&PodIdentity) -> bool) -> Vec<Task> {
        let now = Instant::now();
        let seen = |entry: &Entry| Some(if is_here(&entry.plan.pod) { PodSeen::Here } else { PodSeen::Gone });
        self.tasks(self.orphaned(seen, now), now)
    }

    /// Returns the tasks that are due where no cluster is known: own sandboxes that the runtime has lost.
    pub fn lost(&self, is_its_own: impl Fn(&Entry) -> bool) -> Vec<Task> {
        let now = Instant::now();
        let seen = |entry: &Entry| is_its_own(entry).then_some(PodSeen::Here);
        self.tasks(self.orphaned(seen, now), now)
    }

    /// Returns the tasks that follow from the present observations, each with the pod's uid.
    fn tasks(&self, orphaned: BTreeMap<ContainerId, (String, Observation)>, now: Instant) -> Vec<Task> {
        let mut orphans = self.orphans.lock().unwrap_or_else(PoisonError::into_inner);
        orphans.retain(|container, _| orphaned.contains_key(container));
        let mut tasks = Vec::new();
        for (container, (uid, Observation { certainty, as_of, grace })) in orphaned {
            let fresh = Orphan { since: as_of, certainty, sent: None, times: 0 };
            let orphan = orphans.entry(container.clone()).or_insert(fresh);
            if orphan.certainty != certainty {
                // The grace period of another reason starts now.
                *orphan = fresh;
            }
            let is_settled = as_of.saturating_duration_since(orphan.since) >= grace;
            let repeated =
                orphan.sent.is_none_or(|last| now.saturating_duration_since(last) >= pause(orphan.times));
            if tasks.len() < TASKS_MAX && is_settled && repeated {
                orphan.sent = Some(now);
                orphan.times = orphan.times.saturating_add(1);
                tasks.push(Task::TakeDown { container, uid, certainty });
            }
        }
        tasks
    }

    /// Returns the orphaned sandboxes; `pod` returns what is known about a sandbox's pod, or `None` to skip
    /// the sandbox.
    fn orphaned(
        &self,
        pod: impl Fn(&Entry) -> Option<PodSeen>,
        now: Instant,
    ) -> BTreeMap<ContainerId, (String, Observation)> {
        self.sandboxes.with(|all| {
            let is_known = |name: &str| ContainerId::new(name).is_ok_and(|id| all.contains_key(&id));
            self.runtime.retain(is_known);
            let orphaned = all.iter().filter_map(|(container, sandbox)| {
                let (entry, uid) = (&sandbox.entry, &sandbox.entry.plan.pod.uid);
                // A sandbox without a pod was created manually.
                let pod = pod(entry).filter(|_| !uid.is_empty())?;
                let seen = Seen {
                    presence: self.runtime.presence(container.as_str()),
                    pod,
                    progress: Progress::of(entry),
                };
                Some((container.clone(), (uid.clone(), seen.observation(self.grace, now)?)))
            });
            orphaned.collect()
        })
    }
}

/// Facts about a sandbox.
#[derive(Clone, Copy, Debug)]
struct Seen {
    presence: Presence,
    pod: PodSeen,
    progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodSeen {
    Here,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Attached,
    /// Incomplete; the ADD may be running.
    Partly,
    /// The DEL failed.
    Failed,
}

impl Progress {
    fn of(entry: &Entry) -> Progress {
        match entry.attachments.iter().any(|attachment| attachment.failure.is_some()) {
            true => Progress::Failed,
            false if entry.complete => Progress::Attached,
            false => Progress::Partly,
        }
    }
}

impl Seen {
    fn observation(self, grace: Duration, now: Instant) -> Option<Observation> {
        // The runtime has called DEL already, and it failed: no need to wait for the runtime.
        let grace = if self.progress == Progress::Failed { Duration::ZERO } else { grace };
        match (self.presence, self.pod) {
            (Presence::Missed(at), _) | (Presence::NeverSeen(at), PodSeen::Here) => {
                let making = if self.progress == Progress::Partly { ADD_MAX } else { SHOWN_MAX };
                Some(Observation { certainty: Certainty::Gone, as_of: at, grace: grace.max(making) })
            }
            (Presence::Present, PodSeen::Here) => None,
            (Presence::Present | Presence::NeverSeen(_), PodSeen::Gone) => {
                Some(Observation { certainty: Certainty::PodGone, as_of: now, grace })
            }
        }
    }
}

/// Returns the pause after a task that was sent `times` times.
fn pause(times: u32) -> Duration {
    REPEAT_MAX.min(REPEAT_MIN * 2_u32.saturating_pow(times.saturating_sub(1).min(10)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const GRACE: Duration = Duration::from_secs(300);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn sandbox_gc() -> SandboxGc {
        SandboxGc::new(Arc::new(Sandboxes::of(Path::new("/nowhere"))), Arc::default(), GRACE)
    }

    fn one(observation: Observation) -> BTreeMap<ContainerId, (String, Observation)> {
        BTreeMap::from([(ContainerId::new("c").unwrap(), ("u".to_owned(), observation))])
    }

    #[test]
    fn sandbox_gc_repeats_a_failing_task_with_growing_pauses() {
        let (sandbox_gc, start) = (sandbox_gc(), Instant::now());
        let mut sent = Vec::new();
        for second in 0..3600 {
            let now = start + seconds(second);
            let pending = Observation { certainty: Certainty::PodGone, as_of: now, grace: Duration::ZERO };
            sent.extend(sandbox_gc.tasks(one(pending), now).iter().map(|_| second));
        }
        assert_eq!(sent, [0, 10, 30, 70, 150, 310, 630, 1230, 1830, 2430, 3030]);
    }

    #[test]
    fn sandbox_gc_restarts_the_grace_period_of_a_sandbox_seen_again() {
        let (sandbox_gc, start) = (sandbox_gc(), Instant::now());
        let at = |second: u64| {
            let now = start + seconds(second);
            (one(Observation { certainty: Certainty::Gone, as_of: now, grace: GRACE }), now)
        };
        let count = |(orphaned, now)| sandbox_gc.tasks(orphaned, now).len();
        assert_eq!((count(at(0)), count(at(299))), (0, 0));
        assert_eq!(count((BTreeMap::new(), start + seconds(300))), 0);
        assert_eq!((count(at(301)), count(at(600)), count(at(601))), (0, 0, 1));
    }

    #[test]
    fn sandbox_gc_needs_a_second_observation_after_the_grace_period() {
        let (sandbox_gc, start) = (sandbox_gc(), Instant::now());
        let looked = Observation { certainty: Certainty::Gone, as_of: start, grace: GRACE };
        for second in [0, 400, 4000] {
            assert_eq!(sandbox_gc.tasks(one(looked), start + seconds(second)), [], "{second}");
        }
    }

    #[test]
    fn sandbox_gc_waits_for_a_running_add_and_finds_lost_sandboxes() {
        let now = Instant::now();
        let look = |presence, pod, progress| {
            let seen = Seen { presence, pod, progress };
            seen.observation(seconds(1), now).map(|found| (found.certainty, found.grace.as_secs()))
        };
        let (missed, never) = (Presence::Missed(now), Presence::NeverSeen(now));
        let (whole, partly, failed) = (Progress::Attached, Progress::Partly, Progress::Failed);
        let gone = |grace| Some((Certainty::Gone, grace));
        assert_eq!(look(Presence::Present, PodSeen::Here, whole), None);
        assert_eq!(look(Presence::Present, PodSeen::Here, failed), None, "its runtime calls again");
        assert_eq!(look(never, PodSeen::Here, whole), gone(15));
        assert_eq!(look(never, PodSeen::Here, partly), gone(300));
        assert_eq!(look(missed, PodSeen::Here, failed), gone(15));
        assert_eq!(look(missed, PodSeen::Gone, whole), gone(15));
        // The runtime was never seen with it: it may be a sandbox of another runtime.
        assert_eq!(look(never, PodSeen::Gone, whole), Some((Certainty::PodGone, 1)));
        assert_eq!(look(Presence::Present, PodSeen::Gone, failed), Some((Certainty::PodGone, 0)));
    }
}
