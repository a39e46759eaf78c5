//! DEL and GC: addresses are released in the address store, and blocks that are no longer needed to the cluster.

use std::path::Path;
use std::sync::Arc;

use cni::Error;
use cni::invocation::{Attachment, Call};
use ipam::address_store::SlotId;
use ipam::{AllocationKind, BlockState, Clock};
use plugin_support::log;
use rpc::allocate::{AllocateRequest, Operation};

use super::allocation::low;
use super::settings::{self, Pool, Settings, Source};
use super::store::{Refused, SETS_MAX, Store, mark, now};
use super::{agent, deferred_releases};

/// How long a block is idle before it is given back, in milliseconds.
const IDLE: u64 = 600_000;

/// When the agent is asked although nothing was given back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Demanded {
    /// Only if something is to be given back, and when nobody waits for the ledger: DEL.
    IfNeeded,
    /// Always: GC, which finds what nobody knows of.
    Always,
}

/// Gives back what an attachment holds; was there anything?
pub(super) fn take_back(settings: &Arc<Settings>, gone: Gone) -> Result<bool, Error> {
    let gone = Arc::new(gone);
    let (mut found, mut errors) = (false, Vec::new());
    for pool in settings.pools() {
        let (own, from, gone) = (Arc::clone(settings), Arc::clone(pool), Arc::clone(&gone));
        let turn = move |opened: Result<Store, Refused>| {
            let (store, held) = match opened.and_then(|store| store.held_by(&gone.marks)) {
                Ok(found) => found,
                Err(refused) => {
                    return gone.put_off(&own.directory.join(&from.name), refused).map(|()| (false, None));
                }
            };
            release(&own, store, &from, Demanded::IfNeeded, &held).map(|demand| (!held.is_empty(), demand))
        };
        match Store::with(&settings.directory, &pool.name, turn) {
            Ok(was) => {
                let (was, demand) = was.unwrap_or_default();
                found |= was;
                if let Some(demand) = demand {
                    errors.extend(give_back(settings, pool, demand).err());
                }
            }
            Err(error) => errors.push(error),
        }
    }
    Error::join(errors).map_or(Ok(found), Err)
}

/// The same in every ledger; the cluster hears of it with a later call.
pub(super) fn take_back_anywhere(call: &Call, who: &Attachment) -> Result<(), Error> {
    let directory = settings::directory(call)?;
    let gone = Gone::all(call, who, SETS_MAX);
    let mut errors = Vec::new();
    let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        let found = Store::find(&directory, &name);
        match found.and_then(|found| found.map(|store| store.held_by(&gone.marks)).transpose()) {
            Ok(Some((mut store, held))) => {
                let edits = store.ledger.release_slots(now(), &held);
                errors.extend(store.write(&edits).err());
            }
            Ok(None) => {}
            Err(refused) => errors.extend(gone.put_off(&directory.join(&name), refused).err()),
        }
    }
    Error::join(errors).map_or(Ok(()), Err)
}

/// An attachment that is gone; or, of one that is not, what a failed ADD gave it.
pub(super) struct Gone {
    network: String,
    who: Attachment,
    marks: Vec<u64>,
    is_whole: bool,
}

impl Gone {
    pub(super) fn of(call: &Call, who: &Attachment, marks: Vec<u64>) -> Gone {
        Gone { network: call.config.name.to_string(), who: who.clone(), marks, is_whole: false }
    }

    pub(super) fn all(call: &Call, who: &Attachment, sets: usize) -> Gone {
        let (network, Attachment { container, ifname }) = (call.config.name.as_str(), who);
        let marks = (0..sets).map(|set| mark(network, container.as_str(), ifname.as_str(), set));
        Gone { is_whole: true, ..Gone::of(call, who, marks.collect()) }
    }

    /// A ledger that cannot be read keeps no pod from ending: that this one has is written beside it.
    fn put_off(&self, directory: &Path, refused: Refused) -> Result<(), Error> {
        let (error, _lock) = match refused {
            Refused::Unreadable(error, lock) => (error, lock),
            Refused::Other(error) => return Err(error),
        };
        // That would be all that it holds.
        if !self.is_whole {
            return Err(error);
        }
        match deferred_releases::remember(directory, &self.network, &self.who) {
            Ok(()) => {
                log!("{}: given back when the ledger can be read again: {error}", directory.display());
                Ok(())
            }
            Err(cause) => Err(error.also([Error::io(directory.display(), cause)])),
        }
    }
}

/// Has the cluster told what is given back, while nobody waits for the ledger: an agent that is silent delays this call alone.
fn give_back(settings: &Settings, pool: &Pool, demand: AllocateRequest) -> Result<(), Error> {
    // Without an agent it goes with a later call: this one has done what concerns its pod.
    let Ok(answer) = agent::ask(&settings.socket, demand) else { return Ok(()) };
    let clock = Clock { now: now(), quarantine: settings.rest };
    let turn = move |opened: Result<Store, Refused>| {
        let Ok(mut store) = opened else { return Ok(()) };
        let edits = store.ledger.apply_response(clock, 0, &answer.lease);
        store.write(&edits)?;
        store.settle()
    };
    Store::with(&settings.directory, &pool.name, turn).map(drop)
}

/// Frees what is held at these places; what the agent is to be asked for then.
pub(super) fn release(
    settings: &Settings,
    mut store: Store,
    pool: &Pool,
    demanded: Demanded,
    stale: &[SlotId],
) -> Result<Option<AllocateRequest>, Error> {
    let clock = Clock { now: now(), quarantine: settings.rest };
    let edits = store.ledger.release_slots(clock.now, stale);
    store.write(&edits)?;
    if settings.source == Source::File {
        return store.settle().map(|()| None);
    }
    // GC gives the last block back, too: where it is called there may be no pod any more.
    let keep = if demanded == Demanded::Always { 0 } else { low(&store) as u64 };
    let edits = store.ledger.release_idle_blocks(clock, IDLE, keep);
    store.write(&edits)?;
    if demanded == Demanded::IfNeeded {
        let returning = store.ledger.blocks().any(|block| block.state == BlockState::Returning);
        let demand = returning.then(|| agent::demand(settings, pool, &store.ledger, Operation::Return, ""));
        return store.settle().map(|()| demand);
    }
    let demand =
        agent::demand(settings, pool, &store.ledger, Operation::Allocate(AllocationKind::Nothing), "");
    // Without an agent it goes with a later call.
    if let Ok(answer) = agent::ask(&settings.socket, demand) {
        let edits = store.ledger.apply_response(clock, 0, &answer.lease);
        store.write(&edits)?;
    }
    store.settle().map(|()| None)
}
