//! The addresses of one pool on one node: blocks that it has, and who holds what in them.
//!
//! It is the image of a file. Each change is one small [`Edit`], which its owner writes to the file at once: a call
//! that is killed between two of them leaves a ledger that is right.
//!
//! ```text
//!   0       preface   magic, boot, number of groups                  128 bytes
//!   2,048   16 pages' heads: state, block, uid                       128 bytes each
//!   4,096   their tags: 0, or a hash of the mark below               256 × 2 bytes each
//!   12,288  their slots: state, since (ms) │ mark of its owner       256 × 16 bytes each
//!   77,824  the next group, which has no preface
//! ```
//!
//! By tags an owner is found and a full page passed over. No head and no page's slots lie in two blocks of a disk. Rules:
//! - a tag is written before its address is held and erased after it is free: what is held has its tag, always. A tag
//!   that was left behind hides a free address until nothing else is free;
//! - a block is there from the write of its head on, which comes after its tags and slots: one write;
//! - an address is given if its slot is free, has rested, and its block is active; of those the one that has been
//!   free longest;
//! - a block that is being emptied is active, and nobody new comes into it;
//! - a slot in a state that is not known is never given; a file with a page that makes no sense, or with fewer groups than
//!   it had, is no ledger: what was held in them would be given again;
//! - numbers are little-endian; what comes after a whole group is ignored; slots are kept when looked at: [`Source`].

mod hints;
mod image;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use self::hints::TAG;
pub use self::image::Source;
use self::image::{Image, at, head_at, tag_at};
use crate::number::{Family, number};
use crate::pool_layout::{addresses_of, nth, offset_of};

/// Slots of a page.
pub const SLOTS: usize = 256;
/// Pages of a ledger at most.
pub const PAGES_MAX: usize = GROUPS_MAX * PAGES;

/// Length of the preface.
const PREFACE: usize = 128;
/// Pages of a group.
const PAGES: usize = 16;
const GROUPS_MAX: usize = 256;
const HEAD: usize = 128;
const SLOT: usize = 16;
/// Length of the tags of a page.
const TAGS_OF: usize = SLOTS * TAG;
/// Length of the slots of a page.
const BODY: usize = SLOTS * SLOT;
/// Where the heads of a group begin, its tags, its slots, and where it ends.
const HEADS: usize = 2048;
const TAGS: usize = HEADS + PAGES * HEAD;
const INDEX: usize = TAGS + PAGES * TAGS_OF;
const GROUP: usize = INDEX + PAGES * BODY;
const MAGIC: &[u8; 16] = b"weft-ipam 3\n\0\0\0\0";
const BOOT: std::ops::Range<usize> = 16..80;
/// Written after each new group: a file with fewer was cut off.
const COUNT: std::ops::Range<usize> = 80..84;
const UID: std::ops::Range<usize> = 32..96;
/// In a page's head: is its block being emptied? A release that does not know this gives from it like from any other.
const DRAINING: usize = 4;
/// The time is in the lower seven bytes of the first word.
const TIME: u64 = (1 << 56) - 1;

/// Length of a ledger's name, in bytes.
const NAME_MAX: usize = 128;

/// Is this the name of a ledger, or of its pool? It is part of an object's name and of a path.
pub fn is_name(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let is_word = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= NAME_MAX
        && bytes.iter().all(|byte| legal(*byte))
        && is_word(bytes.first())
        && is_word(bytes.last())
}

/// The ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    image: Image,
}

/// A change: these bytes at this place.
#[must_use = "a change is not made until it is written"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Where.
    pub offset: u64,
    /// What.
    pub bytes: Vec<u8>,
    /// When.
    pub order: Order,
}

/// When a change is written; after those before it, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// At once.
    AtOnce,
    /// When those before it are on the disk: if this one alone outlived a loss of power, the ledger would not be right.
    Settled,
}

