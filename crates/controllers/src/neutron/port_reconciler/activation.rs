//! Ports become ACTIVE when a node has plugged them in, and nobody tells: Neutron is asked for those that wait.
//!
//! Rules:
//! - it is asked for many at a time, soon after a node has said that it is done, and the more rarely the slower it is: it is
//!   the same server that they wait for;
//! - who may wait for ever makes nobody else wait longer, and is asked for rarely.
//!
//! Source: measured with Neutron 21 and OVN, `benches/neutron`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use neutron::pod_state::PodState;
use neutron::vif::Kind;
use npwg::status::NETWORK_STATUS;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::{Case, PARALLEL, PortReconciler, Stage};
use crate::neutron::vif_writer;
use crate::neutron::vif_writer::Unwritten;

/// The first and the longest pause before ports that are not ACTIVE yet are looked at.
const LOOKS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));
/// What is between two looks on an average, and how many may come without it first.
const SPACING: Duration = Duration::from_secs(1);
const AHEAD: u32 = 3;
/// So many pods are many: a look is to find one in `PART` of them ready, for it is the server they wait for that answers it.
const MANY: usize = 8;
const PART: f64 = 4.0;
/// But it comes after so long in any case; those who may wait for ever are asked for no more often.
const GAP_MAX: Duration = Duration::from_secs(16);
/// Whose ports are not ACTIVE after so long, since they were made or the node said that it is done, may wait for ever: how
/// often others are looked at is not by their number.
const FOR_EVER: Duration = Duration::from_secs(600);
/// So many pods are looked at with little effort, whatever is known of them.
const FEW: usize = 30;

/// Whose ports are looked at, of those that do not seem to wait for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Those of all pods that wait.
    All,
    /// Of many, those whose node has said that the pod has its interfaces.
    Likely,
}

/// Are those looked at, too, that may wait for ever?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Late {
    With,
    Without,
}

// === impl Case ===

impl Case {
    fn is_hopeful(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < FOR_EVER
    }

    /// Is this one, which waits as so many hopeful ones do, among those who are asked for?
    fn is_asked(&self, asked: Asked, late: Late, hopeful: usize, now: Instant) -> bool {
        if !self.is_hopeful(now) {
            return late == Late::With;
        }
        let is_said = || self.subject.pod.annotations.contains_key(NETWORK_STATUS);
        asked == Asked::All || hopeful <= FEW || is_said()
    }

    /// All its ports are ACTIVE, and this is to be written: until it is, nobody else writes.
    fn begin_confirmation(&mut self) -> Option<Case> {
        let is_due = self.stage == Stage::Waiting && self.state.is_active();
        is_due.then(|| {
            self.stage = Stage::Working;
            self.clone()
        })
    }

    /// What came of it; its stage then. A pod that left meanwhile is still to be released.
    fn end_confirmation(&mut self, written: Result<Case, Unwritten>) -> Stage {
        let next = match written {
            Ok(confirmed) => {
                self.written = confirmed.written;
                Stage::Active
            }
            // The next look at the pods shows it.
            Err(Unwritten::Gone) => Stage::Waiting,
            Err(Unwritten::Failed(_)) => {
                unsee(&mut self.state);
                Stage::Waiting
            }
        };
        if self.stage == Stage::Working {
            self.stage = next;
        }
        self.stage
    }
}

// === impl PortReconciler ===

impl PortReconciler {
    /// Looks which ports have become ACTIVE: soon after a node has said that they are plugged in, and now and then, for
    /// who says nothing; never so often that many pods, one after the other, have a look each.
    pub(super) async fn activate(self: Arc<PortReconciler>) {
        let (mut pause, mut due) = (LOOKS.0, Instant::now());
        let (mut looked, mut gap) = (Instant::now(), Duration::ZERO);
        let mut late_looked = Instant::now();
        loop {
            if self.inactive(Asked::All, Late::With).is_empty() {
                self.waiting.notified().await;
                (pause, looked, gap) = (LOOKS.0, Instant::now(), Duration::ZERO);
            } else if timeout(pause, self.waiting.notified()).await.is_ok() {
                pause = LOOKS.0;
            }
            // Others may follow this one closely.
            let spaced = due.saturating_duration_since(Instant::now() + SPACING * AHEAD);
            sleep(LOOKS.0.max(spaced).max(gap.saturating_sub(looked.elapsed()))).await;
            due = due.max(Instant::now()) + SPACING;
            let asked = if pause < LOOKS.1 { Asked::Likely } else { Asked::All };
            let late = if late_looked.elapsed() < GAP_MAX { Late::Without } else { Late::With };
            if late == Late::With {
                late_looked = Instant::now();
            }
            let waiting = self.inactive(asked, late);
            let ids: Vec<String> = waiting.keys().cloned().collect();
            match self.allocator.active(&ids).await {
                Ok(seen) => {
                    let progress = self.mark(&waiting, &seen);
                    gap = next_gap(looked.elapsed(), progress.len(), self.hopeful(&waiting));
                    looked = Instant::now();
                    pause = if progress.is_empty() { (pause * 2).min(LOOKS.1) } else { LOOKS.0 * 4 };
                    stream::iter(progress)
                        .for_each_concurrent(PARALLEL, |uid| {
                            let reconciler = Arc::clone(&self);
                            async move { reconciler.confirm(&uid).await }
                        })
                        .await;
                }
                Err(error) => {
                    warn!(%error, "ports that wait cannot be looked at");
                    pause = LOOKS.1;
                }
            }
        }
    }

