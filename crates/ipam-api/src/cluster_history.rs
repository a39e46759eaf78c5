//! History of the cluster: notices that the API server's database was restored to an earlier state.
//!
//! ```text
//!   response of the API server ──► resource version before the newest one that was known? ──► restored
//!       └─► far after it? (a restore may increase the versions) ──► restored
//!   restored ──► leases are compared with a new list, caches are listed again ──► nothing is leased for a while
//! ```
//!
//! After a restore the cluster lacks the leases made since the backup, although the pods still run. Each node leases
//! again what local pods hold. Until every node has had time to do so, a missing lease does not mean that an address is
//! free.
//!
//! - A response is compared with the newest version that was known when the request was sent: later responses may overtake it.
//! - Only requests that the API server answers from the database tell the present version: a creation, a change, and a list.
//!
//! Source: Kubernetes API concepts, resource versions; etcd, disaster recovery.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch::{Receiver, Sender};

/// Reason why nothing is leased after a restore.
pub const RESTORED: &str = "the cluster was restored to an earlier state: nothing is leased until each node has leased again what its \
     pods hold: try again in half a minute";
/// Time after a restore in which nothing is leased: each agent notices it within [`LOOK`], and leases again what local
/// pods hold; a node that does not need a restored lease any more returns it.
const SETTLE: Duration = Duration::from_secs(30);
/// Interval at which an agent compares the version of the database.
pub const LOOK: Duration = Duration::from_secs(10);
/// Number of versions between two looks that no cluster writes: etcd recommends to add 1,000,000,000 in a restore.
const JUMP: u64 = 100_000_000;

/// History of the cluster, as this process knows it.
#[derive(Debug, Default)]
pub struct ClusterHistory {
    state: Mutex<State>,
    restorations: Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// Newest resource version; 0 if none is known.
    newest: u64,
    restored_at: Option<Instant>,
}

impl ClusterHistory {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic leaves no half-changed state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the newest resource version that is known. Call it before a request.
    pub fn newest(&self) -> u64 {
        self.state().newest
    }

    /// Records the resource version of a response; whether it shows a restore. `before`: the newest version before the
    /// request.
    pub fn note(&self, before: u64, version: Option<&str>) -> bool {
        // A database may have other versions than numbers.
        let Some(version) = version.and_then(|version| version.parse::<u64>().ok()) else { return false };
        let is_restored = before > 0 && (version < before || version - before > JUMP);
        let mut state = self.state();
        if is_restored {
            (state.newest, state.restored_at) = (version, Some(Instant::now()));
            drop(state);
            kube_support::cache::list_again();
            self.restorations.send_modify(|count| *count += 1);
        } else {
            state.newest = state.newest.max(version);
        }
        is_restored
    }

    /// Returns the time until addresses may be leased again; `None` if they may be leased now.
    pub fn settles_for(&self) -> Option<Duration> {
        let since = self.state().restored_at?.elapsed();
        SETTLE.checked_sub(since).filter(|left| !left.is_zero())
    }

    /// Returns a receiver that gets the number of restores.
    pub fn restorations(&self) -> Receiver<u64> {
        self.restorations.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_history_notices_restores_to_earlier_versions() {
        for (versions, is_restored) in [
            (vec![(0, "100"), (100, "100"), (100, "101")], false),
            // A response that a later one overtook.
            (vec![(0, "100"), (100, "102"), (100, "101"), (102, "103")], false),
            (vec![(0, "100"), (100, "99")], true),
            // The versions were increased by the restore.
            (vec![(0, "100"), (100, "1000000000")], true),
            // The first known version may be any.
            (vec![(0, "1000000000"), (1_000_000_000, "1000000001")], false),
            (vec![(0, "x"), (0, "5")], false),
        ] {
            let history = ClusterHistory::default();
            let found = versions.iter().any(|(before, version)| history.note(*before, Some(version)));
            assert_eq!(found, is_restored, "{versions:?}");
            assert_eq!(history.settles_for().is_some(), is_restored, "{versions:?}");
            assert_eq!(*history.restorations().borrow(), u64::from(is_restored));
        }
    }
}