/// What a block is to its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Addresses may be given.
    Active = 1,
    /// It is being given back; nothing in it is held.
    Returning = 2,
    /// The node was away: whether it is still this node's must be asked.
    Unconfirmed = 3,
}

/// A block of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its page.
    pub page: usize,
    /// What it is to the node.
    pub state: State,
    /// Its addresses.
    pub net: IpNet,
    /// Which lease of it: anew for each one.
    pub uid: String,
    /// Was it leased for one owner?
    pub bound: bool,
    /// Is it being emptied, to be given back?
    pub draining: bool,
    /// Milliseconds since 1970: when it was leased.
    pub since: u64,
}

/// What an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Nobody's, since then: milliseconds since 1970, 0 if it never was anybody's.
    Free(u64),
    /// Held since then, by the owner with this mark.
    Held(u64, u64),
    /// Not this node's.
    Hole,
    /// Something that this release does not know.
    Unknown,
}

/// A place in the ledger: page and slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The page.
    pub page: usize,
    /// The slot in it.
    pub slot: usize,
}

/// What [`Ledger::choose`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This address may be given.
    Free(Place, IpAddr),
    /// Those that are free must rest until then; milliseconds since 1970.
    Resting(u64),
    /// None is free.
    Full,
}

/// How many addresses are what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Held.
    pub held: u64,
    /// Free, and resting.
    pub resting: u64,
    /// Free, to be given now.
    pub free: u64,
}

/// How long a question may take, in milliseconds.
const QUESTION_MAX: u64 = 60_000;

/// When is it, and how long does a freed address rest: milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Now, since 1970.
    pub now: u64,
    /// The rest.
    pub rest: u64,
}

// === impl Clock ===

impl Clock {
    /// When an address that is free since `since` has rested; nothing if it has.
    ///
    /// A clock that was set back by more than the rest and a minute makes nobody wait for the old time to come again. Less
    /// may be the time since a question was asked, which is by its own clock.
    /// Without a rest nothing waits, not even what somebody gave back while a question was on its way.
    pub(crate) fn rests_until(self, since: u64) -> Option<u64> {
        let ends = since.saturating_add(self.rest);
        let latest = self.now.saturating_add(self.rest).saturating_add(QUESTION_MAX);
        (self.rest > 0 && since > 0 && self.now < ends && since <= latest).then_some(ends)
    }
}

// === impl Block ===

impl Block {
    /// May its addresses be given to anybody?
    pub fn is_open(&self) -> bool {
        self.state == State::Active && !self.bound && !self.draining
    }
}

// === impl Ledger: reading ===

