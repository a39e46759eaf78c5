//! What a ledger promises, change by change.

use super::*;

const CLOCK: Clock = Clock { now: 1_000_000, rest: 60_000 };

fn lease(net: &str, uid: &str) -> Lease {
    Lease { net: net.parse().unwrap(), uid: uid.into(), bound: false, holes: Vec::new() }
}

fn ledger(blocks: &[&str]) -> Ledger {
    let mut ledger = Ledger::new("boot-1");
    for net in blocks {
        let _ = ledger.add(&lease(net, net), 1);
    }
    ledger
}

fn at(now: u64) -> Clock {
    Clock { now, ..CLOCK }
}

#[track_caller]
fn take(ledger: &mut Ledger, clock: Clock, mark: u64) -> IpAddr {
    let Choice::Free(place, ip) = ledger.choose(clock, |_| true) else { panic!("none") };
    let _ = ledger.hold(place, clock.now, mark);
    ip
}

#[test]
fn every_change_is_what_its_edit_says() {
    let mut ledger = ledger(&["10.0.0.0/28"]);
    let mut file = ledger.image();
    let lease = Lease { holes: vec!["10.0.1.3".parse().unwrap()], ..lease("10.0.1.0/28", "b") };
    let place = Place { page: 0, slot: 5 };
    let mut edits = ledger.add(&lease, 7);
    edits.extend(ledger.hold(place, 9, 42));
    edits.extend(ledger.free(place, 10));
    edits.push(ledger.set(1, State::Returning));
    edits.extend(ledger.begin("boot-2", 11));
    for Edit { offset, bytes } in edits {
        let offset = usize::try_from(offset).unwrap();
        file.resize(file.len().max(offset + bytes.len()), 0);
        file[offset..offset + bytes.len()].copy_from_slice(&bytes);
    }
    assert_eq!(Ledger::read(&file), Ok(ledger.clone()));
    assert_eq!((ledger.boot(), ledger.slot(Place { page: 1, slot: 3 })), ("boot-2", Slot::Hole));
    let states: Vec<State> = ledger.blocks().map(|block| block.state).collect();
    assert_eq!(states, [State::Unconfirmed, State::Returning]);
}

#[test]
fn who_has_been_free_longest_goes_first_and_rests_before() {
    let mut ledger = ledger(&["10.0.0.0/30"]);
    let given: Vec<IpAddr> = (0..4).map(|mark| take(&mut ledger, CLOCK, mark)).collect();
    assert_eq!(ledger.choose(CLOCK, |_| true), Choice::Full);
    for (slot, now) in [(2, 1_000_100), (0, 1_000_200), (1, 1_000_300)] {
        let _ = ledger.free(Place { page: 0, slot }, now);
    }
    assert_eq!(ledger.choose(at(1_000_400), |_| true), Choice::Resting(1_060_100));
    assert_eq!(take(&mut ledger, at(1_070_000), 7), given[2]);
    assert_eq!(take(&mut ledger, at(1_070_000), 7), given[0]);
    assert_eq!(ledger.count(at(1_060_250), |_| true), Count { held: 3, resting: 1, free: 0 });
    // The clock is set back by a day: nobody waits a day.
    assert_eq!(take(&mut ledger, at(1_000), 7), given[1]);
}

