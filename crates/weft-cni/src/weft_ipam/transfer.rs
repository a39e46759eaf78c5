//! `weft-cni release-address`: makes an address of a block another node's, for the agent that was asked for it; or lets nobody new into a
//! block that the cluster says is not this node's any more.
//!
//! Rules: what is held stays, and it is said whose it is; what is said to be given up is on the disk; the same once more changes
//! nothing. Why two nodes never have it: `docs/design/ipam.md`.

use std::net::IpAddr;
use std::path::Path;

use cni::Error;
use ipam::transfer::Reservation;

use super::settings;
use super::store::{Owner, Store};

/// The word on the command line for it.
pub const COMMAND: &str = "release-address";

/// What the ledger said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It is a hole; of a block, nobody new comes into it.
    Hole,
    /// It is held.
    Held(Owner),
    /// It has no such lease.
    Unknown,
}

/// Gives `ip` of a lease up, in the ledger of this name below `directory`.
///
/// # Errors
/// 4 the name is none · 5, 7, 11 the ledger cannot be read, written or locked.
pub fn give_up(directory: &Path, ledger: &str, lease: &str, ip: IpAddr) -> Result<Said, Error> {
    let Some(mut store) = find(directory, ledger)? else { return Ok(Said::Unknown) };
    let given = store.ledger.reserve_for_transfer(lease, ip);
    store.trusted()?;
    Ok(match given {
        Reservation::Reserved(edits) => {
            store.write(&edits)?;
            // One before us may have written it and died.
            store.settle()?;
            Said::Hole
        }
        Reservation::InUse(place) => Said::Held(store.owner(place)),
        Reservation::UnknownLease => Said::Unknown,
    })
}

/// Lets nobody new into a lease until the agent was asked whose it is, in the ledger of this name below `directory`.
///
/// # Errors
/// As of [`give_up`].
pub fn doubt(directory: &Path, ledger: &str, lease: &str) -> Result<Said, Error> {
    let Some(mut store) = find(directory, ledger)? else { return Ok(Said::Unknown) };
    let Some(edit) = store.ledger.mark_unconfirmed(lease) else { return Ok(Said::Unknown) };
    store.write(&[edit])?;
    store.settle()?;
    Ok(Said::Hole)
}

fn find(directory: &Path, ledger: &str) -> Result<Option<Store>, Error> {
    // It comes from the cluster and becomes part of a path.
    if ledger.is_empty() {
        return Err(Error::key("ledger", "\"\"", "not a name"));
    }
    settings::name("ledger", ledger)?;
    Ok(Store::find(directory, ledger)?)
}