impl Ledger {
    /// An empty one of this boot.
    pub fn new(boot: &str) -> Ledger {
        let mut preface = vec![0; PREFACE];
        preface[..MAGIC.len()].copy_from_slice(MAGIC);
        put_text(&mut preface[BOOT], boot);
        Ledger { image: Image::new(preface) }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// What of it makes no sense; nothing can be told of any address then.
    pub fn read(bytes: &[u8]) -> Result<Ledger, Spoilt> {
        Ledger::of(Image::of(bytes))
    }

    /// Reads a file and keeps what is needed to find things in it; the rest is read again when it is looked at.
    ///
    /// # Errors
    /// It cannot be read; inside, what of it makes no sense.
    pub fn open(source: Arc<dyn Source>) -> io::Result<Result<Ledger, Spoilt>> {
        Image::open(source).map(Ledger::of)
    }

    fn of(image: Option<Image>) -> Result<Ledger, Spoilt> {
        let Some(image) = image.filter(|image| image.preface().starts_with(MAGIC)) else {
            return Err(Spoilt::Foreign);
        };
        let ledger = Ledger { image };
        let (there, written) = (ledger.image.groups(), ledger.written());
        if there < written {
            return Err(Spoilt::Short { there, written });
        }
        let makes_sense =
            |page: &usize| ledger.head(*page).is_some_and(|head| head[0] == 0 || net(head).is_some_and(fits));
        match (0..ledger.pages()).find(|page| !makes_sense(page)) {
            Some(page) => Err(Spoilt::Page(page)),
            None => Ok(ledger),
        }
    }

    /// Why something of it could not be read since: nothing that it said holds then, and nothing may be written.
    pub fn fault(&self) -> Option<&str> {
        self.image.fault()
    }

    /// How many groups were written once.
    fn written(&self) -> usize {
        let mut count = [0; 4];
        count.copy_from_slice(&self.image.preface()[COUNT]);
        usize::try_from(u32::from_le_bytes(count)).unwrap_or(usize::MAX)
    }

    /// The whole file.
    pub fn image(&self) -> Vec<u8> {
        self.image.bytes()
    }

    /// The boot it was last used in.
    pub fn boot(&self) -> &str {
        text(&self.image.preface()[BOOT])
    }

    fn pages(&self) -> usize {
        self.image.pages()
    }

    /// The blocks; a page that makes no sense is none.
    pub fn blocks(&self) -> impl Iterator<Item = Block> {
        (0..self.pages()).filter_map(|page| self.block(page))
    }

    /// The block of a page.
    pub fn block(&self, page: usize) -> Option<Block> {
        let head = self.head(page)?;
        let (state, net) = (state(head)?, net(head)?);
        let uid = text(&head[UID]).to_owned();
        let (bound, draining, since) = (head[3] == 1, head[DRAINING] == 1, word(&head[8..]));
        Some(Block { page, state, net, uid, bound, draining, since })
    }

    fn head(&self, page: usize) -> Option<&[u8]> {
        self.image.head(page)
    }

    /// The tags of the slots that a page's block has.
    fn tags(&self, page: usize) -> &[u8] {
        let size = self.net(page).map_or(0, size);
        self.image.tags(page).map_or(&[], |tags| &tags[..size * TAG])
    }

    fn net(&self, page: usize) -> Option<IpNet> {
        net(self.head(page)?)
    }

    /// The pages of blocks that are being emptied.
    pub fn draining(&self) -> impl Iterator<Item = usize> {
        (0..self.pages()).filter(|page| self.is_draining(*page) && self.net(*page).is_some())
    }

    fn is_draining(&self, page: usize) -> bool {
        self.head(page).is_some_and(|head| head[DRAINING] == 1)
    }

    /// The pages of blocks that are not full by their tags.
    fn roomy(&self) -> impl Iterator<Item = usize> {
        (0..self.pages()).filter(|page| self.net(*page).is_some() && self.image.is_roomy(*page))
    }

    /// May the addresses of a page be given to anybody?
    fn is_open(&self, page: usize) -> bool {
        self.is_usable(page) && !self.is_draining(page)
    }

    /// The same, also if it is being emptied.
    fn is_usable(&self, page: usize) -> bool {
        self.head(page).is_some_and(|head| head[0] == State::Active as u8 && head[3] != 1)
    }

    /// The slots of a page that its block has.
    fn slots(&self, page: usize) -> impl Iterator<Item = (usize, Slot)> {
        let slots = self.net(page).map(|net| (size(net), self.image.slots(page).unwrap_or_default()));
        let own = slots.into_iter().flat_map(|(size, slots)| slots.chunks_exact(SLOT).take(size));
        own.map(slot).enumerate()
    }

    /// What each address of a block is, in order.
    pub fn slots_of(&self, block: &Block) -> impl Iterator<Item = Slot> {
        self.slots(block.page).map(|(_, what)| what)
    }

    /// Those of the slots of a page that are free by their tags.
    fn untagged(&self, page: usize) -> impl Iterator<Item = (usize, Slot)> {
        hints::places(self.tags(page), hints::FREE)
            .filter_map(move |slot| Some((slot, self::slot(self.image.slots(page)?.get(slot * SLOT..)?))))
    }

    /// Is the first address with a tag held, or can it not be said? One look tells it of a block that is in use.
    fn seems_held(&self, page: usize) -> bool {
        if self.image.tags(page).is_none() {
            return true;
        }
        let tagged = self.tags(page).as_chunks().0.iter().position(|tag| *tag != hints::FREE);
        tagged.is_some_and(|slot| matches!(self.slot(Place { page, slot }), Slot::Held(..) | Slot::Unknown))
    }

    /// What an address is.
    pub fn slot(&self, place: Place) -> Slot {
        self.image.slot(place).map_or(Slot::Unknown, |bytes| slot(&bytes))
    }

    /// The address at a place.
    pub fn address(&self, place: Place) -> Option<IpAddr> {
        let net = self.net(place.page)?;
        (place.slot < size(net)).then(|| nth(net, place.slot as u128))
    }

    /// Where an address is, if it is in a block of this node.
    pub fn find(&self, ip: IpAddr) -> Option<Place> {
        (0..self.pages()).find_map(|page| {
            Some(Place { page, slot: usize::try_from(offset_of(self.net(page)?, ip)?).ok()? })
        })
    }

    /// Where an address is, in whichever lease of its block.
    pub fn all_of(&self, ip: IpAddr) -> impl Iterator<Item = (Block, Place)> {
        self.blocks().filter_map(move |block| {
            let slot = usize::try_from(offset_of(block.net, ip)?).ok()?;
            let page = block.page;
            Some((block, Place { page, slot }))
        })
    }

    /// Every address that is held: its place, since when, the mark of its owner.
    pub fn held(&self) -> impl Iterator<Item = (Place, u64, u64)> {
        (0..self.pages()).flat_map(|page| {
            self.slots(page).filter_map(move |(slot, what)| match what {
                Slot::Held(since, mark) => Some((Place { page, slot }, since, mark)),
                _ => None,
            })
        })
    }

    /// The addresses that the owner with this mark holds.
    pub fn held_by(&self, mark: u64) -> impl Iterator<Item = Place> {
        let (tag, mut places) = (hints::of(mark), Vec::new());
        self.image.pass(|page, tags| {
            if hints::has(tags, tag) {
                places.extend(hints::places(tags, tag).map(|slot| Place { page, slot }));
            }
        });
        let is_own = move |place: &Place| matches!(self.slot(*place), Slot::Held(_, known) if known == mark);
        places.into_iter().filter(|place| self.address(*place).is_some()).filter(is_own)
    }

    /// The free address to give: of those that `accepts`, the one that has been free longest.
    pub fn choose(&self, clock: Clock, accepts: impl Fn(IpAddr) -> bool) -> Choice {
        match self.choose_of(clock, &accepts, self.roomy(), |page| self.untagged(page)) {
            Choice::Free(place, ip) => Choice::Free(place, ip),
            // Some may have a tag that was left behind.
            _ => self.choose_of(clock, &accepts, 0..self.pages(), |page| self.slots(page)),
        }
    }

    fn choose_of<I: Iterator<Item = (usize, Slot)>>(
        &self,
        clock: Clock,
        accepts: impl Fn(IpAddr) -> bool,
        pages: impl Iterator<Item = usize>,
        slots: impl Fn(usize) -> I,
    ) -> Choice {
        let mut best: Option<(u64, Place, IpAddr)> = None;
        let mut wakes = u64::MAX;
        for page in pages.filter(|page| self.is_open(*page)) {
            for (slot, what) in slots(page) {
                let Slot::Free(since) = what else { continue };
                if best.is_some_and(|(known, ..)| known <= since) {
                    continue;
                }
                let place = Place { page, slot };
                let Some(ip) = self.address(place).filter(|ip| accepts(*ip)) else { continue };
                match clock.rests_until(since) {
                    Some(ends) => wakes = wakes.min(ends),
                    None => best = Some((since, place, ip)),
                }
                if since == 0 {
                    break;
                }
            }
            // Never anybody's: nothing has been free longer.
            if best.is_some_and(|(since, ..)| since == 0) {
                break;
            }
        }
        match best {
            Some((_, place, ip)) => Choice::Free(place, ip),
            None if wakes < u64::MAX => Choice::Resting(wakes),
            None => Choice::Full,
        }
    }

    /// How many of the addresses that `accepts` are what; only blocks from which may be given have free ones.
    pub fn count(&self, clock: Clock, accepts: impl Fn(IpAddr) -> bool) -> Count {
        let mut count = Count::default();
        for block in self.blocks() {
            for (slot, what) in self.slots(block.page) {
                match what {
                    Slot::Held(..) => count.held += 1,
                    Slot::Free(since) if block.is_open() => {
                        let rests = clock.rests_until(since).is_some();
                        if rests {
                            count.resting += 1;
                        } else if accepts(nth(block.net, slot as u128)) {
                            count.free += 1;
                        }
                    }
                    _ => {}
                }
            }
        }
        count
    }

    /// Are at least `enough` addresses that `accepts` free to be given now, if need be of a block that is being emptied?
    pub fn has_free(&self, clock: Clock, accepts: impl Fn(IpAddr) -> bool, enough: usize) -> bool {
        let is_free = |page: usize, slot: usize, what: Slot| {
            let rested = matches!(what, Slot::Free(since) if clock.rests_until(since).is_none());
            rested && self.address(Place { page, slot }).is_some_and(&accepts)
        };
        let tagged = |page| self.untagged(page).filter(move |(slot, what)| is_free(page, *slot, *what));
        let all = |page| self.slots(page).filter(move |(slot, what)| is_free(page, *slot, *what));
        // Some may have a tag that was left behind.
        let is_usable = |page: &usize| self.is_usable(*page);
        self.roomy().filter(is_usable).flat_map(tagged).take(enough).count() == enough
            || (0..self.pages()).filter(is_usable).flat_map(all).take(enough).count() == enough
    }

    /// Is nothing in a block held, and has everything rested?
    pub fn is_idle(&self, block: &Block, clock: Clock) -> bool {
        let is_idle = |what| match what {
            Slot::Free(since) => clock.rests_until(since).is_none(),
            Slot::Hole => true,
            Slot::Held(..) | Slot::Unknown => false,
        };
        !self.seems_held(block.page) && self.slots(block.page).all(|(_, what)| is_idle(what))
    }

    /// How many addresses of a block are somebody's of this node, or look like it.
    pub fn held_in(&self, block: &Block) -> u64 {
        let tags = self.tags(block.page);
        (tags.len() / TAG - hints::places(tags, hints::FREE).count()) as u64
    }

    /// How many addresses of a block are nobody's, and have rested; none if all look like somebody's.
    pub fn free_in(&self, block: &Block, clock: Clock) -> u64 {
        if !hints::has(self.tags(block.page), hints::FREE) {
            return 0;
        }
        let rested = |what: &Slot| matches!(what, Slot::Free(since) if clock.rests_until(*since).is_none());
        self.slots(block.page).filter(|(_, what)| rested(what)).count() as u64
    }

    /// When something in a block was last freed; milliseconds since 1970.
    pub fn last_used(&self, block: &Block) -> u64 {
        let freed = self.slots(block.page).map(|(_, what)| match what {
            Slot::Free(since) => since,
            _ => 0,
        });
        freed.max().unwrap_or(0).max(block.since)
    }

    /// Is an address of this block held?
    pub fn is_held(&self, block: &Block) -> bool {
        let is_held = |what| matches!(what, Slot::Held(..) | Slot::Unknown);
        self.seems_held(block.page) || self.slots(block.page).any(|(_, what)| is_held(what))
    }
}

// === impl Ledger: changing ===

impl Ledger {
    /// Gives an address.
    pub fn hold(&mut self, place: Place, now: u64, mark: u64) -> [Edit; 2] {
        [self.tag(place, hints::of(mark)), self.put(place, 1, now, mark)]
    }

