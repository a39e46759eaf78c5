//! `weft-cni release-address`: releases an address of a leased block to another node for the agent, or marks a lease as
//! unconfirmed, gives up any address, or returns idle blocks.
//!
//! - An address in use is not released; its owner is printed. A released address is on the disk.
//! - A repeated call changes nothing. The safety argument is in `docs/design/ipam.md`.

use std::net::IpAddr;
use std::path::Path;

use cni::Error;
use ipam::give_up::{GiveUpMessage, GivenUp, ReturnMessage};
use ipam::transfer::Reservation;
use ipam::{AllocationKind, BlockInfo, Clock, IDLE, LeaseResponse};

use super::imported;
use super::store::{Owner, Store, now};
use plugin_config::weft_ipam as settings;

/// Name of the command.
pub const COMMAND: &str = "release-address";
/// Option of the command: give up any address.
pub const ANY: &str = "--any";
/// Option of the command: return idle blocks.
pub const IDLE_BLOCKS: &str = "--idle";

/// Result of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The address is reserved for the transfer, or the lease is marked as unconfirmed.
    Released,
    /// A container holds the address.
    InUse(Owner),
    /// The address store does not contain the lease.
    UnknownLease,
}

/// Releases the address `ip` of a lease in the address store of a pool below `directory`.
///
/// # Errors
/// Code 4: invalid name of the pool. Codes 5, 7, 11: the store cannot be read, written or locked.
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

/// Marks a lease as unconfirmed in the address store of a pool below `directory`: nothing is allocated from it until the
/// agent confirms it.
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

/// Gives up a block or some addresses of the store of a pool for another node: whatever is free.
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

/// Removes returned blocks from the store of a pool and marks idle ones as returning; returns all blocks of the store. Records
/// whether the pool has imported addresses.
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

fn find(directory: &Path, pool: &str) -> Result<Option<Store>, Error> {
    // The name comes from the cluster and becomes part of a path.
    if pool.is_empty() {
        return Err(Error::key("pool", "\"\"", "not a name"));
    }
    settings::name("pool", pool)?;
    Ok(Store::find(directory, pool)?)
}
