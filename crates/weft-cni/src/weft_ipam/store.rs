//! Files of an address store: locked for one operation at a time, changed by small writes in place.
//!
//! ```text
//!   <dataDir>/<pool>/       0700
//!     ledger                0600  see [`ipam::address_store`]; an operation holds its flock(2)
//!     owners                0600  owner of each address, for people and GC: a record for each slot
//!     synced                0600  progress of disk synchronization: see [`super::sync_rounds`]
//!     regained              0600  addresses of living sandboxes, until they are held in a new store: see [`living_addresses`]
//!     released              0600  releases while the store was unreadable: see [`super::deferred_releases`]
//! ```
//!
//! - An address is on the disk before an ADD returns it. The lock is released while the disk is synchronized, so that many
//!   calls share a synchronization. Work that can precede or follow an operation is not done under the lock. A store that
//!   grows or receives a block is synchronized in between ([`WriteOrder`]).
//! - Of a large store only the pages that are read are kept in memory. If a page cannot be read, nothing is written.
//! - A file that is not a valid store is never written to. Neither is an empty one if owners are recorded.

mod living_addresses;

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cni::Error;
use ipam::address_store::{Edit, OwnerTag, SLOTS, Slot, SlotId, StoreFile, WriteOrder};
use ipam::{AddressStore, Clock};
use linux::boot_id;
use linux::error::leads_nowhere;
use plugin_config::weft_ipam::{Pool, QUARANTINE, Settings, Source};
use plugin_support::hash::hashed;
use plugins::ipam::host_local::store::when_locked;

use super::owners::{OWNERS, RECORD};
use super::{deferred_releases, sync_rounds};

/// Name of the store's file.
const STORE_FILE: &str = "ledger";
/// Line with the network's window in an owner record.
const WINDOW_LINE: usize = 8;
/// Maximum number of spans in a window record.
const WINDOW_SPANS_MAX: usize = 4;
/// Maximum number of addresses that are searched for one attachment whose configuration is unknown.
pub(super) const SETS_MAX: usize = 16;

/// Whether there is an address store in a directory.
pub(super) fn exists(directory: &Path) -> bool {
    directory.join(STORE_FILE).exists()
}

/// Address store of a pool, locked as long as this value lives.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    file: Arc<File>,
    owners: File,
    /// Content of the file.
    pub addresses: AddressStore,
    /// Window of the network that allocates, for the owner records: [`window`].
    window: String,
}

/// Owner of an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The container.
    pub container: String,
    /// The interface inside it.
    pub ifname: String,
    /// The network's name.
    pub network: String,
    /// The pod's uid, namespace and name; empty if unknown.
    pub pod: [String; 3],
    /// Claim that keeps the address when the pod is gone; empty: none. The agent reads it here if the claim's object was
    /// deleted manually.
    pub claim: String,
    /// Pools of the whole attachment ([`spread`]); empty if it has one address from one pool.
    pub spread: String,
}

/// Formats the owner for people.
/// Clock of a release without the network's configuration.
pub(super) fn unconfigured_clock() -> Clock {
    Clock { now: now(), quarantine: QUARANTINE * 1000 }
}

/// Returns quarantine in milliseconds, number and spans of the addresses that a network may allocate from a pool; the
/// whole span, if there are many. Owner records contain it, so that free addresses can be counted.
pub(super) fn window(settings: &Settings, pool: &Pool) -> String {
    let spans: Vec<String> = pool.filter.spans(WINDOW_SPANS_MAX).iter().map(ToString::to_string).collect();
    format!("{} {} {}", settings.quarantine, pool.filter.count(), spans.join(","))
}

/// Returns a digest over the pools in all sets; empty for one pool. An attachment whose recorded digest differs from
/// the one at DEL may hold addresses from pools that the configuration no longer has.
pub(super) fn spread(settings: &Settings) -> String {
    let names = settings.all_pool_names();
    if names.len() < 2 { String::new() } else { hashed("", 16, &names) }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { container, ifname, network, pod: [_, namespace, name], .. } = self;
        match name.is_empty() {
            true => write!(f, "container {container}, {ifname} of {network},"),
            false => write!(f, "pod {namespace}/{name}, {ifname} of {network},"),
        }
    }
}

