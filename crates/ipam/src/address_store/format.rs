//! File format for the address store: offsets, lengths, and what heads and slots contain.
//!
//! The layout is in `docs/design/ipam.md#file-format`. Numbers are little-endian.

use ipnet::IpNet;

use super::hints::HINT;
use super::{SLOTS, Slot, SlotId};
use crate::block_lease::{BlockLease, BlockState};
use crate::number::{Family, number};
use crate::pool_layout::{address_count, offset_of};

/// First bytes in the file.
pub(super) const MAGIC: &[u8; 16] = b"weft-ipam 3\n\0\0\0\0";
/// Where the boot id is in the preface.
pub(super) const BOOT: std::ops::Range<usize> = 16..80;
/// Where the group count is in the preface. It is written after each new group: a file with fewer groups is
/// truncated.
pub(super) const GROUP_COUNT: std::ops::Range<usize> = 80..84;
/// Preface length.
pub(super) const PREFACE: usize = 128;
/// Pages in a group.
pub(super) const GROUP_PAGES: usize = 16;
/// Maximum number of groups.
pub(super) const GROUPS_MAX: usize = 256;
/// Head length for a page.
pub(super) const HEAD: usize = 128;
/// Slot length.
pub(super) const SLOT: usize = 16;
/// Length that a page's hints have.
pub(super) const PAGE_HINTS: usize = SLOTS * HINT;
/// Length that a page's slots have.
pub(super) const PAGE_SLOTS: usize = SLOTS * SLOT;
/// Offset at which a group's heads begin.
pub(super) const HEADS_AT: usize = 2048;
/// Offset at which a group's hints begin.
pub(super) const HINTS_AT: usize = HEADS_AT + GROUP_PAGES * HEAD;
/// Offset at which a group's slots begin.
pub(super) const SLOTS_AT: usize = HINTS_AT + GROUP_PAGES * PAGE_HINTS;
/// Group length.
pub(super) const GROUP: usize = SLOTS_AT + GROUP_PAGES * PAGE_SLOTS;

/// Offsets in a head. Byte 0 is the block's state, 0 for a page without a block; bytes 16 to 31 are the first address.
pub(super) const SINGLE_OWNER: usize = 3;
/// Offset of the draining flag in a head.
pub(super) const DRAINING: usize = 4;
const VERSION: usize = 1;
const PREFIX: usize = 2;
const FIRST: std::ops::Range<usize> = 16..32;
/// Where the lease identifier is in a head.
pub(super) const LEASE: std::ops::Range<usize> = 32..96;
const LEASED_AT: std::ops::Range<usize> = 8..16;

/// Where the state is in a slot: the time takes the lower seven bytes in the same word.
const STATE: usize = 7;
const TIME: u64 = (1 << 56) - 1;
const FREE: u8 = 0;
const HELD: u8 = 1;
const RESERVED: u8 = 2;

/// Returns where a page's head is in the file.
pub(super) fn head_offset(page: usize) -> usize {
    page / GROUP_PAGES * GROUP + HEADS_AT + page % GROUP_PAGES * HEAD
}

/// Returns where a slot's hint is in the file.
pub(super) fn hint_offset(SlotId { page, slot }: SlotId) -> usize {
    page / GROUP_PAGES * GROUP + HINTS_AT + (page % GROUP_PAGES * SLOTS + slot) * HINT
}

/// Returns where a slot is in the file.
pub(super) fn slot_offset(SlotId { page, slot }: SlotId) -> usize {
    page / GROUP_PAGES * GROUP + SLOTS_AT + page % GROUP_PAGES * PAGE_SLOTS + slot * SLOT
}

/// Returns the block state in a head; `None` for a page without a block and for an unknown state.
pub(super) fn state_in(head: &[u8]) -> Option<BlockState> {
    [BlockState::Active, BlockState::Returning, BlockState::Unconfirmed]
        .into_iter()
        .find(|state| *state as u8 == head[0])
}

