//! Transfers an address out of a block, on the node that leases the block.
//!
//! The requester's part is in the allocator. Protocol and safety argument:
//! `docs/design/ipam.md#transfer-between-nodes`.
//!
//! - The store reserves the address on the disk before the block's object does.
//! - A request proves nothing. Only the reservation in the block's object lets the requester use the address.
//! - A call killed at any moment leaves at most a reserved address, which is free again when the block is
//!   returned.

use std::net::IpAddr;

use crate::address_store::{AddressStore, Edit, Slot, SlotId};
use crate::ip_block::{Holder, IpBlock};
use crate::pool_layout::PoolLayout;
use crate::registry::{Registry, RegistryError};

/// Time for which a request is served after the requester has given up, in milliseconds.
const REQUEST_LIFETIME: u64 = 600_000;

/// Result of [`AddressStore::reserve_for_transfer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// The address is reserved once these edits are on the disk; no edit if it was reserved before.
    Reserved(Vec<Edit>),
    /// The address is held.
    InUse(SlotId),
    /// The store does not have the lease, or does not have it yet.
    UnknownLease,
}

/// Outcome of the reservation, as `weft-cni` reports it to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferReply {
    /// The address is reserved on the disk.
    Reserved,
    /// The address is held by this attachment.
    InUse(String),
    /// The store does not have the lease, or does not have it yet.
    UnknownLease,
}

/// Outcome of a transfer request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferOutcome {
    /// There is nothing to transfer any more.
    Obsolete,
    /// The requester has the address.
    Transferred,
    /// The requester has been informed which attachment holds the address.
    Refused,
    /// The request must be tried again.
    Pending,
}

impl AddressStore {
    /// Reserves a leased address for another node, unless it is held. The quarantine does not apply, because
    /// the requester names the address.
    ///
    /// The registry may be informed only when the edits are on the disk.
    pub fn reserve_for_transfer(&mut self, lease: &str, ip: IpAddr) -> Reservation {
        if let Some(id) = self.find_held(ip) {
            return Reservation::InUse(id);
        }
        let found = self.find_all(ip).find(|(block, _)| !block.single_owner && block.lease == lease);
        match found {
            Some((_, id)) if self.slot(id) == Slot::Reserved && self.restore_mark(id).is_none() => {
                Reservation::Reserved(Vec::new())
            }
            // The reservation is final: a mark of an attempt to restore the address is removed.
            Some((_, id)) => Reservation::Reserved(vec![self.reserve(id)]),
            None => Reservation::UnknownLease,
        }
    }
}

/// Returns the block that `node` leases and from which a requested address is to be transferred; `None` if
/// there is nothing to do.
///
/// # Errors
/// What the registry reports.
pub async fn requested_block<R: Registry>(
    registry: &R,
    layout: PoolLayout,
    node: &str,
    object: &IpBlock,
    now: u64,
) -> Result<Option<IpBlock>, RegistryError> {
    let Holder { node: requester, released_at, .. } = &object.holder;
    let has_expired = requester.is_empty() && released_at.saturating_add(REQUEST_LIFETIME) < now;
    let ip = object.net.addr();
    let is_served = !layout.has_single_addresses_only() && !has_expired && object.is_single_address();
    let block = match layout.block_of(ip).filter(|_| is_served) {
        Some(net) => registry.read(net).await?,
        None => None,
    };
    let block = block.filter(|block| block.holder.node == node && !block.reserved.contains(&ip));
    if block.is_none() {
        end_request(registry, object, String::new(), now).await?;
    }
    Ok(block)
}

/// Writes the store's reply into the registry.
///
/// # Errors
/// What the registry reports.
pub async fn complete_transfer<R: Registry>(
    registry: &R,
    object: &IpBlock,
    mut block: IpBlock,
    reply: TransferReply,
    now: u64,
) -> Result<TransferOutcome, RegistryError> {
    match reply {
        TransferReply::Reserved => {
            block.reserved.push(object.net.addr());
            registry.replace(&block).await?;
            end_request(registry, object, String::new(), now).await?;
            Ok(TransferOutcome::Transferred)
        }
        TransferReply::InUse(held_by) => {
            end_request(registry, object, held_by, now).await?;
            Ok(TransferOutcome::Refused)
        }
        TransferReply::UnknownLease => Ok(TransferOutcome::Pending),
    }
}

/// Removes the request from the object; if the object was changed since, the new holder makes a new request.
///
/// If no requester waits any more, the quarantine begins now: the address may have been released in the store
/// a moment ago, and the store's release time is lost with the reservation.
async fn end_request<R: Registry>(
    registry: &R,
    object: &IpBlock,
    transfer_refused_by: String,
    now: u64,
) -> Result<(), RegistryError> {
    let released_at = if object.holder.node.is_empty() { now } else { object.holder.released_at };
    let transfer_requested_from = String::new();
    let holder =
        Holder { transfer_requested_from, transfer_refused_by, released_at, ..object.holder.clone() };
    match registry.replace(&IpBlock { holder, ..object.clone() }).await {
        Ok(_) | Err(RegistryError::Conflict) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address_store::Choice;
    use crate::block_lease::{BlockLease, BlockState};
    use crate::clock::Clock;

    const CLOCK: Clock = Clock { now: 1_000_000, quarantine: 60_000 };

    fn lease(net: &str, id: &str) -> BlockLease {
        BlockLease { net: net.parse().unwrap(), id: id.into(), single_owner: false, reserved: Vec::new() }
    }

    #[test]
    fn transfer_reserves_an_address_unless_any_lease_holds_it() {
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        let mut store = AddressStore::new("boot-1");
        let _ = store.add_block(&lease("10.0.0.0/30", "a"), 1);
        assert_eq!(store.reserve_for_transfer("another lease", ip), Reservation::UnknownLease);
        let outside = "10.0.0.4".parse().unwrap();
        assert_eq!(store.reserve_for_transfer("a", outside), Reservation::UnknownLease);
        let id = store.find(ip).unwrap();
        let _ = store.hold(id, 5, 42);
        assert_eq!(store.reserve_for_transfer("a", ip), Reservation::InUse(id));
        // The address is held under an older lease of the same block.
        let _ = store.set_state(0, BlockState::Unconfirmed);
        let _ = store.add_block(&lease("10.0.0.0/30", "b"), 6);
        assert_eq!(store.reserve_for_transfer("b", ip), Reservation::InUse(id));
        // The quarantine does not apply; afterwards the store never allocates the address.
        let _ = store.free(id, CLOCK.now);
        let Reservation::Reserved(edits) = store.reserve_for_transfer("b", ip) else { panic!("free") };
        assert_eq!((edits.len(), store.slot(SlotId { page: 1, slot: 1 })), (1, Slot::Reserved));
        assert_eq!(store.reserve_for_transfer("b", ip), Reservation::Reserved(Vec::new()), "repeated");
        let mut allocated = Vec::new();
        while let Choice::Free(id, ip) = store.choose(CLOCK, |_| true) {
            let _ = store.hold(id, CLOCK.now, 7);
            allocated.push(ip.to_string());
        }
        assert_eq!(allocated, ["10.0.0.0", "10.0.0.2", "10.0.0.3"]);
        let later = Clock { now: 9_000_000, ..CLOCK };
        assert_eq!(store.choose(later, |_| true), Choice::Full);
    }
}
