//! What a ledger promises, change by change.

use proptest::prelude::*;

use super::*;
use crate::allocate::{Supply, receive};

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

/// What a write makes of a file.
fn write(file: &mut Vec<u8>, edit: &Edit) {
    let offset = usize::try_from(edit.offset).unwrap();
    file.resize(file.len().max(offset + edit.bytes.len()), 0);
    file[offset..offset + edit.bytes.len()].copy_from_slice(&edit.bytes);
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
    edits.iter().for_each(|edit| write(&mut file, edit));
    assert_eq!(Ledger::read(&file), Ok(ledger.clone()));
    assert_eq!((ledger.boot(), ledger.slot(Place { page: 1, slot: 3 })), ("boot-2", Slot::Hole));
    let states: Vec<State> = ledger.blocks().map(|block| block.state).collect();
    assert_eq!(states, [State::Unconfirmed, State::Returning]);
}

#[test]
fn without_a_rest_nothing_waits_for_what_was_given_back_while_it_was_asked_for() {
    assert_eq!(Clock { now: 100, rest: 0 }.rests_until(101), None);
    assert_eq!(Clock { now: 100, rest: 10 }.rests_until(101), Some(111));
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
    image[12_288 + 7] = 9;
    image[12_288 + 16 + 7] = 200;
    let ledger = Ledger::read(&image).unwrap();
    assert_eq!(ledger.choose(CLOCK, |_| true), Choice::Full);
    assert!(!ledger.is_idle(&ledger.block(0).unwrap(), CLOCK));
    for (at, byte) in [(0, 99), (1, 5), (2, 200)] {
        let mut image = image.clone();
        image[2_048 + at] = byte;
        // What was held in it would be leased anew, and given to others.
        assert_eq!(Ledger::read(&image), Err(Spoilt::Page(0)), "{at}: {byte}");
    }
    assert_eq!(Ledger::read(b"something else"), Err(Spoilt::Foreign));
    image.truncate(GROUP - 1);
    assert_eq!(Ledger::read(&image), Err(Spoilt::Short { there: 0, written: 1 }));
    // Of another form: what is in it is not guessed.
    for form in ["weft-ipam 2\n", "weft-ipam 4\n"] {
        image[..form.len()].copy_from_slice(form.as_bytes());
        assert_eq!(Ledger::read(&image), Err(Spoilt::Foreign), "{form}");
    }
}

#[test]
fn a_group_that_was_written_and_not_counted_is_one_of_a_call_that_was_killed() {
    let mut ledger = Ledger::new("boot-1");
    let mut file = ledger.image();
    assert_eq!(file.len(), PREFACE);
    let edits = ledger.add(&lease("10.0.0.0/28", "a"), 7);
    write(&mut file, &edits[0]);
    assert_eq!((edits.len(), file.len()), (5, GROUP));
    let mut found = Ledger::read(&file).unwrap();
    assert_eq!(found.blocks().count(), 0);
    // A page that is there counts no further group.
    assert_eq!(found.add(&lease("10.0.2.0/28", "b"), 8).len(), 4, "the count catches up");
    let _ = found.drop_block(0);
    assert_eq!(found.add(&lease("10.0.3.0/28", "c"), 9).len(), 3);
    assert_eq!((found.blocks().count(), found.image().len()), (1, GROUP));
}

/// 18 blocks, of which the last has an owner and a hole.
fn golden() -> Ledger {
    let nets: Vec<String> = (0..17).map(|at| format!("10.0.{at}.0/24")).collect();
    let mut ledger = ledger(&nets.iter().map(String::as_str).collect::<Vec<_>>());
    let holes = vec!["fd00::6".parse().unwrap()];
    let _ = ledger.add(&Lease { holes, bound: true, ..lease("fd00::/120", "the-uid") }, 0x0102_0304);
    let _ = ledger.hold(Place { page: 17, slot: 5 }, 0x0a0b_0c0d, 0x1122_3344_5566_7788);
    ledger
}

