//! Reader of the address stores of this node, with the owners that `weft-ipam` recorded.
//!
//! It takes no locks and needs permission to read the files. An invalid owner record is ignored.
//!
//! Source: `docs/plugins/weft-ipam.md`, Files.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipam::AddressStore;
use ipam::address_store::{self, SLOTS, SlotId, StoreError};

/// Length of an owner record in bytes.
const RECORD: usize = 1024;

/// Owner of an address, as `weft-ipam` recorded it.
#[derive(Debug)]
pub struct Owner {
    /// Container id of the sandbox.
    pub container: String,
    /// Interface in the sandbox.
    pub ifname: String,
    /// Name of the network.
    pub network: String,
    /// Uid of the pod; empty without a pod.
    pub uid: String,
    /// Namespace and name of the pod, followed by a blank; empty without a pod.
    pod: String,
    /// Claim or sticky key that keeps the address when the pod is gone; empty: none.
    pub claim: String,
}

/// Address in use.
#[derive(Debug)]
pub struct Held {
    /// The address.
    pub ip: IpAddr,
    /// Time of its allocation, in milliseconds since 1970.
    pub since: u64,
    /// Owner of the address.
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

/// Whether the store in a directory is marked as one of a pool with imported addresses.
pub fn is_marked_imported(store: &Path) -> bool {
    store.join("imported").exists()
}

/// Returns name and path of each address store below a directory; none if the directory does not exist.
///
/// # Errors
/// The directory cannot be read.
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

/// Reads an address store; `None` if it does not exist.
///
/// # Errors
/// The store cannot be read, or is invalid.
pub fn read(store: &Path) -> Result<Option<AddressStore>, ReadError> {
    let path = store.join("ledger");
    match fs::read(&path) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(ReadError::Read { file: path, cause }),
        Ok(bytes) => AddressStore::from_bytes(&bytes)
            .map(Some)
            .map_err(|cause| ReadError::Decode { file: path, cause }),
    }
}

/// Returns the addresses of a store that are in use and have a valid owner record.
///
/// # Errors
/// The owner records cannot be read.
pub fn held(store: &Path, addresses: &AddressStore) -> Result<Vec<Held>, ReadError> {
    let path = store.join("owners");
    let owners = match fs::read(&path) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(|cause| ReadError::Read { file: path, cause })?,
    };
    let held = addresses.held().filter_map(|(slot, since, _)| {
        Some(Held { ip: addresses.address(slot)?, since, owner: Owner::read(&owners, slot)? })
    });
    Ok(held.collect())
}

impl Owner {
    fn read(owners: &[u8], slot: SlotId) -> Option<Owner> {
        let record = owners.get((slot.page * SLOTS + slot.slot) * RECORD..)?;
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
