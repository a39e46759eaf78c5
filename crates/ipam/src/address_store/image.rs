//! Image: the bytes in a store's file, loaded as far as one call needs them.
//!
//! - The preface and every head are loaded at once, because they decide whether the file is valid.
//! - A group's hints and a page's slots are read on demand, while the caller holds the file's lock.
//! - The first scan over the hints uses one buffer for all groups but the first; a second scan keeps what it
//!   reads. New memory costs more than a read, and most nodes have one group.
//! - A failed read is recorded in [`Image::read_error`]; every answer since then is invalid.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::io;
use std::sync::Arc;

use super::format::{
    GROUP, GROUP_PAGES, GROUPS_MAX, HEAD, HEADS_AT, HINTS_AT, PAGE_HINTS, PAGE_SLOTS, PREFACE, SLOT,
    SLOTS_AT, hint_offset, slot_offset,
};
use super::hints::{FREE, contains};
use super::{SLOTS, SlotId};

/// File with an address store.
pub trait StoreFile: fmt::Debug + Send + Sync {
    /// Returns the file length in bytes.
    ///
    /// # Errors
    /// What the operating system reports.
    fn length(&self) -> io::Result<u64>;

    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// What the operating system reports, or the file ends before.
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// A store's bytes, as far as they are loaded.
#[derive(Clone, Debug)]
pub(super) struct Image {
    /// Bytes before the first group's heads, then the heads in all groups.
    heads: Vec<u8>,
    /// Hints in each group.
    hints: Vec<Part>,
    /// Slots in each page.
    slots: Vec<Part>,
    /// Whether a page has a free hint; `None` until the hints are scanned and after one changes.
    free_hints: Vec<Cell<Option<bool>>>,
    /// Whether the hints were scanned before.
    scanned: Cell<bool>,
    file: Option<Arc<dyn StoreFile>>,
    read_error: OnceCell<String>,
}

/// Bytes that are loaded on demand.
type Part = OnceCell<Box<[u8]>>;

// === impl Image ===

impl Image {
    /// Creates an image with a preface and no group.
    pub(super) fn new(mut preface: Vec<u8>) -> Image {
        preface.resize(HEADS_AT, 0);
        let (hints, slots, free_hints, scanned, read_error) = Default::default();
        Image { heads: preface, hints, slots, free_hints, scanned, file: None, read_error }
    }

    /// Loads a whole file. Bytes after the last whole group are ignored; `None` if the preface is incomplete.
    pub(super) fn of(bytes: &[u8]) -> Option<Image> {
        let mut image = Image::new(bytes.get(..PREFACE)?.to_vec());
        for group in bytes.chunks_exact(GROUP).take(GROUPS_MAX) {
            let (index, slots) = group.split_at(SLOTS_AT);
            image.heads.extend_from_slice(&index[HEADS_AT..HINTS_AT]);
            image.hints.push(Part::from(Box::from(&index[HINTS_AT..])));
            image.slots.extend(slots.chunks_exact(PAGE_SLOTS).map(|slots| Part::from(Box::from(slots))));
        }
        image.free_hints.resize(image.slots.len(), Cell::new(None));
        Some(image)
    }

    /// Loads a file's preface and all heads; hints and slots are read on demand.
    pub(super) fn open(file: Arc<dyn StoreFile>) -> io::Result<Option<Image>> {
        let most = GROUPS_MAX * GROUP;
        let length = usize::try_from(file.length()?).unwrap_or(most).min(most);
        if length < PREFACE {
            return Ok(None);
        }
        let groups = length / GROUP;
        let mut heads = vec![0; HEADS_AT + groups * GROUP_PAGES * HEAD];
        let first = if groups == 0 { PREFACE } else { HINTS_AT };
        file.read_exact_at(0, &mut heads[..first])?;
        for (group, buffer) in heads.chunks_exact_mut(HEADS_AT).skip(1).enumerate().skip(1) {
            file.read_exact_at((group * GROUP + HEADS_AT) as u64, buffer)?;
        }
        let (hints, slots) = (vec![Part::new(); groups], vec![Part::new(); groups * GROUP_PAGES]);
        let free_hints = vec![Cell::new(None); groups * GROUP_PAGES];
        Ok(Some(Image { heads, hints, slots, free_hints, file: Some(file), ..Image::new(Vec::new()) }))
    }