#[test]
fn the_form_of_the_file_is_this() {
    let image = golden().image();
    assert_eq!(image.len(), 2 * 77_824);
    let preface = [b"weft-ipam 3\n\0\0\0\0boot-1".as_slice(), &[0; 58], &[2, 0, 0, 0], &[0; 44]].concat();
    assert_eq!(image[..128], preface);
    assert!(image[128..2_048].iter().chain(&image[77_824..77_824 + 2_048]).all(|byte| *byte == 0));
    let first = [[0; 15].as_slice(), &[0xfd]].concat();
    let head =
        [&[1, 6, 120, 1, 0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0], &first[..], b"the-uid", &[0; 89]].concat();
    assert_eq!(image[80_000..80_128], head);
    // The page before it is of an IPv4 block.
    assert_eq!(image[79_872..79_875], [1, 4, 24]);
    assert_eq!(image[79_872 + 16..79_872 + 21], [0, 16, 0, 10, 0]);
    // 1 and the remainder of the mark by 65,535.
    let tag = 1 + 0x1122_3344_5566_7788_u64 % 65_535;
    assert_eq!(image[82_432..82_444], [[0; 10].as_slice(), &tag.to_le_bytes()[..2]].concat());
    let held = [0x0d, 0x0c, 0x0b, 0x0a, 0, 0, 0, 1, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11];
    assert_eq!(image[94_288..94_304], held);
    assert_eq!(image[94_304..94_320], [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
}

/// Ledgers that a block is written into: a new one, one whose group is full, one of which a page was used before.
fn grounds() -> [Ledger; 3] {
    let mut full = golden();
    for page in 18..32 {
        let _ = full.add(&lease(&format!("10.1.{page}.0/24"), "full"), 1);
    }
    let mut used = golden();
    let holes = vec!["10.9.9.9".parse().unwrap()];
    let _ = used.add(&Lease { holes, ..lease("10.9.9.0/24", "former") }, 1);
    for slot in 0..256 {
        let _ = used.hold(Place { page: 18, slot }, 1, FORMER);
    }
    let _ = used.drop_block(18);
    [Ledger::new("boot-1"), full, used]
}

/// Whoever had what page 18 was before.
const FORMER: u64 = 4711;

/// What is read of a file in which a new block may be: it is not, or whole.
#[track_caller]
fn reads_whole_or_not(file: &[u8], lease: &Lease) -> Ledger {
    let ledger = Ledger::read(file).unwrap();
    assert_eq!(ledger.held_by(FORMER).next(), None);
    if let Some(block) = ledger.blocks().find(|block| block.uid == lease.uid) {
        let slots: Vec<Slot> = ledger.slots_of(&block).collect();
        let is_right = |(at, what): (usize, &Slot)| *what == if at == 3 { Slot::Hole } else { Slot::Free(0) };
        assert!((slots.len(), block.net) == (256, lease.net) && slots.iter().enumerate().all(is_right));
        assert_eq!(
            (ledger.held_in(&block), ledger.held().filter(|(at, ..)| at.page == block.page).count()),
            (0, 0)
        );
    }
    ledger
}

#[test]
fn an_add_that_is_killed_between_any_two_edits_leaves_the_block_whole_or_not_at_all() {
    let lease = Lease { holes: vec!["10.2.0.3".parse().unwrap()], ..lease("10.2.0.0/24", "new") };
    for (ground, before) in grounds().into_iter().enumerate() {
        let edits = before.clone().add(&lease, 9);
        assert_eq!(edits.len(), [5, 5, 3][ground]);
        let mut file = before.image();
        for (written, edit) in edits.iter().enumerate() {
            let mut found = reads_whole_or_not(&file, &lease);
            assert!(found.blocks().eq(before.blocks()), "{ground}: it is there after {written} edits");
            // Whoever comes next writes it down whatever was there.
            let mut again = file.clone();
            found.add(&lease, 10).iter().for_each(|edit| write(&mut again, edit));
            assert_eq!(reads_whole_or_not(&again, &lease).blocks().count(), before.blocks().count() + 1);
            // Killed in the middle of a long one.
            let half = Edit { bytes: edit.bytes[..edit.bytes.len() / 2].to_vec(), ..edit.clone() };
            if edit.bytes.len() > HEAD {
                let mut torn = file.clone();
                write(&mut torn, &half);
                assert!(
                    reads_whole_or_not(&torn, &lease).blocks().eq(before.blocks()),
                    "{ground}: {written}"
                );
            }
            write(&mut file, edit);
        }
        assert_eq!(reads_whole_or_not(&file, &lease).blocks().count(), before.blocks().count() + 1);
    }
}

#[test]
fn whatever_of_an_add_outlives_a_loss_of_power_is_the_whole_block_or_none() {
    let lease = Lease { holes: vec!["10.2.0.3".parse().unwrap()], ..lease("10.2.0.0/24", "new") };
    for (ground, before) in grounds().into_iter().enumerate() {
        let edits = before.clone().add(&lease, 9);
        let mut whole = 0;
        for outlived in 0..1_u32 << edits.len() {
            let is_there = |at: usize| outlived >> at & 1 == 1;
            let last = (0..edits.len()).rfind(|at| is_there(*at) && edits[*at].order == Order::Settled);
            if !(0..last.unwrap_or(0)).all(is_there) {
                continue;
            }
            let mut file = before.image();
            let those = edits.iter().enumerate().filter(|(at, _)| is_there(*at));
            those.for_each(|(_, edit)| write(&mut file, edit));
            let ledger = reads_whole_or_not(&file, &lease);
            whole += usize::from(ledger.blocks().any(|block| block.uid == lease.uid));
        }
        assert!(whole > 0, "{ground}");
    }
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
    assert_eq!(tag.bytes.len(), 2, "a tag, not a slot");
    write(&mut image, &tag);
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
    let marks: Vec<u64> = (0..510).map(|owner| owner % 255 + owner / 255 * 65_535).collect();
    let given: Vec<IpAddr> = marks.iter().map(|mark| take(&mut ledger, CLOCK, *mark)).collect();
    for (mark, ip) in marks.into_iter().zip(&given) {
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
    use crate::allocate::{GiveUp, give_up};
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
    // Heads and tags of three groups, the last page's tags once more and its slots; the tags of another that are kept the second
    // time, an address: of 10,000 marks hardly one looks like one of the two.
    assert!((10..13).contains(&file.fetched()), "{}", file.fetched());
    // What is looked at since, and what was written in the meantime, is all there.
    let _ = ledger.free(own[0], 7);
    let mut same = whole;
    let _ = same.hold(place, 5, u64::MAX);
    let _ = same.free(own[0], 7);
    assert_eq!(ledger, same);
}

#[test]
fn an_owner_is_found_in_any_group_and_hardly_anything_else_is_looked_at() {
    let whole = large();
    let file = Counted::of(&whole);
    let ledger = Ledger::open(file.clone()).unwrap().unwrap();
    for owner in (0..40 * 256 - 6).step_by(100) {
        let (page, slot) = (usize::try_from(owner / 256).unwrap(), usize::try_from(owner % 256).unwrap());
        assert_eq!(ledger.held_by(mixed(owner)).collect::<Vec<_>>(), [Place { page, slot }]);
    }
    // Heads, tags once and again, 103 addresses, and by a sixth of them one with the same tag.
    assert!((111..145).contains(&file.fetched()), "{}", file.fetched());
}

proptest! {
    #[test]
    fn no_bytes_are_too_odd(
        spoilt in proptest::collection::vec((0..PREFACE + 300 * 16, any::<u8>()), 0..40),
        states in proptest::collection::vec((0..32_usize, 0..5_usize, 0..8_u8), 0..4),
        length in proptest::option::of(0..2 * GROUP + 5),
    ) {
        let mut file = golden().image();
        // Heads and tags of both groups, and the first slots.
        for (at, byte) in spoilt {
            let at = if at % 2 == 0 { HEADS + at * 2 } else { GROUP + HEADS + at * 3 };
            file[at] = byte;
        }
        for (page, at, byte) in states {
            file[head_at(page) + at] = byte;
        }
        file.resize(length.unwrap_or(file.len()), 7);
        let opened = Ledger::read(&file);
        if let Ok(mut ledger) = opened {
            let blocks: Vec<Block> = ledger.blocks().collect();
            for block in &blocks {
                let _ = (ledger.is_idle(block, CLOCK), ledger.is_held(block), ledger.last_used(block));
                let _ = (ledger.held_in(block), ledger.free_in(block, CLOCK));
            }
            let _ = (ledger.count(CLOCK, |_| true), ledger.has_free(CLOCK, |_| true, 4), ledger.held().count());
            if let Choice::Free(place, _) = ledger.choose(CLOCK, |_| true) {
                let _ = ledger.hold(place, 5, 77);
                prop_assert_eq!(ledger.held_by(77).next(), Some(place));
            }
            let edits = ledger.add(&lease("10.3.0.0/24", "another"), 9);
            edits.iter().for_each(|edit| write(&mut file, edit));
            let _ = ledger.begin("boot-2", 9);
            prop_assert_eq!(ledger.held().count(), 0);
        }
    }
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
    assert!(file.fetched() - before <= 39 * 2 + 3, "{}", file.fetched() - before);
}

#[test]
fn what_cannot_be_read_in_the_middle_is_told_and_nothing_is_said_to_be_free_of_it() {
    let file = Counted::of(&large());
    let mut ledger = Ledger::open(file.clone()).unwrap().unwrap();
    file.readable.store(image::at(Place { page: 10, slot: 0 }) as u64, std::sync::atomic::Ordering::Relaxed);
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

#[test]
fn a_name_of_a_ledger_is_no_path_and_has_an_end() {
    for name in ["a", "10.9.0.0-16", "net-2001--db8"] {
        assert!(is_name(name), "{name}");
    }
    for text in ["", ".", "..", "-a", "a-", "a.", "A", "a/b", "a_b", "a@b", "é"] {
        assert!(!is_name(text), "{text}");
    }
    assert!(is_name(&"a".repeat(128)) && !is_name(&"a".repeat(129)));
}

#[test]
fn what_comes_of_a_lease_that_was_deleted_is_no_second_place_for_its_addresses() {
    let mut ledger = ledger(&["10.0.0.0/30"]);
    let [held, free] = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse::<IpAddr>().unwrap());
    let place = ledger.find(held).unwrap();
    let _ = ledger.hold(place, 1, 7);
    let heard = |ledger: &mut Ledger, lease| {
        let supply = Supply { leases: vec![lease], ..Supply::default() };
        let _ = receive(ledger, CLOCK, 8, &supply);
    };
    for ip in [held, free] {
        let net = IpNet::from(ip);
        heard(&mut ledger, Lease { bound: true, net, ..lease("10.0.0.0/30", "single") });
    }
    let own: Vec<Place> = ledger.held_by(8).collect();
    assert!(matches!(own.as_slice(), [own] if ledger.address(*own) == Some(free)), "{own:?}");
    assert_eq!(ledger.slot(ledger.find(free).unwrap()), Slot::Hole);
    // The block itself, anew: what is given of it now is given of the new lease alone.
    heard(&mut ledger, lease("10.0.0.0/30", "anew"));
    let states: Vec<State> = ledger.blocks().filter(|block| !block.bound).map(|block| block.state).collect();
    assert_eq!(states, [State::Unconfirmed, State::Active]);
    let rest = ["10.0.0.0", "10.0.0.3"].map(|ip| ip.parse::<IpAddr>().unwrap());
    assert_eq!([take(&mut ledger, CLOCK, 9), take(&mut ledger, CLOCK, 9)], rest);
    assert_eq!(ledger.choose(CLOCK, |_| true), Choice::Full);
}