    /// Ports that wait for becoming ACTIVE, and whose they are.
    pub(super) fn inactive(&self, asked: Asked, late: Late) -> BTreeMap<String, String> {
        let (cases, now) = (self.cases(), Instant::now());
        let waiting: Vec<(&String, &Case)> =
            cases.iter().filter(|(_, case)| case.stage == Stage::Waiting).collect();
        let hopeful = waiting.iter().filter(|(_, case)| case.is_hopeful(now)).count();
        let mut inactive = BTreeMap::new();
        for (uid, case) in waiting.into_iter().filter(|(_, case)| case.is_asked(asked, late, hopeful, now)) {
            let vifs = case.state.vifs().filter(|(_, vif)| !vif.active);
            inactive.extend(vifs.map(|(_, vif)| (vif.id.clone(), uid.clone())));
        }
        inactive
    }

    /// How many pods that wait do not seem to wait for ever.
    fn hopeful(&self, waiting: &BTreeMap<String, String>) -> usize {
        let (cases, now) = (self.cases(), Instant::now());
        let is_hopeful = |uid: &&String| cases.get(*uid).is_some_and(|case| case.is_hopeful(now));
        waiting.values().collect::<BTreeSet<_>>().into_iter().filter(is_hopeful).count()
    }

    /// Notes what has become ACTIVE; the pods all of whose ports are.
    fn mark(&self, waiting: &BTreeMap<String, String>, seen: &BTreeMap<String, bool>) -> BTreeSet<String> {
        let mut complete = BTreeSet::new();
        let mut cases = self.cases();
        for (id, uid) in waiting {
            let is_seen = |case: &&mut Case| case.stage == Stage::Waiting && seen.get(id) == Some(&true);
            let Some(case) = cases.get_mut(uid).filter(is_seen) else { continue };
            case.state.vifs_mut().filter(|vif| vif.id == *id).for_each(|vif| vif.active = true);
            if case.state.is_active() {
                complete.insert(uid.clone());
            }
        }
        complete
    }

    /// The second phase: all of a pod's ports are ACTIVE.
    async fn confirm(self: Arc<PortReconciler>, uid: &str) {
        let Some(mut confirmed) = self.cases().get_mut(uid).and_then(Case::begin_confirmation) else {
            return;
        };
        let written = vif_writer::write(self.place, &self.client, &confirmed.subject, &confirmed.state).await;
        if let Err(Unwritten::Failed(why)) = &written {
            warn!(why = why.to_string(), "not written; again soon");
        }
        confirmed.note_written();
        let stage = match self.cases().get_mut(uid) {
            Some(case) => case.end_confirmation(written.map(|()| confirmed)),
            None => return,
        };
        match stage {
            Stage::Active => self.count("activated"),
            Stage::Leaving => drop(tokio::spawn(self.release(uid.to_owned()))),
            _ => {}
        }
    }
}

/// As if one of its ports had not been seen ACTIVE: the next look finds it so again. A macvlan's never is.
fn unsee(state: &mut PodState) {
    let of_switch = state.vifs_mut().find(|vif| !matches!(vif.kind, Kind::MacvlanNested));
    of_switch.into_iter().for_each(|vif| vif.active = false);
}

/// The time to the next look: until then a part of those who wait is ready, if it goes on as it did in the time that passed.
fn next_gap(passed: Duration, found: usize, waiting: usize) -> Duration {
    if waiting <= MANY {
        return Duration::ZERO;
    }
    let expected = match found {
        0 => passed * 2,
        _ => passed.mul_f64(waiting as f64 / PART / found as f64),
    };
    expected.min(GAP_MAX)
}

#[cfg(test)]
mod tests {
    use npwg::metadata::Pod;

    use super::*;
    use crate::neutron::pod_subject::PodSubject;

