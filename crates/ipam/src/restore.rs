//! Restores reserved addresses: an address in a block that no single address uses any more is free in the
//! block again.
//!
//! The agent on the node that leases the block does it, with the address store. Protocol and safety argument:
//! `docs/design/ipam.md#restored-addresses`.
//!
//! - The store marks the addresses before the reservations are removed from the block's object.
//! - An address becomes free only if it still has the mark. Every path that reserves it in the object again
//!   makes the store remove the mark first.
//! - A mark that remains is removed later. The address is then reserved in the store alone, and is published
//!   again.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::address_store::{AddressStore, Block, Edit, Slot, SlotId};
use crate::block_lease::BlockState;
use crate::clock::Clock;
use crate::ip_block::IpBlock;
use crate::pool_layout::offset_of;
use crate::registry::{PoolState, Registry, RegistryError};

/// Number that identifies one attempt; never 0, and different for each attempt.
pub type RestoreMark = u64;

/// Message from the agent to `weft-cni`: what to change about a lease's reserved addresses in the address
/// store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoreMessage {
    /// Lease identifier.
    pub lease: String,
    /// Which attempt this is.
    pub mark: RestoreMark,
    /// Action to take.
    pub step: RestoreStep,
    /// Addresses to mark, or to free.
    pub addresses: Vec<IpAddr>,
}

/// Action on reserved addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RestoreStep {
    /// Marks the addresses, and removes the marks that earlier attempts left.
    Mark,
    /// Frees the addresses that still have the mark, and removes it from others.
    Free,
}

impl AddressStore {
    /// Changes reserved addresses; returns the addresses that were marked or freed. The registry may be
    /// changed only when the edits are on the disk.
    pub fn restore(&mut self, now: u64, message: &RestoreMessage) -> (Vec<IpAddr>, Vec<Edit>) {
        let RestoreMessage { lease, mark, step, addresses } = message;
        let is_block = |block: &Block| block.lease == *lease && !block.single_owner;
        let Some(block) = self.blocks().find(is_block) else { return (Vec::new(), Vec::new()) };
        let reserved: Vec<(SlotId, IpAddr)> = self.reserved_slots(&block).collect();
        let (mut changed, mut edits) = (Vec::new(), Vec::new());
        for (id, ip) in reserved {
            let known = self.restore_mark(id);
            let is_wanted =
                block.state == BlockState::Active && addresses.contains(&ip) && self.find_held(ip).is_none();
            match step {
                RestoreStep::Mark if is_wanted => edits.push(self.mark_reserved(id, *mark)),
                RestoreStep::Free if is_wanted && known == Some(*mark) => edits.extend(self.free(id, now)),
                RestoreStep::Mark if known.is_some() => {
                    edits.push(self.reserve(id));
                    continue;
                }
                RestoreStep::Free if known == Some(*mark) => {
                    edits.push(self.reserve(id));
                    continue;
                }
                _ => continue,
            }
            changed.push(ip);
        }
        (changed, edits)
    }

    /// Whether an attempt to restore a lease's addresses was not ended.
    pub fn has_restore_marks(&self, lease: &str) -> bool {
        let mut blocks = self.blocks().filter(|block| block.lease == lease);
        blocks.any(|block| self.reserved_slots(&block).any(|(id, _)| self.restore_mark(id).is_some()))
    }

    fn reserved_slots(&self, block: &Block) -> impl Iterator<Item = (SlotId, IpAddr)> {
        let page = block.page;
        let slots = self.slots_of(block).enumerate().filter(|(_, what)| *what == Slot::Reserved);
        slots.filter_map(move |(slot, _)| {
            let id = SlotId { page, slot };
            Some((id, self.address(id)?))
        })
    }
}

