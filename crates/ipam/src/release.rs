//! Releases addresses in the store, and chooses the blocks that the node returns or drains.
//!
//! See `docs/design/ipam.md#return-of-blocks`.

use crate::address_store::{AddressStore, Block, Edit, OwnerTag, Slot, SlotId};
use crate::block_lease::BlockState;
use crate::clock::Clock;
use crate::pool_layout::address_count;

/// Time after which an idle block is returned, in milliseconds.
pub const IDLE: u64 = 600_000;
/// Maximum number of free addresses that a node with pods keeps; with small blocks, a quarter of one.
const KEEP: u64 = 4;
/// A block may be drained if at most one address in this many is held.
const DRAIN_BELOW: u64 = 4;
/// One in this many addresses in a block must be free in other blocks before the block is drained.
const DRAIN_RESERVE: u64 = 4;

impl AddressStore {
    /// Releases the addresses that these owners hold.
    pub fn release_owners(&mut self, clock: Clock, owners: &[OwnerTag]) -> Vec<Edit> {
        let own: Vec<SlotId> = owners.iter().flat_map(|owner| self.held_by(*owner)).collect();
        self.release_slots(clock, &own)
    }

    /// Releases the addresses in these slots. An address is in quarantine at most as long as it was held, so if it was
    /// held briefly, the recorded release time is earlier.
    pub fn release_slots(&mut self, clock: Clock, slots: &[SlotId]) -> Vec<Edit> {
        let mut edits = Vec::new();
        for id in slots {
            let since = match self.slot(*id) {
                Slot::Held { since, .. } => clock.released_at(since),
                _ => clock.now,
            };
            edits.extend(self.free(*id, since));
            if self.block(id.page).is_some_and(|block| block.single_owner) {
                edits.push(self.set_state(id.page, BlockState::Returning));
            }
        }
        edits
    }

    /// Marks blocks as returning without a pod's call: as [`AddressStore::release_idle_blocks`]. A node
    /// without pods keeps no block.
    pub fn return_idle_blocks(&mut self, clock: Clock, idle: u64) -> Vec<Edit> {
        let is_used = self.blocks().any(|block| self.is_held(&block));
        let small =
            self.blocks().find(|block| !block.single_owner).map_or(0, |block| address_count(block.net) / 4);
        let keep = if is_used { u64::try_from(small).unwrap_or(KEEP).clamp(1, KEEP) } else { 0 };
        self.release_idle_blocks(clock, idle, keep)
    }

    /// Marks the blocks that the node does not need as returning: single addresses without owner, drained blocks that
    /// are empty, and blocks idle for `idle` milliseconds while `keep` addresses are free elsewhere. Then drains the
    /// emptiest block, if the others have enough room.
    pub fn release_idle_blocks(&mut self, clock: Clock, idle: u64, keep: u64) -> Vec<Edit> {
        let blocks: Vec<Block> = self.blocks().collect();
        let mut free = None;
        let mut edits = Vec::new();
        let is_candidate =
            |block: &&Block| block.state == BlockState::Active && !self.protects_earlier_lease(block);
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

    /// Whether a block was leased again and keeps the earlier lease's addresses from other nodes.
    pub(crate) fn protects_earlier_lease(&self, block: &Block) -> bool {
        let is_earlier =
            |other: &Block| other.net == block.net && other.lease != block.lease && !block.single_owner;
        self.blocks().filter(is_earlier).any(|other| self.is_held(&other))
    }

    /// Starts to drain the block with the fewest held addresses, if it holds few and the other blocks have
    /// room for those and for a quarter of a block besides. The reserve prevents that the node leases a block
    /// again soon afterwards.
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