    /// Takes an address back.
    pub fn free(&mut self, place: Place, now: u64) -> [Edit; 2] {
        [self.put(place, 0, now, 0), self.tag(place, hints::FREE)]
    }

    /// Makes a free address somebody else's.
    pub fn give_up(&mut self, place: Place) -> Edit {
        self.put(place, 2, 0, 0)
    }

    /// Changes what a block is to the node.
    pub fn set(&mut self, page: usize, state: State) -> Edit {
        self.edit(head_at(page), &[state as u8])
    }

    /// Lets nobody new into a block, or lets them in again.
    pub fn drain(&mut self, page: usize, draining: bool) -> Edit {
        self.edit(head_at(page) + DRAINING, &[u8::from(draining)])
    }

    /// Makes a block active that is still the node's, under a new lease: one write.
    pub fn confirm(&mut self, page: usize, uid: &str) -> Edit {
        let mut head = self.head(page).map(<[u8]>::to_vec).unwrap_or_default();
        if head.len() == HEAD {
            head[0] = State::Active as u8;
            head[DRAINING] = 0;
            head[UID].fill(0);
            put_text(&mut head[UID], uid);
        }
        self.edit(head_at(page), &head)
    }

    /// Forgets a block.
    pub fn drop_block(&mut self, page: usize) -> Edit {
        self.edit(head_at(page), &[0])
    }