/// Returns the block's addresses in a head.
pub(super) fn net_in(head: &[u8]) -> Option<IpNet> {
    state_in(head)?;
    let family = match head[VERSION] {
        4 => Family::V4,
        6 => Family::V6,
        _ => return None,
    };
    let mut first = [0; 16];
    first.copy_from_slice(&head[FIRST]);
    IpNet::new(family.address(u128::from_le_bytes(first)), head[PREFIX]).ok()
}

/// Returns the lease time in a head.
pub(super) fn leased_at_in(head: &[u8]) -> u64 {
    word(&head[LEASED_AT])
}

/// Returns a head for an active block.
pub(super) fn head_of(lease: &BlockLease, now: u64) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = BlockState::Active as u8;
    head[VERSION] = if lease.net.addr().is_ipv4() { 4 } else { 6 };
    head[PREFIX] = lease.net.prefix_len();
    head[SINGLE_OWNER] = u8::from(lease.single_owner);
    head[LEASED_AT].copy_from_slice(&now.to_le_bytes());
    head[FIRST].copy_from_slice(&number(lease.net.network()).to_le_bytes());
    put_text(&mut head[LEASE], &lease.id);
    head
}

/// Returns slots for a new block: all free, but for the reserved addresses.
pub(super) fn slots_of(lease: &BlockLease) -> [u8; PAGE_SLOTS] {
    let mut slots = [0; PAGE_SLOTS];
    for ip in &lease.reserved {
        if let Some(slot) = offset_of(lease.net, *ip).and_then(|slot| usize::try_from(slot).ok()) {
            slots[slot.min(SLOTS - 1) * SLOT + STATE] = RESERVED;
        }
    }
    slots
}

/// Returns the address state in a slot.
pub(super) fn slot_in(bytes: &[u8]) -> Slot {
    let time = word(bytes) & TIME;
    match bytes[STATE] {
        FREE => Slot::Free(time),
        HELD => Slot::Held { since: time, owner: word(&bytes[8..]) },
        RESERVED => Slot::Reserved,
        _ => Slot::Unknown,
    }
}

/// Returns the mark that an attempt to restore a reserved address left in the slot; `None` if there is none.
pub(super) fn restore_mark_in(bytes: &[u8]) -> Option<u64> {
    Some(word(&bytes[8..])).filter(|mark| bytes[STATE] == RESERVED && *mark != 0)
}

/// Returns a slot for a reserved address with a mark.
pub(super) fn marked_slot_bytes(mark: u64) -> [u8; SLOT] {
    let mut bytes = slot_bytes(Slot::Reserved);
    bytes[8..].copy_from_slice(&mark.to_le_bytes());
    bytes
}

/// Returns a slot for an address in this state; an unknown state is written as reserved, because neither is
/// ever allocated.
pub(super) fn slot_bytes(what: Slot) -> [u8; SLOT] {
    let (state, time, owner) = match what {
        Slot::Free(since) => (FREE, since, 0),
        Slot::Held { since, owner } => (HELD, since, owner),
        Slot::Reserved | Slot::Unknown => (RESERVED, 0, 0),
    };
    let mut bytes = [0; SLOT];
    bytes[..8].copy_from_slice(&(time & TIME).to_le_bytes());
    bytes[STATE] = state;
    bytes[8..].copy_from_slice(&owner.to_le_bytes());
    bytes
}

/// Returns how many slots a block with this network uses.
pub(super) fn slot_count(net: IpNet) -> usize {
    usize::try_from(address_count(net)).map_or(SLOTS, |count| count.min(SLOTS))
}

/// Whether a block with this network fits into a page.
pub(super) fn fits(net: IpNet) -> bool {
    address_count(net) <= SLOTS as u128 && net == net.trunc()
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

/// Writes a text into a field; a text that is too long is cut.
pub(super) fn put_text(field: &mut [u8], text: &str) {
    let length = text.len().min(field.len());
    field[..length].copy_from_slice(&text.as_bytes()[..length]);
}

/// Text in a field, up to the first zero byte.
pub(super) fn text_in(bytes: &[u8]) -> &str {
    let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..length]).unwrap_or_default()
}
