//! Changes of the address store: each returns the edits that the caller writes to the file.
//!
//! The order of the edits keeps the file valid after every one of them; see `docs/design/ipam.md#order-of-edits`.

use ipnet::IpNet;

use super::format::{
    BOOT, DRAINING, GROUP_COUNT, HEAD, LEASE, PAGE_HINTS, PAGE_SLOTS, SLOT, fits, head_of, head_offset,
    hint_offset, marked_slot_bytes, put_text, slot_bytes, slot_offset, slots_of,
};
use super::hints::{self, HINT, Hint};
use super::{AddressStore, Block, Edit, OwnerTag, PAGES_MAX, Slot, SlotId, WriteOrder};
use crate::block_lease::{BlockLease, BlockState};

impl AddressStore {
    /// Records that an owner holds an address. The hint comes first: every held address must have one.
    pub fn hold(&mut self, id: SlotId, now: u64, owner: OwnerTag) -> [Edit; 2] {
        [self.put_hint(id, hints::of(owner)), self.put_slot(id, Slot::Held { since: now, owner })]
    }

    /// Records that an address is released, so that the quarantine begins. The hint is erased last.
    pub fn free(&mut self, id: SlotId, now: u64) -> [Edit; 2] {
        [self.put_slot(id, Slot::Free(now)), self.put_hint(id, hints::FREE)]
    }

    /// Reserves a free address: this store never allocates it again under this lease.
    pub fn reserve(&mut self, id: SlotId) -> Edit {
        self.put_slot(id, Slot::Reserved)
    }

    /// Marks a reserved address for an attempt to restore it.
    pub(crate) fn mark_reserved(&mut self, id: SlotId, mark: u64) -> Edit {
        self.edit(slot_offset(id), &marked_slot_bytes(mark))
    }

    /// Changes the state of a block.
    pub fn set_state(&mut self, page: usize, state: BlockState) -> Edit {
        self.edit(head_offset(page), &[state as u8])
    }

    /// Starts or stops draining a block.
    pub fn set_draining(&mut self, page: usize, draining: bool) -> Edit {
        self.edit(head_offset(page) + DRAINING, &[u8::from(draining)])
    }

    /// Makes a block active under a new lease, in one write.
    pub fn confirm_block(&mut self, page: usize, lease: &str) -> Edit {
        let mut head = self.head(page).map(<[u8]>::to_vec).unwrap_or_default();
        if head.len() == HEAD {
            head[0] = BlockState::Active as u8;
            head[DRAINING] = 0;
            head[LEASE].fill(0);
            put_text(&mut head[LEASE], lease);
        }
        self.edit(head_offset(page), &head)
    }

    /// Removes a block.
    pub fn remove_block(&mut self, page: usize) -> Edit {
        self.edit(head_offset(page), &[0])
    }

    /// Adds a leased block; no edit if the store is full. A block that is present under the same lease becomes active.
    ///
    /// The block exists from the last edit on, which is one write. Before it the slots and hints of the page's earlier
    /// block are erased.
    pub fn add_block(&mut self, lease: &BlockLease, now: u64) -> Vec<Edit> {
        let known = self.blocks().find(|block| block.net == lease.net && block.lease == lease.id);
        if let Some(known) = known {
            return vec![self.set_state(known.page, BlockState::Active)];
        }
        self.add_page(lease.net, &head_of(lease, now), &slots_of(lease), &[0; PAGE_HINTS])
    }

    /// Adds a single address that an owner holds, under a lease that must be confirmed; no edit if the store is full.
    pub(crate) fn add_held_address(&mut self, lease: &BlockLease, now: u64, owner: OwnerTag) -> Vec<Edit> {
        let (mut head, mut slots, mut hints) = (head_of(lease, now), slots_of(lease), [0; PAGE_HINTS]);
        head[0] = BlockState::Unconfirmed as u8;
        slots[..SLOT].copy_from_slice(&slot_bytes(Slot::Held { since: now, owner }));
        hints[..HINT].copy_from_slice(&hints::of(owner));
        self.add_page(lease.net, &head, &slots, &hints)
    }

    fn add_page(
        &mut self,
        net: IpNet,
        head: &[u8; HEAD],
        slots: &[u8; PAGE_SLOTS],
        hints: &[u8; PAGE_HINTS],
    ) -> Vec<Edit> {
        let unused = (0..self.pages()).find(|page| self.head(*page).is_some_and(|head| head[0] == 0));
        let page = unused.unwrap_or(self.pages());
        if page >= PAGES_MAX || !fits(net) {
            return Vec::new();
        }
        let mut edits = Vec::new();
        if unused.is_none() {
            let new = self.image.add_group();
            let bytes = vec![0; new.len()];
            edits.push(Edit { offset: new.start as u64, bytes, order: WriteOrder::Immediate });
        }
        let groups = self.image.groups();
        if groups > self.written_groups() {
            let count = u32::try_from(groups).unwrap_or(u32::MAX).to_le_bytes();
            // If only the count reached the disk, the file would look truncated.
            edits.push(Edit { order: WriteOrder::AfterSync, ..self.edit(GROUP_COUNT.start, &count) });
        }
        edits.push(self.edit(slot_offset(SlotId { page, slot: 0 }), slots));
        edits.push(self.edit(hint_offset(SlotId { page, slot: 0 }), hints));
        // If only the head reached the disk, reserved addresses would be free, or slots of the earlier block valid.
        edits.push(Edit { order: WriteOrder::AfterSync, ..self.edit(head_offset(page), head) });
        edits
    }

    /// Starts a new boot: every held address becomes free and enters quarantine, and every block must be confirmed.
    ///
    /// No network namespace survives a reboot, and neither does an interface in it.
    pub fn begin_boot(&mut self, boot_id: &str, now: u64) -> Vec<Edit> {
        let held: Vec<SlotId> = self.held().map(|(id, ..)| id).collect();
        let mut edits: Vec<Edit> = held.into_iter().flat_map(|id| self.free(id, now)).collect();
        let blocks: Vec<Block> = self.blocks().filter(|block| block.state == BlockState::Active).collect();
        for Block { page, single_owner, .. } in blocks {
            // The owner of a single address is gone.
            let state = if single_owner { BlockState::Returning } else { BlockState::Unconfirmed };
            edits.push(self.set_state(page, state));
        }
        let mut field = [0; BOOT.end - BOOT.start];
        put_text(&mut field, boot_id);
        edits.push(self.edit(BOOT.start, &field));
        edits
    }

    fn put_slot(&mut self, id: SlotId, what: Slot) -> Edit {
        self.edit(slot_offset(id), &slot_bytes(what))
    }

    fn put_hint(&mut self, id: SlotId, hint: Hint) -> Edit {
        self.edit(hint_offset(id), &hint)
    }

    fn edit(&mut self, offset: usize, bytes: &[u8]) -> Edit {
        self.image.write(offset, bytes);
        Edit { offset: offset as u64, bytes: bytes.to_vec(), order: WriteOrder::Immediate }
    }
}
