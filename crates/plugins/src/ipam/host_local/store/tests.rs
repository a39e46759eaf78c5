//! Files of a directory of the test's own; no lock is waited for, no kernel feature needed.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::super::index::FEWEST;
use super::*;

/// A place in a new directory, which goes with this value.
struct Scratch {
    root: PathBuf,
    place: Place,
}

impl Scratch {
    fn new(name: &str) -> Scratch {
        let root = std::env::temp_dir().join(format!("weft-store-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let place = Place { directory: root.join("networks/net"), copies: root.join("run/copies") };
        Scratch { root, place }
    }

    fn store(&self) -> Store {
        Store::create(&self.place).unwrap()
    }

    /// As many reservations of somebody else as it takes for a copy to be kept.
    fn crowd(&self) {
        for number in 0..FEWEST {
            self.write(&format!("10.9.9.{number}"), format!("crowd\r\neth{number}"));
        }
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.place.directory.join(name), content).unwrap();
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.place.directory).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn owner(container: &str, ifname: &str) -> Owner {
    Owner { container: container.to_owned(), ifname: (!ifname.is_empty()).then(|| ifname.to_owned()) }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn held_by(store: &mut Store, container: &str, ifname: &str) -> Vec<String> {
    let mut names: Vec<String> =
        store.held_by(&owner(container, ifname)).unwrap().into_iter().map(|r| r.name).collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_reservation_is_a_file_as_the_reference_plugin_writes_it() {
    let scratch = Scratch::new("file");
    let mut store = scratch.store();
    assert!(store.reserve(ip("10.1.2.3"), &owner("id", "eth0")).unwrap());
    assert!(!store.reserve(ip("10.1.2.3"), &owner("other", "eth0")).unwrap());
    assert!(store.reserve(ip("2001:DB8:0:0::5"), &owner("id", "eth0")).unwrap());
    store.remember(0, ip("10.1.2.254")).unwrap();
    store.remember(0, ip("10.1.2.3")).unwrap();
    assert_eq!(store.last_reserved(0), Some(ip("10.1.2.3")));
    assert_eq!(store.last_reserved(1), None);
    store.settle();
    assert_eq!(scratch.names(), ["10.1.2.3", "2001:db8::5", "last_reserved_ip.0", "lock"]);
    let directory = &scratch.place.directory;
    assert_eq!(fs::read(directory.join("10.1.2.3")).unwrap(), b"id\r\neth0");
    assert_eq!(fs::read(directory.join("last_reserved_ip.0")).unwrap(), b"10.1.2.3");
    assert_eq!((mode(directory), mode(&directory.join("lock"))), (0o755, 0o750));
    for name in ["10.1.2.3", "2001:db8::5", "last_reserved_ip.0"] {
        assert_eq!(mode(&directory.join(name)), 0o600, "{name}");
    }
    assert_eq!(fs::metadata(directory.join("10.1.2.3")).unwrap().nlink(), 1, "one file, one address");
}

#[test]
fn without_unnamed_files_a_reservation_is_created_whole() {
    let scratch = Scratch::new("plain");
    let store = scratch.store();
    assert!(store.create_whole("10.1.2.3", &owner("id", "eth0")).unwrap());
    assert!(!store.create_whole("10.1.2.3", &owner("id", "eth0")).unwrap());
    assert_eq!(fs::read(scratch.place.directory.join("10.1.2.3")).unwrap(), b"id\r\neth0");
    assert_eq!(mode(&scratch.place.directory.join("10.1.2.3")), 0o600);
}

#[test]
fn an_owner_is_found_whoever_wrote_the_file_and_whatever_we_knew_before() {
    let scratch = Scratch::new("owner");
    let mut store = scratch.store();
    scratch.crowd();
    scratch.write("10.0.0.1", "theirs\r\neth0");
    assert_eq!(held_by(&mut store, "theirs", "eth0"), ["10.0.0.1"]);
    assert!(store.reserve(ip("10.0.0.2"), &owner("ours", "eth0")).unwrap());
    store.settle();
    // From the copy.
    let mut store = scratch.store();
    assert!(store.index.is_some(), "the copy counts");
    assert_eq!(held_by(&mut store, "theirs", "eth0"), ["10.0.0.1"]);
    assert_eq!(held_by(&mut store, "ours", "eth0"), ["10.0.0.2"]);
    assert_eq!(held_by(&mut store, "ours", "eth1"), [""; 0]);
    store.settle();
    // The reference plugin adds and takes away without knowing of the copy.
    scratch.write("10.0.0.3", "late\r\neth0");
    scratch.write("10.0.0.4", "old");
    fs::remove_file(scratch.place.directory.join("10.0.0.1")).unwrap();
    let mut store = scratch.store();
    assert!(store.index.is_none(), "the copy counts no more");
    assert_eq!(held_by(&mut store, "late", "eth0"), ["10.0.0.3"]);
    assert_eq!(held_by(&mut store, "theirs", "eth0"), [""; 0]);
    assert_eq!(held_by(&mut store, "old", ""), ["10.0.0.4"]);
    store.settle();
    assert!(scratch.store().index.is_some());
}

#[test]
fn a_change_in_the_same_instant_is_seen() {
    let scratch = Scratch::new("instant");
    for round in 0..200 {
        let mut store = scratch.store();
        assert!(store.held_by(&owner("nobody", "eth0")).unwrap().is_empty());
        assert!(store.reserve(ip(&format!("10.0.1.{round}")), &owner("ours", &format!("e{round}"))).unwrap());
        store.settle();
        scratch.write(&format!("10.0.2.{round}"), format!("theirs\r\ne{round}"));
        assert_eq!(held_by(&mut scratch.store(), "theirs", &format!("e{round}")).len(), 1, "round {round}");
    }
}

#[test]
fn a_copy_that_lies_is_found_out() {
    let scratch = Scratch::new("lie");
    let mut store = scratch.store();
    scratch.crowd();
    store.held_by(&owner("a", "eth0")).unwrap();
    store.reserve(ip("10.0.0.1"), &owner("a", "eth0")).unwrap();
    store.settle();
    // In place: the directory's time stays.
    scratch.write("10.0.0.1", "b\r\neth0");
    let mut store = scratch.store();
    assert!(store.index.is_some());
    assert_eq!(held_by(&mut store, "a", "eth0"), [""; 0]);
    assert_eq!(held_by(&mut store, "b", "eth0"), ["10.0.0.1"]);
    drop(store);
    // Garbage, a cut copy, and one of another boot do not count.
    let copy = fs::read_dir(&scratch.place.copies).unwrap().next().unwrap().unwrap().path();
    let good = fs::read(&copy).unwrap();
    let mut other_boot = good.clone();
    other_boot[10] ^= 1;
    for bad in [b"".to_vec(), b"garbage".to_vec(), good[..good.len() - 1].to_vec(), other_boot] {
        fs::write(&copy, &bad).unwrap();
        assert!(scratch.store().index.is_none(), "{} bytes", bad.len());
    }
    fs::write(&copy, &good).unwrap();
    assert!(scratch.store().index.is_some());
}

#[test]
fn the_copy_follows_a_thousand_changes_and_goes_with_the_last_reservation() {
    let scratch = Scratch::new("changes");
    let mut expected = std::collections::BTreeSet::new();
    for step in 0..1000_u32 {
        let mut store = scratch.store();
        // A walk that comes back to each address several times.
        let last = step.wrapping_mul(37) % 101;
        let (address, who) = (ip(&format!("10.0.0.{last}")), owner(&format!("c{last}"), "eth0"));
        if expected.insert(last) {
            assert!(store.held_by(&who).unwrap().is_empty());
            assert!(store.reserve(address, &who).unwrap());
        } else {
            expected.remove(&last);
            let own = store.held_by(&who).unwrap();
            assert_eq!(own, [Reservation::of(address)]);
            store.release(&own[0]).unwrap();
        }
        store.settle();
    }
    let mut left = expected.len();
    for last in std::mem::take(&mut expected) {
        let mut store = scratch.store();
        left -= 1;
        assert_eq!(store.index.is_some(), left + 1 >= FEWEST, "it counted as long as there was one");
        let own = store.held_by(&owner(&format!("c{last}"), "eth0")).unwrap();
        store.release(&own[0]).unwrap();
        store.settle();
    }
    assert_eq!(scratch.names(), ["lock"]);
    assert!(!scratch.place.copies.exists(), "nothing of the copy is left");
}

#[test]
fn what_is_no_reservation_is_left_alone() {
    let scratch = Scratch::new("foreign");
    let mut store = scratch.store();
    let directory = &scratch.place.directory;
    scratch.write("README", "id\r\neth0");
    scratch.write("last_reserved_ip.0", "id");
    scratch.write("10.0.0.1", "kept for the printer");
    fs::create_dir(directory.join("10.0.0.2")).unwrap();
    std::os::unix::fs::symlink("README", directory.join("10.0.0.3")).unwrap();
    let pipe =
        rustix::fs::mknodat(CWD, directory.join("10.0.0.4"), rustix::fs::FileType::Fifo, 0o600.into(), 0);
    assert!(pipe.is_ok());
    scratch.write("10.0.0.5", "");
    scratch.write("10.0.0.6", "id\r\neth0");
    assert_eq!(held_by(&mut store, "id", "eth0"), ["10.0.0.6"]);
    let held = store.held().unwrap();
    assert!((1..=6).all(|last| held.contains(ip(&format!("10.0.0.{last}")))), "they keep their addresses");
    let abandoned = store.abandoned(|_| true).unwrap();
    assert_eq!(abandoned, [Reservation::of(ip("10.0.0.5"))]);
    store.sweep(|content| *content != Content::Foreign).unwrap();
    store.settle();
    assert_eq!(
        scratch.names(),
        ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "README", "last_reserved_ip.0", "lock"]
    );
}

#[test]
fn the_lock_is_exclusive_and_ends_with_the_store() {
    let scratch = Scratch::new("lock");
    let store = scratch.store();
    let second = File::open(scratch.place.directory.join(LOCK)).unwrap();
    assert!(matches!(second.try_lock(), Err(TryLockError::WouldBlock)));
    let (send, receive) = mpsc::channel();
    let place = scratch.place.clone();
    let waiting = std::thread::spawn(move || {
        let store = Store::create(&place).unwrap();
        send.send(()).unwrap();
        drop(store);
    });
    assert!(receive.recv_timeout(Duration::from_millis(50)).is_err(), "it waits");
    drop(store);
    assert!(receive.recv_timeout(Duration::from_secs(10)).is_ok(), "and goes on");
    waiting.join().unwrap();
}

#[test]
fn finding_makes_nothing() {
    let scratch = Scratch::new("find");
    assert!(Store::find(&scratch.place).unwrap().is_none());
    assert!(!scratch.root.exists());
    fs::create_dir_all(&scratch.root).unwrap();
    fs::write(scratch.root.join("networks"), "").unwrap();
    assert!(Store::find(&scratch.place).unwrap().is_none(), "a file in the way");
    let error = Store::create(&scratch.place).map(|_| ()).unwrap_err();
    assert!(error.code == 5 && error.msg.starts_with("create directory "), "{error}");
}
