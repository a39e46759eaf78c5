//! Unconfirmed blocks in the address store: blocks that the node may have lost.
//!
//! A block becomes unconfirmed at a boot, and when the registry no longer lists the lease. Until it is confirmed, no
//! new owner gets an address from it. See `docs/design/ipam.md#loss-of-a-lease`.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::address_store::{AddressStore, Block, Edit, Slot};
use crate::block_lease::{BlockLease, BlockState};
use crate::ip_block::IpBlock;
use crate::pool_layout::{nth, overlap};

impl AddressStore {
    /// Marks the block of a lease as unconfirmed; no edit if the lease is not active.
    pub fn mark_unconfirmed(&mut self, lease: &str) -> Option<Edit> {
        let block = self.blocks().find(|block| block.lease == lease && block.state == BlockState::Active)?;
        Some(self.set_state(block.page, BlockState::Unconfirmed))
    }

    /// Whether a lease is unconfirmed and nothing in the block is held. Such a lease may be released, unless it is
    /// confirmed before.
    pub fn is_unconfirmed_and_unused(&self, lease: &str) -> bool {
        let is_unconfirmed = |block: &Block| block.lease == lease && block.state == BlockState::Unconfirmed;
        self.blocks().find(is_unconfirmed).is_some_and(|block| !self.is_held_inside(block.net))
    }

    /// Whether a block is unconfirmed and something in it is held. After a boot nothing is held.
    pub fn is_unconfirmed_and_used(&self, block: &Block) -> bool {
        block.state == BlockState::Unconfirmed && self.is_held(block)
    }

    /// Whether an object on this node, which the store does not contain under the present lease, keeps an address in
    /// the store from other nodes: one of the object's addresses is held under a lease that must be confirmed.
    ///
    /// Such an object was leased again, or the lease was lost with the store. Every component that releases objects the
    /// store does not contain decides by this.
    pub fn needs_object(&self, object: &IpBlock) -> bool {
        let unconfirmed = self.blocks().filter(|block| overlap(block.net, object.net));
        let mut unconfirmed = unconfirmed.filter(|block| block.state == BlockState::Unconfirmed);
        unconfirmed.any(|block| self.held_addresses(&block).iter().any(|ip| object.net.contains(ip)))
    }

    /// Whether an address of a network is held under any lease.
    pub fn is_held_inside(&self, net: IpNet) -> bool {
        let mut inside = self.blocks().filter(|block| net.contains(&block.net));
        inside.any(|block| self.is_held(&block))
    }

    /// Addresses in a new lease that are held under other leases, for the same block or for single addresses in it.
    pub(crate) fn held_under_other_leases(&self, lease: &BlockLease) -> Vec<IpAddr> {
        let is_other =
            |block: &Block| lease.net.contains(&block.net) && block.lease != lease.id && !lease.single_owner;
        self.blocks().filter(is_other).flat_map(|block| self.held_addresses(&block)).collect()
    }

    /// Addresses of a block that are held or whose state is unknown.
    pub(crate) fn held_addresses(&self, block: &Block) -> Vec<IpAddr> {
        let slots = self.slots_of(block).enumerate();
        let held = slots.filter(|(_, what)| matches!(what, Slot::Held { .. } | Slot::Unknown));
        held.map(|(slot, _)| nth(block.net, slot as u128)).collect()
    }
}
