//! Who acts when nobody calls: sandboxes whose pod is gone, sandboxes that the runtime has lost, and teardowns that
//! failed.
//!
//! The agent only decides; the hands carry it out when they have answered their runtime. Nothing is ordered while
//! the cluster cannot be seen: a pod that we do not hear of is not a pod that is gone.
//!
//! Rules:
//! - one must have been a suspect for a while, because its runtime calls first; a failed order is repeated less and
//!   less often;
//! - the hands leave alone what still has its namespace, unless the runtime itself is known to have lost it: it had it
//!   once, or its pod is one of this node;
//! - so long as a runtime may still be making a sandbox, it has not lost it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cni::name::ContainerId;
use npwg::plan::PodIdentity;
use rpc::journal::Entry;
use rpc::task::{Certainty, Task};

use super::sandboxes::Sandboxes;
use cri::runtime_sandboxes::{RuntimeSandboxes, Sight};

/// How soon an order is repeated first, and at most.
const REPEAT_MIN: Duration = Duration::from_secs(10);
const REPEAT_MAX: Duration = Duration::from_secs(600);
/// Most orders in one reply.
const ORDERS_MAX: usize = 4;
/// How long a runtime may take from our answer to an ADD until it shows the sandbox.
const SHOWN_MAX: Duration = Duration::from_secs(15);
/// How long it may take to give up an ADD.
const ADD_MAX: Duration = Duration::from_secs(300);

/// Who looks for what is left behind.
#[derive(Debug)]
pub struct SandboxGc {
    sandboxes: Arc<Sandboxes>,
    runtime: Arc<RuntimeSandboxes>,
    grace: Duration,
    suspects: Mutex<BTreeMap<ContainerId, Suspect>>,
}

/// A sandbox that nobody may call for any more.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    since: Instant,
    certainty: Certainty,
    ordered: Option<Instant>,
    times: u32,
}

/// Why it may be one, and as of when; `grace` must lie between.
#[derive(Clone, Copy, Debug)]
struct Suspicion {
    certainty: Certainty,
    as_of: Instant,
    grace: Duration,
}

impl SandboxGc {
    /// One that waits for `grace` before anything is ordered.
    pub fn new(sandboxes: Arc<Sandboxes>, runtime: Arc<RuntimeSandboxes>, grace: Duration) -> SandboxGc {
        SandboxGc { sandboxes, runtime, grace, suspects: Mutex::default() }
    }

    /// The orders that are due now; `is_here` says of a pod whether the cluster has it on this node. To be called only while the
    /// cluster is seen.
    pub fn due(&self, is_here: impl Fn(&PodIdentity) -> bool) -> Vec<Task> {
        let now = Instant::now();
        let seen = |entry: &Entry| Some(if is_here(&entry.plan.pod) { PodSeen::Here } else { PodSeen::Gone });
        self.ordered(self.suspected(seen, now), now)
    }

    /// The same where no cluster is known: what the runtime has lost of its own sandboxes.
    pub fn lost(&self, is_its_own: impl Fn(&Entry) -> bool) -> Vec<Task> {
        let now = Instant::now();
        let seen = |entry: &Entry| is_its_own(entry).then_some(PodSeen::Here);
        self.ordered(self.suspected(seen, now), now)
    }

    /// The orders that come of what is suspected now; each has its uid.
    fn ordered(&self, suspected: BTreeMap<ContainerId, (String, Suspicion)>, now: Instant) -> Vec<Task> {
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        suspects.retain(|container, _| suspected.contains_key(container));
        let mut orders = Vec::new();
        for (container, (uid, Suspicion { certainty, as_of, grace })) in suspected {
            let fresh = Suspect { since: as_of, certainty, ordered: None, times: 0 };
            let suspect = suspects.entry(container.clone()).or_insert(fresh);
            if suspect.certainty != certainty {
                // Another reason has a time of its own.
                *suspect = fresh;
            }
            let is_settled = as_of.saturating_duration_since(suspect.since) >= grace;
            let repeated = suspect
                .ordered
                .is_none_or(|last| now.saturating_duration_since(last) >= pause(suspect.times));
            if orders.len() < ORDERS_MAX && is_settled && repeated {
                suspect.ordered = Some(now);
                suspect.times = suspect.times.saturating_add(1);
                orders.push(Task::TakeDown { container, uid, certainty });
            }
        }
        orders
    }

    /// The suspects among the sandboxes; `pod` says what is seen of one's pod, and nothing of one that is not ours to judge.
    fn suspected(
        &self,
        pod: impl Fn(&Entry) -> Option<PodSeen>,
        now: Instant,
    ) -> BTreeMap<ContainerId, (String, Suspicion)> {
        let all = self.sandboxes.all();
        let names: BTreeSet<&str> = all.keys().map(ContainerId::as_str).collect();
        self.runtime.retain(|container| names.contains(container));
        let suspected = all.iter().filter_map(|(container, sandbox)| {
            let (entry, uid) = (&sandbox.entry, &sandbox.entry.plan.pod.uid);
            // One that belongs to no pod was made by hand.
            let pod = pod(entry).filter(|_| !uid.is_empty())?;
            let seen =
                Seen { sight: self.runtime.sight(container.as_str()), pod, progress: Progress::of(entry) };
            Some((container.clone(), (uid.clone(), seen.suspicion(self.grace, now)?)))
        });
        suspected.collect()
    }
}

