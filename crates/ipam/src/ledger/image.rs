//! The bytes of a ledger, as far as they are needed: a node that holds 50,000 addresses has 0.9 MB of them, one call looks
//! at few, and memory for all would cost more than to read them through.
//!
//! ```text
//!   in the file   preface │ head, tags │ slots │ head, tags │ slots │ …
//!   here          preface │ all heads │ all tags │ of each slot a byte of its mark: hints │ slots, as they are needed
//! ```
//!
//! Rules:
//! - what decides whether this is a ledger at all, the preface and every head, is read before anything is said;
//! - the tags of all pages lie together, and so do the hints: with both of them an owner is found among 65,000 in one pass,
//!   and no slot is looked at but those that are meant;
//! - a hint says what its slot says, also after a change;
//! - slots are read while whoever asks has the turn: nobody changes them meanwhile but he himself, who has them here;
//! - where slots cannot be read, that is remembered, and nothing that was said since holds: [`Image::fault`].

use std::cell::OnceCell;
use std::fmt;
use std::io;
use std::sync::Arc;

use super::{BODY, HEAD, PAGE, PAGES_MAX, PREFACE, Place, SLOT, SLOTS};

/// Read at once: the whole ledger of a usual node.
const AT_ONCE: usize = PREFACE + 2 * PAGE;
/// Pages read at once of a larger one, of which heads and tags are kept: a call of the system costs as much as a quarter of a
/// page, and memory that was never used much more.
const PAGES_AT_ONCE: usize = 14;
/// Which byte of a mark is its hint.
const HINT: usize = 3;

/// Where the bytes of a ledger are.
pub trait Source: fmt::Debug + Send + Sync {
    /// How many there are.
    ///
    /// # Errors
    /// Those of the system.
    fn length(&self) -> io::Result<u64>;

    /// Fills `room` with those from `offset` on.
    ///
    /// # Errors
    /// Those of the system; fewer are there.
    fn fetch(&self, offset: u64, room: &mut [u8]) -> io::Result<()>;
}

/// The bytes.
#[derive(Clone, Debug)]
pub(super) struct Image {
    preface: Vec<u8>,
    heads: Vec<[u8; HEAD]>,
    tags: Vec<u8>,
    /// Of each slot a byte of its mark that is not in its tag.
    hints: Vec<u8>,
    slots: Vec<OnceCell<Box<[u8]>>>,
    source: Option<Arc<dyn Source>>,
    fault: OnceCell<String>,
}

// === impl Image ===

impl Image {
    /// A preface and no page.
    pub(super) fn new(preface: Vec<u8>) -> Image {
        let (heads, tags, hints, slots) = Default::default();
        Image { preface, heads, tags, hints, slots, source: None, fault: OnceCell::new() }
    }

    /// All the bytes of a file; what comes after a whole page is ignored. Nothing if not even the preface is there.
    pub(super) fn of(bytes: &[u8]) -> Option<Image> {
        let (preface, rest) = bytes.split_at_checked(PREFACE)?;
        let mut image = Image::new(preface.to_vec());
        for page in rest.chunks_exact(PAGE).take(PAGES_MAX) {
            image.push(page, OnceCell::from(Box::from(&page[BODY..])));
        }
        Some(image)
    }

    /// The same, of which the slots are read when they are looked at.
    pub(super) fn open(source: Arc<dyn Source>) -> io::Result<Option<Image>> {
        let most = PREFACE + PAGES_MAX * PAGE;
        let length = usize::try_from(source.length()?).unwrap_or(most).min(most);
        let mut bytes = vec![0; length.min(AT_ONCE)];
        source.fetch(0, &mut bytes)?;
        let Some(mut image) = Image::of(&bytes) else { return Ok(None) };
        let count = (length - PREFACE) / PAGE;
        image.reserve(count - image.pages());
        let mut room = vec![0; (count - image.pages()).min(PAGES_AT_ONCE) * PAGE];
        while image.pages() < count {
            let pages = (count - image.pages()).min(PAGES_AT_ONCE);
            let Some(room) = room.get_mut(..pages * PAGE) else { break };
            source.fetch(at(image.pages()), room)?;
            room.chunks_exact(PAGE).for_each(|page| image.push(page, OnceCell::new()));
        }
        image.source = Some(source);
        Ok(Some(image))
    }

    fn reserve(&mut self, pages: usize) {
        self.heads.reserve_exact(pages);
        self.slots.reserve_exact(pages);
        self.tags.reserve_exact(pages * SLOTS);
        self.hints.reserve_exact(pages * SLOTS);
    }

    /// Takes another page in: all of it, or not its slots.
    fn push(&mut self, page: &[u8], slots: OnceCell<Box<[u8]>>) {
        let mut head = [0; HEAD];
        copy(&mut head, 0, page);
        self.heads.push(head);
        self.tags.extend_from_slice(&page[HEAD..BODY]);
        self.hints.extend(page[BODY..].chunks_exact(SLOT).map(hint));
        self.slots.push(slots);
    }

