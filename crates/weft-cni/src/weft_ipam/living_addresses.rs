//! Addresses of living sandboxes, as the journal names them, in a file beside an address store that is created.
//!
//! - The journal is read when a store is created, and while the file exists also when the store gets a block. A node without
//!   such sandboxes gets no file.
//! - A sandbox whose namespace does not exist any more has no address.

use std::fs;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::Path;

use cni::name::IfName;
use npwg::plan::PodIdentity;
use plugin_config::weft_ipam::pool_names;
use plugin_support::file;
use rpc::journal::{self, Entry, State};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the file.
pub(super) const REGAINED: &str = "regained";
/// Address of a living sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RegainedAddress {
    pub(super) ip: IpAddr,
    pub(super) network: String,
    pub(super) container: String,
    pub(super) ifname: IfName,
    pub(super) set: usize,
    pub(super) pod: PodIdentity,
}

/// Writes the addresses of this pool that living sandboxes have, for a store that is about to be created.
pub(super) fn prepare(directory: &Path) -> io::Result<()> {
    match of_pool(directory) {
        found if found.is_empty() => Ok(()),
        found => write(directory, &found),
    }
}

/// Returns the addresses that living sandboxes have of the pool of a store's directory.
pub(super) fn of_pool(directory: &Path) -> Vec<RegainedAddress> {
    let pool = directory.file_name().and_then(|name| name.to_str());
    pool.map(|pool| addresses(&Path::new(journal::DIRECTORY).join(journal::ENTRIES), pool))
        .unwrap_or_default()
}

/// Replaces the file; without addresses, removes it.
pub(super) fn write(directory: &Path, found: &[RegainedAddress]) -> io::Result<()> {
    if found.is_empty() {
        return match fs::remove_file(directory.join(REGAINED)) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
    }
    let text = serde_json::to_vec(found)?;
    let temporary = directory.join(".regained.new");
    let mut new = file::create_new(&temporary, 0o600)?;
    io::Write::write_all(&mut new, &text)?;
    new.sync_all()?;
    fs::rename(temporary, directory.join(REGAINED))
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