#[test]
fn one_that_was_never_given_comes_before_one_that_was() {
    let mut ledger = ledger(&["10.0.0.0/31", "10.0.0.2/31"]);
    let first = take(&mut ledger, CLOCK, 1);
    let _ = ledger.free(ledger.find(first).unwrap(), CLOCK.now);
    let later = at(9_000_000);
    let rest: Vec<String> = (0..4).map(|_| take(&mut ledger, later, 2).to_string()).collect();
    assert_eq!(rest, ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.0"]);
}

#[test]
fn only_active_blocks_give() {
    for state in [State::Returning, State::Unconfirmed] {
        let mut ledger = ledger(&["10.0.0.0/31"]);
        let _ = ledger.set(0, state);
        assert_eq!(ledger.choose(CLOCK, |_| true), Choice::Full, "{state:?}");
        // The same lease again makes it active; its slots are as they were.
        let _ = ledger.hold(Place { page: 0, slot: 1 }, 5, 5);
        let _ = ledger.add(&lease("10.0.0.0/31", "10.0.0.0/31"), 9);
        assert_eq!(ledger.slot(Place { page: 0, slot: 1 }), Slot::Held(5, 5));
        assert_eq!(ledger.blocks().count(), 1);
    }
}

#[test]
fn a_new_boot_frees_what_was_held_and_asks_whose_blocks_are() {
    let mut ledger = ledger(&["10.0.0.0/31"]);
    let ip = take(&mut ledger, CLOCK, 1);
    let _ = ledger.begin("boot-2", CLOCK.now);
    assert_eq!(ledger.held().count(), 0);
    assert_eq!(ledger.slot(ledger.find(ip).unwrap()), Slot::Free(CLOCK.now));
    assert_eq!(ledger.choose(at(9_000_000), |_| true), Choice::Full);
}

#[test]
fn what_is_not_known_is_never_given_and_never_idle() {
    let ledger = ledger(&["10.0.0.0/31"]);
    let mut image = ledger.image();
    image[PREFACE + BODY + 7] = 9;
    image[PREFACE + BODY + SLOT + 7] = 200;
    let ledger = Ledger::read(&image).unwrap();
    assert_eq!(ledger.choose(CLOCK, |_| true), Choice::Full);
    assert!(!ledger.is_idle(&ledger.block(0).unwrap(), CLOCK));
    for (at, byte) in [(0, 99), (1, 5), (2, 200)] {
        let mut image = image.clone();
        image[PREFACE + at] = byte;
        // What was held in it would be leased anew, and given to others.
        assert_eq!(Ledger::read(&image), Err(Spoilt::Page(0)), "{at}: {byte}");
    }
    assert_eq!(Ledger::read(b"something else"), Err(Spoilt::Foreign));
    image.truncate(PREFACE + PAGE - 1);
    assert_eq!(Ledger::read(&image), Err(Spoilt::Short { there: 0, written: 1 }));
}

#[test]
fn a_page_that_was_written_and_not_counted_is_one_of_a_call_that_was_killed() {
    let mut ledger = ledger(&["10.0.0.0/28"]);
    let mut file = ledger.image();
    let edits = ledger.add(&lease("10.0.1.0/28", "b"), 7);
    file.extend_from_slice(&edits[0].bytes);
    let mut found = Ledger::read(&file).unwrap();
    assert_eq!((edits.len(), found.blocks().count()), (2, 2));
    // A page that is used again counts no further one.
    let _ = found.drop_block(0);
    assert_eq!(found.add(&lease("10.0.2.0/28", "c"), 8).len(), 2, "the count catches up");
    let _ = found.drop_block(0);
    assert_eq!(found.add(&lease("10.0.3.0/28", "d"), 9).len(), 1);
}

#[test]
fn a_filter_is_asked_for_every_address() {
    let ledger = ledger(&["10.0.0.0/28"]);
    let odd = |ip: IpAddr| ip.to_string() == "10.0.0.9";
    assert!(matches!(ledger.choose(CLOCK, odd), Choice::Free(Place { page: 0, slot: 9 }, _)));
    assert_eq!(ledger.count(CLOCK, odd).free, 1);
}

#[test]
fn a_tag_that_was_left_behind_hides_an_address_only_while_another_is_free() {
    let mut ledger = ledger(&["10.0.0.0/31"]);
    let first = ledger.find("10.0.0.0".parse().unwrap()).unwrap();
    let mut image = ledger.image();
    // Killed after the first edit of a hold; after the first of a free it looks the same.
    let [tag, _] = ledger.hold(first, 1, 42);
    assert_eq!(tag.bytes.len(), 1, "a tag, not a slot");
    image[usize::try_from(tag.offset).unwrap()] = tag.bytes[0];
    let mut ledger = Ledger::read(&image).unwrap();
    assert_eq!(ledger.held_by(42).next(), None);
    let given: Vec<String> = (0..2).map(|mark| take(&mut ledger, CLOCK, mark).to_string()).collect();
    assert_eq!(given, ["10.0.0.1", "10.0.0.0"]);
    assert_eq!(ledger.held_by(1).next(), Some(first));
    assert_eq!(ledger.choose(CLOCK, |_| true), Choice::Full);
}

#[test]
fn what_is_held_is_found_by_its_mark_whatever_else_has_its_tag() {
    let mut ledger = ledger(&["10.0.0.0/24", "10.0.1.0/24"]);
    // Of 510 marks each two have one tag.
    let given: Vec<IpAddr> = (0..510).map(|mark| take(&mut ledger, CLOCK, mark)).collect();
    for (mark, ip) in (0..).zip(&given) {
        let own: Vec<Place> = ledger.held_by(mark).collect();
        assert_eq!(own, [ledger.find(*ip).unwrap()], "{mark}");
        let _ = ledger.free(own[0], CLOCK.now);
        assert_eq!(ledger.held_by(mark).next(), None);
    }
    assert!(!ledger.has_free(CLOCK, |_| true, 3), "they rest");
    assert!(ledger.has_free(CLOCK, |_| true, 2) && ledger.has_free(at(9_000_000), |_| true, 512));
}

#[test]
fn an_address_is_given_up_unless_it_is_held_in_whichever_lease() {
    use crate::turn::{GiveUp, give_up};
    let ip: IpAddr = "10.0.0.1".parse().unwrap();
    let mut ledger = ledger(&["10.0.0.0/30"]);
    assert_eq!(give_up(&mut ledger, "another lease", ip), GiveUp::Unknown);
    assert_eq!(give_up(&mut ledger, "10.0.0.0/30", "10.0.0.4".parse().unwrap()), GiveUp::Unknown);
    let place = ledger.find(ip).unwrap();
    let _ = ledger.hold(place, 5, 42);
    assert_eq!(give_up(&mut ledger, "10.0.0.0/30", ip), GiveUp::Held(place));
    // Held of an older lease of the same block, whatever becomes of that.
    let _ = ledger.set(0, State::Unconfirmed);
    let _ = ledger.add(&lease("10.0.0.0/30", "b"), 6);
    assert_eq!(give_up(&mut ledger, "b", ip), GiveUp::Held(place));
    // It need not have rested; afterwards nobody is given it, and the rest is as before.
    let _ = ledger.free(place, CLOCK.now);
    let GiveUp::Hole(edits) = give_up(&mut ledger, "b", ip) else { panic!("free") };
    assert_eq!((edits.len(), ledger.slot(Place { page: 1, slot: 1 })), (1, Slot::Hole));
    assert_eq!(give_up(&mut ledger, "b", ip), GiveUp::Hole(Vec::new()), "once more");
    let given: Vec<String> = (0..3).map(|mark| take(&mut ledger, CLOCK, mark).to_string()).collect();
    assert_eq!(given, ["10.0.0.0", "10.0.0.2", "10.0.0.3"]);
    assert_eq!(ledger.choose(at(9_000_000), |_| true), Choice::Full);
}

/// A file that counts how often it is read, and cannot be read beyond some place.
#[derive(Debug)]
struct Counted {
    bytes: Vec<u8>,
    fetched: std::sync::atomic::AtomicU64,
    readable: std::sync::atomic::AtomicU64,
}

impl Counted {
    fn of(ledger: &Ledger) -> Arc<Counted> {
        Arc::new(Counted { bytes: ledger.image(), fetched: 0.into(), readable: u64::MAX.into() })
    }

    fn fetched(&self) -> u64 {
        self.fetched.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Source for Counted {
    fn length(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn fetch(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        if offset + room.len() as u64 > self.readable.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(io::Error::other("a bad sector"));
        }
        self.fetched.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let from = usize::try_from(offset).unwrap();
        room.copy_from_slice(&self.bytes[from..from + room.len()]);
        Ok(())
    }
}

/// 40 blocks, of which the last has 6 free addresses.
fn large() -> Ledger {
    let nets: Vec<String> = (0..40).map(|at| format!("10.0.{at}.0/24")).collect();
    let mut ledger = ledger(&nets.iter().map(String::as_str).collect::<Vec<_>>());
    for owner in 0..40 * 256 - 6 {
        take(&mut ledger, CLOCK, mixed(owner));
    }
    ledger
}

/// A mark like those that are hashes.
fn mixed(owner: u64) -> u64 {
    let mixed = owner.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

#[test]
fn a_large_ledger_is_read_through_once_and_what_is_looked_at_again() {
    let whole = large();
    let file = Counted::of(&whole);
    let mut ledger = Ledger::open(file.clone()).unwrap().unwrap();
    assert_eq!((ledger.held_by(u64::MAX).next(), ledger.fault()), (None, None));
    let Choice::Free(place, ip) = ledger.choose(CLOCK, |_| true) else { panic!("none") };
    assert_eq!(whole.choose(CLOCK, |_| true), Choice::Free(place, ip));
    let _ = ledger.hold(place, 5, u64::MAX);
    assert!(ledger.has_free(CLOCK, |_| true, 4));
    let own: Vec<Place> = ledger.held_by(mixed(4711)).collect();
    assert_eq!((own.len(), &own), (1, &whole.held_by(mixed(4711)).collect()));
    // The first two pages, 38 of which 14 at a time, the last one's slots, an address: of 20,000 marks a few look like one of
    // the two.
    assert!((6..12).contains(&file.fetched()), "{}", file.fetched());
    // What is looked at since, and what was written in the meantime, is all there.
    let _ = ledger.free(own[0], 7);
    let mut same = whole;
    let _ = same.hold(place, 5, u64::MAX);
    let _ = same.free(own[0], 7);
    assert_eq!(ledger, same);
}

#[test]
fn a_block_in_use_is_known_by_one_of_its_addresses() {
    let file = Counted::of(&large());
    let ledger = Ledger::open(file.clone()).unwrap().unwrap();
    let before = file.fetched();
    for block in ledger.blocks().take(39) {
        assert!(!ledger.is_idle(&block, CLOCK) && ledger.is_held(&block));
        assert_eq!((ledger.held_in(&block), ledger.free_in(&block, CLOCK)), (256, 0));
    }
    assert!(file.fetched() - before <= 39 * 2, "{}", file.fetched() - before);
}

#[test]
fn what_cannot_be_read_in_the_middle_is_told_and_nothing_is_said_to_be_free_of_it() {
    let file = Counted::of(&large());
    let mut ledger = Ledger::open(file.clone()).unwrap().unwrap();
    file.readable.store((PREFACE + 10 * PAGE) as u64, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(ledger.choose(CLOCK, |_| true), Choice::Full);
    assert_eq!(ledger.fault(), Some("a bad sector"));
    assert!(!ledger.has_free(CLOCK, |_| true, 1));
    let block = ledger.block(30).unwrap();
    assert!(ledger.is_held(&block) && !ledger.is_idle(&block, CLOCK));
    let _ = ledger.free(Place { page: 30, slot: 0 }, 5);
    assert!(ledger.fault().is_some(), "it stays");
    // A head that cannot be read is an error before anything is said.
    assert!(Ledger::open(file).is_err());
}
