//! Activation: polls Neutron until the ports of waiting pods are ACTIVE, because Neutron sends no
//! notification.
//!
//! - Ports are polled many at a time, soon after a node has attached the pod. The slower Neutron is, the
//!   rarer it is polled, because the poll competes with the work that it waits for.
//! - A pod that may never become ready delays no other pod's poll, and is polled rarely.
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

/// First and longest pause before ports are polled again.
const POLL_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));
/// Average time between two polls, and how many polls may precede it.
const SPACING: Duration = Duration::from_secs(1);
const AHEAD: u32 = 3;
/// With more waiting pods than this, a poll is timed so that one in [`PART`] is ready.
const MANY: usize = 8;
const PART: f64 = 4.0;
/// Longest time between two polls for many pods, and the interval at which overdue pods are polled.
const GAP_MAX: Duration = Duration::from_secs(16);
/// Time after which a pod is overdue: the ports may never become ACTIVE. Overdue pods do not affect the timing for the
/// others.
const OVERDUE_AFTER: Duration = Duration::from_secs(600);
/// Up to this many pods, all are polled.
const FEW: usize = 30;

/// Which pods to poll, among those that are not overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    /// Every waiting pod.
    All,
    /// Only pods whose node has attached them, if many pods wait; else all.
    Likely,
}

/// Whether overdue pods are polled, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    With,
    Without,
}

// === impl Case ===

impl Case {
    fn is_overdue(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) >= OVERDUE_AFTER
    }

    /// Whether this waiting pod is polled. `count` is how many waiting pods are not overdue.
    fn is_polled(&self, polled: Polled, overdue: Overdue, count: usize, now: Instant) -> bool {
        if self.is_overdue(now) {
            return overdue == Overdue::With;
        }
        let is_attached = || self.subject.pod.annotations.contains_key(NETWORK_STATUS);
        polled == Polled::All || count <= FEW || is_attached()
    }

    /// Begins to write the state in which all ports are ACTIVE. Until it ends, no other task writes.
    fn begin_confirmation(&mut self) -> Option<Case> {
        let is_due = self.stage == Stage::Waiting && self.state.is_active();
        is_due.then(|| {
            self.stage = Stage::Allocating;
            self.clone()
        })
    }

    /// Ends the write and returns the new stage. A pod that was deleted meanwhile is still to be released.
    fn end_confirmation(&mut self, written: Result<Case, Unwritten>) -> Stage {
        let next = match written {
            Ok(confirmed) => {
                self.written = confirmed.written;
                Stage::Active
            }
            // The next reconciliation finds the pod deleted or recreated.
            Err(Unwritten::Gone) => Stage::Waiting,
            Err(Unwritten::Failed(_)) => {
                mark_inactive(&mut self.state);
                Stage::Waiting
            }
        };
        if self.stage == Stage::Allocating {
            self.stage = next;
        }
        self.stage
    }
}

// === impl PortReconciler ===

impl PortReconciler {
    /// Polls ports until they are ACTIVE: soon after a node reported an attachment, and periodically for
    /// nodes that report nothing. The number of polls is limited, even if many pods are attached one after
    /// the other.
    pub(super) async fn activate(self: Arc<PortReconciler>) {
        let (mut pause, mut due) = (POLL_PAUSES.0, Instant::now());
        let (mut polled_at, mut gap) = (Instant::now(), Duration::ZERO);
        let mut overdue_polled_at = Instant::now();
        loop {
            if self.inactive(Polled::All, Overdue::With).is_empty() {
                self.waiting.notified().await;
                (pause, polled_at, gap) = (POLL_PAUSES.0, Instant::now(), Duration::ZERO);
            } else if timeout(pause, self.waiting.notified()).await.is_ok() {
                pause = POLL_PAUSES.0;
            }
            // Other pods may follow closely.
            let spaced = due.saturating_duration_since(Instant::now() + SPACING * AHEAD);
            sleep(POLL_PAUSES.0.max(spaced).max(gap.saturating_sub(polled_at.elapsed()))).await;
            due = due.max(Instant::now()) + SPACING;
            let polled = if pause < POLL_PAUSES.1 { Polled::Likely } else { Polled::All };
            let overdue =
                if overdue_polled_at.elapsed() < GAP_MAX { Overdue::Without } else { Overdue::With };
            if overdue == Overdue::With {
                overdue_polled_at = Instant::now();
            }
            let waiting = self.inactive(polled, overdue);
            let ids: Vec<String> = waiting.keys().cloned().collect();
            match self.allocator.active(&ids).await {
                Ok(seen) => {
                    let progress = self.mark_active(&waiting, &seen);
                    gap = next_gap(polled_at.elapsed(), progress.len(), self.count_not_overdue(&waiting));
                    polled_at = Instant::now();
                    pause =
                        if progress.is_empty() { (pause * 2).min(POLL_PAUSES.1) } else { POLL_PAUSES.0 * 4 };
                    stream::iter(progress)
                        .for_each_concurrent(PARALLEL, |uid| {
                            let reconciler = Arc::clone(&self);
                            async move { reconciler.confirm(&uid).await }
                        })
                        .await;
                }
                Err(error) => {
                    warn!(%error, "failed to poll the status of ports");
                    pause = POLL_PAUSES.1;
                }
            }
        }
    }