    pub(super) fn preface(&self) -> &[u8] {
        &self.heads[..PREFACE]
    }

    pub(super) fn groups(&self) -> usize {
        self.hints.len()
    }

    pub(super) fn pages(&self) -> usize {
        self.slots.len()
    }

    /// Returns a page's head.
    pub(super) fn head(&self, page: usize) -> Option<&[u8]> {
        let from = HEADS_AT + page * HEAD;
        self.heads.get(from..from + HEAD)
    }

    /// Returns the hints for a page's slots.
    pub(super) fn hints(&self, page: usize) -> Option<&[u8]> {
        let from = page % GROUP_PAGES * PAGE_HINTS;
        self.group_hints(page / GROUP_PAGES)?.get(from..from + PAGE_HINTS)
    }

    fn group_hints(&self, group: usize) -> Option<&[u8]> {
        self.load(self.hints.get(group)?, hint_offset(first_of(group)), GROUP_PAGES * PAGE_HINTS)
    }

    /// Calls `visit` with the hints in every page that has a block, in order, until a read fails.
    pub(super) fn scan_hints(&self, mut visit: impl FnMut(usize, &[u8])) {
        let (mut buffer, keep) = (Vec::new(), self.scanned.replace(true));
        for group in 0..self.groups() {
            let pages = group * GROUP_PAGES..(group + 1) * GROUP_PAGES;
            let is_block = |page: &usize| self.head(*page).is_some_and(|head| head[0] != 0);
            let Some(last) = pages.clone().rfind(is_block) else { continue };
            let loaded = match self.hints.get(group).and_then(Part::get) {
                None if keep || group == 0 => self.group_hints(group),
                Some(loaded) => Some(&**loaded),
                None => {
                    buffer.resize((last + 1 - pages.start) * PAGE_HINTS, 0);
                    self.read(hint_offset(first_of(group)), &mut buffer).map(|()| buffer.as_slice())
                }
            };
            let Some(loaded) = loaded else { return };
            for (page, hints) in pages.zip(loaded.chunks_exact(PAGE_HINTS)).filter(|(page, _)| is_block(page))
            {
                if let Some(known) = self.free_hints.get(page).filter(|known| known.get().is_none()) {
                    known.set(Some(contains(hints, FREE)));
                }
                visit(page, hints);
            }
        }
    }

    /// Whether a page that has a block has a free hint.
    pub(super) fn has_free_hint(&self, page: usize) -> bool {
        let Some(known) = self.free_hints.get(page) else { return false };
        match (known.get(), self.hints.get(page / GROUP_PAGES).and_then(Part::get)) {
            (Some(_), _) => {}
            (None, Some(_)) => known.set(self.hints(page).map(|hints| contains(hints, FREE))),
            (None, None) if self.read_error().is_none() => self.scan_hints(|_, _| ()),
            (None, None) => {}
        }
        known.get() == Some(true)
    }

    /// Returns a page's slots.
    pub(super) fn slots(&self, page: usize) -> Option<&[u8]> {
        self.load(self.slots.get(page)?, slot_offset(SlotId { page, slot: 0 }), PAGE_SLOTS)
    }

    /// Returns one slot's bytes; reads only these if the page is not loaded.
    pub(super) fn slot(&self, id: SlotId) -> Option<[u8; SLOT]> {
        let SlotId { page, slot } = id;
        let from = slot.checked_mul(SLOT).filter(|_| slot < SLOTS)?;
        let mut bytes = [0; SLOT];
        match self.slots.get(page)?.get() {
            Some(slots) => bytes.copy_from_slice(slots.get(from..from + SLOT)?),
            None => self.read(slot_offset(id), &mut bytes)?,
        }
        Some(bytes)
    }

