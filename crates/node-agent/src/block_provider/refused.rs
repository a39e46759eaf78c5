//! Refusals when a pool is full: other nodes are not asked again at every attempt, and a node that has a free address
//! again gives it up.
//!
//! ```text
//!   node without an address ─► asks all nodes ─► all refuse ─► [`Refusal`]: not asked again for a while
//!   node that refused ─► remembers the request ─► DEL in its full store ─► gives up the address, as if it were asked now
//! ```
//!
//! - What was given up is in the registry, where the next attempt of the first node finds it.
//! - If the second node forgets the request, because the agent is restarted, the first one asks again after the pause.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipam::{AddressFilter, AllocationError, TransferRequest};
use rpc::allocate::AllocateRequest;
use tokio::sync::watch::{Receiver, Sender};

use ipam_api::owned_block::OwnedBlock;

/// Shortest and longest time for which no node is asked after a refusal.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// Time after which the registry is read again before a refusal: another node may be giving up an address.
pub(super) const AGAIN: Duration = Duration::from_millis(600);
/// Time for which a refused request is remembered, longer than the pause between a kubelet's attempts.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Maximum number of requests that are remembered for a store.
const REQUESTS_MAX: usize = 16;

/// Every other node refused a request.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    /// Why it was refused.
    pub(super) error: AllocationError,
    filter: AddressFilter,
    quarantine: u64,
    pause: Duration,
    until: Instant,
}

impl Refusal {
    /// Returns a refusal whose pause is twice as long as the one before.
    pub(super) fn after(
        before: Option<Refusal>,
        request: &AllocateRequest,
        error: AllocationError,
    ) -> Refusal {
        let before = before.filter(|before| before.filter == request.filter).map(|before| before.pause * 2);
        let pause = before.unwrap_or(PAUSE_MIN).clamp(PAUSE_MIN, PAUSE_MAX);
        let (filter, quarantine) = (request.filter.clone(), request.quarantine);
        Refusal { error, filter, quarantine, pause, until: Instant::now() + pause }
    }

    /// Whether the request has no successor with a shorter quarantine.
    pub(super) fn is_last_of(&self, request: &AllocateRequest) -> bool {
        self.quarantine == request.quarantine
    }

    /// Whether the nodes would refuse this request, too. One with a shorter quarantine may get an address.
    pub(super) fn covers(&self, request: &AllocateRequest) -> bool {
        let is_recent = Instant::now() < self.until;
        is_recent && self.filter == request.filter && self.quarantine <= request.quarantine
    }
}

/// Requests from other nodes that this node refused, by store.
#[derive(Default)]
pub(crate) struct RefusedNodes {
    requests: Mutex<BTreeMap<String, Vec<RefusedRequest>>>,
    /// Number of times that an address became free in a store with such requests.
    freed: Sender<u64>,
}

/// Request from another node that was refused.
#[derive(Clone, Debug)]
pub(crate) struct RefusedRequest {
    /// Object that contained the request, without it.
    pub(crate) asked: OwnedBlock,
    /// Request as it arrived.
    pub(crate) request: TransferRequest,
    at: Instant,
    is_due: bool,
}

impl RefusedNodes {
    fn requests(&self) -> MutexGuard<'_, BTreeMap<String, Vec<RefusedRequest>>> {
        // A panic leaves no list half changed.
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a refused request, in place of an earlier one from the same node.
    pub(crate) fn remember(&self, asked: &OwnedBlock, request: &TransferRequest) {
        let mut asked = asked.clone();
        asked.object.holder.transfer_requests.retain(|other| other != request);
        let mut all = self.requests();
        let known = all.entry(asked.object.holder.store.clone()).or_default();
        known.retain(|other| other.request.node != request.node && other.at.elapsed() < REMEMBERED);
        if known.len() < REQUESTS_MAX {
            known.push(RefusedRequest { asked, request: request.clone(), at: Instant::now(), is_due: false });
        }
    }

    /// Notes that an address in a store is free again.
    pub(crate) fn note_free(&self, store: &str) {
        let mut all = self.requests();
        let Some(known) = all.get_mut(store) else { return };
        known.retain(|other| other.at.elapsed() < REMEMBERED);
        for request in known.iter_mut() {
            request.is_due = true;
        }
        if !known.is_empty() {
            self.freed.send_modify(|count| *count += 1);
        }
    }

    /// Returns a request that could not be completed; it is due in the next round.
    pub(crate) fn try_again(&self, request: RefusedRequest) {
        let store = request.asked.object.holder.store.clone();
        self.requests().entry(store).or_default().push(request);
    }

    /// Returns a receiver for the notes.
    pub(crate) fn changes(&self) -> Receiver<u64> {
        self.freed.subscribe()
    }

    /// Takes the requests that may be fulfilled now, the oldest first.
    pub(crate) fn take_due(&self) -> Vec<RefusedRequest> {
        let mut all = self.requests();
        for known in all.values_mut() {
            known.retain(|request| request.at.elapsed() < REMEMBERED);
        }
        let mut due: Vec<RefusedRequest> =
            all.values_mut().flat_map(|known| known.extract_if(.., |request| request.is_due)).collect();
        due.sort_by_key(|request| request.at);
        due
    }
}

#[cfg(test)]
mod tests {
    use ipam::{Holder, IpBlock};

    use super::*;

    #[test]
    fn refused_request_is_due_when_its_store_has_a_free_address() {
        let refused = RefusedNodes::default();
        let request = |node: &str| TransferRequest {
            node: node.into(),
            store: "p".into(),
            addresses: Vec::new(),
            quarantine: 0,
            requested_at: 1,
        };
        let holder =
            Holder { store: "p".into(), transfer_requests: vec![request("n2")], ..Holder::default() };
        let object = IpBlock {
            net: "10.0.0.0/28".parse().unwrap(),
            uid: "u".into(),
            version: "1".into(),
            holder,
            reserved: Vec::new(),
        };
        let asked = OwnedBlock { pool: "p".into(), object, is_probed: false, is_deleted: false };
        for node in ["n2", "n3", "n2"] {
            refused.remember(&asked, &request(node));
        }
        let mut changes = refused.changes();
        changes.mark_unchanged();
        refused.note_free("q");
        assert!(!changes.has_changed().unwrap() && refused.take_due().is_empty(), "another store");
        refused.note_free("p");
        assert!(changes.has_changed().unwrap());
        let due = refused.take_due();
        let nodes: Vec<&str> = due.iter().map(|one| one.request.node.as_str()).collect();
        assert_eq!(nodes, ["n3", "n2"], "each node once");
        assert!(due[1].asked.object.holder.transfer_requests.is_empty());
        assert!(refused.take_due().is_empty());
    }
}