    /// Returns the ports that are not ACTIVE yet, with the pods' uids.
    pub(super) fn inactive(&self, polled: Polled, overdue: Overdue) -> BTreeMap<String, String> {
        let (cases, now) = (self.cases(), Instant::now());
        let waiting: Vec<(&String, &Case)> =
            cases.iter().filter(|(_, case)| case.stage == Stage::Waiting).collect();
        let count = waiting.iter().filter(|(_, case)| !case.is_overdue(now)).count();
        let mut inactive = BTreeMap::new();
        for (uid, case) in waiting.into_iter().filter(|(_, case)| case.is_polled(polled, overdue, count, now))
        {
            let vifs = case.state.vifs().filter(|(_, vif)| !vif.active);
            inactive.extend(vifs.map(|(_, vif)| (vif.id.clone(), uid.clone())));
        }
        inactive
    }

    /// Returns how many waiting pods are not overdue.
    fn count_not_overdue(&self, waiting: &BTreeMap<String, String>) -> usize {
        let (cases, now) = (self.cases(), Instant::now());
        let is_counted = |uid: &&String| cases.get(*uid).is_some_and(|case| !case.is_overdue(now));
        waiting.values().collect::<BTreeSet<_>>().into_iter().filter(is_counted).count()
    }

    /// Records the ports that are ACTIVE. Returns the pods whose ports are all ACTIVE.
    fn mark_active(
        &self,
        waiting: &BTreeMap<String, String>,
        seen: &BTreeMap<String, bool>,
    ) -> BTreeSet<String> {
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

    /// Writes that all ports on a pod are ACTIVE.
    async fn confirm(self: Arc<PortReconciler>, uid: &str) {
        let Some(mut confirmed) = self.cases().get_mut(uid).and_then(Case::begin_confirmation) else {
            return;
        };
        let written =
            vif_writer::write(self.location, &self.client, &confirmed.subject, &confirmed.state).await;
        if let Err(Unwritten::Failed(why)) = &written {
            warn!(error = why.to_string(), "failed to write VIFs; will try again");
        }
        confirmed.note_written();
        let stage = match self.cases().get_mut(uid) {
            Some(case) => case.end_confirmation(written.map(|()| confirmed)),
            None => return,
        };
        match stage {
            Stage::Active => self.count("activated"),
            Stage::Releasing => drop(tokio::spawn(self.release(uid.to_owned()))),
            _ => {}
        }
    }
}

/// Marks one port as not ACTIVE, so that the next poll completes the pod again. Macvlans are not polled.
fn mark_inactive(state: &mut PodState) {
    let of_switch = state.vifs_mut().find(|vif| !matches!(vif.kind, Kind::MacvlanNested));
    of_switch.into_iter().for_each(|vif| vif.active = false);
}

/// Returns the time to the next poll: until then one in [`PART`] waiting pods is ready, at the rate so far.
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
    fn port_activation_polls_overdue_pods_separately() {
        let waiting = |annotations: &[&str]| {
            let annotations = annotations.iter().map(|key| ((*key).to_owned(), String::new())).collect();
            let subject = PodSubject { pod: Pod { annotations, ..Pod::default() }, ..PodSubject::default() };
            Case::new(&Arc::new(subject), PodState::default(), Stage::Waiting)
        };
        let (starting, attached) = (waiting(&[]), waiting(&[NETWORK_STATUS]));
        let polled = |case: &Case, after: Duration, count: usize| {
            [
                (Polled::All, Overdue::With),
                (Polled::All, Overdue::Without),
                (Polled::Likely, Overdue::With),
                (Polled::Likely, Overdue::Without),
            ]
            .map(|(polled, overdue)| case.is_polled(polled, overdue, count, case.since + after))
        };
        let soon = Duration::from_secs(1);
        assert_eq!(polled(&starting, soon, FEW), [true; 4]);
        assert_eq!(polled(&starting, soon, FEW + 1), [true, true, false, false]);
        assert_eq!(polled(&attached, soon, FEW + 1), [true; 4]);
        for case in [&starting, &attached] {
            assert_eq!(polled(case, OVERDUE_AFTER, FEW), [true, false, true, false]);
        }
    }

