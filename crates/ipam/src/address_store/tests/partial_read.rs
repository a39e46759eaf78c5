//! Tests of loading on demand: how much of a large store is read, and read errors.

use super::super::format::slot_offset;
use super::*;

/// File that counts reads and fails beyond an offset.
#[derive(Debug)]
struct Counted {
    bytes: Vec<u8>,
    reads: std::sync::atomic::AtomicU64,
    readable: std::sync::atomic::AtomicU64,
}

impl Counted {
    fn of(store: &AddressStore) -> Arc<Counted> {
        Arc::new(Counted { bytes: store.to_bytes(), reads: 0.into(), readable: u64::MAX.into() })
    }

    fn reads(&self) -> u64 {
        self.reads.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl StoreFile for Counted {
    fn length(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if offset + buffer.len() as u64 > self.readable.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(io::Error::other("a bad sector"));
        }
        self.reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let from = usize::try_from(offset).unwrap();
        buffer.copy_from_slice(&self.bytes[from..from + buffer.len()]);
        Ok(())
    }
}

/// Store of 40 blocks; the last has 6 free addresses.
fn large() -> AddressStore {
    let nets: Vec<String> = (0..40).map(|at| format!("10.0.{at}.0/24")).collect();
    let mut store = store(&nets.iter().map(String::as_str).collect::<Vec<_>>());
    for owner in 0..40 * 256 - 6 {
        take(&mut store, CLOCK, mixed(owner));
    }
    store
}

/// Owner spread like a hash.
fn mixed(owner: u64) -> u64 {
    let mixed = owner.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

#[test]
fn large_store_is_scanned_once_then_read_on_demand() {
    let whole = large();
    let file = Counted::of(&whole);
    let mut store = AddressStore::open(file.clone()).unwrap().unwrap();
    assert_eq!((store.held_by(u64::MAX).next(), store.read_error()), (None, None));
    let Choice::Free(place, ip) = store.choose(CLOCK, |_| true) else { panic!("none") };
    assert_eq!(whole.choose(CLOCK, |_| true), Choice::Free(place, ip));
    let _ = store.hold(place, 5, u64::MAX);
    assert!(store.has_free(CLOCK, |_| true, 4));
    let own: Vec<SlotId> = store.held_by(mixed(4711)).collect();
    assert_eq!((own.len(), &own), (1, &whole.held_by(mixed(4711)).collect()));
    // Heads and hints of three groups, the last page's hints once more and its slots; the hints of another group, which
    // are kept the second time, and a slot. Of 10,000 owners hardly one has the hint of one of the two.
    assert!((10..13).contains(&file.reads()), "{}", file.reads());
    // Everything read and written since is in the image.
    let _ = store.free(own[0], 7);
    let mut expected = whole;
    let _ = expected.hold(place, 5, u64::MAX);
    let _ = expected.free(own[0], 7);
    assert_eq!(store, expected);
}

#[test]
fn owner_search_reads_few_other_slots() {
    let whole = large();
    let file = Counted::of(&whole);
    let store = AddressStore::open(file.clone()).unwrap().unwrap();
    for owner in (0..40 * 256 - 6).step_by(100) {
        let (page, slot) = (usize::try_from(owner / 256).unwrap(), usize::try_from(owner % 256).unwrap());
        assert_eq!(store.held_by(mixed(owner)).collect::<Vec<_>>(), [SlotId { page, slot }]);
    }
    // Heads, hints twice, 103 slots, and for a sixth of the owners a slot with the same hint.
    assert!((111..145).contains(&file.reads()), "{}", file.reads());
}

#[test]
fn block_in_use_is_detected_with_one_slot() {
    let file = Counted::of(&large());
    let store = AddressStore::open(file.clone()).unwrap().unwrap();
    let before = file.reads();
    for block in store.blocks().take(39) {
        assert!(!store.is_idle(&block, CLOCK) && store.is_held(&block));
        assert_eq!((store.held_count(&block), store.free_count(&block, CLOCK)), (256, 0));
    }
    assert!(file.reads() - before <= 39 * 2 + 3, "{}", file.reads() - before);
}

#[test]
fn read_error_is_reported_and_nothing_is_free() {
    let file = Counted::of(&large());
    let mut store = AddressStore::open(file.clone()).unwrap().unwrap();
    file.readable
        .store(slot_offset(SlotId { page: 10, slot: 0 }) as u64, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(store.choose(CLOCK, |_| true), Choice::Full);
    assert_eq!(store.read_error(), Some("a bad sector"));
    assert!(!store.has_free(CLOCK, |_| true, 1));
    let block = store.block(30).unwrap();
    assert!(store.is_held(&block) && !store.is_idle(&block, CLOCK));
    let _ = store.free(SlotId { page: 30, slot: 0 }, 5);
    assert!(store.read_error().is_some(), "the error remains");
    // A head that cannot be read is an error of open.
    assert!(AddressStore::open(file).is_err());
}
