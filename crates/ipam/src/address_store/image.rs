//! The bytes of a ledger, as far as they are needed: a node that holds 50,000 addresses has 1 MB of them, and one call looks
//! at few.
//!
//! ```text
//!   in the file   preface, heads │ tags │ slots of 16 pages │ heads │ tags │ slots of 16 pages │ …
//!   here          preface, all heads │ tags of a group and slots of a page, as they are needed
//! ```
//!
//! Rules:
//! - what decides whether this is a ledger at all, the preface and every head, is read before anything is said;
//! - memory that was never used costs more than reading: the tags of all groups are passed in one room, one after the
//!   other, and kept are those of the first, which is the only one of a usual node, of those that are looked at closely, and
//!   all when they are passed a second time;
//! - tags and slots are read while whoever asks has the turn: nobody changes them meanwhile but he himself, who has them
//!   here;
//! - where they cannot be read, that is remembered, and nothing that was said since holds: [`Image::fault`].

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::io;
use std::sync::Arc;

use super::hints::{FREE, has};
use super::{
    BODY, GROUP, GROUPS_MAX, HEAD, HEADS, INDEX, PAGES, PREFACE, Place, SLOT, SLOTS, TAG, TAGS, TAGS_OF,
};

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
    /// What comes before the heads of the first group, and the heads of all.
    heads: Vec<u8>,
    /// Of each group.
    tags: Vec<Part>,
    /// Of each page.
    slots: Vec<Part>,
    /// Is a tag of the page free? Known once its tags were passed, until one is changed.
    roomy: Vec<Cell<Option<bool>>>,
    /// Were the tags passed?
    passed: Cell<bool>,
    source: Option<Arc<dyn Source>>,
    fault: OnceCell<String>,
}

/// What is read when it is needed.
type Part = OnceCell<Box<[u8]>>;

// === impl Image ===

impl Image {
    /// A preface and no group.
    pub(super) fn new(mut preface: Vec<u8>) -> Image {
        preface.resize(HEADS, 0);
        let (tags, slots, roomy, passed, fault) = Default::default();
        Image { heads: preface, tags, slots, roomy, passed, source: None, fault }
    }

    /// All the bytes of a file; what comes after a whole group is ignored. Nothing if not even the preface is there.
    pub(super) fn of(bytes: &[u8]) -> Option<Image> {
        let mut image = Image::new(bytes.get(..PREFACE)?.to_vec());
        for group in bytes.chunks_exact(GROUP).take(GROUPS_MAX) {
            let (index, slots) = group.split_at(INDEX);
            image.heads.extend_from_slice(&index[HEADS..TAGS]);
            image.tags.push(Part::from(Box::from(&index[TAGS..])));
            image.slots.extend(slots.chunks_exact(BODY).map(|slots| Part::from(Box::from(slots))));
        }
        image.roomy.resize(image.slots.len(), Cell::new(None));
        Some(image)
    }

    /// The same, of which tags and slots are read when they are looked at.
    pub(super) fn open(source: Arc<dyn Source>) -> io::Result<Option<Image>> {
        let most = GROUPS_MAX * GROUP;
        let length = usize::try_from(source.length()?).unwrap_or(most).min(most);
        if length < PREFACE {
            return Ok(None);
        }
        let groups = length / GROUP;
        let mut heads = vec![0; HEADS + groups * PAGES * HEAD];
        let first = if groups == 0 { PREFACE } else { TAGS };
        source.fetch(0, &mut heads[..first])?;
        for (group, room) in heads.chunks_exact_mut(HEADS).skip(1).enumerate().skip(1) {
            source.fetch((group * GROUP + HEADS) as u64, room)?;
        }
        let (tags, slots) = (vec![Part::new(); groups], vec![Part::new(); groups * PAGES]);
        let roomy = vec![Cell::new(None); groups * PAGES];
        Ok(Some(Image { heads, tags, slots, roomy, source: Some(source), ..Image::new(Vec::new()) }))
    }

    pub(super) fn preface(&self) -> &[u8] {
        &self.heads[..PREFACE]
    }

    pub(super) fn groups(&self) -> usize {
        self.tags.len()
    }

    pub(super) fn pages(&self) -> usize {
        self.slots.len()
    }

    /// The head of a page.
    pub(super) fn head(&self, page: usize) -> Option<&[u8]> {
        let from = HEADS + page * HEAD;
        self.heads.get(from..from + HEAD)
    }

    /// The tags of a page's slots.
    pub(super) fn tags(&self, page: usize) -> Option<&[u8]> {
        let from = page % PAGES * TAGS_OF;
        self.all_tags(page / PAGES)?.get(from..from + TAGS_OF)
    }

    fn all_tags(&self, group: usize) -> Option<&[u8]> {
        self.part(self.tags.get(group)?, tag_at(first_of(group)), PAGES * TAGS_OF)
    }

    /// Looks at the tags of every page that has a block, in order, as far as they can be read.
    pub(super) fn pass(&self, mut look: impl FnMut(usize, &[u8])) {
        let (mut room, keeps) = (Vec::new(), self.passed.replace(true));
        for group in 0..self.groups() {
            let pages = group * PAGES..(group + 1) * PAGES;
            let is_block = |page: &usize| self.head(*page).is_some_and(|head| head[0] != 0);
            let Some(last) = pages.clone().rfind(is_block) else { continue };
            let known = match self.tags.get(group).and_then(Part::get) {
                None if keeps || group == 0 => self.all_tags(group),
                Some(known) => Some(&**known),
                None => {
                    room.resize((last + 1 - pages.start) * TAGS_OF, 0);
                    self.fetch(tag_at(first_of(group)), &mut room).map(|()| room.as_slice())
                }
            };
            let Some(known) = known else { return };
            for (page, tags) in pages.zip(known.chunks_exact(TAGS_OF)).filter(|(page, _)| is_block(page)) {
                if let Some(roomy) = self.roomy.get(page).filter(|roomy| roomy.get().is_none()) {
                    roomy.set(Some(has(tags, FREE)));
                }
                look(page, tags);
            }
        }
    }

