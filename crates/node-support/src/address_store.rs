//! Reader for this node's address stores, with the owners that `weft-ipam` recorded.
//!
//! It takes no locks and needs permission to read the files. An invalid owner record is ignored.
//!
//! Source: `docs/plugins/weft-ipam.md`, Files.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipam::address_store::{self, SLOTS, Slot, SlotId, StoreError};
use ipam::{AddressSpan, AddressStore};

/// Owner record length in bytes.
const RECORD: usize = 1024;

/// Owner of an address, as `weft-ipam` recorded it.
#[derive(Debug)]
pub struct Owner {
    /// Sandbox, by container id.
    pub container: String,
    /// Interface in the sandbox.
    pub ifname: String,
    /// Network name.
    pub network: String,
    /// Pod uid; empty without a pod.
    pub uid: String,
    /// Pod namespace and name, followed by a blank; empty without a pod.
    pod: String,
    /// Claim or sticky key that keeps the address when the pod is gone; empty: none.
    pub claim: String,
}

/// Address in use.
#[derive(Debug)]
pub struct Held {
    /// The address.
    pub ip: IpAddr,
    /// When it was allocated, in milliseconds since 1970.
    pub since: u64,
    /// Owner of the address.
    pub owner: Owner,
}

/// Why one of this node's address stores cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The directory with the address stores cannot be listed.
    #[error("{}: {cause}", directory.display())]
    List {
        /// Directory that cannot be listed.
        directory: PathBuf,
        /// Error that the operating system reported.
        cause: io::Error,
    },
    /// An address store's file, or the owners file, cannot be read.
    #[error("{}: {cause}", file.display())]
    Read {
        /// File that cannot be read.
        file: PathBuf,
        /// Error that the operating system reported.
        cause: io::Error,
    },
    /// An address store's content is not valid.
    #[error("{}: {cause}", file.display())]
    Decode {
        /// File with the invalid content.
        file: PathBuf,
        /// Error in the content.
        cause: StoreError,
    },
}

/// Whether the store in a directory is marked because the pool has imported addresses.
pub fn is_marked_imported(store: &Path) -> bool {
    store.join("imported").exists()
}

/// Returns every address store below a directory, by name and path; none if the directory does not exist.
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

/// Returns a store's addresses that are in use and have a valid owner record.
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

/// A network's window: the addresses that it may allocate from a pool, as the last ADD recorded them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Network name.
    pub network: String,
    /// Quarantine in milliseconds.
    pub quarantine: u64,
    /// Number of addresses.
    pub size: u128,
    /// Address spans; one span around all of them if there are many.
    pub spans: Vec<AddressSpan>,
}

/// Returns the last window for each network that allocated from a store.
///
/// # Errors
/// The owner records cannot be read.
pub fn windows(store: &Path, addresses: &AddressStore) -> Result<Vec<Window>, ReadError> {
    let path = store.join("owners");
    let owners = match fs::read(&path) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(|cause| ReadError::Read { file: path, cause })?,
    };
    let mut last: BTreeMap<String, (u64, Window)> = BTreeMap::new();
    for block in addresses.blocks() {
        for (slot, what) in addresses.slots_of(&block).enumerate() {
            // The record of a released address stays.
            let (Slot::Held { since, .. } | Slot::Free(since)) = what else { continue };
            let Some(window) = Window::read(&owners, SlotId { page: block.page, slot }) else { continue };
            match last.get(&window.network) {
                Some((known, _)) if *known > since => {}
                _ => drop(last.insert(window.network.clone(), (since, window))),
            }
        }
    }
    Ok(last.into_values().map(|(_, window)| window).collect())
}

/// Whether a store belongs to this host alone: then a lease is identified by the network. `None`: it has no block.
pub fn is_of_host(addresses: &AddressStore) -> Option<bool> {
    let block = addresses.blocks().next()?;
    Some(block.lease == block.net.to_string())
}

/// Returns the lines in an owner record.
fn lines(owners: &[u8], slot: SlotId) -> Option<Vec<&str>> {
    let record = owners.get((slot.page * SLOTS + slot.slot) * RECORD..)?;
    let text = std::str::from_utf8(&record[..record.len().min(RECORD)]).ok()?;
    Some(text.trim_end_matches('\0').split('\n').collect())
}

impl Window {
    fn read(owners: &[u8], slot: SlotId) -> Option<Window> {
        let lines = lines(owners, slot)?;
        let (network, mut words) = ((*lines.get(2)?).to_owned(), lines.get(8)?.split(' '));
        let (quarantine, size) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let spans = words.next()?.split(',').map(AddressSpan::parse).collect::<Option<Vec<_>>>()?;
        Some(Window { network, quarantine, size, spans })
    }

    /// Whether the network may allocate an address; more are admitted if the spans are not complete.
    pub fn admits(&self, ip: IpAddr) -> bool {
        self.spans.iter().any(|span| (span.first..=span.last).contains(&ip))
    }
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
