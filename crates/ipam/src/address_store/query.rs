//! Queries to the address store: blocks, slots and owners.

use std::net::IpAddr;

use ipnet::IpNet;

use super::format::{
    BOOT, DRAINING, GROUP_COUNT, LEASE, SINGLE_OWNER, SLOT, leased_at_in, net_in, restore_mark_in,
    slot_count, slot_in, state_in, text_in,
};
use super::hints::{self, HINT};
use super::{AddressStore, Block, OwnerTag, Slot, SlotId};
use crate::block_lease::BlockState;
use crate::pool_layout::{nth, offset_of};

impl AddressStore {
    /// Returns the boot id at the last use.
    pub fn boot_id(&self) -> &str {
        text_in(&self.image.preface()[BOOT])
    }

    /// Returns how many groups were written at some time.
    pub(super) fn written_groups(&self) -> usize {
        let mut count = [0; 4];
        count.copy_from_slice(&self.image.preface()[GROUP_COUNT]);
        usize::try_from(u32::from_le_bytes(count)).unwrap_or(usize::MAX)
    }

    pub(super) fn pages(&self) -> usize {
        self.image.pages()
    }

    pub(super) fn head(&self, page: usize) -> Option<&[u8]> {
        self.image.head(page)
    }

    pub(super) fn net(&self, page: usize) -> Option<IpNet> {
        net_in(self.head(page)?)
    }

    /// Iterates over the blocks.
    pub fn blocks(&self) -> impl Iterator<Item = Block> {
        (0..self.pages()).filter_map(|page| self.block(page))
    }

    /// Returns a page's block.
    pub fn block(&self, page: usize) -> Option<Block> {
        let head = self.head(page)?;
        let (state, net) = (state_in(head)?, net_in(head)?);
        let lease = text_in(&head[LEASE]).to_owned();
        let (single_owner, draining) = (head[SINGLE_OWNER] == 1, head[DRAINING] == 1);
        Some(Block { page, state, net, lease, single_owner, draining, leased_at: leased_at_in(head) })
    }

    /// Returns the pages whose block is drained.
    pub fn draining(&self) -> impl Iterator<Item = usize> {
        (0..self.pages()).filter(|page| self.is_draining(*page) && self.net(*page).is_some())
    }

    fn is_draining(&self, page: usize) -> bool {
        self.head(page).is_some_and(|head| head[DRAINING] == 1)
    }

    /// Whether any owner may get an address from a page, even if the block is drained.
    pub(super) fn is_usable(&self, page: usize) -> bool {
        self.head(page).is_some_and(|head| head[0] == BlockState::Active as u8 && head[SINGLE_OWNER] != 1)
    }

    /// Whether any owner may get an address from a page.
    pub(super) fn is_open(&self, page: usize) -> bool {
        self.is_usable(page) && !self.is_draining(page)
    }

    /// Returns the hints for the slots that a page's block uses.
    pub(super) fn hints(&self, page: usize) -> &[u8] {
        let size = self.net(page).map_or(0, slot_count);
        self.image.hints(page).map_or(&[], |hints| &hints[..size * HINT])
    }

    /// Slots that a page's block uses.
    pub(super) fn slots(&self, page: usize) -> impl Iterator<Item = (usize, Slot)> {
        let slots = self.net(page).map(|net| (slot_count(net), self.image.slots(page).unwrap_or_default()));
        let used = slots.into_iter().flat_map(|(count, slots)| slots.chunks_exact(SLOT).take(count));
        used.map(slot_in).enumerate()
    }

    /// Returns the state that each address in a block has, in order.
    pub fn slots_of(&self, block: &Block) -> impl Iterator<Item = Slot> {
        self.slots(block.page).map(|(_, what)| what)
    }

    /// Returns the state that an address has.
    pub fn slot(&self, id: SlotId) -> Slot {
        self.image.slot(id).map_or(Slot::Unknown, |bytes| slot_in(&bytes))
    }

    /// Returns the mark from an attempt to restore a reserved address.
    pub(crate) fn restore_mark(&self, id: SlotId) -> Option<u64> {
        restore_mark_in(&self.image.slot(id)?)
    }

    /// Returns the address that a slot is for.
    pub fn address(&self, id: SlotId) -> Option<IpAddr> {
        let net = self.net(id.page)?;
        (id.slot < slot_count(net)).then(|| nth(net, id.slot as u128))
    }

    /// Returns the first slot for an address.
    pub fn find(&self, ip: IpAddr) -> Option<SlotId> {
        (0..self.pages()).find_map(|page| {
            Some(SlotId { page, slot: usize::try_from(offset_of(self.net(page)?, ip)?).ok()? })
        })
    }

    /// Returns every slot for an address: the store may have several leases for the block.
    pub fn find_all(&self, ip: IpAddr) -> impl Iterator<Item = (Block, SlotId)> {
        self.blocks().filter_map(move |block| {
            let slot = usize::try_from(offset_of(block.net, ip)?).ok()?;
            let page = block.page;
            Some((block, SlotId { page, slot }))
        })
    }

    /// Returns the slot in which an address is held, or the state is unknown.
    pub fn find_held(&self, ip: IpAddr) -> Option<SlotId> {
        let mut slots = self.find_all(ip).map(|(_, id)| id);
        slots.find(|id| matches!(self.slot(*id), Slot::Held { .. } | Slot::Unknown))
    }

    /// Returns every held address: slot, since when in milliseconds since 1970, and owner.
    pub fn held(&self) -> impl Iterator<Item = (SlotId, u64, OwnerTag)> {
        (0..self.pages()).flat_map(|page| {
            self.slots(page).filter_map(move |(slot, what)| match what {
                Slot::Held { since, owner } => Some((SlotId { page, slot }, since, owner)),
                _ => None,
            })
        })
    }

    /// Returns the slots for the addresses that an owner holds.
    pub fn held_by(&self, owner: OwnerTag) -> impl Iterator<Item = SlotId> {
        let (hint, mut slots) = (hints::of(owner), Vec::new());
        self.image.scan_hints(|page, hints| {
            if hints::contains(hints, hint) {
                slots.extend(hints::positions(hints, hint).map(|slot| SlotId { page, slot }));
            }
        });
        let is_own =
            move |id: &SlotId| matches!(self.slot(*id), Slot::Held { owner: known, .. } if known == owner);
        slots.into_iter().filter(|id| self.address(*id).is_some()).filter(is_own)
    }
}
