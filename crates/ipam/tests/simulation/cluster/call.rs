//! Simulated call of `weft-cni`, which holds the lock of the store while it is the first one of its node.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use ipam::address_store::Edit;
use ipam::give_up::GivenUp;
use ipam::transfer::Reservation;
use ipam::{
    AddressFilter, AddressStore, Allocation, AllocationError, AllocationKind, BlockState, Clock,
    LeaseRequest, LeaseResponse,
};

use super::super::transfer::StoreTask;
use super::{IDLE, Owner};

/// Number of times a call unlocks the store so that the agent can transfer an address.
const UNLOCKS_MAX: usize = 6;

/// Place where an agent leaves its response.
pub(super) type Answer = Arc<Mutex<Option<LeaseResponse>>>;

/// Work of a call.
pub(super) enum Verb {
    Add(Owner, AllocationKind),
    Del(Owner),
    /// Returns idle blocks; this many addresses remain free elsewhere.
    Tidy(u64),
    /// Changes the store for another node.
    Store(StoreTask),
}

/// Call of the plugin.
pub(super) struct Call {
    pub(super) verb: Verb,
    pub(super) store: Option<AddressStore>,
    /// Window of the network's definition when the call began.
    pub(super) filter: Option<Arc<AddressFilter>>,
    /// Edits that are made in memory and not written yet.
    pub(super) unwritten: Vec<Edit>,
    /// Place of the agent's response.
    pub(super) answer: Option<Answer>,
    pub(super) requests: u32,
    /// Number of times the store was unlocked for the agent.
    pub(super) unlocks: usize,
    /// Number of times the call began again after that.
    pub(super) restarts: usize,
    /// Offered addresses that were taken by other owners.
    pub(super) tried: Vec<IpAddr>,
    /// Number of drained blocks that were returned with it.
    pub(super) drained: u64,
    /// Whether the call takes an address in quarantine, because no other is free.
    pub(super) ignores_quarantine: bool,
    /// Result of a request to give up an address.
    pub(super) given: Option<GivenUp>,
    /// Reserved addresses that were marked or freed.
    pub(super) restored: Vec<IpAddr>,
    /// Whether the changes that need no agent were made.
    begun: bool,
    pub(super) outcome: Option<Result<Option<IpAddr>, AllocationError>>,
}

impl Call {
    pub(super) fn of(verb: Verb) -> Call {
        Call {
            verb,
            store: None,
            filter: None,
            unwritten: Vec::new(),
            answer: None,
            requests: 0,
            unlocks: 0,
            restarts: 0,
            tried: Vec::new(),
            drained: 0,
            ignores_quarantine: false,
            given: None,
            restored: Vec::new(),
            begun: false,
            outcome: None,
        }
    }

    pub(super) fn owner(&self) -> Owner {
        match &self.verb {
            Verb::Add(owner, _) | Verb::Del(owner) => owner.clone(),
            Verb::Tidy(_) | Verb::Store(_) => Owner::of("none".into()),
        }
    }

    /// Applies the agent's response, if it has come.
    pub(super) fn receive(&mut self, clock: Clock, agent_is_gone: bool) {
        let owner = self.owner();
        let answered = self.answer.as_ref().and_then(|answer| answer.lock().unwrap().take());
        let Some(response) = answered else {
            if agent_is_gone {
                // The call does not wait without limit.
                self.answer = None;
                self.outcome = Some(Err(AllocationError::Unavailable("no agent".into())));
            }
            return;
        };
        self.answer = None;
        if let Some(store) = &mut self.store {
            let is_drained = |block: &ipam::address_store::Block| {
                block.draining && response.returned.contains(&block.lease)
            };
            self.drained += store.blocks().filter(is_drained).count() as u64;
            self.unwritten = store.apply_response(clock, owner.tag(), &response);
        }
        if let (Some(AllocationError::InOwnBlock { ip, .. }), true) =
            (&response.error, self.unlocks < UNLOCKS_MAX)
        {
            if let Verb::Add(_, kind @ AllocationKind::ForClaim(_)) = &mut self.verb {
                *kind = AllocationKind::ForClaim(Some(*ip));
            }
            // The call begins again when it has the lock again.
            (self.store, self.requests) = (None, 0);
            self.unlocks += 1;
            return;
        }
        if let Some(AllocationError::OfferTaken(ip)) = response.error {
            return self.tried.push(ip);
        }
        if let (Some(error), true) = (response.error, response.leases.is_empty()) {
            let is_full = matches!(
                error,
                AllocationError::Exhausted
                    | AllocationError::NoneElsewhere { .. }
                    | AllocationError::Quarantined(_)
            );
            let is_any = matches!(self.verb, Verb::Add(_, AllocationKind::Any | AllocationKind::ForClaim(_)));
            if is_full && is_any && !self.ignores_quarantine {
                (self.ignores_quarantine, self.requests) = (true, 0);
            } else {
                self.outcome = Some(Err(error));
            }
        }
        if matches!(self.verb, Verb::Del(_) | Verb::Tidy(_)) {
            self.outcome = Some(Ok(None));
        }
    }

