//! Address store that was removed while pods run: their addresses are held again, as the journal names them.
//!
//! ```text
//!   ADD ──► no store ──► journal: addresses of living sandboxes ──► regained ──► block added ──► held by their owners
//! ```
//!
//! - The addresses belong to their owners again, so that their DEL releases them. [`super::living_addresses`] writes the
//!   file.
//! - A block may be leased long after the store was created, and again. Sandboxes that have ended since are left out, and
//!   removed from the file.

use std::fs;
use std::io::{self, Read};

use cni::Error;
use ipam::BlockLease;
use ipam::address_store::Slot;

use super::living_addresses::{self, REGAINED, RegainedAddress};
use super::store::{Owner, Store, now, owner_tag};

/// Largest length of the file.
const LENGTH_MAX: u64 = 16 << 20;

/// Holds the regained addresses of new blocks.
pub(super) fn restore(store: &mut Store, leases: &[BlockLease]) -> Result<(), Error> {
    if leases.is_empty() {
        return Ok(());
    }
    let path = store.sibling(REGAINED);
    let mut bytes = Vec::new();
    match fs::File::open(&path) {
        Ok(file) => file.take(LENGTH_MAX).read_to_end(&mut bytes),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => Err(cause),
    }
    .map_err(|cause| Error::io(path.display(), cause))?;
    let found: Vec<RegainedAddress> = serde_json::from_slice(&bytes).map_err(|cause| {
        Error::config(format!(
            "{}: {}: remove it when no pod has an address of the pool",
            path.display(),
            cni::wording::syntax_error(&bytes, &cause)
        ))
    })?;
    let directory = path.parent().unwrap_or(&path);
    let living = living_addresses::of_pool(directory);
    let count = found.len();
    let found: Vec<RegainedAddress> = found.into_iter().filter(|known| living.contains(known)).collect();
    if found.len() < count {
        living_addresses::write(directory, &found).map_err(|cause| Error::io(path.display(), cause))?;
    }
    for RegainedAddress { ip, network, container, ifname, set, pod } in found {
        if !leases.iter().any(|lease| !lease.single_owner && lease.net.contains(&ip)) {
            continue;
        }
        let Some(slot) = store.addresses.find(ip) else { continue };
        if !matches!(store.addresses.slot(slot), Slot::Free(_)) {
            continue;
        }
        let tag = owner_tag(&network, &container, ifname.as_str(), set);
        let pod = [pod.uid, pod.namespace, pod.name];
        let owner = Owner { container, ifname: ifname.to_string(), network, pod, ..Owner::default() };
        store.record_owner(slot, &owner)?;
        let edits = store.addresses.hold(slot, now(), tag);
        store.write(&edits)?;
    }
    Ok(())
}
