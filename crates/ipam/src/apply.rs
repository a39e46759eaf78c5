//! The store's side of a lease message: the request it sends, and the changes it makes for the response.
//!
//! See `docs/design/ipam.md#messages`.

use std::net::IpAddr;

use crate::address_store::{AddressStore, Block, Edit, OwnerTag, Slot, SlotId};
use crate::block_lease::{BlockInfo, BlockState};
use crate::clock::Clock;
use crate::lease_message::{AllocationKind, LeaseRequest, LeaseResponse};

impl AddressStore {
    /// Request for the agent.
    pub fn lease_request(&self, kind: AllocationKind) -> LeaseRequest {
        let info = |block: Block| {
            let held =
                if self.is_unconfirmed_and_used(&block) { self.held_addresses(&block) } else { Vec::new() };
            let released_at = match self.slots_of(&block).next() {
                Some(Slot::Free(since)) if block.single_owner && block.state == BlockState::Returning => {
                    since
                }
                _ => 0,
            };
            BlockInfo { net: block.net, lease: block.lease, state: block.state, held, released_at }
        };
        LeaseRequest { blocks: self.blocks().map(info).collect(), kind }
    }

    /// Applies a response. A single address is held by `owner` at once.
    pub fn apply_response(&mut self, clock: Clock, owner: OwnerTag, response: &LeaseResponse) -> Vec<Edit> {
        let mut edits = Vec::new();
        let blocks: Vec<Block> = self.blocks().collect();
        for block in blocks {
            let is_in = |leases: &[String]| leases.contains(&block.lease);
            match block.state {
                BlockState::Returning if is_in(&response.returned) => {
                    edits.push(self.remove_block(block.page));
                }
                // A lost block remains as long as something in it is held.
                BlockState::Unconfirmed if is_in(&response.lost) && !self.is_held(&block) => {
                    edits.push(self.remove_block(block.page));
                }
                BlockState::Unconfirmed => {
                    let confirmed = response.confirmed.iter().find(|(old, _)| *old == block.lease);
                    edits.extend(confirmed.map(|(_, new)| self.confirm_block(block.page, new)));
                }
                _ => {}
            }
        }
        for lease in &response.leases {
            let mut lease = lease.clone();
            if lease.single_owner {
                // The block around the address may be in this store, because its object was deleted manually.
                let Some(reserved) = self.reserve_in_blocks(lease.net.addr()) else { continue };
                edits.extend(reserved);
            }
            // Earlier leases of the same block are not this node's any more.
            let earlier: Vec<Block> =
                self.blocks().filter(|block| block.net == lease.net && block.lease != lease.id).collect();
            edits.extend(earlier.iter().filter_map(|block| self.mark_unconfirmed(&block.lease)));
            let regained = self.regained_inside(&lease);
            lease.reserved.extend(self.held_under_other_leases(&lease));
            edits.extend(self.add_block(&lease, clock.now));
            edits.extend(self.move_regained(&lease, &regained));
            let is_added = |block: &Block| block.lease == lease.id && block.net == lease.net;
            let page = self.blocks().find(is_added).map(|block| block.page);
            if let (true, Some(page)) = (lease.single_owner, page) {
                edits.extend(self.hold(SlotId { page, slot: 0 }, clock.now, owner));
            }
        }
        edits
    }

    /// Reserves a single address in the blocks around it; `None` if it is held in one of them.
    fn reserve_in_blocks(&mut self, ip: IpAddr) -> Option<Vec<Edit>> {
        let blocks = self.find_all(ip).filter(|(block, _)| !block.single_owner);
        let slots: Vec<(SlotId, Slot)> = blocks.map(|(_, id)| (id, self.slot(id))).collect();
        if slots.iter().any(|(_, what)| matches!(what, Slot::Held { .. } | Slot::Unknown)) {
            return None;
        }
        let is_open =
            |(id, what): &(SlotId, Slot)| matches!(what, Slot::Free(_)) || self.restore_mark(*id).is_some();
        let open: Vec<(SlotId, Slot)> = slots.into_iter().filter(is_open).collect();
        Some(open.into_iter().map(|(id, _)| self.reserve(id)).collect())
    }
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::*;
    use crate::address_store::Choice;
    use crate::block_lease::BlockLease;

    const CLOCK: Clock = Clock { now: 1_000_000, quarantine: 60_000 };

    fn lease(net: &str, id: &str) -> BlockLease {
        BlockLease { net: net.parse().unwrap(), id: id.into(), single_owner: false, reserved: Vec::new() }
    }

    #[test]
    fn manual_deletion_leaves_one_slot_for_each_address() {
        let mut store = AddressStore::new("boot-1");
        let _ = store.add_block(&lease("10.0.0.0/30", "a"), 1);
        let [held, free] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse::<IpAddr>().unwrap());
        let id = store.find(held).unwrap();
        let _ = store.hold(id, 1, 7);
        let receive = |store: &mut AddressStore, lease| {
            let response = LeaseResponse { leases: vec![lease], ..LeaseResponse::default() };
            let _ = store.apply_response(CLOCK, 8, &response);
        };
        for ip in [held, free] {
            let net = IpNet::from(ip);
            receive(&mut store, BlockLease { single_owner: true, net, ..lease("10.0.0.0/30", "single") });
        }
        let own: Vec<SlotId> = store.held_by(8).collect();
        assert!(matches!(own.as_slice(), [own] if store.address(*own) == Some(free)), "{own:?}");
        assert_eq!(store.slot(store.find(free).unwrap()), Slot::Reserved);
        // The block itself is leased again: addresses come from the new lease alone.
        receive(&mut store, lease("10.0.0.0/30", "again"));
        let states: Vec<BlockState> =
            store.blocks().filter(|block| !block.single_owner).map(|block| block.state).collect();
        assert_eq!(states, [BlockState::Unconfirmed, BlockState::Active]);
        let mut remaining = Vec::new();
        while let Choice::Free(id, ip) = store.choose(CLOCK, |_| true) {
            let _ = store.hold(id, CLOCK.now, 9);
            remaining.push(ip.to_string());
        }
        assert_eq!(remaining, ["10.0.0.0", "10.0.0.3"]);
    }
}
