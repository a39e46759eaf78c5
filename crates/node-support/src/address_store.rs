//! The ledgers of this node as people see them: who holds what, as the plugin wrote it beside them.
//!
//! Rules: they are read without their locks, and by who may read them; a record that makes no sense is nobody's.
//!
//! Source: `docs/plugins/weft-ipam.md`, Files.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipam::AddressStore;
use ipam::address_store::{self, SLOTS, SlotId, StoreError};

/// Length of an owner's record beside a ledger.
const RECORD: usize = 1024;

/// Who holds an address, as the plugin wrote it.
#[derive(Debug)]
pub struct Owner {
    /// The container id of its sandbox.
    pub container: String,
    /// The interface in the sandbox.
    pub ifname: String,
    /// The network.
    pub network: String,
    /// Of the pod; empty where there was none.
    pub uid: String,
    /// With a blank after it; empty where there was none.
    pod: String,
    /// Claim or sticky key that keeps the address when the pod is gone; empty: none.
    pub claim: String,
}

/// An address that is held.
#[derive(Debug)]
pub struct Held {
    /// The address.
    pub ip: IpAddr,
    /// Milliseconds since 1970.
    pub since: u64,
    /// What holds it.
    pub owner: Owner,
}

/// A reason why an address store of this node cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The directory of the address stores cannot be listed.
    #[error("{}: {cause}", directory.display())]
    List {
        /// The directory.
        directory: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// The file of an address store, or of its owners, cannot be read.
    #[error("{}: {cause}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// The content of an address store is not valid.
    #[error("{}: {cause}", file.display())]
    Decode {
        /// The file.
        file: PathBuf,
        /// The error in its content.
        cause: StoreError,
    },
}

/// Each ledger below a directory, which need not be there: its name and where it is.
///
/// # Errors
/// The directory cannot be read: what is below it is not known.
pub fn all(directory: &Path) -> Result<Vec<(String, PathBuf)>, ReadError> {
    let failed = |cause| ReadError::List { directory: directory.to_owned(), cause };
    let entries = match fs::read_dir(directory) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?.collect::<Result<Vec<_>, _>>().map_err(failed)?,
    };
    let named =
        entries.iter().filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())));
    let mut all: Vec<_> = named.filter(|(name, _)| address_store::is_valid_name(name)).collect();
    all.sort();
    Ok(all)
}

/// A ledger; nothing where there is none.
///
/// # Errors
/// It cannot be read: by us, or by anybody.
pub fn read(place: &Path) -> Result<Option<AddressStore>, ReadError> {
    let path = place.join("ledger");
    match fs::read(&path) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(ReadError::Read { file: path, cause }),
        Ok(bytes) => AddressStore::from_bytes(&bytes)
            .map(Some)
            .map_err(|cause| ReadError::Decode { file: path, cause }),
    }
}

/// What is held in a ledger, as far as it is known by whom.
///
/// # Errors
/// The records of owners cannot be read.
pub fn held(place: &Path, ledger: &AddressStore) -> Result<Vec<Held>, ReadError> {
    let path = place.join("owners");
    let owners = match fs::read(&path) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(|cause| ReadError::Read { file: path, cause })?,
    };
    let held = ledger.held().filter_map(|(at, since, _)| {
        Some(Held { ip: ledger.address(at)?, since, owner: Owner::read(&owners, at)? })
    });
    Ok(held.collect())
}

impl Owner {
    fn read(owners: &[u8], at: SlotId) -> Option<Owner> {
        let record = owners.get((at.page * SLOTS + at.slot) * RECORD..)?;
        let text = std::str::from_utf8(&record[..record.len().min(RECORD)]).ok()?;
        let mut lines = text.trim_end_matches('\0').lines().map(str::to_owned);
        let (container, ifname, network) = (lines.next()?, lines.next()?, lines.next()?);
        let [uid, namespace, name, claim] = [(); 4].map(|()| lines.next().unwrap_or_default());
        let pod = if name.is_empty() { String::new() } else { format!("{namespace}/{name} ") };
        Some(Owner { container, ifname, network, uid, pod, claim })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { container, ifname, network, pod, .. } = self;
        write!(f, "{pod}{ifname} of {network}, container {container}")
    }
}
