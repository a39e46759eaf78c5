//! Tests of the address store: choice and quarantine, states, owners, names.

mod crash;
mod format;
mod partial_read;

use super::*;
use crate::address_filter::AddressFilter;
use crate::block_lease::BlockLease;
use crate::clock::Clock;
use crate::range::Range;

const CLOCK: Clock = Clock { now: 1_000_000, quarantine: 60_000 };

fn lease(net: &str, id: &str) -> BlockLease {
    BlockLease { net: net.parse().unwrap(), id: id.into(), single_owner: false, reserved: Vec::new() }
}

fn store(blocks: &[&str]) -> AddressStore {
    let mut store = AddressStore::new("boot-1");
    for net in blocks {
        let _ = store.add_block(&lease(net, net), 1);
    }
    store
}

fn at(now: u64) -> Clock {
    Clock { now, ..CLOCK }
}

#[track_caller]
fn take(store: &mut AddressStore, clock: Clock, owner: u64) -> IpAddr {
    let Choice::Free(place, ip) = store.choose(clock, |_| true) else { panic!("none") };
    let _ = store.hold(place, clock.now, owner);
    ip
}

/// Writes an edit into a file.
fn write(file: &mut Vec<u8>, edit: &Edit) {
    let offset = usize::try_from(edit.offset).unwrap();
    file.resize(file.len().max(offset + edit.bytes.len()), 0);
    file[offset..offset + edit.bytes.len()].copy_from_slice(&edit.bytes);
}
#[test]
fn address_store_edits_reproduce_the_store() {
    let mut store = store(&["10.0.0.0/28"]);
    let mut file = store.to_bytes();
    let lease = BlockLease { reserved: vec!["10.0.1.3".parse().unwrap()], ..lease("10.0.1.0/28", "b") };
    let place = SlotId { page: 0, slot: 5 };
    let mut edits = store.add_block(&lease, 7);
    edits.extend(store.hold(place, 9, 42));
    edits.extend(store.free(place, 10));
    edits.push(store.set_state(1, BlockState::Returning));
    edits.extend(store.begin_boot("boot-2", 11));
    edits.iter().for_each(|edit| write(&mut file, edit));
    assert_eq!(AddressStore::from_bytes(&file), Ok(store.clone()));
    assert_eq!((store.boot_id(), store.slot(SlotId { page: 1, slot: 3 })), ("boot-2", Slot::Reserved));
    let states: Vec<BlockState> = store.blocks().map(|block| block.state).collect();
    assert_eq!(states, [BlockState::Unconfirmed, BlockState::Returning]);
}

#[test]
fn offers_of_concurrent_calls_differ_where_few_are_free() {
    let mut store = store(&["10.0.0.0/28"]);
    for slot in (0..16).filter(|slot| ![6, 7].contains(slot)) {
        let _ = store.hold(SlotId { page: 0, slot }, CLOCK.now, 99);
    }
    let range = Range::of_any_size("10.0.0.0/28".parse().unwrap(), None, None).unwrap();
    let filter = AddressFilter::new(range, &[]);
    let mut offer = |owner, tried: &[IpAddr]| store.offer_for_claim(CLOCK, &filter, owner, None, tried);
    let [six, seven] = ["10.0.0.6", "10.0.0.7"].map(|ip| ip.parse::<IpAddr>().unwrap());
    assert_eq!((offer(2, &[]), offer(3, &[])), (Some(six), Some(seven)));
    // An address that another call took is not offered again.
    assert_eq!((offer(2, &[six]), offer(2, &[six, seven])), (Some(seven), None));
}

#[test]
fn quarantine_ends_before_longest_free_address_is_chosen() {
    let mut store = store(&["10.0.0.0/30"]);
    let allocated: Vec<IpAddr> = (0..4).map(|owner| take(&mut store, CLOCK, owner)).collect();
    assert_eq!(store.choose(CLOCK, |_| true), Choice::Full);
    for (slot, now) in [(2, 1_000_100), (0, 1_000_200), (1, 1_000_300)] {
        let _ = store.free(SlotId { page: 0, slot }, now);
    }
    assert_eq!(store.choose(at(1_000_400), |_| true), Choice::Quarantined(1_060_100));
    assert_eq!(take(&mut store, at(1_070_000), 7), allocated[2]);
    assert_eq!(take(&mut store, at(1_070_000), 7), allocated[0]);
    assert_eq!(store.usage(at(1_060_250), |_| true), Usage { held: 3, quarantined: 1, free: 0 });
    // The clock is set back: the quarantine does not last until the old time comes again.
    assert_eq!(take(&mut store, at(1_000), 7), allocated[1]);
}