/// Open files of an address store.
struct Files {
    store: File,
    owners: File,
}

/// Content of the store file, and the length when it was opened. Holds the lock.
#[derive(Debug)]
struct Bytes(Arc<File>, u64);

/// Error of opening a store.
#[derive(Debug)]
pub enum OpenError {
    /// The content cannot be read; with the lock, if the file could be opened.
    Unreadable(Error, Option<Arc<File>>),
    /// Any other error.
    Other(Error),
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Error {
        match error {
            OpenError::Unreadable(error, _) | OpenError::Other(error) => error,
        }
    }
}

/// Returns the owner tag of an attachment and a range set: equal for every call, 64 bits.
pub fn owner_tag(network: &str, container: &str, ifname: &str, set: usize) -> OwnerTag {
    let digits = hashed("", 16, &[network, container, ifname, &set.to_string()]);
    u64::from_str_radix(&digits, 16).unwrap_or_default()
}

impl Store {
    /// Runs `work` with the locked store of a pool, perhaps in another thread. Creates a missing store.
    pub fn create<T: Send + 'static>(
        directory: &Path,
        pool: &str,
        source: Source,
        work: impl FnOnce(Store) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let directory = directory.join(pool);
        let files = match Files::open(&directory, false) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => {
                let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
                made.map_err(|cause| {
                    Error::io(format_args!("create directory {}", directory.display()), cause)
                })?;
                living_addresses::prepare(&directory, source)
                    .map_err(|cause| failed(&directory, "write", &cause))?;
                Files::open(&directory, true)
            }
            opened => opened,
        };
        Files::turn(files, directory, |opened| work(opened?))
    }

    /// Runs `work` with the locked store of a pool; returns `None` if there is none and never was one.
    pub fn with<T: Send + 'static>(
        directory: &Path,
        pool: &str,
        work: impl FnOnce(Result<Store, OpenError>) -> Result<T, Error> + Send + 'static,
    ) -> Result<Option<T>, Error> {
        let directory = directory.join(pool);
        let is_missing = |name: &str| {
            let looked = directory.join(name).symlink_metadata();
            looked.is_err_and(|cause| leads_nowhere(&cause))
        };
        let files = match Files::open(&directory, false) {
            Err(_) if is_missing(STORE_FILE) && is_missing(OWNERS) => return Ok(None),
            opened => opened,
        };
        Files::turn(files, directory, work).map(Some)
    }

    /// Returns the locked store of a pool; `None` if there is none and never was one.
    pub fn find(directory: &Path, pool: &str) -> Result<Option<Store>, OpenError> {
        Store::with(directory, pool, Ok).map_err(OpenError::Other)?.transpose()
    }

    /// Reads a locked store.
    fn open(directory: &Path, Files { store: file, owners }: Files) -> Result<Store, OpenError> {
        let path = directory.join(STORE_FILE);
        let unreadable = |cause: &io::Error| OpenError::Unreadable(failed(&path, "read", cause), None);
        let file = Arc::new(file);
        // A new boot releases all addresses, so the boot id must be known.
        let current = boot_id::read()
            .map_err(|cause| OpenError::Other(failed(Path::new(boot_id::PATH), "read", &cause)))?
            .unwrap_or("unknown");
        let length = file.metadata().map_err(|cause| unreadable(&cause))?.len();
        let is_empty = length == 0;
        if is_empty && owners.metadata().is_ok_and(|owners| owners.len() == 0) {
            let addresses = AddressStore::new(current);
            begin(&file, directory, &addresses)
                .map_err(|cause| OpenError::Other(failed(&path, "write", &cause)))?;
            let mut store = Store { path, file, owners, addresses, window: String::new() };
            living_addresses::hold(&mut store).map_err(OpenError::Other)?;
            return Ok(store);
        }
        let read = match is_empty {
            true => Err("empty, though addresses were allocated from it".to_owned()),
            false => AddressStore::open(Arc::new(Bytes(Arc::clone(&file), length)))
                .map_err(|cause| unreadable(&cause))?
                .map_err(|invalid| invalid.to_string()),
        };
        let addresses = match read {
            Ok(addresses) => addresses,
            Err(why) => {
                let hint = "restore the file, or remove its directory when no pod has an address of the pool";
                let error = Error::config(format!("{}: {why}: {hint}", path.display()));
                return Err(OpenError::Unreadable(error, Some(file)));
            }
        };
        let mut store = Store { path, file, owners, addresses, window: String::new() };
        match store.catch_up(directory, current) {
            Ok(()) => Ok(store),
            Err(error) if store.addresses.read_error().is_some() => {
                Err(OpenError::Unreadable(error, Some(store.file)))
            }
            Err(error) => Err(OpenError::Other(error)),
        }
    }

    /// Checks that every page could be read since the store was opened.
    ///
    /// # Errors
    /// A page could not be read; earlier answers of the store are invalid.
    pub fn require_readable(&self) -> Result<(), Error> {
        match self.addresses.read_error() {
            None => Ok(()),
            Some(why) => Err(Error::io(self.path.display(), format_args!("read: {why}"))),
        }
    }

    /// Returns the slots that the owners with these tags hold.
    pub fn held_by(self, tags: &[OwnerTag]) -> Result<(Store, Vec<SlotId>), OpenError> {
        let own = tags.iter().flat_map(|tag| self.addresses.held_by(*tag)).collect();
        match self.require_readable() {
            Ok(()) => Ok((self, own)),
            Err(error) => Err(OpenError::Unreadable(error, Some(self.file))),
        }
    }

    /// Applies events that the store does not contain yet: a new boot, regained addresses, and deferred releases.
    fn catch_up(&mut self, directory: &Path, boot: &str) -> Result<(), Error> {
        if self.addresses.boot_id() != boot {
            let edits = self.addresses.begin_boot(boot, now());
            self.write(&edits)?;
        }
        living_addresses::hold(self)?;
        let failed = |cause: io::Error| failed(directory, "read the deferred releases in", &cause);
        let released = deferred_releases::recall(directory).map_err(failed)?;
        if released.is_empty() {
            return Ok(());
        }
        let tags = released.iter().flat_map(|[network, container, ifname]| {
            (0..SETS_MAX).map(move |set| owner_tag(network, container, ifname, set))
        });
        let edits = self.addresses.release_owners(unconfigured_clock(), &tags.collect::<Vec<_>>());
        self.write(&edits)?;
        self.file.sync_data().and_then(|()| deferred_releases::forget(directory)).map_err(failed)
    }

    /// Waits until all changes are on the disk. The lock is kept.
    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Returns the path of another file in the store.
    fn sibling(&self, name: &str) -> PathBuf {
        self.path.with_file_name(name)
    }

    /// Writes edits, in order.
    pub fn write(&self, edits: &[Edit]) -> Result<(), Error> {
        self.require_readable()?;
        for Edit { offset, bytes, order } in edits {
            let settled = match order {
                WriteOrder::Immediate => Ok(()),
                WriteOrder::AfterSync => self.file.sync_data(),
            };
            let written = settled.and_then(|()| self.file.write_all_at(bytes, *offset));
            written.map_err(|cause| failed(&self.path, "write", &cause))?;
        }
        Ok(())
    }

    /// Releases the lock and waits for the disk, together with other calls.
    pub fn settle(self) -> Result<(), Error> {
        let Store { path, file, owners, addresses: _, window: _ } = self;
        let directory = path.parent().unwrap_or(&path);
        let settled = file.unlock().and_then(|()| sync_rounds::settle(&file, &owners, directory));
        settled.map_err(|cause| failed(&path, "write", &cause))
    }

    /// Sets the window that the records of owners contain from now on.
    pub(super) fn set_window(&mut self, window: String) {
        self.window = window;
    }

    /// Records the owner of a slot that is about to be allocated.
    pub fn record_owner(&self, slot: SlotId, owner: &Owner) -> Result<(), Error> {
        let bytes = owner.record(&self.window);
        let written = self.owners.write_all_at(&bytes, record_offset(slot));
        written.map_err(|cause| failed(&self.path.with_file_name(OWNERS), "write", &cause))
    }

    /// Longest quarantine, in milliseconds, among the networks that last had an address in a drained block without
    /// owners; 0 if there is no such block.
    pub(super) fn quarantine_of_drained_blocks(&self) -> u64 {
        let mut longest = 0;
        for block in self.addresses.blocks().filter(|block| block.draining) {
            let slots: Vec<Slot> = self.addresses.slots_of(&block).collect();
            if slots.iter().any(|slot| matches!(slot, Slot::Held { .. })) {
                continue;
            }
            let was_held = |(_, slot): &(usize, Slot)| matches!(slot, Slot::Free(since) if *since > 0);
            for (slot, _) in slots.into_iter().enumerate().filter(was_held) {
                longest = longest.max(self.quarantine_of(SlotId { page: block.page, slot }));
            }
        }
        longest
    }

    /// Quarantine of the network that last had an address, in milliseconds; the default if the record does not contain
    /// it.
    fn quarantine_of(&self, slot: SlotId) -> u64 {
        let record = self.record_of(slot);
        let window = record.split('\n').nth(WINDOW_LINE).and_then(|window| window.split(' ').next());
        window.and_then(|quarantine| quarantine.parse().ok()).unwrap_or(QUARANTINE * 1000)
    }

    /// Returns the record of a slot's owner; empty if it cannot be read.
    fn record_of(&self, slot: SlotId) -> String {
        let mut bytes = vec![0; RECORD];
        let read = self.owners.read_at(&mut bytes, record_offset(slot)).unwrap_or(0);
        bytes.truncate(read);
        String::from_utf8(bytes).unwrap_or_default()
    }

    /// Returns the owner of a slot; fields that cannot be read are empty.
    pub fn owner(&self, slot: SlotId) -> Owner {
        let text = self.record_of(slot);
        let mut lines = text.split('\n').map(str::to_owned);
        let mut line = || lines.next().unwrap_or_default();
        Owner {
            container: line(),
            ifname: line(),
            network: line(),
            pod: [line(), line(), line()],
            claim: line().trim_end_matches('\0').to_owned(),
            spread: line().trim_end_matches('\0').to_owned(),
        }
    }
}

