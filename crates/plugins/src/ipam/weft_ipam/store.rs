//! A ledger on the disk: one file, locked for the time of a turn, changed by small writes in place.
//!
//! ```text
//!   <dataDir>/<pool>/       0700
//!     ledger                0600  see [`ipam::ledger`]; locked with flock(2) by whoever has the turn
//!     owners                0600  who holds an address, for people and GC: a record for each place
//! ```
//!
//! Rules:
//! - an address is told to nobody before it is on the disk; the lock is not held while the disk is waited for, so that
//!   many calls wait for it together;
//! - a file that is no ledger of this form is never written to.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use cni::Error;
use ipam::Ledger;
use ipam::ledger::{Edit, PAGES_MAX, Place, SLOTS};

use super::super::host_local::boot;
use super::super::host_local::store::wait;

/// Length of an owner's record.
const RECORD: usize = 1024;

/// A ledger, locked as long as this value lives.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    file: File,
    owners: File,
    /// What is in it.
    pub ledger: Ledger,
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
}

impl Store {
    /// Opens the ledger of a pool, and makes it if it is missing.
    pub fn create(directory: &Path, pool: &str) -> Result<Store, Error> {
        let directory = directory.join(pool);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(|cause| Error::io(format_args!("create directory {}", directory.display()), cause))?;
        Store::open(&directory, true).map_err(|cause| failed(&directory, &cause))?
    }

    /// Opens the ledger of a pool; nothing if there is none.
    pub fn find(directory: &Path, pool: &str) -> Result<Option<Store>, Error> {
        let directory = directory.join(pool);
        match Store::open(&directory, false) {
            Ok(store) => store.map(Some),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(failed(&directory, &cause)),
        }
    }

    fn open(directory: &Path, create: bool) -> io::Result<Result<Store, Error>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(create).mode(0o600);
        let path = directory.join("ledger");
        let file = options.open(&path)?;
        let owners = options.open(directory.join("owners"))?;
        let file = match wait(file, &path.display().to_string()) {
            Ok(file) => file,
            Err(error) => return Ok(Err(error)),
        };
        let most = ipam::ledger::PREFACE + PAGES_MAX * ipam::ledger::PAGE;
        // Room for all of it at once; it has not grown since, for nobody else has the turn.
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(most).min(most);
        let mut image = Vec::with_capacity(length + 1);
        (&file).take(most as u64).read_to_end(&mut image)?;
        let current = boot::id().unwrap_or("unknown");
        if image.is_empty() {
            let ledger = Ledger::new(current);
            file.write_all_at(ledger.image(), 0)?;
            return Ok(Ok(Store { path, file, owners, ledger }));
        }
        let Some(ledger) = Ledger::read(image) else {
            let why = "not a ledger of this release: move it away when no pod has an address of it";
            return Ok(Err(Error::config(format!("{}: {why}", path.display()))));
        };
        let mut store = Store { path, file, owners, ledger };
        if store.ledger.boot() != current {
            let edits = store.ledger.begin(current, now());
            if let Err(error) = store.write(&edits) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(store))
    }

    /// Writes edits, in their order.
    pub fn write(&self, edits: &[Edit]) -> Result<(), Error> {
        for Edit { offset, bytes } in edits {
            self.file.write_all_at(bytes, *offset).map_err(|cause| failed(&self.path, &cause))?;
        }
        Ok(())
    }

    /// Gives the lock back and waits for the disk.
    pub fn settle(self) -> Result<(), Error> {
        let Store { path, file, owners: _, ledger: _ } = self;
        let settled = file.unlock().and_then(|()| file.sync_data());
        settled.map_err(|cause| failed(&path, &cause))
    }

    /// Writes down who holds what is about to be given.
    pub fn sign(&self, place: Place, owner: &Owner) -> Result<(), Error> {
        let Owner { container, ifname, network, pod } = owner;
        let mut bytes = format!("{container}\n{ifname}\n{network}\n{}\n", pod.join("\n")).into_bytes();
        bytes.resize(RECORD, 0);
        self.owners.write_all_at(&bytes, record(place)).map_err(|cause| failed(&self.path, &cause))
    }

    /// Who holds it, as far as that can be read.
    pub fn owner(&self, place: Place) -> Owner {
        let mut bytes = [0; RECORD];
        let read = self.owners.read_at(&mut bytes, record(place)).unwrap_or(0);
        let text = std::str::from_utf8(&bytes[..read]).unwrap_or_default();
        let mut lines = text.split('\n').map(str::to_owned);
        let mut line = || lines.next().unwrap_or_default();
        Owner { container: line(), ifname: line(), network: line(), pod: [line(), line(), line()] }
    }
}

fn record(place: Place) -> u64 {
    ((place.page * SLOTS + place.slot) * RECORD) as u64
}

fn failed(path: &Path, cause: &io::Error) -> Error {
    Error::io(path.display(), linux::Error::io("write", cause))
}

/// Milliseconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