    /// Writes a block down; no edit if there are too many. A hole is an address that is not this node's.
    ///
    /// It is there from the last edit on, which is one write: slots and tags of whoever had the page before are erased by then.
    pub fn add(&mut self, lease: &Lease, now: u64) -> Vec<Edit> {
        let known = self.blocks().find(|block| block.net == lease.net && block.uid == lease.uid);
        if let Some(known) = known {
            return vec![self.set(known.page, State::Active)];
        }
        let free = (0..self.pages()).find(|page| self.head(*page).is_some_and(|head| head[0] == 0));
        let page = free.unwrap_or(self.pages());
        if page >= PAGES_MAX || !fits(lease.net) {
            return Vec::new();
        }
        let mut edits = Vec::new();
        if free.is_none() {
            let new = self.image.grow();
            edits.push(Edit { offset: new.start as u64, bytes: vec![0; new.len()], order: Order::AtOnce });
        }
        let groups = self.image.groups();
        if groups > self.written() {
            let count = u32::try_from(groups).unwrap_or(u32::MAX).to_le_bytes();
            // Were the count on the disk without them, they would have been cut off.
            edits.push(Edit { order: Order::Settled, ..self.edit(COUNT.start, &count) });
        }
        edits.push(self.edit(at(Place { page, slot: 0 }), &slots_of(lease)));
        edits.push(self.edit(tag_at(Place { page, slot: 0 }), &[0; TAGS_OF]));
        // A block without its holes would give what is another node's, one with those of whoever had the page not all it has.
        edits.push(Edit { order: Order::Settled, ..self.edit(head_at(page), &head_of(lease, now)) });
        edits
    }