#[test]
fn address_never_held_is_chosen_before_a_released_one() {
    let mut store = store(&["10.0.0.0/31", "10.0.0.2/31"]);
    let first = take(&mut store, CLOCK, 1);
    let _ = store.free(store.find(first).unwrap(), CLOCK.now);
    let later = at(9_000_000);
    let remaining: Vec<String> = (0..4).map(|_| take(&mut store, later, 2).to_string()).collect();
    assert_eq!(remaining, ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.0"]);
}

#[test]
fn only_active_blocks_are_allocated_from() {
    for state in [BlockState::Returning, BlockState::Unconfirmed] {
        let mut store = store(&["10.0.0.0/31"]);
        let _ = store.set_state(0, state);
        assert_eq!(store.choose(CLOCK, |_| true), Choice::Full, "{state:?}");
        // The same lease makes the block active again; its slots are unchanged.
        let _ = store.hold(SlotId { page: 0, slot: 1 }, 5, 5);
        let _ = store.add_block(&lease("10.0.0.0/31", "10.0.0.0/31"), 9);
        assert_eq!(store.slot(SlotId { page: 0, slot: 1 }), Slot::Held { since: 5, owner: 5 });
        assert_eq!(store.blocks().count(), 1);
    }
}

#[test]
fn reboot_frees_addresses_and_leaves_blocks_unconfirmed() {
    let mut store = store(&["10.0.0.0/31"]);
    let ip = take(&mut store, CLOCK, 1);
    let _ = store.begin_boot("boot-2", CLOCK.now);
    assert_eq!(store.held().count(), 0);
    assert_eq!(store.slot(store.find(ip).unwrap()), Slot::Free(CLOCK.now));
    assert_eq!(store.choose(at(9_000_000), |_| true), Choice::Full);
}

#[test]
fn choice_respects_the_filter() {
    let store = store(&["10.0.0.0/28"]);
    let odd = |ip: IpAddr| ip.to_string() == "10.0.0.9";
    assert!(matches!(store.choose(CLOCK, odd), Choice::Free(SlotId { page: 0, slot: 9 }, _)));
    assert_eq!(store.usage(CLOCK, odd).free, 1);
}

#[test]
fn stale_hint_hides_an_address_only_while_another_is_free() {
    let mut store = store(&["10.0.0.0/31"]);
    let first = store.find("10.0.0.0".parse().unwrap()).unwrap();
    let mut image = store.to_bytes();
    // The call was killed after the first edit of a hold. After the first edit of a release the file looks the same.
    let [hint, _] = store.hold(first, 1, 42);
    assert_eq!(hint.bytes.len(), 2, "the hint comes first");
    write(&mut image, &hint);
    let mut store = AddressStore::from_bytes(&image).unwrap();
    assert_eq!(store.held_by(42).next(), None);
    let allocated: Vec<String> = (0..2).map(|owner| take(&mut store, CLOCK, owner).to_string()).collect();
    assert_eq!(allocated, ["10.0.0.1", "10.0.0.0"]);
    assert_eq!(store.held_by(1).next(), Some(first));
    assert_eq!(store.choose(CLOCK, |_| true), Choice::Full);
}

#[test]
fn owner_is_found_among_owners_with_the_same_hint() {
    let mut store = store(&["10.0.0.0/24", "10.0.1.0/24"]);
    // Each two of the 510 owners have the same hint.
    let owners: Vec<u64> = (0..510).map(|owner| owner % 255 + owner / 255 * 65_535).collect();
    let allocated: Vec<IpAddr> = owners.iter().map(|owner| take(&mut store, CLOCK, *owner)).collect();
    for (owner, ip) in owners.into_iter().zip(&allocated) {
        let own: Vec<SlotId> = store.held_by(owner).collect();
        assert_eq!(own, [store.find(*ip).unwrap()], "{owner}");
        let _ = store.free(own[0], CLOCK.now);
        assert_eq!(store.held_by(owner).next(), None);
    }
    assert!(!store.has_free(CLOCK, |_| true, 3), "quarantine");
    assert!(store.has_free(CLOCK, |_| true, 2) && store.has_free(at(9_000_000), |_| true, 512));
}

#[test]
fn store_name_is_no_path_and_has_limited_length() {
    for name in ["a", "10.9.0.0-16", "net-2001--db8"] {
        assert!(is_valid_name(name), "{name}");
    }
    for text in ["", ".", "..", "-a", "a-", "a.", "A", "a/b", "a_b", "a@b", "é"] {
        assert!(!is_valid_name(text), "{text}");
    }
    assert!(is_valid_name(&"a".repeat(128)) && !is_valid_name(&"a".repeat(129)));
}