// === impl Owner ===

impl Owner {
    /// Returns the record of the owner. A claim that does not fit is left out: half of the name may be another's. So is
    /// a window.
    fn record(&self, window: &str) -> Vec<u8> {
        let Owner { container, ifname, network, pod, claim, spread } = self;
        let mut bytes = format!("{container}\n{ifname}\n{network}\n{}\n", pod.join("\n")).into_bytes();
        let rest = if spread.is_empty() { 0 } else { spread.len() + 1 };
        let fits = !claim.is_empty() && bytes.len() + claim.len() + rest < RECORD;
        let mut lines = vec![if fits { claim.as_str() } else { "" }, spread, window];
        if lines.iter().map(|line| line.len() + 1).sum::<usize>() + bytes.len() > RECORD {
            lines[2] = "";
        }
        while lines.pop_if(|line| line.is_empty()).is_some() {}
        bytes.extend(lines.iter().flat_map(|line| line.bytes().chain([b'\n'])));
        bytes.resize(RECORD, 0);
        bytes
    }
}

// === impl Files ===

impl Files {
    fn open(directory: &Path, create: bool) -> io::Result<Files> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(create).mode(0o600);
        let store = options.open(directory.join(STORE_FILE))?;
        let owners = directory.join(OWNERS);
        let owners = match options.open(&owners) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => options.create(true).open(&owners)?,
            opened => opened?,
        };
        Ok(Files { store, owners })
    }

    /// Runs `work` once the store is locked. If the store could not be opened, `work` receives the error at once.
    fn turn<T: Send + 'static>(
        files: io::Result<Files>,
        directory: PathBuf,
        work: impl FnOnce(Result<Store, OpenError>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let path = directory.join(STORE_FILE);
        let Files { store, owners } = match files {
            Ok(files) => files,
            // A temporary lack of resources: other calls read the store, so no release is deferred.
            Err(cause) if linux::error::lacks_resources(&cause) => {
                return work(Err(OpenError::Other(failed(&path, "open", &cause))));
            }
            Err(cause) => return work(Err(OpenError::Unreadable(failed(&path, "open", &cause), None))),
        };
        // Reads the boot id into its cache before the lock is taken.
        let _ = boot_id::read();
        let turn = move |store| work(Store::open(&directory, Files { store, owners }));
        when_locked(store, &path.display().to_string(), turn)?
    }
}