    /// Clock without a quarantine for a call that ignores it.
    pub(super) fn clock(&self, clock: Clock) -> Clock {
        if self.ignores_quarantine { Clock { quarantine: 0, ..clock } } else { clock }
    }

    /// Makes the changes that need no agent; returns what the agent must be asked for, if that is not enough.
    pub(super) fn work(&mut self, clock: Clock, filter: &Arc<AddressFilter>) -> Option<AllocationKind> {
        let clock = self.clock(clock);
        let owner = self.owner().tag();
        let store = self.store.as_mut()?;
        match &self.verb {
            // The changes of the store are in the file by now.
            Verb::Del(_) | Verb::Tidy(_) if self.begun => Some(AllocationKind::Nothing),
            Verb::Del(_) => {
                self.unwritten.extend(store.release_owners(clock, &[owner]));
                self.begun = true;
                None
            }
            // The outcome is reported when the edits are on the disk.
            Verb::Store(StoreTask::GiveUp(request, known, _)) => {
                let (given, edits) = store.give_up(clock.now, request, known);
                self.unwritten.extend(edits);
                self.given = Some(given);
                self.outcome = Some(Ok(None));
                None
            }
            Verb::Store(StoreTask::Restore(message, _)) => {
                let (restored, edits) = store.restore(clock.now, message);
                self.unwritten.extend(edits);
                self.restored = restored;
                self.outcome = Some(Ok(None));
                None
            }
            Verb::Store(StoreTask::Reserve(lease, ip, _)) => {
                self.outcome = Some(match store.reserve_for_transfer(lease, *ip) {
                    Reservation::Reserved(edits) => {
                        self.unwritten.extend(edits);
                        Ok(Some(*ip))
                    }
                    Reservation::InUse(_) => Err(AllocationError::HeldOnThisNode(*ip)),
                    Reservation::UnknownLease => Err(AllocationError::Exhausted),
                });
                None
            }
            Verb::Tidy(keep) => {
                self.unwritten = store.release_idle_blocks(clock, IDLE, *keep);
                self.begun = true;
                None
            }
            Verb::Add(_, kind) => {
                self.outcome = match store.allocate(clock, filter, owner, *kind) {
                    Allocation::Allocated(id, ip, edits) => {
                        let is_drained = store.block(id.page).is_some_and(|block| block.draining);
                        let is_named = !matches!(kind, AllocationKind::Any) || edits.is_empty();
                        assert!(is_named || !is_drained, "{ip} is allocated from a drained block");
                        self.unwritten.extend(edits);
                        Some(Ok(Some(ip)))
                    }
                    Allocation::Refused(error) => Some(Err(error)),
                    Allocation::NeedsLease(..) if self.requests >= 3 => Some(Err(AllocationError::Exhausted)),
                    Allocation::NeedsLease(AllocationKind::ForClaim(named), _) => {
                        let offer = store.offer_for_claim(clock, filter, owner, named, &self.tried);
                        return Some(AllocationKind::ForClaim(offer));
                    }
                    Allocation::NeedsLease(kind, _) => return Some(kind),
                };
                None
            }
        }
    }

    /// Request for the agent, if there is something to ask.
    pub(super) fn request(&mut self, kind: AllocationKind) -> Option<LeaseRequest> {
        self.requests += 1;
        let request = self.store.as_ref()?.lease_request(kind);
        let is_idle = request.blocks.iter().all(|block| block.state == BlockState::Active);
        if matches!(self.verb, Verb::Del(_)) && is_idle {
            self.outcome = Some(Ok(None));
            return None;
        }
        Some(request)
    }
}
