//! A ledger on the disk: one file, locked for the time of a turn, changed by small writes in place.
//!
//! ```text
//!   <dataDir>/<pool>/       0700
//!     ledger                0600  see [`ipam::address_store`]; locked with flock(2) by whoever has the turn
//!     owners                0600  who holds an address, for people and GC: a record for each place
//!     synced                0600  how far the disk is: see [`super::rounds`]
//!     released              0600  who gave an address back while the ledger could not be read; see [`super::deferred_releases`]
//! ```
//!
//! Rules:
//! - an address is told to nobody before it is on the disk; the lock is not held while the disk is waited for, so that
//!   many calls wait for it together ([`super::rounds`]); what can be done before a turn or after it is not done in it.
//!   Where the ledger grows, or a block comes, it is waited for in between ([`WriteOrder`]);
//! - of a large ledger only what is looked at is kept; if it cannot be read again, nothing is written;
//! - a file that is no ledger of this form is never written to; neither is one that is empty though addresses were given.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cni::Error;
use ipam::AddressStore;
use ipam::address_store::{Edit, SLOTS, SlotId, StoreFile, WriteOrder};
use linux::boot_id;
use plugin_support::hash::hashed;
use plugins::ipam::host_local::store::when_locked;

use super::owners::{OWNERS, RECORD};
use super::{deferred_releases, rounds};

/// The ledger's file.
const LEDGER: &str = "ledger";
/// Most addresses of one attachment that are looked for when its configuration is not at hand.
pub(super) const SETS_MAX: usize = 16;

/// A ledger, locked as long as this value lives.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    file: Arc<File>,
    owners: File,
    /// What is in it.
    pub ledger: AddressStore,
}

/// Who holds an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The container.
    pub container: String,
    /// The interface inside it.
    pub ifname: String,
    /// The network's name.
    pub network: String,
    /// The pod's uid, namespace and name, as far as they are known.
    pub pod: [String; 3],
    /// What keeps its address when the pod is gone; empty: nothing. Should the address's object be deleted by hand, the agent
    /// reads it here.
    pub claim: String,
}

/// For people.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { container, ifname, network, pod: [_, namespace, name], claim: _ } = self;
        match name.is_empty() {
            true => write!(f, "container {container}, {ifname} of {network},"),
            false => write!(f, "pod {namespace}/{name}, {ifname} of {network},"),
        }
    }
}

/// The two files of a ledger, opened.
struct Files {
    ledger: File,
    owners: File,
}

/// What a ledger is read from, and how long that was; the lock goes with it.
#[derive(Debug)]
struct Bytes(Arc<File>, u64);

/// Why a ledger was not opened.
#[derive(Debug)]
pub enum Refused {
    /// What is in it cannot be read: the lock, as far as there is something to lock.
    Unreadable(Error, Option<Arc<File>>),
    /// Anything else.
    Other(Error),
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        match refused {
            Refused::Unreadable(error, _) | Refused::Other(error) => error,
        }
    }
}

/// One of 2⁶⁴; the same for every call of an attachment and a set.
pub fn mark(network: &str, container: &str, ifname: &str, set: usize) -> u64 {
    let digits = hashed("", 16, &[network, container, ifname, &set.to_string()]);
    u64::from_str_radix(&digits, 16).unwrap_or_default()
}

