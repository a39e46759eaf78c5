//! Tests with files of a temporary directory; no test waits for a lock or needs a kernel feature.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::super::index::MIN_RECORDS;
use super::*;

/// Store location in a new directory, which is removed with this value.
struct Scratch {
    root: PathBuf,
    location: StoreLocation,
}

impl Scratch {
    fn new(name: &str) -> Scratch {
        let root = std::env::temp_dir().join(format!("weft-store-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let location =
            StoreLocation { directory: root.join("networks/net"), index_directory: root.join("run/copies") };
        Scratch { root, location }
    }

    fn store(&self) -> Store {
        Store::create(&self.location).unwrap()
    }

    /// Writes as many reservations of other owners as an index needs.
    fn fill(&self) {
        for number in 0..MIN_RECORDS {
            self.write(&format!("10.9.9.{number}"), format!("other\r\neth{number}"));
        }
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.location.directory.join(name), content).unwrap();
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.location.directory).unwrap();
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
fn host_local_reservation_has_the_reference_plugins_format() {
    let scratch = Scratch::new("file");
    let mut store = scratch.store();
    assert!(store.reserve(ip("10.1.2.3"), &owner("id", "eth0")).unwrap());
    assert!(!store.reserve(ip("10.1.2.3"), &owner("other", "eth0")).unwrap());
    assert!(store.reserve(ip("2001:DB8:0:0::5"), &owner("id", "eth0")).unwrap());
    store.set_last_reserved(0, ip("10.1.2.254")).unwrap();
    store.set_last_reserved(0, ip("10.1.2.3")).unwrap();
    assert_eq!(store.last_reserved(0), Some(ip("10.1.2.3")));
    assert_eq!(store.last_reserved(1), None);
    store.save_index();
    assert_eq!(scratch.names(), ["10.1.2.3", "2001:db8::5", "last_reserved_ip.0", "lock"]);
    let directory = &scratch.location.directory;
    assert_eq!(fs::read(directory.join("10.1.2.3")).unwrap(), b"id\r\neth0");
    assert_eq!(fs::read(directory.join("last_reserved_ip.0")).unwrap(), b"10.1.2.3");
    assert_eq!((mode(directory), mode(&directory.join("lock"))), (0o755, 0o750));
    for name in ["10.1.2.3", "2001:db8::5", "last_reserved_ip.0"] {
        assert_eq!(mode(&directory.join(name)), 0o600, "{name}");
    }
    assert_eq!(fs::metadata(directory.join("10.1.2.3")).unwrap().nlink(), 1, "one file, one address");
}

#[test]
fn host_local_reservation_works_without_o_tmpfile() {
    let scratch = Scratch::new("plain");
    let store = scratch.store();
    assert!(store.create_exclusively("10.1.2.3", &owner("id", "eth0")).unwrap());
    assert!(!store.create_exclusively("10.1.2.3", &owner("id", "eth0")).unwrap());
    assert_eq!(fs::read(scratch.location.directory.join("10.1.2.3")).unwrap(), b"id\r\neth0");
    assert_eq!(mode(&scratch.location.directory.join("10.1.2.3")), 0o600);
}

#[test]
fn host_local_index_finds_owners_of_files_by_any_writer() {
    let scratch = Scratch::new("owner");
    let mut store = scratch.store();
    scratch.fill();
    scratch.write("10.0.0.1", "theirs\r\neth0");
    assert_eq!(held_by(&mut store, "theirs", "eth0"), ["10.0.0.1"]);
    assert!(store.reserve(ip("10.0.0.2"), &owner("ours", "eth0")).unwrap());
    store.save_index();
    // From the index.
    let mut store = scratch.store();
    assert!(store.index.is_some(), "the index is valid");
    assert_eq!(held_by(&mut store, "theirs", "eth0"), ["10.0.0.1"]);
    assert_eq!(held_by(&mut store, "ours", "eth0"), ["10.0.0.2"]);
    assert_eq!(held_by(&mut store, "ours", "eth1"), [""; 0]);
    store.save_index();
    // The reference plugin adds and removes files without the index.
    scratch.write("10.0.0.3", "late\r\neth0");
    scratch.write("10.0.0.4", "old");
    fs::remove_file(scratch.location.directory.join("10.0.0.1")).unwrap();
    let mut store = scratch.store();
    assert!(store.index.is_none(), "the index is invalid");
    assert_eq!(held_by(&mut store, "late", "eth0"), ["10.0.0.3"]);
    assert_eq!(held_by(&mut store, "theirs", "eth0"), [""; 0]);
    assert_eq!(held_by(&mut store, "old", ""), ["10.0.0.4"]);
    store.save_index();
    assert!(scratch.store().index.is_some());
}

#[test]
fn host_local_index_notices_a_change_in_the_same_instant() {
    let scratch = Scratch::new("instant");
    for round in 0..200 {
        let mut store = scratch.store();
        assert!(store.held_by(&owner("none", "eth0")).unwrap().is_empty());
        assert!(store.reserve(ip(&format!("10.0.1.{round}")), &owner("ours", &format!("e{round}"))).unwrap());
        store.save_index();
        scratch.write(&format!("10.0.2.{round}"), format!("theirs\r\ne{round}"));
        assert_eq!(held_by(&mut scratch.store(), "theirs", &format!("e{round}")).len(), 1, "round {round}");
    }
}

#[test]
fn host_local_index_with_wrong_content_is_detected() {
    let scratch = Scratch::new("lie");
    let mut store = scratch.store();
    scratch.fill();
    store.held_by(&owner("a", "eth0")).unwrap();
    store.reserve(ip("10.0.0.1"), &owner("a", "eth0")).unwrap();
    store.save_index();
    // In place: the directory's modification time stays.
    scratch.write("10.0.0.1", "b\r\neth0");
    let mut store = scratch.store();
    assert!(store.index.is_some());
    assert_eq!(held_by(&mut store, "a", "eth0"), [""; 0]);
    assert_eq!(held_by(&mut store, "b", "eth0"), ["10.0.0.1"]);
    drop(store);
    // Garbage, a truncated index, and one of another boot are invalid.
    let copy = fs::read_dir(&scratch.location.index_directory).unwrap().next().unwrap().unwrap().path();
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
fn host_local_index_follows_changes_and_ends_with_the_last() {
    let scratch = Scratch::new("changes");
    let mut expected = std::collections::BTreeSet::new();
    for step in 0..1000_u32 {
        let mut store = scratch.store();
        // A walk that returns to each address several times.
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
        store.save_index();
    }
    let mut left = expected.len();
    for last in std::mem::take(&mut expected) {
        let mut store = scratch.store();
        left -= 1;
        assert_eq!(
            store.index.is_some(),
            left + 1 >= MIN_RECORDS,
            "the index is valid as long as there is one"
        );
        let own = store.held_by(&owner(&format!("c{last}"), "eth0")).unwrap();
        store.release(&own[0]).unwrap();
        store.save_index();
    }
    assert_eq!(scratch.names(), ["lock"]);
    assert!(!scratch.location.index_directory.exists(), "no index remains");
}

#[test]
fn host_local_foreign_files_are_left_alone() {
    let scratch = Scratch::new("foreign");
    let mut store = scratch.store();
    let directory = &scratch.location.directory;
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
    store.save_index();
    assert_eq!(
        scratch.names(),
        ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "README", "last_reserved_ip.0", "lock"]
    );
}

#[test]
fn host_local_lock_is_exclusive_and_ends_with_the_store() {
    let scratch = Scratch::new("lock");
    let store = scratch.store();
    let second = File::open(scratch.location.directory.join(LOCK)).unwrap();
    assert!(matches!(second.try_lock(), Err(TryLockError::WouldBlock)));
    let (send, receive) = mpsc::channel();
    let location = scratch.location.clone();
    let waiting = std::thread::spawn(move || {
        let store = Store::create(&location).unwrap();
        send.send(()).unwrap();
        drop(store);
    });
    assert!(receive.recv_timeout(Duration::from_millis(50)).is_err(), "it waits");
    drop(store);
    assert!(receive.recv_timeout(Duration::from_secs(10)).is_ok(), "and goes on");
    waiting.join().unwrap();
}

#[test]
fn host_local_find_creates_nothing() {
    let scratch = Scratch::new("find");
    assert!(Store::find(&scratch.location).unwrap().is_none());
    assert!(!scratch.root.exists());
    fs::create_dir_all(&scratch.root).unwrap();
    fs::write(scratch.root.join("networks"), "").unwrap();
    assert!(Store::find(&scratch.location).unwrap().is_none(), "a file in the way");
    let error = Store::create(&scratch.location).map(|_| ()).unwrap_err();
    assert!(error.code == 5 && error.msg.starts_with("create directory "), "{error}");
}