/// Returns the reserved addresses in a block that may be restored: no single address uses them, and the quarantine is
/// over. `excluded` ones stay reserved.
///
/// # Errors
/// What the registry reports.
pub async fn restorable<R: Registry>(
    registry: &R,
    object: &IpBlock,
    excluded: &[IpNet],
    clock: Clock,
) -> Result<Vec<IpAddr>, RegistryError> {
    let is_excluded = |ip: &IpAddr| excluded.iter().any(|net| net.contains(ip));
    let mut reserved: Vec<IpAddr> = object.reserved.iter().copied().filter(|ip| !is_excluded(ip)).collect();
    reserved.retain(|ip| offset_of(object.net, *ip).is_some());
    if !reserved.is_empty() {
        let singles = registry.single_addresses_in(object.net).await?;
        reserved
            .retain(|ip| singles.iter().all(|single| single.net.addr() != *ip || is_unused(single, clock)));
    }
    Ok(reserved)
}

/// Removes the reservations of marked addresses from the block's object; returns those that can be freed in the store.
///
/// `object` was read before, or at any earlier time: the change fails if the object was changed since. A node that
/// leases one of the addresses has created the address object before it read the reservation, so that object is found
/// here; or it reads the block without the reservation.
///
/// # Errors
/// What the registry reports. No address may be freed.
pub async fn withdraw_reservations<R: Registry>(
    registry: &R,
    object: &IpBlock,
    marked: &[IpAddr],
    clock: Clock,
) -> Result<Vec<IpAddr>, RegistryError> {
    let mut without = object.clone();
    without.reserved.retain(|ip| !marked.contains(ip));
    // Only a change of the object makes every other change fail that is based on an earlier state.
    if without.reserved.len() == object.reserved.len() {
        return Ok(Vec::new());
    }
    match registry.replace(&without).await {
        Ok(_) => {}
        Err(RegistryError::Conflict) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    }
    let singles = match registry.pool_state(object.net).await? {
        // Another pool may have the addresses.
        PoolState::Changed => return Ok(Vec::new()),
        PoolState::SingleAddressesPossible => registry.single_addresses_in(object.net).await?,
        PoolState::NoSingleAddresses => Vec::new(),
    };
    let mut free = Vec::new();
    for ip in marked.iter().copied().filter(|ip| object.reserved.contains(ip)) {
        let is_free = match singles.iter().find(|single| single.net.addr() == ip) {
            None => true,
            Some(single) if is_unused(single, clock) => match registry.delete(single).await {
                Ok(()) => true,
                // A node leases it now.
                Err(RegistryError::Conflict) => false,
                Err(error) => return Err(error),
            },
            Some(_) => false,
        };
        free.extend(is_free.then_some(ip));
    }
    Ok(free)
}

