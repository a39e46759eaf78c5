//! DEL and GC: addresses are released in the address store, and blocks that are no longer needed are returned to the cluster.

use std::path::Path;
use std::sync::Arc;

use cni::Error;
use cni::invocation::{Attachment, Call};
use ipam::address_store::{OwnerTag, SlotId};
use ipam::{AllocationKind, BlockState, Clock, IDLE};
use linux::error::leads_nowhere;
use plugin_support::log;
use rpc::allocate::{AllocateRequest, Operation};

use super::allocation::low;
use super::store::{OpenError, Owner, SETS_MAX, Store, now, owner_tag, spread, unconfigured_clock};
use super::{agent, deferred_releases};
use plugin_config::weft_ipam::{self as settings, Pool, Settings, Source};

/// Condition of a request to the agent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReturnPolicy {
    /// Only if a block is to be returned, and after the store is unlocked: DEL.
    IfNeeded,
    /// Always: GC, which also finds leases that no other call knows of.
    Always,
}

/// Addresses that were found in the pools of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// None.
    Nothing,
    /// Some; the attachment was made with other pools, so it may hold more.
    Part,
    /// All.
    All,
}

/// Releases the addresses of an attachment in these pools; returns whether it had any.
pub(super) fn release(
    settings: &Arc<Settings>,
    pools: &[&Arc<Pool>],
    released: Released,
) -> Result<Found, Error> {
    let released = Arc::new(released);
    let (mut found, mut errors) = (Found::Nothing, Vec::new());
    for pool in pools {
        let (own, from, released) = (Arc::clone(settings), Arc::clone(pool), Arc::clone(&released));
        let turn = move |opened: Result<Store, OpenError>| {
            let (store, held) = match opened.and_then(|store| store.held_by(&released.tags)) {
                Ok(found) => found,
                Err(error) => {
                    let deferred = released.defer(&own.directory.join(&from.name), error);
                    return deferred.map(|()| (Found::Nothing, None));
                }
            };
            let spread = spread(&own);
            let is_part = |slot: &SlotId| {
                let recorded = store.owner(*slot).spread;
                !recorded.is_empty() && recorded != spread
            };
            let found = match held.is_empty() {
                true => Found::Nothing,
                false if held.iter().any(is_part) => Found::Part,
                false => Found::All,
            };
            let released = release_slots(&own, store, &from, ReturnPolicy::IfNeeded, &held);
            released.map(|request| (found, request))
        };
        match Store::with(&settings.directory, &pool.name, turn) {
            Ok(was) => {
                let (was, request) = was.unwrap_or((Found::Nothing, None));
                found = match (found, was) {
                    (Found::Part, _) | (_, Found::Part) => Found::Part,
                    (Found::Nothing, was) => was,
                    (Found::All, _) => Found::All,
                };
                if let Some(request) = request {
                    errors.extend(return_blocks(settings, pool, request).err());
                }
            }
            Err(error) => errors.push(error),
        }
    }
    Error::join(errors).map_or(Ok(found), Err)
}

/// Releases the addresses of an attachment in every address store. A later call notifies the cluster.
pub(super) fn release_in_all_stores(call: &Call, who: &Attachment) -> Result<(), Error> {
    let directory = settings::directory(call)?;
    let released = Released::all(call, who, SETS_MAX);
    let mut errors = Vec::new();
    for name in store_names(&directory)? {
        let found = Store::find(&directory, &name);
        match found.and_then(|found| found.map(|store| store.held_by(&released.tags)).transpose()) {
            Ok(Some((mut store, held))) => {
                let edits = store.addresses.release_slots(unconfigured_clock(), &held);
                errors.extend(store.write(&edits).err());
            }
            Ok(None) => {}
            Err(error) => errors.extend(released.defer(&directory.join(&name), error).err()),
        }
    }
    Error::join(errors).map_or(Ok(()), Err)
}

