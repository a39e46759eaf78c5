//! Address that was imported for a pod: it gets this address and no other.
//!
//! ```text
//!   ADD ──► store without mark? ── yes ──► any address of the store
//!              └─ no, or no store ──► agent: address of this pod and interface? ── yes ──► leased with the claim that keeps it
//! ```
//!
//! A file beside the store marks a pool with imported addresses. The agent keeps it up to date, and so does every response. So a
//! pool without imported addresses costs an ADD one look at a file, and neither a lock nor a request.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use cni::Error;
use ipam::AddressStore;
use rpc::allocate::{ClaimedAddress, ImportedAddresses, Operation};

use super::agent;
use super::store::exists;
use plugin_config::weft_ipam::{OF_CLAIM, Pool, Set, Settings, Source};

/// File name.
const MARK: &str = "imported";

/// Returns the pool address that was imported for an attachment, unless it requests another one or has an
/// IPAMClaim.
///
/// # Errors
/// The pool may have imported addresses, and the agent does not answer.
pub(super) fn find(
    settings: &Settings,
    pool: &Pool,
    set: &Set,
    owner: &str,
) -> Result<Option<ClaimedAddress>, Error> {
    let has_claim = settings.claim.name.starts_with(OF_CLAIM);
    if settings.source == Source::File || has_claim || settings.pod.name.is_empty() {
        return Ok(None);
    }
    let directory = settings.directory.join(&pool.name);
    if !is_marked(&directory) && exists(&directory) {
        return Ok(None);
    }
    let none = AddressStore::new("");
    let request = agent::allocate_request(settings, pool, &none, Operation::FindImported, owner);
    let response = agent::ask(&settings.socket, request)
        .map_err(|error| Error { msg: unknown(pool, &error.msg), ..error })?;
    if let Some(why) = response.error() {
        return Err(Error::new(cni::code::TRY_AGAIN_LATER, unknown(pool, &why)));
    }
    let Some(ImportedAddresses { of_pod, in_pool }) = response.imported else { return Ok(None) };
    mark(&directory, in_pool).map_err(|cause| Error::io(directory.join(MARK).display(), cause))?;
    let is_requested = |address| set.request.as_ref().is_none_or(|request| request.ip == address);
    Ok(of_pod.into_iter().find(|found| pool.filter.admits(found.address) && is_requested(found.address)))
}

fn unknown(pool: &Pool, why: &str) -> String {
    format!("pool {}: it may have an address that was imported for this pod: {why}", pool.name)
}

fn is_marked(directory: &Path) -> bool {
    directory.join(MARK).exists()
}

/// Marks that the store in a directory belongs to a pool with imported addresses, or removes the mark.
pub(super) fn mark(directory: &Path, has_imported: bool) -> io::Result<()> {
    let path = directory.join(MARK);
    if path.exists() == has_imported {
        return Ok(());
    }
    if !has_imported {
        return fs::remove_file(path).or_else(|cause| match cause.kind() {
            ErrorKind::NotFound => Ok(()),
            _ => Err(cause),
        });
    }
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).map(drop)
}