    pub(super) fn preface(&self) -> &[u8] {
        &self.preface
    }

    pub(super) fn pages(&self) -> usize {
        self.heads.len()
    }

    /// The head of a page.
    pub(super) fn head(&self, page: usize) -> Option<&[u8]> {
        self.heads.get(page).map(<[u8; HEAD]>::as_slice)
    }

    /// The tags of all pages: [`SLOTS`] of each.
    pub(super) fn tags(&self) -> &[u8] {
        &self.tags
    }

    /// The slots of a page.
    pub(super) fn slots(&self, page: usize) -> Option<&[u8]> {
        let found = self.slots.get(page)?;
        if let Some(slots) = found.get() {
            return Some(slots);
        }
        let mut room = vec![0; SLOTS * SLOT].into_boxed_slice();
        self.fetch(at(page) + BODY as u64, &mut room)?;
        Some(found.get_or_init(|| room))
    }

    /// May this slot be held by the owner with this mark?
    pub(super) fn may_have(&self, Place { page, slot }: Place, mark: u64) -> bool {
        self.hints.get(page * SLOTS + slot).is_none_or(|hint| *hint == mark.to_le_bytes()[HINT])
    }

    /// One slot.
    pub(super) fn slot(&self, place: Place) -> Option<[u8; SLOT]> {
        let Place { page, slot } = place;
        let from = slot.checked_mul(SLOT).filter(|_| slot < SLOTS)?;
        let mut bytes = [0; SLOT];
        match self.slots.get(page)?.get() {
            Some(slots) => bytes.copy_from_slice(slots.get(from..from + SLOT)?),
            None => self.fetch(at(page) + (BODY + from) as u64, &mut bytes)?,
        }
        Some(bytes)
    }

    fn fetch(&self, offset: u64, room: &mut [u8]) -> Option<()> {
        match self.source.as_ref()?.fetch(offset, room) {
            Ok(()) => Some(()),
            Err(error) => {
                let _ = self.fault.set(error.to_string());
                None
            }
        }
    }

    /// Why slots could not be read.
    pub(super) fn fault(&self) -> Option<&str> {
        self.fault.get().map(String::as_str)
    }

    /// Adds a page that nothing is in.
    pub(super) fn grow(&mut self) {
        self.push(&[0; PAGE], OnceCell::from(Box::from([0; SLOTS * SLOT])));
    }

    /// Writes at this place, inside the preface or inside a page.
    pub(super) fn put(&mut self, offset: usize, bytes: &[u8]) {
        let Some(inside) = offset.checked_sub(PREFACE) else { return copy(&mut self.preface, offset, bytes) };
        let (page, from) = (inside / PAGE, inside % PAGE);
        let (above, below) = bytes.split_at(bytes.len().min(BODY.saturating_sub(from)));
        if !below.is_empty() && self.slots(page).is_none() {
            return;
        }
        let Some(head) = self.heads.get_mut(page) else { return };
        let (to_head, to_tags) = above.split_at(above.len().min(HEAD.saturating_sub(from)));
        copy(head, from, to_head);
        copy(&mut self.tags, page * SLOTS + from.saturating_sub(HEAD), to_tags);
        let Some(slots) = self.slots.get_mut(page).and_then(OnceCell::get_mut) else { return };
        let from = from.saturating_sub(BODY);
        copy(slots, from, below);
        let changed = from / SLOT..(from + below.len()).div_ceil(SLOT);
        for slot in changed.filter(|_| !below.is_empty()) {
            let hint = slots.get(slot * SLOT..).map_or(0, hint);
            copy(&mut self.hints, page * SLOTS + slot, &[hint]);
        }
    }

    /// All of them; what cannot be read is left out from there on.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.preface.clone();
        for (page, (head, tags)) in self.heads.iter().zip(self.tags.chunks_exact(SLOTS)).enumerate() {
            let Some(slots) = self.slots(page) else { break };
            bytes.extend_from_slice(head);
            bytes.extend_from_slice(tags);
            bytes.extend_from_slice(slots);
        }
        bytes
    }
}

impl PartialEq for Image {
    fn eq(&self, other: &Image) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Image {}

/// A byte of the mark in a slot.
fn hint(slot: &[u8]) -> u8 {
    slot.get(SLOT / 2 + HINT).copied().unwrap_or_default()
}

/// Where a page begins.
fn at(page: usize) -> u64 {
    (PREFACE + page * PAGE) as u64
}

fn copy(room: &mut [u8], from: usize, bytes: &[u8]) {
    if let Some(room) = room.get_mut(from..) {
        let length = room.len().min(bytes.len());
        room[..length].copy_from_slice(&bytes[..length]);
    }
}