// === impl Bytes ===

impl StoreFile for Bytes {
    fn length(&self) -> io::Result<u64> {
        Ok(self.1)
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }
}

/// Returns a slot's offset in the owners file.
fn record_offset(slot: SlotId) -> u64 {
    ((slot.page * SLOTS + slot.slot) * RECORD) as u64
}

fn failed(path: &Path, what: &str, cause: &io::Error) -> Error {
    Error::io(path.display(), linux::Error::io(what, cause))
}

/// Writes an empty store durably: later owner records then always belong to a store that is not empty.
fn begin(file: &File, directory: &Path, addresses: &AddressStore) -> io::Result<()> {
    file.write_all_at(&addresses.to_bytes(), 0)?;
    file.sync_all()?;
    File::open(directory)?.sync_all()
}

/// Returns the time in milliseconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use ipam::{BlockLease, LeaseResponse};

    use super::*;

    #[test]
    fn drained_block_has_the_longest_quarantine_of_its_networks() {
        let directory = std::env::temp_dir().join(format!("weft-drained-{}", std::process::id()));
        let mut store = Store::create(&directory, "pool", Source::File, Ok).unwrap();
        let clock = Clock { now: 1000, quarantine: 0 };
        let net = "10.0.0.0/28".parse().unwrap();
        let lease = BlockLease { net, id: "a".to_owned(), single_owner: false, reserved: Vec::new() };
        let response = LeaseResponse { leases: vec![lease], ..LeaseResponse::default() };
        let edits = store.addresses.apply_response(clock, 0, &response);
        store.write(&edits).unwrap();
        let mut slots = Vec::new();
        for (ip, window) in [("10.0.0.1", "60000 14 10.0.0.1-10.0.0.14"), ("10.0.0.2", "0 1 10.0.0.2")] {
            let slot = store.addresses.find(ip.parse().unwrap()).unwrap();
            store.set_window(window.to_owned());
            store.record_owner(slot, &Owner::default()).unwrap();
            let edits = store.addresses.hold(slot, clock.now, 7);
            store.write(&edits).unwrap();
            slots.push(slot);
        }
        assert_eq!(store.quarantine_of_drained_blocks(), 0, "no block is drained");
        let edit = store.addresses.set_draining(slots[0].page, true);
        store.write(&[edit]).unwrap();
        assert_eq!(store.quarantine_of_drained_blocks(), 0, "it has owners");
        let edits = store.addresses.release_slots(clock, &slots);
        store.write(&edits).unwrap();
        assert_eq!(store.quarantine_of_drained_blocks(), 60_000);
        drop(store);
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn owner_record_contains_the_whole_claim_or_none() {
        let owner = |claim: usize| Owner {
            container: "c".to_owned(),
            ifname: "eth0".to_owned(),
            network: "net".to_owned(),
            pod: ["uid", "blue", "web-0"].map(str::to_owned),
            claim: "k".repeat(claim),
            spread: String::new(),
        };
        let before = "c\neth0\nnet\nuid\nblue\nweb-0\n".to_owned();
        for (claim, is_written) in
            [(0, false), (20, true), (RECORD - 1 - before.len(), true), (RECORD, false)]
        {
            let record = owner(claim).record("");
            let text = String::from_utf8(record).unwrap();
            let expected =
                if is_written { format!("{before}{}\n", "k".repeat(claim)) } else { before.clone() };
            assert_eq!((text.len(), text.trim_end_matches('\0')), (RECORD, &*expected), "{claim}");
            let spread = Owner { spread: "0123456789abcdef".to_owned(), ..owner(claim) }.record("");
            let lines = String::from_utf8(spread).unwrap();
            assert_eq!(
                (lines.len(), lines.split('\n').nth(7)),
                (RECORD, Some("0123456789abcdef")),
                "{claim}"
            );
            // The window is left out first.
            let record = String::from_utf8(owner(claim).record("60000 6 10.0.0.1-10.0.0.6")).unwrap();
            let window = record.split('\n').nth(8).filter(|line| line.starts_with("60000 6"));
            assert_eq!((record.len(), window.is_some()), (RECORD, !is_written || claim < 100), "{claim}");
        }
    }
}