/// Returns the names of the address stores below `directory`; none if no directory can be at this path.
fn store_names(directory: &Path) -> Result<Vec<String>, Error> {
    let failed = |cause| Error::io(format_args!("list {}", directory.display()), cause);
    let entries = match std::fs::read_dir(directory) {
        Err(cause) if leads_nowhere(&cause) => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(names)
}

/// Releases addresses that a network's invalid attachments have in the stores of pools no longer in the configuration.
/// A later call notifies the cluster.
pub(super) fn sweep_other_stores(
    settings: &Settings,
    is_stale: impl Fn(&Owner) -> bool,
) -> Result<(), Error> {
    let known = settings.pools();
    let mut errors = Vec::new();
    for name in store_names(&settings.directory)? {
        if known.iter().any(|pool| pool.name == name) {
            continue;
        }
        // A store that cannot be read allocates nothing, and may be another network's.
        let Ok(Some(mut store)) = Store::find(&settings.directory, &name) else { continue };
        let held = store.addresses.held().map(|(slot, ..)| slot);
        let stale: Vec<SlotId> = held.filter(|slot| is_stale(&store.owner(*slot))).collect();
        if !stale.is_empty() {
            let edits = store.addresses.release_slots(unconfigured_clock(), &stale);
            errors.extend(store.write(&edits).and_then(|()| store.settle()).err());
        }
    }
    Error::join(errors).map_or(Ok(()), Err)
}

/// Attachment whose addresses are released: all of a DEL, or those that a failed ADD allocated.
pub(super) struct Released {
    network: String,
    who: Attachment,
    tags: Vec<OwnerTag>,
    is_whole: bool,
}

impl Released {
    pub(super) fn of(call: &Call, who: &Attachment, tags: Vec<OwnerTag>) -> Released {
        Released { network: call.config.name.to_string(), who: who.clone(), tags, is_whole: false }
    }

    pub(super) fn all(call: &Call, who: &Attachment, sets: usize) -> Released {
        let (network, Attachment { container, ifname }) = (call.config.name.as_str(), who);
        let tags = (0..sets).map(|set| owner_tag(network, container.as_str(), ifname.as_str(), set));
        Released { is_whole: true, ..Released::of(call, who, tags.collect()) }
    }

    /// Writes the release to the file beside a store that cannot be read, so that the DEL succeeds.
    fn defer(&self, directory: &Path, error: OpenError) -> Result<(), Error> {
        let (error, _lock) = match error {
            OpenError::Unreadable(error, lock) => (error, lock),
            OpenError::Other(error) => return Err(error),
        };
        // A line releases all addresses of the attachment.
        if !self.is_whole {
            return Err(error);
        }
        match deferred_releases::remember(directory, &self.network, &self.who) {
            Ok(()) => {
                log!(
                    "{}: addresses will be released when the store is readable again: {error}",
                    directory.display()
                );
                Ok(())
            }
            Err(cause) => Err(error.also([Error::io(directory.display(), cause)])),
        }
    }
}

/// Returns blocks to the cluster while the store is unlocked: a slow agent delays this call alone.
fn return_blocks(settings: &Settings, pool: &Pool, request: AllocateRequest) -> Result<(), Error> {
    // Without an agent a later call returns the blocks; the addresses of this pod are released already.
    let Ok(answer) = agent::ask(&settings.socket, request) else { return Ok(()) };
    let clock = Clock { now: now(), quarantine: settings.quarantine };
    let turn = move |opened: Result<Store, OpenError>| {
        let Ok(mut store) = opened else { return Ok(()) };
        let edits = store.addresses.apply_response(clock, 0, &answer.lease);
        store.write(&edits)?;
        store.settle()
    };
    Store::with(&settings.directory, &pool.name, turn).map(drop)
}

/// Releases slots and idle blocks; returns the request that then returns the blocks to the cluster.
pub(super) fn release_slots(
    settings: &Settings,
    mut store: Store,
    pool: &Pool,
    policy: ReturnPolicy,
    stale: &[SlotId],
) -> Result<Option<AllocateRequest>, Error> {
    let clock = Clock { now: now(), quarantine: settings.quarantine };
    let is_full = settings.source == Source::Cluster && !stale.is_empty() && {
        let held_alone = Clock { quarantine: 0, ..clock };
        !store.addresses.has_free(held_alone, |ip| pool.filter.admits(ip), 1)
    };
    let edits = store.addresses.release_slots(clock, stale);
    store.write(&edits)?;
    if settings.source == Source::File {
        // A regained address that no block has taken over yet.
        let released = store.addresses.blocks().filter(|block| block.state == BlockState::Returning);
        let released: Vec<usize> = released.map(|block| block.page).collect();
        let edits: Vec<_> = released.into_iter().map(|page| store.addresses.remove_block(page)).collect();
        store.write(&edits)?;
        return store.settle().map(|()| None);
    }
    // GC returns the last block, too: the network may have no pod any more.
    let keep = if policy == ReturnPolicy::Always { 0 } else { low(&store) as u64 };
    // Another network of the pool may have a longer quarantine, and a returned block is free for other nodes at once.
    let longest = clock.quarantine.max(store.quarantine_of_drained_blocks());
    let clock = Clock { quarantine: longest, ..clock };
    let edits = store.addresses.release_idle_blocks(clock, IDLE, keep);
    store.write(&edits)?;
    if policy == ReturnPolicy::IfNeeded {
        let returning = store.addresses.blocks().any(|block| block.state == BlockState::Returning);
        let request = returning
            .then(|| agent::allocate_request(settings, pool, &store.addresses, Operation::Return, ""));
        // Returned addresses are known to the cluster.
        let freed = (is_full && request.is_none())
            .then(|| agent::allocate_request(settings, pool, &store.addresses, Operation::Freed, ""));
        store.settle()?;
        if let Some(freed) = freed {
            agent::hint(&settings.socket, freed);
        }
        return Ok(request);
    }
    let operation = Operation::Allocate(AllocationKind::Nothing);
    let request = agent::allocate_request(settings, pool, &store.addresses, operation, "");
    // Without an agent a later call returns the blocks.
    if let Ok(answer) = agent::ask(&settings.socket, request) {
        let edits = store.addresses.apply_response(clock, 0, &answer.lease);
        store.write(&edits)?;
    }
    store.settle().map(|()| None)
}