impl Store {
    /// Does something with the ledger of a pool when it is its turn, perhaps in another thread; makes the ledger if it is missing.
    pub fn create<T: Send + 'static>(
        directory: &Path,
        pool: &str,
        work: impl FnOnce(Store) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let directory = directory.join(pool);
        let files = match Files::open(&directory, false) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => {
                let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
                made.map_err(|cause| {
                    Error::io(format_args!("create directory {}", directory.display()), cause)
                })?;
                Files::open(&directory, true)
            }
            opened => opened,
        };
        Files::turn(files, directory, |opened| work(opened?))
    }

    /// The same with a ledger that is there; nothing if there is none, and never was.
    pub fn with<T: Send + 'static>(
        directory: &Path,
        pool: &str,
        work: impl FnOnce(Result<Store, Refused>) -> Result<T, Error> + Send + 'static,
    ) -> Result<Option<T>, Error> {
        let directory = directory.join(pool);
        let is_missing = |name: &str| {
            let looked = directory.join(name).symlink_metadata();
            looked.is_err_and(|cause| matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
        };
        let files = match Files::open(&directory, false) {
            Err(_) if is_missing(LEDGER) && is_missing(OWNERS) => return Ok(None),
            opened => opened,
        };
        Files::turn(files, directory, work).map(Some)
    }

    /// The ledger of a pool, for as long as the value lives; nothing if there is none, and never was.
    pub fn find(directory: &Path, pool: &str) -> Result<Option<Store>, Refused> {
        Store::with(directory, pool, Ok).map_err(Refused::Other)?.transpose()
    }

    /// Reads a ledger that is locked.
    fn open(directory: &Path, Files { ledger: file, owners }: Files) -> Result<Store, Refused> {
        let path = directory.join(LEDGER);
        let unreadable = |cause: &io::Error| Refused::Unreadable(failed(&path, "read", cause), None);
        let file = Arc::new(file);
        // Another boot frees what is held: it must be known that it is one.
        let current = boot_id::read()
            .map_err(|cause| Refused::Other(failed(Path::new(boot_id::PATH), "read", &cause)))?
            .unwrap_or("unknown");
        let length = file.metadata().map_err(|cause| unreadable(&cause))?.len();
        let is_empty = length == 0;
        if is_empty && owners.metadata().is_ok_and(|owners| owners.len() == 0) {
            let ledger = AddressStore::new(current);
            begin(&file, directory, &ledger)
                .map_err(|cause| Refused::Other(failed(&path, "write", &cause)))?;
            return Ok(Store { path, file, owners, ledger });
        }
        let read = match is_empty {
            true => Err("empty, though addresses were given from it".to_owned()),
            false => AddressStore::open(Arc::new(Bytes(Arc::clone(&file), length)))
                .map_err(|cause| unreadable(&cause))?
                .map_err(|spoilt| spoilt.to_string()),
        };
        let ledger = match read {
            Ok(ledger) => ledger,
            Err(why) => {
                let cure =
                    "put back what it was, or move its directory away when no pod has an address of it";
                let error = Error::config(format!("{}: {why}: {cure}", path.display()));
                return Err(Refused::Unreadable(error, Some(file)));
            }
        };
        let mut store = Store { path, file, owners, ledger };
        match store.catch_up(directory, current) {
            Ok(()) => Ok(store),
            Err(error) if store.ledger.read_error().is_some() => {
                Err(Refused::Unreadable(error, Some(store.file)))
            }
            Err(error) => Err(Refused::Other(error)),
        }
    }

    /// What of it could not be read since it was opened.
    ///
    /// # Errors
    /// That; nothing that the ledger has said holds then.
    pub fn trusted(&self) -> Result<(), Error> {
        match self.ledger.read_error() {
            None => Ok(()),
            Some(why) => Err(Error::io(self.path.display(), format_args!("read: {why}"))),
        }
    }

    /// What the owners with these marks hold.
    pub fn held_by(self, marks: &[u64]) -> Result<(Store, Vec<SlotId>), Refused> {
        let own = marks.iter().flat_map(|mark| self.ledger.held_by(*mark)).collect();
        match self.trusted() {
            Ok(()) => Ok((self, own)),
            Err(error) => Err(Refused::Unreadable(error, Some(self.file))),
        }
    }

    /// Writes down what happened without the ledger: another boot began, or attachments ended while it could not be read.
    fn catch_up(&mut self, directory: &Path, boot: &str) -> Result<(), Error> {
        if self.ledger.boot_id() != boot {
            let edits = self.ledger.begin_boot(boot, now());
            self.write(&edits)?;
        }
        let failed = |cause: io::Error| failed(directory, "read what was released in", &cause);
        let released = deferred_releases::recall(directory).map_err(failed)?;
        if released.is_empty() {
            return Ok(());
        }
        let marks = released.iter().flat_map(|[network, container, ifname]| {
            (0..SETS_MAX).map(move |set| mark(network, container, ifname, set))
        });
        let edits = self.ledger.release_owners(now(), &marks.collect::<Vec<_>>());
        self.write(&edits)?;
        self.file.sync_data().and_then(|()| deferred_releases::forget(directory)).map_err(failed)
    }

    /// Writes edits, in their order.
    pub fn write(&self, edits: &[Edit]) -> Result<(), Error> {
        self.trusted()?;
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

    /// Gives the lock back and waits for the disk, with others who do.
    pub fn settle(self) -> Result<(), Error> {
        let Store { path, file, owners, ledger: _ } = self;
        let directory = path.parent().unwrap_or(&path);
        let settled = file.unlock().and_then(|()| rounds::settle(&file, &owners, directory));
        settled.map_err(|cause| failed(&path, "write", &cause))
    }

    /// Writes down who holds what is about to be given.
    pub fn sign(&self, place: SlotId, owner: &Owner) -> Result<(), Error> {
        let bytes = owner.record();
        let signed = self.owners.write_all_at(&bytes, record(place));
        signed.map_err(|cause| failed(&self.path.with_file_name(OWNERS), "write", &cause))
    }

    /// Who holds it, as far as that can be read.
    pub fn owner(&self, place: SlotId) -> Owner {
        let mut bytes = [0; RECORD];
        let read = self.owners.read_at(&mut bytes, record(place)).unwrap_or(0);
        let text = std::str::from_utf8(&bytes[..read]).unwrap_or_default();
        let mut lines = text.split('\n').map(str::to_owned);
        let mut line = || lines.next().unwrap_or_default();
        Owner {
            container: line(),
            ifname: line(),
            network: line(),
            pod: [line(), line(), line()],
            claim: line().trim_end_matches('\0').to_owned(),
        }
    }
}

// === impl Owner ===

impl Owner {
    /// As it is written. A claim that has no room is left out: half of its name may be another's.
    fn record(&self) -> Vec<u8> {
        let Owner { container, ifname, network, pod, claim } = self;
        let mut bytes = format!("{container}\n{ifname}\n{network}\n{}\n", pod.join("\n")).into_bytes();
        if !claim.is_empty() && bytes.len() + claim.len() < RECORD {
            bytes.extend(format!("{claim}\n").bytes());
        }
        bytes.resize(RECORD, 0);
        bytes
    }
}

// === impl Files ===

impl Files {
    fn open(directory: &Path, create: bool) -> io::Result<Files> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(create).mode(0o600);
        let ledger = options.open(directory.join(LEDGER))?;
        let owners = directory.join(OWNERS);
        let owners = match options.open(&owners) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => options.create(true).open(&owners)?,
            opened => opened?,
        };
        Ok(Files { ledger, owners })
    }

    /// Waits for the turn; what is not locked because it cannot be opened needs none.
    fn turn<T: Send + 'static>(
        files: io::Result<Files>,
        directory: PathBuf,
        work: impl FnOnce(Result<Store, Refused>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let path = directory.join(LEDGER);
        let Files { ledger, owners } = match files {
            Ok(files) => files,
            // It passes: nothing is written down beside a ledger that others read.
            Err(cause) if linux::error::lacks_resources(&cause) => {
                return work(Err(Refused::Other(failed(&path, "open", &cause))));
            }
            Err(cause) => return work(Err(Refused::Unreadable(failed(&path, "open", &cause), None))),
        };
        // Read once, and not while others wait.
        let _ = boot_id::read();
        let turn = move |ledger| work(Store::open(&directory, Files { ledger, owners }));
        when_locked(ledger, &path.display().to_string(), turn)?
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

fn record(place: SlotId) -> u64 {
    ((place.page * SLOTS + place.slot) * RECORD) as u64
}

fn failed(path: &Path, what: &str, cause: &io::Error) -> Error {
    Error::io(path.display(), linux::Error::io(what, cause))
}

/// Makes a ledger that is there after a loss of power: what was signed later is of a ledger that is not empty.
fn begin(file: &File, directory: &Path, ledger: &AddressStore) -> io::Result<()> {
    file.write_all_at(&ledger.to_bytes(), 0)?;
    file.sync_all()?;
    File::open(directory)?.sync_all()
}

/// Milliseconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_an_address_is_written_whole_or_not_at_all() {
        let owner = |claim: usize| Owner {
            container: "c".to_owned(),
            ifname: "eth0".to_owned(),
            network: "net".to_owned(),
            pod: ["uid", "blue", "web-0"].map(str::to_owned),
            claim: "k".repeat(claim),
        };
        let before = "c\neth0\nnet\nuid\nblue\nweb-0\n".to_owned();
        for (claim, is_written) in
            [(0, false), (20, true), (RECORD - 1 - before.len(), true), (RECORD, false)]
        {
            let record = owner(claim).record();
            let text = String::from_utf8(record).unwrap();
            let expected =
                if is_written { format!("{before}{}\n", "k".repeat(claim)) } else { before.clone() };
            assert_eq!((text.len(), text.trim_end_matches('\0')), (RECORD, &*expected), "{claim}");
        }
    }
}