    fn golden() -> PodState {
        let golden = include_str!("../../../../neutron/testdata/podstate-nochanges.json");
        PodState::from_annotation(golden).unwrap()
    }

    #[test]
    fn port_activation_write_is_exclusive_and_deletion_is_kept() {
        let mut case = Case::new(&Arc::default(), golden(), Stage::Waiting);
        case.state.vifs_mut().for_each(|vif| vif.active = true);
        let mut confirmed = case.begin_confirmation().unwrap();
        assert_eq!((case.stage, case.begin_confirmation().is_none()), (Stage::Allocating, true));
        confirmed.note_written();
        let mut left = case.clone();
        left.stage = Stage::Releasing;
        assert_eq!(left.end_confirmation(Ok(confirmed.clone())), Stage::Releasing);
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
    fn port_activation_polls_no_macvlan_again() {
        let mut state = golden();
        for (number, vif) in state.vifs_mut().enumerate() {
            vif.active = true;
            if number == 0 {
                vif.kind = Kind::MacvlanNested;
            }
        }
        mark_inactive(&mut state);
        let active: Vec<bool> = state.vifs().map(|(_, vif)| vif.active).collect();
        assert_eq!(active[..2], [true, false], "{active:?}");
    }

    #[test]
    fn port_activation_polls_when_a_quarter_is_expected() {
        let second = Duration::from_secs(1);
        assert_eq!(next_gap(second, 25, 100), second);
        assert_eq!(next_gap(second, 5, 100), 5 * second);
        assert_eq!(next_gap(second, 1, 100), GAP_MAX);
        assert_eq!(next_gap(second, 100, 100), second / 4);
        // No port is ACTIVE yet: soon at the beginning, and at most twice as late as possible.
        assert_eq!(next_gap(POLL_PAUSES.0, 0, 100), POLL_PAUSES.0 * 2);
        // A few pods are polled without a gap.
        assert_eq!(next_gap(second, 0, MANY), Duration::ZERO);
    }

    /// If the ports on 100 pods become ACTIVE one by one, at rates between five in a second and one in two
    /// seconds, there is less than one request for two pods.
    #[test]
    fn port_activation_of_100_pods_needs_less_than_50_polls() {
        for each in [0.2, 0.6, 1.7] {
            let (mut now, mut seen, mut requests, mut passed) = (POLL_PAUSES.0, 0usize, 0, POLL_PAUSES.0);
            while seen < 100 {
                requests += ((100 - seen) * 3).div_ceil(100);
                let ready = (1..=100).take_while(|pod| f64::from(*pod) * each <= now.as_secs_f64()).count();
                passed = next_gap(passed, ready - seen, 100 - seen).max(POLL_PAUSES.0);
                // A few pods are polled as often as possible.
                if 100 - seen <= MANY {
                    passed = SPACING;
                }
                (seen, now) = (ready, now + passed);
            }
            assert!(requests < 50, "{requests} requests, {each} s each");
        }
    }
}
