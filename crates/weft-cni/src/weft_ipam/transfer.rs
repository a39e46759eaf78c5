//! `weft-cni release-address`: releases an address in a leased block to another node for the agent, or marks
//! a lease as unconfirmed, gives up any address, returns idle blocks, or restores reserved addresses. For an
//! operator it releases the address of a container that is gone.
//!
//! - An address in use is not released; the owner is printed. A released address is on the disk.
//! - A repeated call changes nothing. The safety argument is in `docs/design/ipam.md`.

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

use cni::Error;
use ipam::address_store::Slot;
use ipam::give_up::{GiveUpMessage, GivenUp, ReturnMessage};
use ipam::restore::RestoreMessage;
use ipam::transfer::Reservation;
use ipam::{AllocationKind, BlockInfo, Clock, IDLE, LeaseResponse};
use rpc::journal::Entry;

use super::imported;
use super::store::{Owner, Store, now, unconfigured_clock};
use plugin_config::weft_ipam as settings;

/// Command name.
pub const COMMAND: &str = "release-address";
/// Option that gives up any address.
pub const ANY: &str = "--any";
/// Option that returns idle blocks.
pub const IDLE_BLOCKS: &str = "--idle";

/// Option that marks or frees reserved addresses.
pub const RESTORE: &str = "--restore";
/// Option that releases the address of a container that is gone.
pub const FREE: &str = "--free";
/// Option in place of a journal: releases the address whatever container has it.
pub const FORCE: &str = "--force";

/// Outcome of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The address is reserved for the transfer, or the lease is marked as unconfirmed.
    Released,
    /// This owner's address was released.
    Freed(Owner),
    /// A container holds the address.
    InUse(Owner),
    /// The address store does not contain the lease.
    UnknownLease,
}

/// Releases the leased address `ip` in a pool's address store below `directory`.
///
/// # Errors
/// Code 4: the pool's name is invalid. Codes 5, 7, 11: the store cannot be read, written or locked.
pub fn release(directory: &Path, pool: &str, lease: &str, ip: IpAddr) -> Result<ReleaseOutcome, Error> {
    let Some(mut store) = find(directory, pool)? else { return Ok(ReleaseOutcome::UnknownLease) };
    let reservation = store.addresses.reserve_for_transfer(lease, ip);
    store.require_readable()?;
    Ok(match reservation {
        Reservation::Reserved(edits) => {
            store.write(&edits)?;
            // An earlier call may have written the reservation and been killed.
            store.settle()?;
            ReleaseOutcome::Released
        }
        Reservation::InUse(slot) => ReleaseOutcome::InUse(store.owner(slot)),
        Reservation::UnknownLease => ReleaseOutcome::UnknownLease,
    })
}

/// Releases an address that a container holds, in a pool's address store below `directory`. With journal directories,
/// an address is not released if the container may live.
///
/// # Errors
/// As for [`release`].
pub fn free(directory: &Path, pool: &str, ip: IpAddr, entries: &[&Path]) -> Result<ReleaseOutcome, Error> {
    let Some(mut store) = find(directory, pool)? else { return Ok(ReleaseOutcome::UnknownLease) };
    let mut slots = store.addresses.find_all(ip).map(|(_, slot)| slot);
    let held = slots.find(|slot| matches!(store.addresses.slot(*slot), Slot::Held { .. }));
    drop(slots);
    store.require_readable()?;
    let Some(slot) = held else { return Ok(ReleaseOutcome::UnknownLease) };
    let owner = store.owner(slot);
    if !entries.is_empty() && may_live(entries, &owner.container) {
        return Ok(ReleaseOutcome::InUse(owner));
    }
    let edits = store.addresses.release_slots(unconfigured_clock(), &[slot]);
    store.write(&edits)?;
    store.settle()?;
    Ok(ReleaseOutcome::Freed(owner))
}

/// Whether a container may live: one of the journals contains it, with a namespace that exists, or there is
/// no journal.
fn may_live(entries: &[&Path], container: &str) -> bool {
    let mut journals = entries.iter().filter(|entries| entries.is_dir()).peekable();
    if container.is_empty() || container.contains('/') || journals.peek().is_none() {
        return true;
    }
    journals.any(|entries| match fs::read(entries.join(format!("{container}.json"))) {
        Err(cause) => cause.kind() != ErrorKind::NotFound,
        Ok(bytes) => Entry::read(&bytes).map_or(true, |entry| Path::new(&entry.netns).exists()),
    })
}

/// Marks a lease as unconfirmed in a pool's address store below `directory`: nothing is allocated from it
/// until the agent confirms it.
///
/// # Errors
/// As for [`release`].
pub fn mark_unconfirmed(directory: &Path, pool: &str, lease: &str) -> Result<ReleaseOutcome, Error> {
    let Some(mut store) = find(directory, pool)? else { return Ok(ReleaseOutcome::UnknownLease) };
    let Some(edit) = store.addresses.mark_unconfirmed(lease) else { return Ok(ReleaseOutcome::UnknownLease) };
    store.write(&[edit])?;
    store.settle()?;
    Ok(ReleaseOutcome::Released)
}

/// Gives up a block or some addresses in a pool's store for another node: whatever is free.
///
/// # Errors
/// As for [`release`].
pub fn give_up(directory: &Path, pool: &str, message: &GiveUpMessage) -> Result<GivenUp, Error> {
    let Some(mut store) = find(directory, pool)? else { return Ok(GivenUp::Nothing) };
    let (given, edits) = store.addresses.give_up(now(), &message.request, &message.known);
    store.require_readable()?;
    store.write(&edits)?;
    // An earlier call may have written the same and been killed.
    store.settle()?;
    Ok(given)
}

/// Removes returned blocks from a pool's store and marks idle ones as returning; returns all blocks in the
/// store. Records whether the pool has imported addresses.
///
/// # Errors
/// As for [`release`].
pub fn return_idle(directory: &Path, pool: &str, message: &ReturnMessage) -> Result<Vec<BlockInfo>, Error> {
    let Some(mut store) = find(directory, pool)? else { return Ok(Vec::new()) };
    let clock = Clock { now: now(), quarantine: message.quarantine };
    let returned = LeaseResponse { returned: message.returned.clone(), ..LeaseResponse::default() };
    imported::mark(&directory.join(pool), message.has_imported)
        .map_err(|cause| Error::io(directory.join(pool).display(), cause))?;
    let mut edits = store.addresses.apply_response(clock, 0, &returned);
    edits.extend(store.addresses.return_idle_blocks(clock, IDLE));
    store.write(&edits)?;
    let blocks = store.addresses.lease_request(AllocationKind::Nothing).blocks;
    store.require_readable()?;
    store.settle()?;
    Ok(blocks)
}

/// Marks a lease's reserved addresses in a pool's store, or frees those that still have the mark; returns
/// them.
///
/// # Errors
/// As for [`release`].
pub fn restore(directory: &Path, pool: &str, message: &RestoreMessage) -> Result<Vec<IpAddr>, Error> {
    let Some(mut store) = find(directory, pool)? else { return Ok(Vec::new()) };
    let (changed, edits) = store.addresses.restore(now(), message);
    store.require_readable()?;
    store.write(&edits)?;
    store.settle()?;
    Ok(changed)
}

fn find(directory: &Path, pool: &str) -> Result<Option<Store>, Error> {
    // The name comes from the cluster and becomes part of a path.
    if pool.is_empty() {
        return Err(Error::key("pool", "\"\"", "not a name"));
    }
    settings::name("pool", pool)?;
    Ok(Store::find(directory, pool)?)
}
