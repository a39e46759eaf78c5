//! Regained addresses: addresses of living sandboxes that a new address store contains from the beginning, because the
//! store before it was removed.
//!
//! Each is a single address under a lease that must be confirmed, so only the owner can get it. If an object exists, it
//! is confirmed; a surrounding block takes the address over ([`AddressStore::apply_response`]). See
//! `docs/design/ipam.md#removed-address-store`.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::address_store::{AddressStore, Block, Edit, OwnerTag, Slot, SlotId};
use crate::block_lease::{BlockLease, BlockState};

/// Start of the lease identifier for a regained address in a cluster pool.
const REGAINED: &str = "regained ";

/// Place where the leases of a store come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseSource {
    /// The cluster.
    Cluster,
    /// The pool has no other store; a lease is identified by the network.
    Store,
}

impl AddressStore {
    /// Adds an address that a living sandbox has; no edit if it is held.
    pub fn regain(&mut self, ip: IpAddr, now: u64, owner: OwnerTag, source: LeaseSource) -> Vec<Edit> {
        if self.find_held(ip).is_some() {
            return Vec::new();
        }
        let net = IpNet::from(ip);
        let id = match source {
            LeaseSource::Cluster => format!("{REGAINED}{ip}"),
            LeaseSource::Store => net.to_string(),
        };
        let lease = BlockLease { net, id, single_owner: true, reserved: Vec::new() };
        self.add_held_address(&lease, now, owner)
    }

    /// Iterates over the regained addresses that neither an object nor a block confirms.
    pub fn regained(&self) -> impl Iterator<Item = (SlotId, OwnerTag)> {
        let all = self.blocks().filter(is_regained);
        all.filter_map(|block| self.single_owner_of(&block))
    }

    /// Holds the regained addresses of a new block in the block. They were reserved in it until now.
    pub(crate) fn move_regained(&mut self, lease: &BlockLease, addresses: &[IpAddr]) -> Vec<Edit> {
        let is_new = |block: &Block| block.net == lease.net && block.lease == lease.id;
        let Some(page) = self.blocks().find(is_new).map(|block| block.page) else { return Vec::new() };
        let regained: Vec<(SlotId, OwnerTag)> = self.regained().collect();
        let mut edits = Vec::new();
        for (from, owner) in regained {
            let Some(ip) = self.address(from).filter(|ip| addresses.contains(ip)) else { continue };
            let Slot::Held { since, .. } = self.slot(from) else { continue };
            let Some((_, slot)) = self.find_all(ip).find(|(_, slot)| slot.page == page) else { continue };
            // If the call is killed in between, the owner holds the address twice.
            edits.extend(self.hold(slot, since, owner));
            edits.push(self.remove_block(from.page));
        }
        edits
    }

    /// Regained addresses in a new block that have no objects.
    pub(crate) fn regained_inside(&self, lease: &BlockLease) -> Vec<IpAddr> {
        if lease.single_owner {
            return Vec::new();
        }
        let all = self.regained().filter_map(|(slot, _)| self.address(slot));
        all.filter(|ip| lease.net.contains(ip) && !lease.reserved.contains(ip)).collect()
    }

    fn single_owner_of(&self, block: &Block) -> Option<(SlotId, OwnerTag)> {
        let slot = SlotId { page: block.page, slot: 0 };
        match self.slot(slot) {
            Slot::Held { owner, .. } => Some((slot, owner)),
            _ => None,
        }
    }
}

fn is_regained(block: &Block) -> bool {
    let is_without_object = block.lease.starts_with(REGAINED) || block.lease == block.net.to_string();
    block.single_owner && block.state == BlockState::Unconfirmed && is_without_object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::lease_message::LeaseResponse;

    const CLOCK: Clock = Clock { now: 1_000_000, quarantine: 60_000 };

    #[test]
    fn regained_address_is_held_in_the_block_that_contains_it() {
        for source in [LeaseSource::Cluster, LeaseSource::Store] {
            let mut store = AddressStore::new("boot-1");
            let [inside, outside, single] =
                ["10.0.0.1", "10.0.0.9", "10.0.0.2"].map(|ip| ip.parse::<IpAddr>().unwrap());
            for (ip, owner) in [(inside, 7), (outside, 8), (single, 9)] {
                assert!(!store.regain(ip, 1, owner, source).is_empty());
                assert!(store.regain(ip, 1, owner, source).is_empty(), "it is held");
            }
            // One of them has an object of its own, so it is reserved in the block.
            let net = "10.0.0.0/29".parse().unwrap();
            let lease = BlockLease { net, id: "u.0".into(), single_owner: false, reserved: vec![single] };
            let response = LeaseResponse { leases: vec![lease], ..LeaseResponse::default() };
            drop(store.apply_response(CLOCK, 1, &response));
            let place = |owner| {
                let slots: Vec<SlotId> = store.held_by(owner).collect();
                assert_eq!(slots.len(), 1, "one slot");
                let block = store.block(slots[0].page).unwrap();
                (store.address(slots[0]).unwrap(), block.state, block.single_owner)
            };
            assert_eq!(place(7), (inside, BlockState::Active, false));
            assert_eq!(place(8), (outside, BlockState::Unconfirmed, true));
            assert_eq!(place(9), (single, BlockState::Unconfirmed, true));
            let count = store.blocks().count();
            assert_eq!(count, 3, "the block and the two others");
        }
    }
}
