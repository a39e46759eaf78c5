//! Tests of the order of edits: a call killed between two edits, and a loss of power, leave a valid store.

use super::super::format::{GROUP, HEAD};
use super::format::golden;
use super::*;

#[test]
fn killed_call_may_leave_a_group_that_is_not_counted() {
    let mut store = AddressStore::new("boot-1");
    let mut file = store.to_bytes();
    assert_eq!(file.len(), PREFACE);
    let edits = store.add_block(&lease("10.0.0.0/28", "a"), 7);
    write(&mut file, &edits[0]);
    assert_eq!((edits.len(), file.len()), (5, GROUP));
    let mut found = AddressStore::from_bytes(&file).unwrap();
    assert_eq!(found.blocks().count(), 0);
    // The next call counts the group that is present.
    assert_eq!(found.add_block(&lease("10.0.2.0/28", "b"), 8).len(), 4, "the count is written");
    let _ = found.remove_block(0);
    assert_eq!(found.add_block(&lease("10.0.3.0/28", "c"), 9).len(), 3);
    assert_eq!((found.blocks().count(), found.to_bytes().len()), (1, GROUP));
}

/// Stores to which a block is added: a new one, one with a full group, one with a page that was used before.
fn stores() -> [AddressStore; 3] {
    let mut full = golden();
    for page in 18..32 {
        let _ = full.add_block(&lease(&format!("10.1.{page}.0/24"), "full"), 1);
    }
    let mut used = golden();
    let reserved = vec!["10.9.9.9".parse().unwrap()];
    let _ = used.add_block(&BlockLease { reserved, ..lease("10.9.9.0/24", "earlier") }, 1);
    for slot in 0..256 {
        let _ = used.hold(SlotId { page: 18, slot }, 1, EARLIER_OWNER);
    }
    let _ = used.remove_block(18);
    [AddressStore::new("boot-1"), full, used]
}

/// Owner of the addresses that page 18 held before.
const EARLIER_OWNER: u64 = 4711;

/// Reads a file and checks that a new block is complete or absent.
#[track_caller]
fn complete_or_absent(file: &[u8], lease: &BlockLease) -> AddressStore {
    let store = AddressStore::from_bytes(file).unwrap();
    assert_eq!(store.held_by(EARLIER_OWNER).next(), None);
    if let Some(block) = store.blocks().find(|block| block.lease == lease.id) {
        let slots: Vec<Slot> = store.slots_of(&block).collect();
        let is_right =
            |(at, what): (usize, &Slot)| *what == if at == 3 { Slot::Reserved } else { Slot::Free(0) };
        assert!((slots.len(), block.net) == (256, lease.net) && slots.iter().enumerate().all(is_right));
        assert_eq!(
            (store.held_count(&block), store.held().filter(|(at, ..)| at.page == block.page).count()),
            (0, 0)
        );
    }
    store
}

#[test]
fn killed_call_leaves_a_new_block_complete_or_absent() {
    let lease = BlockLease { reserved: vec!["10.2.0.3".parse().unwrap()], ..lease("10.2.0.0/24", "new") };
    for (index, before) in stores().into_iter().enumerate() {
        let edits = before.clone().add_block(&lease, 9);
        assert_eq!(edits.len(), [5, 5, 3][index]);
        let mut file = before.to_bytes();
        for (written, edit) in edits.iter().enumerate() {
            let mut found = complete_or_absent(&file, &lease);
            assert!(found.blocks().eq(before.blocks()), "{index}: present after {written} edits");
            // The next call adds the block whatever is in the file.
            let mut again = file.clone();
            found.add_block(&lease, 10).iter().for_each(|edit| write(&mut again, edit));
            assert_eq!(complete_or_absent(&again, &lease).blocks().count(), before.blocks().count() + 1);
            // The call was killed in the middle of a long edit.
            let half = Edit { bytes: edit.bytes[..edit.bytes.len() / 2].to_vec(), ..edit.clone() };
            if edit.bytes.len() > HEAD {
                let mut torn = file.clone();
                write(&mut torn, &half);
                assert!(complete_or_absent(&torn, &lease).blocks().eq(before.blocks()), "{index}: {written}");
            }
            write(&mut file, edit);
        }
        assert_eq!(complete_or_absent(&file, &lease).blocks().count(), before.blocks().count() + 1);
    }
}

#[test]
fn power_loss_leaves_a_new_block_complete_or_absent() {
    let lease = BlockLease { reserved: vec!["10.2.0.3".parse().unwrap()], ..lease("10.2.0.0/24", "new") };
    for (index, before) in stores().into_iter().enumerate() {
        let edits = before.clone().add_block(&lease, 9);
        let mut complete = 0;
        for survivors in 0..1_u32 << edits.len() {
            let survived = |at: usize| survivors >> at & 1 == 1;
            let last =
                (0..edits.len()).rfind(|at| survived(*at) && edits[*at].order == WriteOrder::AfterSync);
            if !(0..last.unwrap_or(0)).all(survived) {
                continue;
            }
            let mut file = before.to_bytes();
            let written = edits.iter().enumerate().filter(|(at, _)| survived(*at));
            written.for_each(|(_, edit)| write(&mut file, edit));
            let store = complete_or_absent(&file, &lease);
            complete += usize::from(store.blocks().any(|block| block.lease == lease.id));
        }
        assert!(complete > 0, "{index}");
    }
}