fn is_unused(single: &IpBlock, clock: Clock) -> bool {
    single.is_free() && single.quarantined_until(clock).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_lease::BlockLease;
    use crate::give_up::{KnownBlock, unpublished_reservations};
    use crate::ip_block::Holder;
    use crate::transfer::Reservation;

    const NOW: u64 = 1_000_000;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Store with a block in which two addresses are reserved, and the block's object.
    fn reserved() -> (AddressStore, IpBlock) {
        let reserved = vec![ip("10.0.0.1"), ip("10.0.0.2")];
        let net = "10.0.0.0/30".parse().unwrap();
        let lease = BlockLease { net, id: "u.0".into(), single_owner: false, reserved: reserved.clone() };
        let mut store = AddressStore::new("boot-1");
        let _ = store.add_block(&lease, 1);
        let object =
            IpBlock { net, uid: "u".into(), version: "1".into(), holder: Holder::default(), reserved };
        (store, object)
    }

    fn message(step: RestoreStep, mark: RestoreMark, addresses: &[&str]) -> RestoreMessage {
        let addresses = addresses.iter().map(|text| ip(text)).collect();
        RestoreMessage { lease: "u.0".into(), mark, step, addresses }
    }

    fn state(store: &AddressStore, text: &str) -> Slot {
        store.slot(store.find(ip(text)).unwrap())
    }

    #[test]
    fn restored_address_is_free_if_it_still_has_the_mark() {
        let (mut store, _) = reserved();
        let marked = store.restore(NOW, &message(RestoreStep::Mark, 7, &["10.0.0.1", "10.0.0.3"])).0;
        assert_eq!(marked, [ip("10.0.0.1")], "the other one is not reserved");
        assert!(store.has_restore_marks("u.0"));
        assert_eq!(state(&store, "10.0.0.1"), Slot::Reserved);
        let late = store.restore(NOW, &message(RestoreStep::Free, 6, &["10.0.0.1"]));
        assert_eq!(late, (Vec::new(), Vec::new()), "another attempt");
        let never = store.restore(NOW, &message(RestoreStep::Free, 7, &["10.0.0.2"])).0;
        assert_eq!((never.len(), store.has_restore_marks("u.0")), (0, false), "the attempt has ended");
        let (freed, _) = store.restore(NOW, &message(RestoreStep::Free, 7, &["10.0.0.1"]));
        assert_eq!(freed, Vec::<IpAddr>::new());
        let _ = store.restore(NOW, &message(RestoreStep::Mark, 8, &["10.0.0.1"]));
        let (freed, edits) = store.restore(NOW, &message(RestoreStep::Free, 8, &["10.0.0.1", "10.0.0.2"]));
        assert_eq!((freed, edits.is_empty()), (vec![ip("10.0.0.1")], false));
        assert_eq!(["10.0.0.1", "10.0.0.2"].map(|ip| state(&store, ip)), [Slot::Free(NOW), Slot::Reserved]);
        assert_eq!(AddressStore::from_bytes(&store.to_bytes()), Ok(store));
    }

    #[test]
    fn restore_mark_is_removed_by_a_transfer_and_a_later_attempt() {
        let free = message(RestoreStep::Free, 7, &["10.0.0.1"]);
        let (mut store, object) = reserved();
        let _ = store.restore(NOW, &message(RestoreStep::Mark, 7, &["10.0.0.1"]));
        let Reservation::Reserved(edits) = store.reserve_for_transfer("u.0", ip("10.0.0.1")) else {
            panic!()
        };
        assert!(!edits.is_empty(), "the mark is removed on the disk");
        assert_eq!(store.restore(NOW, &free).0.len(), 0);
        let _ = store.restore(NOW, &message(RestoreStep::Mark, 7, &["10.0.0.1"]));
        let _ = store.restore(NOW, &message(RestoreStep::Mark, 9, &[]));
        assert!(!store.has_restore_marks("u.0"));
        assert_eq!(store.restore(NOW, &free).0.len(), 0);
        // Without a mark the reservation is published again; with one it is not.
        let without = IpBlock { reserved: vec![ip("10.0.0.2")], ..object };
        assert_eq!(unpublished_reservations(&store, &without, &[]), [ip("10.0.0.1")]);
        let _ = store.restore(NOW, &message(RestoreStep::Mark, 10, &["10.0.0.1"]));
        assert_eq!(unpublished_reservations(&store, &without, &[]), Vec::<IpAddr>::new());
        let request = crate::ip_block::TransferRequest {
            node: "n1".into(),
            store: "l".into(),
            addresses: vec![crate::AddressSpan::parse("10.0.0.1-10.0.0.1").unwrap()],
            quarantine: 0,
            requested_at: NOW,
        };
        let known = [KnownBlock { lease: "u.0".into(), reserved: vec![ip("10.0.0.2")] }];
        assert_eq!(store.give_up(NOW, &request, &known).0, crate::give_up::GivenUp::Nothing);
    }

    #[test]
    fn restore_needs_an_active_block() {
        for state in [BlockState::Unconfirmed, BlockState::Returning] {
            let (mut store, _) = reserved();
            let _ = store.set_state(0, state);
            assert_eq!(store.restore(NOW, &message(RestoreStep::Mark, 7, &["10.0.0.1"])).0.len(), 0);
            let (mut store, _) = reserved();
            let _ = store.restore(NOW, &message(RestoreStep::Mark, 7, &["10.0.0.1"]));
            let _ = store.set_state(0, state);
            assert_eq!(store.restore(NOW, &message(RestoreStep::Free, 7, &["10.0.0.1"])).0.len(), 0);
        }
    }
}
