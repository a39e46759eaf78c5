//! Addresses of living sandboxes, as the journal names them, in a file beside an address store that is about to be created.
//!
//! ```text
//!   ADD ──► no store ──► journal: addresses of living sandboxes ──► regained ──► store created
//!   any call ──► store locked, regained is there ──► held by their owners, on the disk ──► regained is removed
//! ```
//!
//! - A node without such sandboxes gets no file. A sandbox whose namespace does not exist any more has no address.
//! - The addresses belong to their owners again, so that their DEL releases them. How they are confirmed is in
//!   `docs/design/ipam.md#removed-address-store`.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::net::IpAddr;
use std::path::Path;

use cni::Error;
use cni::name::IfName;
use ipam::LeaseSource;
use npwg::plan::PodIdentity;
use plugin_config::weft_ipam::{Source, pool_names};
use plugin_support::file;
use rpc::journal::{self, Entry, State};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Owner, Store, now, owner_tag};

/// Name of the file.
const REGAINED: &str = "regained";
/// Largest length of the file.
const LENGTH_MAX: u64 = 16 << 20;

/// Addresses of living sandboxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Regained {
    /// Whether the cluster leases the addresses of the store.
    cluster: bool,
    addresses: Vec<RegainedAddress>,
}

/// Address of a living sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RegainedAddress {
    ip: IpAddr,
    network: String,
    container: String,
    ifname: IfName,
    set: usize,
    pod: PodIdentity,
}

/// Writes the addresses of this pool that living sandboxes have, for a store that is about to be created.
pub(super) fn prepare(directory: &Path, source: Source) -> io::Result<()> {
    let pool = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let addresses = addresses(&Path::new(journal::DIRECTORY).join(journal::ENTRIES), pool);
    if addresses.is_empty() {
        return Ok(());
    }
    let text = serde_json::to_vec(&Regained { cluster: source == Source::Cluster, addresses })?;
    let temporary = directory.join(format!(".regained.{}", std::process::id()));
    let mut new = file::create_new(&temporary, 0o600)?;
    io::Write::write_all(&mut new, &text)?;
    new.sync_all()?;
    fs::rename(temporary, directory.join(REGAINED))
}

/// Holds the addresses in the file again, and removes the file.
pub(super) fn hold(store: &mut Store) -> Result<(), Error> {
    let path = store.sibling(REGAINED);
    let mut bytes = Vec::new();
    match fs::File::open(&path) {
        Ok(file) => file.take(LENGTH_MAX).read_to_end(&mut bytes),
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(()),
        Err(cause) => Err(cause),
    }
    .map_err(|cause| Error::io(path.display(), cause))?;
    let found: Regained = serde_json::from_slice(&bytes).map_err(|cause| {
        Error::config(format!(
            "{}: {}: remove it when no pod has an address of the pool",
            path.display(),
            cni::wording::syntax_error(&bytes, &cause)
        ))
    })?;
    let source = if found.cluster { LeaseSource::Cluster } else { LeaseSource::Store };
    for RegainedAddress { ip, network, container, ifname, set, pod } in found.addresses {
        let tag = owner_tag(&network, &container, ifname.as_str(), set);
        let edits = store.addresses.regain(ip, now(), tag, source);
        let Some(slot) = store.addresses.held_by(tag).next().filter(|_| !edits.is_empty()) else { continue };
        let pod = [pod.uid, pod.namespace, pod.name];
        let owner = Owner { container, ifname: ifname.to_string(), network, pod, ..Owner::default() };
        store.record_owner(slot, &owner)?;
        store.write(&edits)?;
    }
    store.sync().and_then(|()| fs::remove_file(&path)).map_err(|cause| Error::io(path.display(), cause))
}

/// Returns the addresses of a pool that living sandboxes of the journal have. Unreadable entries are left out.
fn addresses(entries: &Path, pool: &str) -> Vec<RegainedAddress> {
    let files = fs::read_dir(entries).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let read = files.filter_map(|path| {
        let mut bytes = Vec::new();
        fs::File::open(path).ok()?.take(journal::ENTRY_MAX).read_to_end(&mut bytes).ok()?;
        Entry::read(&bytes).ok()
    });
    let living = read.filter(|entry| Path::new(&entry.netns).exists());
    living.flat_map(|entry| addresses_of(&entry, pool)).collect()
}

fn addresses_of(entry: &Entry, pool: &str) -> Vec<RegainedAddress> {
    let mut found = Vec::new();
    for (delegate, attachment) in entry.plan.delegates.iter().zip(&entry.attachments) {
        let result = attachment.result.as_ref().filter(|_| attachment.state == State::Attached);
        let result = result.and_then(|result| serde_json::from_str::<Value>(result.get()).ok());
        let ips = result.iter().flat_map(|result| result["ips"].as_array().into_iter().flatten());
        let ips = ips.filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse::<IpAddr>().ok());
        let ips: Vec<IpAddr> = ips.collect();
        if ips.is_empty() {
            continue;
        }
        for (set, name, range) in pool_names(&delegate.config) {
            let in_range = ips.iter().filter(|ip| name == pool && range.contains(*ip));
            found.extend(in_range.map(|ip| RegainedAddress {
                ip: *ip,
                network: delegate.config_name.to_string(),
                container: entry.container_id.to_string(),
                ifname: delegate.ifname.clone(),
                set,
                pod: entry.plan.pod.clone(),
            }));
        }
    }
    found
}
