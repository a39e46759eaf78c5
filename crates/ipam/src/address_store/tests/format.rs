//! Tests of the file format: golden bytes, unknown and damaged content.

use proptest::prelude::*;

use super::super::format::{GROUP, HEADS_AT, head_offset};
use super::*;

/// Store of 18 blocks; the last is a single-owner block with a reserved address.
pub(super) fn golden() -> AddressStore {
    let nets: Vec<String> = (0..17).map(|at| format!("10.0.{at}.0/24")).collect();
    let mut store = store(&nets.iter().map(String::as_str).collect::<Vec<_>>());
    let reserved = vec!["fd00::6".parse().unwrap()];
    let _ = store.add_block(
        &BlockLease { reserved, single_owner: true, ..lease("fd00::/120", "the-uid") },
        0x0102_0304,
    );
    let _ = store.hold(SlotId { page: 17, slot: 5 }, 0x0a0b_0c0d, 0x1122_3344_5566_7788);
    store
}

#[test]
fn file_format_golden_bytes() {
    let image = golden().to_bytes();
    assert_eq!(image.len(), 2 * 77_824);
    let preface = [b"weft-ipam 3\n\0\0\0\0boot-1".as_slice(), &[0; 58], &[2, 0, 0, 0], &[0; 44]].concat();
    assert_eq!(image[..128], preface);
    assert!(image[128..2_048].iter().chain(&image[77_824..77_824 + 2_048]).all(|byte| *byte == 0));
    let first = [[0; 15].as_slice(), &[0xfd]].concat();
    let head =
        [&[1, 6, 120, 1, 0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0], &first[..], b"the-uid", &[0; 89]].concat();
    assert_eq!(image[80_000..80_128], head);
    // The page before holds an IPv4 block.
    assert_eq!(image[79_872..79_875], [1, 4, 24]);
    assert_eq!(image[79_872 + 16..79_872 + 21], [0, 16, 0, 10, 0]);
    // 1 plus the remainder of the owner by 65,535.
    let hint = 1 + 0x1122_3344_5566_7788_u64 % 65_535;
    assert_eq!(image[82_432..82_444], [[0; 10].as_slice(), &hint.to_le_bytes()[..2]].concat());
    let held = [0x0d, 0x0c, 0x0b, 0x0a, 0, 0, 0, 1, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11];
    assert_eq!(image[94_288..94_304], held);
    assert_eq!(image[94_304..94_320], [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn file_format_unknown_content_is_never_allocated() {
    let store = store(&["10.0.0.0/31"]);
    let mut image = store.to_bytes();
    image[12_288 + 7] = 9;
    image[12_288 + 16 + 7] = 200;
    let store = AddressStore::from_bytes(&image).unwrap();
    assert_eq!(store.choose(CLOCK, |_| true), Choice::Full);
    assert!(!store.is_idle(&store.block(0).unwrap(), CLOCK));
    for (at, byte) in [(0, 99), (1, 5), (2, 200)] {
        let mut image = image.clone();
        image[2_048 + at] = byte;
        // Otherwise the addresses held in it would be leased and allocated again.
        assert_eq!(AddressStore::from_bytes(&image), Err(StoreError::InvalidPage(0)), "{at}: {byte}");
    }
    assert_eq!(AddressStore::from_bytes(b"something else"), Err(StoreError::UnknownFormat));
    image.truncate(GROUP - 1);
    assert_eq!(AddressStore::from_bytes(&image), Err(StoreError::Truncated { present: 0, written: 1 }));
    // Other versions of the format are rejected.
    for version in ["weft-ipam 2\n", "weft-ipam 4\n"] {
        image[..version.len()].copy_from_slice(version.as_bytes());
        assert_eq!(AddressStore::from_bytes(&image), Err(StoreError::UnknownFormat), "{version}");
    }
}

proptest! {
    #[test]
    fn file_format_arbitrary_bytes_cause_no_panic(
        damage in proptest::collection::vec((0..PREFACE + 300 * 16, any::<u8>()), 0..40),
        states in proptest::collection::vec((0..32_usize, 0..5_usize, 0..8_u8), 0..4),
        length in proptest::option::of(0..2 * GROUP + 5),
    ) {
        let mut file = golden().to_bytes();
        // Heads and hints of both groups, and the first slots.
        for (at, byte) in damage {
            let at = if at % 2 == 0 { HEADS_AT + at * 2 } else { GROUP + HEADS_AT + at * 3 };
            file[at] = byte;
        }
        for (page, at, byte) in states {
            file[head_offset(page) + at] = byte;
        }
        file.resize(length.unwrap_or(file.len()), 7);
        let opened = AddressStore::from_bytes(&file);
        if let Ok(mut store) = opened {
            let blocks: Vec<Block> = store.blocks().collect();
            for block in &blocks {
                let _ = (store.is_idle(block, CLOCK), store.is_held(block), store.last_used(block));
                let _ = (store.held_count(block), store.free_count(block, CLOCK));
            }
            let _ = (store.usage(CLOCK, |_| true), store.has_free(CLOCK, |_| true, 4), store.held().count());
            if let Choice::Free(place, _) = store.choose(CLOCK, |_| true) {
                let _ = store.hold(place, 5, 77);
                prop_assert_eq!(store.held_by(77).next(), Some(place));
            }
            let edits = store.add_block(&lease("10.3.0.0/24", "another"), 9);
            edits.iter().for_each(|edit| write(&mut file, edit));
            let _ = store.begin_boot("boot-2", 9);
            prop_assert_eq!(store.held().count(), 0);
        }
    }
}
