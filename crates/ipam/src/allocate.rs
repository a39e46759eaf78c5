//! Allocation from the node's address store, without any other component.
//!
//! The caller has locked the store and writes every edit before it does anything else; it may be killed after
//! each edit. See `docs/design/ipam.md#allocation-on-a-node`.

use std::net::IpAddr;

use crate::address_filter::AddressFilter;
use crate::address_store::{AddressStore, Choice, Edit, OwnerTag, Slot, SlotId};
use crate::allocation_error::AllocationError;
use crate::block_lease::BlockState;
use crate::clock::Clock;
use crate::lease_message::AllocationKind;
use crate::number::number;

/// An owner first looks for an offer among every sixteenth address, then among every fourth, then among all,
/// so that concurrent calls on one node rarely offer the same address.
const OFFER_STRIDES: [u128; 3] = [16, 4, 1];

/// Result of [`AddressStore::allocate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// This address is allocated once the edits are written; no edit if the owner held it before.
    Allocated(SlotId, IpAddr, Vec<Edit>),
    /// The store has no such address: the agent must be asked, and this is the error if it has none either.
    NeedsLease(AllocationKind, Option<AllocationError>),
    /// The address cannot be allocated.
    Refused(AllocationError),
}

impl AddressStore {
    /// Allocates an address to an owner: the one it holds, else one that is free.
    pub fn allocate(
        &mut self,
        clock: Clock,
        filter: &AddressFilter,
        owner: OwnerTag,
        kind: AllocationKind,
    ) -> Allocation {
        if let Some(id) = self.held_by(owner).next()
            && let Some(ip) = self.address(id)
        {
            return match kind {
                AllocationKind::Address(wanted) | AllocationKind::AddressForClaim(wanted) if wanted != ip => {
                    Allocation::Refused(AllocationError::HoldsAnother(ip))
                }
                _ => Allocation::Allocated(id, ip, Vec::new()),
            };
        }
        match kind {
            AllocationKind::Address(ip) => self.allocate_address(clock, owner, ip),
            AllocationKind::AddressForClaim(ip) if self.find_held(ip).is_some() => {
                Allocation::Refused(AllocationError::HeldOnThisNode(ip))
            }
            AllocationKind::ForClaim(_) | AllocationKind::AddressForClaim(_) => {
                Allocation::NeedsLease(kind, None)
            }
            AllocationKind::Any | AllocationKind::Nothing => self.allocate_any(clock, filter, owner),
        }
    }

    /// Finds an address in the store that can be transferred to a claim: `named`, unless it is held or was
    /// `tried`, else one that is free. Concurrent calls start with different addresses, if possible.
    pub fn offer_for_claim(
        &mut self,
        clock: Clock,
        filter: &AddressFilter,
        owner: OwnerTag,
        named: Option<IpAddr>,
        tried: &[IpAddr],
    ) -> Option<IpAddr> {
        let named = named.filter(|ip| !tried.contains(ip) && self.find_held(*ip).is_none());
        if named.is_some() {
            return named;
        }
        for stride in OFFER_STRIDES {
            let is_own = |ip| number(ip) % stride == u128::from(owner) % stride;
            let accepts = |ip| is_own(ip) && filter.admits(ip) && !tried.contains(&ip);
            let (choice, undrained) = self.choose_or_undrain(clock, &accepts);
            if let Some((page, _)) = undrained {
                // A transferred address does not fill the block: it continues to be drained.
                drop(self.set_draining(page, true));
            }
            if let Choice::Free(_, ip) = choice {
                return Some(ip);
            }
        }
        None
    }

    fn allocate_any(&mut self, clock: Clock, filter: &AddressFilter, owner: OwnerTag) -> Allocation {
        let (choice, undrained) = self.choose_or_undrain(clock, &|ip| filter.admits(ip));
        match choice {
            Choice::Free(id, ip) => {
                let mut edits: Vec<Edit> = undrained.map(|(_, edit)| edit).into_iter().collect();
                edits.extend(self.hold(id, clock.now, owner));
                Allocation::Allocated(id, ip, edits)
            }
            Choice::Quarantined(until) => {
                Allocation::NeedsLease(AllocationKind::Any, Some(AllocationError::Quarantined(until)))
            }
            Choice::Full => Allocation::NeedsLease(AllocationKind::Any, None),
        }
    }

    /// Chooses an address. If only a drained block has one, the block is no longer drained, and the page and the edit
    /// are returned, too.
    fn choose_or_undrain(
        &mut self,
        clock: Clock,
        accepts: &dyn Fn(IpAddr) -> bool,
    ) -> (Choice, Option<(usize, Edit)>) {
        let choice = self.choose(clock, accepts);
        if matches!(choice, Choice::Free(..)) {
            return (choice, None);
        }
        let draining: Vec<usize> = self.draining().collect();
        for page in draining {
            let edit = self.set_draining(page, false);
            match self.choose(clock, accepts) {
                free @ Choice::Free(..) => return (free, Some((page, edit))),
                _ => drop(self.set_draining(page, true)),
            }
        }
        (choice, None)
    }

    /// Allocates this address. The quarantine does not apply to an address that is named.
    fn allocate_address(&mut self, clock: Clock, owner: OwnerTag, ip: IpAddr) -> Allocation {
        let refused = AllocationError::HeldOnThisNode(ip);
        let needs_lease = |error| Allocation::NeedsLease(AllocationKind::Address(ip), error);
        let Some(id) = self.find(ip) else { return needs_lease(None) };
        let Some(block) = self.block(id.page) else { return Allocation::Refused(refused) };
        match (block.state, self.slot(id)) {
            (BlockState::Active, Slot::Free(_)) if !block.single_owner => {
                Allocation::Allocated(id, ip, self.hold(id, clock.now, owner).into())
            }
            (_, Slot::Held { .. } | Slot::Unknown) => Allocation::Refused(refused),
            _ => needs_lease(Some(refused)),
        }
    }
}