    fn load<'a>(&self, part: &'a Part, offset: usize, length: usize) -> Option<&'a [u8]> {
        if let Some(loaded) = part.get() {
            return Some(loaded);
        }
        let mut buffer = vec![0; length].into_boxed_slice();
        self.read(offset, &mut buffer)?;
        Some(part.get_or_init(|| buffer))
    }

    fn read(&self, offset: usize, buffer: &mut [u8]) -> Option<()> {
        match self.file.as_ref()?.read_exact_at(offset as u64, buffer) {
            Ok(()) => Some(()),
            Err(error) => {
                let _ = self.read_error.set(error.to_string());
                None
            }
        }
    }

    /// Returns the error if hints or slots could not be read.
    pub(super) fn read_error(&self) -> Option<&str> {
        self.read_error.get().map(String::as_str)
    }

    /// Adds an empty group and returns the byte range, which must be zero in the file.
    pub(super) fn add_group(&mut self) -> std::ops::Range<usize> {
        let from = (self.groups() * GROUP).max(PREFACE);
        self.heads.resize(self.heads.len() + GROUP_PAGES * HEAD, 0);
        self.hints.push(Part::from(Box::from([0; GROUP_PAGES * PAGE_HINTS])));
        let pages = self.groups() * GROUP_PAGES;
        self.slots.resize_with(pages, || Part::from(Box::from([0; PAGE_SLOTS])));
        self.free_hints.resize(pages, Cell::new(None));
        from..self.groups() * GROUP
    }

    /// Changes bytes inside the preface or inside one page's head, hints or slots.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let (group, inside) = (offset / GROUP, offset % GROUP);
        if inside < HINTS_AT {
            copy(&mut self.heads, group * GROUP_PAGES * HEAD + inside, bytes);
        } else if inside < SLOTS_AT {
            if self.group_hints(group).is_none() {
                return;
            }
            if let Some(hints) = self.hints.get_mut(group).and_then(Part::get_mut) {
                copy(hints, inside - HINTS_AT, bytes);
            }
            if let Some(known) = self.free_hints.get(group * GROUP_PAGES + (inside - HINTS_AT) / PAGE_HINTS) {
                known.set(None);
            }
        } else {
            let (page, from) =
                (group * GROUP_PAGES + (inside - SLOTS_AT) / PAGE_SLOTS, (inside - SLOTS_AT) % PAGE_SLOTS);
            // A page that is overwritten as a whole need not be read.
            if bytes.len() < PAGE_SLOTS && self.slots(page).is_none() {
                return;
            }
            match self.slots.get_mut(page) {
                Some(slots) if bytes.len() == PAGE_SLOTS => *slots = Part::from(Box::from(bytes)),
                Some(slots) => slots.get_mut().into_iter().for_each(|slots| copy(slots, from, bytes)),
                None => {}
            }
        }
    }

    /// Returns all bytes in the file, up to the first part that cannot be read.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.preface().to_vec();
        for group in 0..self.groups() {
            bytes.resize(group * GROUP + HEADS_AT, 0);
            bytes.extend_from_slice(
                &self.heads[HEADS_AT + group * GROUP_PAGES * HEAD..][..GROUP_PAGES * HEAD],
            );
            let slots = (group * GROUP_PAGES..(group + 1) * GROUP_PAGES).map(|page| self.slots(page));
            for part in std::iter::once(self.group_hints(group)).chain(slots) {
                let Some(part) = part else { return bytes };
                bytes.extend_from_slice(part);
            }
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

fn first_of(group: usize) -> SlotId {
    SlotId { page: group * GROUP_PAGES, slot: 0 }
}

fn copy(buffer: &mut [u8], from: usize, bytes: &[u8]) {
    if let Some(buffer) = buffer.get_mut(from..) {
        let length = buffer.len().min(bytes.len());
        buffer[..length].copy_from_slice(&bytes[..length]);
    }
}