    #[test]
    fn who_may_wait_for_ever_is_asked_for_when_it_is_their_turn_alone() {
        let waiting = |annotations: &[&str]| {
            let annotations = annotations.iter().map(|key| ((*key).to_owned(), String::new())).collect();
            let subject = PodSubject { pod: Pod { annotations, ..Pod::default() }, ..PodSubject::default() };
            Case::new(&Arc::new(subject), PodState::default(), Stage::Waiting)
        };
        let (silent, said) = (waiting(&[]), waiting(&[NETWORK_STATUS]));
        let asked = |case: &Case, after: Duration, hopeful: usize| {
            [
                (Asked::All, Late::With),
                (Asked::All, Late::Without),
                (Asked::Likely, Late::With),
                (Asked::Likely, Late::Without),
            ]
            .map(|(asked, late)| case.is_asked(asked, late, hopeful, case.since + after))
        };
        let soon = Duration::from_secs(1);
        assert_eq!(asked(&silent, soon, FEW), [true; 4]);
        assert_eq!(asked(&silent, soon, FEW + 1), [true, true, false, false]);
        assert_eq!(asked(&said, soon, FEW + 1), [true; 4]);
        for case in [&silent, &said] {
            assert_eq!(asked(case, FOR_EVER, FEW), [true, false, true, false]);
        }
    }

    fn golden() -> PodState {
        let golden = include_str!("../../../../neutron/testdata/podstate-nochanges.json");
        PodState::from_annotation(golden).unwrap()
    }

    #[test]
    fn while_it_is_written_that_ports_are_active_nobody_else_writes_and_who_leaves_is_released() {
        let mut case = Case::new(&Arc::default(), golden(), Stage::Waiting);
        case.state.vifs_mut().for_each(|vif| vif.active = true);
        let mut confirmed = case.begin_confirmation().unwrap();
        assert_eq!((case.stage, case.begin_confirmation().is_none()), (Stage::Working, true));
        confirmed.note_written();
        let mut left = case.clone();
        left.stage = Stage::Leaving;
        assert_eq!(left.end_confirmation(Ok(confirmed.clone())), Stage::Leaving);
        let mut gone = case.clone();
        assert_eq!(gone.end_confirmation(Err(Unwritten::Gone)), Stage::Waiting);
        let mut failed = case.clone();
        let late = serde_json::from_str::<()>("").unwrap_err();
        assert_eq!(failed.end_confirmation(Err(Unwritten::Failed(late.into()))), Stage::Waiting);
        assert!(!failed.state.is_active());
        assert_eq!(case.end_confirmation(Ok(confirmed)), Stage::Active);
        assert!(case.is_written());
    }

    #[test]
    fn what_is_looked_at_again_is_no_macvlan() {
        let mut state = golden();
        for (number, vif) in state.vifs_mut().enumerate() {
            vif.active = true;
            if number == 0 {
                vif.kind = Kind::MacvlanNested;
            }
        }
        unsee(&mut state);
        let active: Vec<bool> = state.vifs().map(|(_, vif)| vif.active).collect();
        assert_eq!(active[..2], [true, false], "{active:?}");
    }

    #[test]
    fn who_finds_few_of_many_looks_after_the_time_that_a_quarter_takes() {
        let second = Duration::from_secs(1);
        assert_eq!(next_gap(second, 25, 100), second);
        assert_eq!(next_gap(second, 5, 100), 5 * second);
        assert_eq!(next_gap(second, 1, 100), GAP_MAX);
        assert_eq!(next_gap(second, 100, 100), second / 4);
        // Nobody yet: soon at the beginning, and not much later than it could have been.
        assert_eq!(next_gap(LOOKS.0, 0, 100), LOOKS.0 * 2);
        // Of a few nobody is in the way.
        assert_eq!(next_gap(second, 0, MANY), Duration::ZERO);
    }

    /// A hundred pods that a server makes ready one by one, five in a second or one in two: what asks for their ports, a hundred
    /// in a request, is less than one for two of them.
    #[test]
    fn a_hundred_pods_are_asked_for_less_than_fifty_times_however_slow_the_server_is() {
        for each in [0.2, 0.6, 1.7] {
            let (mut now, mut seen, mut requests, mut passed) = (LOOKS.0, 0usize, 0, LOOKS.0);
            while seen < 100 {
                requests += ((100 - seen) * 3).div_ceil(100);
                let ready = (1..=100).take_while(|pod| f64::from(*pod) * each <= now.as_secs_f64()).count();
                passed = next_gap(passed, ready - seen, 100 - seen).max(LOOKS.0);
                // Few are looked at as often as there may be looks at all.
                if 100 - seen <= MANY {
                    passed = SPACING;
                }
                (seen, now) = (ready, now + passed);
            }
            assert!(requests < 50, "{requests} requests, {each} s each");
        }
    }
}