/// What is known of a sandbox.
#[derive(Clone, Copy, Debug)]
struct Seen {
    sight: Sight,
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
    /// Its ADD may be under way.
    Partly,
    /// Its DEL failed.
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
    fn suspicion(self, grace: Duration, now: Instant) -> Option<Suspicion> {
        // The runtime has called already, and failed: it need not be waited for.
        let grace = if self.progress == Progress::Failed { Duration::ZERO } else { grace };
        match (self.sight, self.pod) {
            (Sight::Missed(at), _) | (Sight::NeverSeen(at), PodSeen::Here) => {
                let making = if self.progress == Progress::Partly { ADD_MAX } else { SHOWN_MAX };
                Some(Suspicion { certainty: Certainty::Gone, as_of: at, grace: grace.max(making) })
            }
            (Sight::Known, PodSeen::Here) => None,
            (Sight::Known | Sight::NeverSeen(_), PodSeen::Gone) => {
                Some(Suspicion { certainty: Certainty::PodGone, as_of: now, grace })
            }
        }
    }
}

/// How soon an order is repeated that was given so many times.
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

    fn one(suspicion: Suspicion) -> BTreeMap<ContainerId, (String, Suspicion)> {
        BTreeMap::from([(ContainerId::new("c").unwrap(), ("u".to_owned(), suspicion))])
    }

    #[test]
    fn an_order_that_does_not_help_is_repeated_less_and_less_often() {
        let (sandbox_gc, start) = (sandbox_gc(), Instant::now());
        let mut ordered = Vec::new();
        for second in 0..3600 {
            let now = start + seconds(second);
            let pending = Suspicion { certainty: Certainty::PodGone, as_of: now, grace: Duration::ZERO };
            ordered.extend(sandbox_gc.ordered(one(pending), now).iter().map(|_| second));
        }
        assert_eq!(ordered, [0, 10, 30, 70, 150, 310, 630, 1230, 1830, 2430, 3030]);
    }

    #[test]
    fn one_that_is_seen_again_is_no_suspect_any_more() {
        let (sandbox_gc, start) = (sandbox_gc(), Instant::now());
        let at = |second: u64| {
            let now = start + seconds(second);
            (one(Suspicion { certainty: Certainty::Gone, as_of: now, grace: GRACE }), now)
        };
        let count = |(suspected, now)| sandbox_gc.ordered(suspected, now).len();
        assert_eq!((count(at(0)), count(at(299))), (0, 0));
        assert_eq!(count((BTreeMap::new(), start + seconds(300))), 0);
        assert_eq!((count(at(301)), count(at(600)), count(at(601))), (0, 0, 1));
    }

    #[test]
    fn a_look_that_is_old_proves_nothing_later() {
        let (sandbox_gc, start) = (sandbox_gc(), Instant::now());
        let looked = Suspicion { certainty: Certainty::Gone, as_of: start, grace: GRACE };
        for second in [0, 400, 4000] {
            assert_eq!(sandbox_gc.ordered(one(looked), start + seconds(second)), [], "{second}");
        }
    }

    #[test]
    fn what_may_still_be_made_is_waited_for_and_what_the_runtime_lost_is_certain() {
        let now = Instant::now();
        let look = |sight, pod, progress| {
            let seen = Seen { sight, pod, progress };
            seen.suspicion(seconds(1), now).map(|found| (found.certainty, found.grace.as_secs()))
        };
        let (missed, never) = (Sight::Missed(now), Sight::NeverSeen(now));
        let (whole, partly, failed) = (Progress::Attached, Progress::Partly, Progress::Failed);
        let gone = |grace| Some((Certainty::Gone, grace));
        assert_eq!(look(Sight::Known, PodSeen::Here, whole), None);
        assert_eq!(look(Sight::Known, PodSeen::Here, failed), None, "its runtime calls again");
        assert_eq!(look(never, PodSeen::Here, whole), gone(15));
        assert_eq!(look(never, PodSeen::Here, partly), gone(300));
        assert_eq!(look(missed, PodSeen::Here, failed), gone(15));
        assert_eq!(look(missed, PodSeen::Gone, whole), gone(15));
        // Nobody says that it was a pod of this runtime: it may be somebody's own.
        assert_eq!(look(never, PodSeen::Gone, whole), Some((Certainty::PodGone, 1)));
        assert_eq!(look(Sight::Known, PodSeen::Gone, failed), Some((Certainty::PodGone, 0)));
    }
}
