//! The bytes of a ledger, as far as they are needed: a node that holds 50,000 addresses has 0.9 MB of them, one call looks
//! at few, and memory for all would cost more than to read them through.
//!
//! ```text
//!   preface │ head, tags │ slots │ head, tags │ slots │ …
//!   kept      kept         hints   kept         hints       the first pages: all of it
//! ```
//!
//! Rules:
//! - what decides whether this is a ledger at all, the preface and every head, is read before anything is said;
//! - of slots that were only passed by a byte of each mark is kept: with its tag it tells all but one of 65,000 others from
//!   the mark that is looked for;
//! - slots are read while whoever asks has the turn: nobody changes them meanwhile but he himself, who has them here;
//! - where slots cannot be read, that is remembered, and nothing that was said since holds: [`Image::fault`].

use std::cell::OnceCell;
use std::fmt;
use std::io;
use std::sync::Arc;

use super::{BODY, PAGE, PAGES_MAX, PREFACE, Place, SLOT, SLOTS};

/// Read at once: the whole ledger of a usual node.
const AT_ONCE: usize = PREFACE + 2 * PAGE;
/// Pages read at once of a larger one, of which heads and tags are kept: a call of the system costs as much as a quarter of a
/// page, and memory that was never used much more.
const PAGES_AT_ONCE: usize = 14;

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
    pages: Vec<Page>,
    source: Option<Arc<dyn Source>>,
    fault: OnceCell<String>,
}

#[derive(Clone, Debug)]
struct Page {
    /// Head and tags.
    top: [u8; BODY],
    /// Of each slot a byte of its mark that is not in its tag, as long as the slots are not here.
    hints: Option<[u8; SLOTS]>,
    slots: OnceCell<Box<[u8]>>,
}

// === impl Image ===

impl Image {
    /// A preface and no page.
    pub(super) fn new(preface: Vec<u8>) -> Image {
        Image { preface, pages: Vec::new(), source: None, fault: OnceCell::new() }
    }

    /// All the bytes of a file; what comes after a whole page is ignored. Nothing if not even the preface is there.
    pub(super) fn of(bytes: &[u8]) -> Option<Image> {
        let (preface, rest) = bytes.split_at_checked(PREFACE)?;
        let mut image = Image::new(preface.to_vec());
        image.pages.extend(rest.chunks_exact(PAGE).take(PAGES_MAX).map(Page::of));
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
        image.pages.reserve_exact(count - image.pages.len());
        let mut room = vec![0; (count - image.pages.len()).min(PAGES_AT_ONCE) * PAGE];
        while image.pages.len() < count {
            let pages = (count - image.pages.len()).min(PAGES_AT_ONCE);
            let Some(room) = room.get_mut(..pages * PAGE) else { break };
            source.fetch(at(image.pages.len()), room)?;
            image.pages.extend(room.chunks_exact(PAGE).map(Page::top_of));
        }
        image.source = Some(source);
        Ok(Some(image))
    }

    pub(super) fn preface(&self) -> &[u8] {
        &self.preface
    }

    pub(super) fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Head and tags of a page.
    pub(super) fn top(&self, page: usize) -> Option<&[u8]> {
        self.pages.get(page).map(|page| page.top.as_slice())
    }

    /// The slots of a page.
    pub(super) fn slots(&self, page: usize) -> Option<&[u8]> {
        let found = self.pages.get(page)?;
        if let Some(slots) = found.slots.get() {
            return Some(slots);
        }
        let mut room = vec![0; SLOTS * SLOT].into_boxed_slice();
        self.fetch(at(page) + BODY as u64, &mut room)?;
        Some(found.slots.get_or_init(|| room))
    }

    /// May this slot be held by the owner with this mark? What cannot be said may be.
    pub(super) fn may_have(&self, Place { page, slot }: Place, mark: u64) -> bool {
        let hints = self.pages.get(page).and_then(|page| page.hints.as_ref());
        hints.and_then(|hints| hints.get(slot)).is_none_or(|hint| *hint == hint_of(&mark.to_le_bytes()))
    }

    /// One slot.
    pub(super) fn slot(&self, place: Place) -> Option<[u8; SLOT]> {
        let Place { page, slot } = place;
        let from = slot.checked_mul(SLOT).filter(|_| slot < SLOTS)?;
        let mut bytes = [0; SLOT];
        match self.pages.get(page)?.slots.get() {
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
        self.pages.push(Page::of(&[0; PAGE]));
    }

    /// Writes at this place, inside the preface or inside a page.
    pub(super) fn put(&mut self, offset: usize, bytes: &[u8]) {
        let Some(inside) = offset.checked_sub(PREFACE) else { return copy(&mut self.preface, offset, bytes) };
        let (page, from) = (inside / PAGE, inside % PAGE);
        let (above, below) = bytes.split_at(bytes.len().min(BODY.saturating_sub(from)));
        if !below.is_empty() && self.slots(page).is_none() {
            return;
        }
        let Some(page) = self.pages.get_mut(page) else { return };
        page.hints = None;
        copy(&mut page.top, from, above);
        if let Some(slots) = page.slots.get_mut() {
            copy(slots, from.saturating_sub(BODY), below);
        }
    }

    /// All of them; what cannot be read is left out from there on.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.preface.clone();
        for page in 0..self.pages() {
            let Some((top, slots)) = self.top(page).zip(self.slots(page)) else { break };
            bytes.extend_from_slice(top);
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

// === impl Page ===

impl Page {
    fn of(bytes: &[u8]) -> Page {
        let (above, below) = bytes.split_at(BODY.min(bytes.len()));
        let mut top = [0; BODY];
        copy(&mut top, 0, above);
        Page { top, hints: None, slots: OnceCell::from(Box::from(below)) }
    }

    /// The same without the slots.
    fn top_of(bytes: &[u8]) -> Page {
        let (above, below) = bytes.split_at(BODY.min(bytes.len()));
        let (mut top, mut hints) = ([0; BODY], [0; SLOTS]);
        copy(&mut top, 0, above);
        for (hint, slot) in hints.iter_mut().zip(below.chunks_exact(SLOT)) {
            *hint = hint_of(&slot[SLOT / 2..]);
        }
        Page { top, hints: Some(hints), slots: OnceCell::new() }
    }
}

/// A byte of a mark.
fn hint_of(mark: &[u8]) -> u8 {
    mark.get(3).copied().unwrap_or_default()
}

/// Where a page begins.
fn at(page: usize) -> u64 {
    (PREFACE + page * PAGE) as u64
}

fn copy(room: &mut [u8], from: usize, bytes: &[u8]) {
    if let Some(room) = room.get_mut(from..).and_then(|room| room.get_mut(..bytes.len())) {
        room.copy_from_slice(bytes);
    }
}