    /// Starts a boot: what was held before it is free, and rests; whose the blocks are must be asked.
    ///
    /// No network namespace outlives a kernel, and neither does what was in it.
    pub fn begin(&mut self, boot: &str, now: u64) -> Vec<Edit> {
        let held: Vec<Place> = self.held().map(|(place, ..)| place).collect();
        let mut edits: Vec<Edit> = held.into_iter().flat_map(|place| self.free(place, now)).collect();
        let blocks: Vec<Block> = self.blocks().filter(|block| block.state == State::Active).collect();
        for Block { page, bound, .. } in blocks {
            // What was for one owner is nobody's now.
            edits.push(self.set(page, if bound { State::Returning } else { State::Unconfirmed }));
        }
        let mut name = [0; 64];
        put_text(&mut name, boot);
        edits.push(self.edit(BOOT.start, &name));
        edits
    }

    fn put(&mut self, place: Place, state: u8, now: u64, mark: u64) -> Edit {
        let mut bytes = [0; SLOT];
        bytes[..8].copy_from_slice(&(now & TIME).to_le_bytes());
        bytes[7] = state;
        bytes[8..].copy_from_slice(&mark.to_le_bytes());
        self.edit(at(place), &bytes)
    }

    fn tag(&mut self, place: Place, tag: hints::Tag) -> Edit {
        self.edit(tag_at(place), &tag)
    }

