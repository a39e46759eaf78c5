//! Release of addresses in the store, and the choice of blocks that the node returns or drains.
//!
//! See `docs/design/ipam.md#return-of-blocks`.

use crate::address_store::{AddressStore, Block, Edit, OwnerTag, SlotId};
use crate::block_lease::BlockState;
use crate::clock::Clock;
use crate::pool_layout::address_count;

/// A block may be drained if at most one address in this many is held.
const DRAIN_BELOW: u64 = 4;
/// One in this many of a block's addresses must be free in other blocks before the block is drained.
const DRAIN_RESERVE: u64 = 4;

impl AddressStore {
    /// Releases the addresses that these owners hold.
    pub fn release_owners(&mut self, now: u64, owners: &[OwnerTag]) -> Vec<Edit> {
        let own: Vec<SlotId> = owners.iter().flat_map(|owner| self.held_by(*owner)).collect();
        self.release_slots(now, &own)
    }

    /// Releases the addresses of these slots.
    pub fn release_slots(&mut self, now: u64, slots: &[SlotId]) -> Vec<Edit> {
        let mut edits = Vec::new();
        for id in slots {
            edits.extend(self.free(*id, now));
            if self.block(id.page).is_some_and(|block| block.single_owner) {
                edits.push(self.set_state(id.page, BlockState::Returning));
            }
        }
        edits
    }

    /// Marks the blocks that the node does not need as returning: single addresses without owner, drained blocks that
    /// are empty, and blocks idle for `idle` milliseconds while `keep` addresses are free elsewhere. Then drains the
    /// emptiest block, if the others have enough room.
    pub fn release_idle_blocks(&mut self, clock: Clock, idle: u64, keep: u64) -> Vec<Edit> {
        let blocks: Vec<Block> = self.blocks().collect();
        let mut free = None;
        let mut edits = Vec::new();
        // A block leased again keeps the addresses of its earlier lease from other nodes.
        let protects_earlier_lease = |block: &Block| {
            let is_earlier =
                |other: &&Block| other.net == block.net && other.lease != block.lease && !block.single_owner;
            blocks.iter().filter(is_earlier).any(|other| self.is_held(other))
        };
        let is_candidate =
            |block: &&Block| block.state == BlockState::Active && !protects_earlier_lease(block);
        let candidates: Vec<&Block> = blocks.iter().filter(is_candidate).collect();
        for block in candidates {
            let is_over = match (block.single_owner, block.draining) {
                (true, _) => !self.is_held(block),
                (_, true) => self.is_idle(block, clock),
                _ => false,
            };
            if is_over {
                edits.push(self.set_state(block.page, BlockState::Returning));
            } else if block.is_open()
                && self.is_idle(block, clock)
                && self.last_used(block).saturating_add(idle) <= clock.now
            {
                let free = free.get_or_insert_with(|| self.usage(clock, |_| true).free);
                let elsewhere = free.saturating_sub(self.free_count(block, clock));
                if elsewhere >= keep {
                    *free = elsewhere;
                    edits.push(self.set_state(block.page, BlockState::Returning));
                }
            }
        }
        edits.extend(self.drain_emptiest_block(clock, keep));
        edits
    }

    /// Starts to drain the block with the fewest held addresses, if it holds few and the other blocks have room for
    /// those and for a quarter of a block besides. The reserve prevents that the node leases a block again soon
    /// afterwards.
    fn drain_emptiest_block(&mut self, clock: Clock, keep: u64) -> Option<Edit> {
        let open: Vec<Block> = self.blocks().filter(Block::is_open).collect();
        let size = |block: &Block| u64::try_from(address_count(block.net)).unwrap_or(u64::MAX);
        // An empty block is returned when it has been idle long enough.
        let held = open.iter().map(|block| (self.held_count(block), block));
        let sparse = held.filter(|(held, block)| *held > 0 && *held <= size(block) / DRAIN_BELOW);
        let (held, block) = sparse.min_by_key(|(held, block)| (*held, block.page))?;
        let enough = held + keep.max(size(block) / DRAIN_RESERVE);
        let mut elsewhere = 0;
        for other in open.iter().filter(|other| other.page != block.page) {
            elsewhere += self.free_count(other, clock);
            if elsewhere >= enough {
                return Some(self.set_draining(block.page, true));
            }
        }
        None
    }
}