    /// Is a tag of this page, which has a block, free?
    pub(super) fn is_roomy(&self, page: usize) -> bool {
        let Some(roomy) = self.roomy.get(page) else { return false };
        match (roomy.get(), self.tags.get(page / PAGES).and_then(Part::get)) {
            (Some(_), _) => {}
            (None, Some(_)) => roomy.set(self.tags(page).map(|tags| has(tags, FREE))),
            (None, None) if self.fault().is_none() => self.pass(|_, _| ()),
            (None, None) => {}
        }
        roomy.get() == Some(true)
    }

    /// The slots of a page.
    pub(super) fn slots(&self, page: usize) -> Option<&[u8]> {
        self.part(self.slots.get(page)?, at(Place { page, slot: 0 }), BODY)
    }

    /// One slot.
    pub(super) fn slot(&self, place: Place) -> Option<[u8; SLOT]> {
        let Place { page, slot } = place;
        let from = slot.checked_mul(SLOT).filter(|_| slot < SLOTS)?;
        let mut bytes = [0; SLOT];
        match self.slots.get(page)?.get() {
            Some(slots) => bytes.copy_from_slice(slots.get(from..from + SLOT)?),
            None => self.fetch(at(place), &mut bytes)?,
        }
        Some(bytes)
    }

    fn part<'a>(&self, part: &'a Part, offset: usize, length: usize) -> Option<&'a [u8]> {
        if let Some(known) = part.get() {
            return Some(known);
        }
        let mut room = vec![0; length].into_boxed_slice();
        self.fetch(offset, &mut room)?;
        Some(part.get_or_init(|| room))
    }

    fn fetch(&self, offset: usize, room: &mut [u8]) -> Option<()> {
        match self.source.as_ref()?.fetch(offset as u64, room) {
            Ok(()) => Some(()),
            Err(error) => {
                let _ = self.fault.set(error.to_string());
                None
            }
        }
    }

    /// Why tags or slots could not be read.
    pub(super) fn fault(&self) -> Option<&str> {
        self.fault.get().map(String::as_str)
    }

    /// Adds a group that nothing is in; where its bytes begin and end that are to be zero.
    pub(super) fn grow(&mut self) -> std::ops::Range<usize> {
        let from = (self.groups() * GROUP).max(PREFACE);
        self.heads.resize(self.heads.len() + PAGES * HEAD, 0);
        self.tags.push(Part::from(Box::from([0; PAGES * TAGS_OF])));
        let pages = self.groups() * PAGES;
        self.slots.resize_with(pages, || Part::from(Box::from([0; BODY])));
        self.roomy.resize(pages, Cell::new(None));
        from..self.groups() * GROUP
    }

    /// Writes at this place, inside the preface or the head, tags or slots of a page.
    pub(super) fn put(&mut self, offset: usize, bytes: &[u8]) {
        let (group, inside) = (offset / GROUP, offset % GROUP);
        if inside < TAGS {
            copy(&mut self.heads, group * PAGES * HEAD + inside, bytes);
        } else if inside < INDEX {
            if self.all_tags(group).is_none() {
                return;
            }
            if let Some(tags) = self.tags.get_mut(group).and_then(Part::get_mut) {
                copy(tags, inside - TAGS, bytes);
            }
            if let Some(roomy) = self.roomy.get(group * PAGES + (inside - TAGS) / TAGS_OF) {
                roomy.set(None);
            }
        } else {
            let (page, from) = (group * PAGES + (inside - INDEX) / BODY, (inside - INDEX) % BODY);
            // Of what is written anew nothing need be read.
            if bytes.len() < BODY && self.slots(page).is_none() {
                return;
            }
            match self.slots.get_mut(page) {
                Some(slots) if bytes.len() == BODY => *slots = Part::from(Box::from(bytes)),
                Some(slots) => slots.get_mut().into_iter().for_each(|slots| copy(slots, from, bytes)),
                None => {}
            }
        }
    }

    /// All of them; what cannot be read is left out from there on.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.preface().to_vec();
        for group in 0..self.groups() {
            bytes.resize(group * GROUP + HEADS, 0);
            bytes.extend_from_slice(&self.heads[HEADS + group * PAGES * HEAD..][..PAGES * HEAD]);
            let slots = (group * PAGES..(group + 1) * PAGES).map(|page| self.slots(page));
            for part in std::iter::once(self.all_tags(group)).chain(slots) {
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

fn first_of(group: usize) -> Place {
    Place { page: group * PAGES, slot: 0 }
}

/// Where the head of a page is in the file.
pub(super) fn head_at(page: usize) -> usize {
    page / PAGES * GROUP + HEADS + page % PAGES * HEAD
}

/// Where the tag of a slot is.
pub(super) fn tag_at(Place { page, slot }: Place) -> usize {
    page / PAGES * GROUP + TAGS + (page % PAGES * SLOTS + slot) * TAG
}

/// Where a slot is.
pub(super) fn at(Place { page, slot }: Place) -> usize {
    page / PAGES * GROUP + INDEX + page % PAGES * BODY + slot * SLOT
}

fn copy(room: &mut [u8], from: usize, bytes: &[u8]) {
    if let Some(room) = room.get_mut(from..) {
        let length = room.len().min(bytes.len());
        room[..length].copy_from_slice(&bytes[..length]);
    }
}