    fn edit(&mut self, offset: usize, bytes: &[u8]) -> Edit {
        self.image.put(offset, bytes);
        Edit { offset: offset as u64, bytes: bytes.to_vec(), order: Order::AtOnce }
    }
}

/// Why a file is no ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoilt {
    /// It does not begin like one, or like one of another release.
    Foreign,
    /// It was cut off.
    Short {
        /// Groups that are there.
        there: usize,
        /// Groups that were written.
        written: usize,
    },
    /// This page makes no sense.
    Page(usize),
}

impl fmt::Display for Spoilt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spoilt::Foreign => f.write_str("not a ledger of this release"),
            Spoilt::Short { there, written } => {
                write!(f, "cut off: {there} of {written} groups of {PAGES} blocks are there")
            }
            Spoilt::Page(page) => write!(f, "block {page} in it makes no sense"),
        }
    }
}

/// A block as it is leased.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its addresses.
    pub net: IpNet,
    /// Which lease of it; at most 64 bytes.
    pub uid: String,
    /// Is it for one owner?
    pub bound: bool,
    /// Addresses in it that are somebody else's.
    pub holes: Vec<IpAddr>,
}

// === the bytes ===

fn state(head: &[u8]) -> Option<State> {
    [State::Active, State::Returning, State::Unconfirmed].into_iter().find(|state| *state as u8 == head[0])
}

/// The head of an active block.
fn head_of(lease: &Lease, now: u64) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[0] = State::Active as u8;
    head[1] = if lease.net.addr().is_ipv4() { 4 } else { 6 };
    head[2] = lease.net.prefix_len();
    head[3] = u8::from(lease.bound);
    head[8..16].copy_from_slice(&now.to_le_bytes());
    head[16..32].copy_from_slice(&number(lease.net.network()).to_le_bytes());
    put_text(&mut head[UID], &lease.uid);
    head
}

/// Its slots, before anybody holds any.
fn slots_of(lease: &Lease) -> [u8; BODY] {
    let mut slots = [0; BODY];
    for hole in &lease.holes {
        if let Some(slot) = offset_of(lease.net, *hole).and_then(|slot| usize::try_from(slot).ok()) {
            slots[slot.min(SLOTS - 1) * SLOT + 7] = 2;
        }
    }
    slots
}

/// How many slots a block of this network has.
fn size(net: IpNet) -> usize {
    usize::try_from(addresses_of(net)).map_or(SLOTS, |count| count.min(SLOTS))
}

/// Has a page room for a block of this network?
fn fits(net: IpNet) -> bool {
    addresses_of(net) <= SLOTS as u128 && net == net.trunc()
}

/// The network of a page that has a block.
fn net(head: &[u8]) -> Option<IpNet> {
    state(head)?;
    let family = match head[1] {
        4 => Family::V4,
        6 => Family::V6,
        _ => return None,
    };
    let mut first = [0; 16];
    first.copy_from_slice(&head[16..32]);
    IpNet::new(family.address(u128::from_le_bytes(first)), head[2]).ok()
}

fn slot(bytes: &[u8]) -> Slot {
    let since = word(bytes) & TIME;
    match bytes[7] {
        0 => Slot::Free(since),
        1 => Slot::Held(since, word(&bytes[8..])),
        2 => Slot::Hole,
        _ => Slot::Unknown,
    }
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

fn put_text(room: &mut [u8], text: &str) {
    let length = text.len().min(room.len());
    room[..length].copy_from_slice(&text.as_bytes()[..length]);
}

fn text(bytes: &[u8]) -> &str {
    let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..length]).unwrap_or_default()
}

#[cfg(test)]
mod tests;
