//! Hot-plug: changes a running sandbox's networks to those in a new plan.
//!
//! - [`rpc::change`] decides what is done. The change is in the journal before it begins, so that a DEL finds everything and
//!   the same change can continue after a crash (`docs/design/journal.md`).
//! - Unchanged networks are not touched, and a failure of one network does not stop the others.
//! - Once a change has run for `delegateTimeout`, it starts no further network. A later task does the remaining ones.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use cni::network::Network;
use cni::result::Success;
use cni::{Context, Error, code};
use npwg::plan::{Delegate, Plan};
use rpc::change::{self, Change};
use rpc::journal::{AttachedLink, Attachment, Entry, State};
use rpc::task::NetworkChange;

use super::journal::Journal;
use super::{attach, attached_link, detach, enforcement};
use crate::plugin_invoker::PluginInvoker;

/// Result of a change.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// Networks that were added or removed.
    pub(super) done: Vec<NetworkChange>,
    /// Failures.
    pub(super) errors: Vec<Error>,
}

/// Changes the sandbox of `entry` to `plan`, and starts nothing after `timeout`. The caller holds the sandbox's lock.
///
/// # Errors
/// Nothing was changed. Errors in single networks are part of the result.
pub(super) fn change(
    journal: &Journal,
    invoker: &PluginInvoker,
    entry: &Entry,
    plan: &Plan,
    timeout: Duration,
) -> Result<Changed, Error> {
    let began = Instant::now();
    let mut changed = Changed::default();
    let Some(change) = change::between(entry, plan)? else { return Ok(changed) };
    let (added, removed) = (change.added(), change.removed());
    let Change { mut entry, wanted, refused } = change;
    changed.errors.extend(refused);
    // Networks with a plugin that the node lacks stop no other.
    let mut missing: BTreeMap<usize, Error> = BTreeMap::new();
    for place in &added {
        let assigned = attach::assign_programs(invoker, &mut entry, [*place]);
        missing.extend(assigned.err().map(|error| (*place, error)));
    }
    // A link that was seen leaves the entry, so that a change that is interrupted after its removal can continue.
    let links = removed.iter().map(|place| take_link(&mut entry, *place)).collect::<Result<Vec<_>, _>>()?;
    enforcement::assign(journal.directory(), invoker, &mut entry)?;
    journal.begin(&entry)?;
    // Interfaces whose earlier attachment is not removed: another attempt would add a second entry for its leftovers.
    let mut taken = Vec::new();
    for (place, link) in removed.into_iter().zip(links) {
        let delegate = entry.plan.delegates[place].clone();
        let in_time = within(began, timeout);
        let released = in_time.and_then(|()| release(invoker, &entry, place, &delegate, link.as_ref()));
        if released.is_err() && link.is_some() {
            entry.attachments[place].link = link;
        }
        match released.and_then(|()| detach::detach_one(invoker, &entry, place, &delegate)) {
            Ok(()) => {
                entry.attachments[place].state = State::Detached;
                let Delegate { network, ifname, .. } = delegate;
                changed.done.push(NetworkChange { network, ifname, added: None });
            }
            Err(error) => {
                taken.push(delegate.ifname);
                changed.errors.push(record_failure(&mut entry, place, error, "detach"));
            }
        }
        journal.update(&entry)?;
    }
    for place in added {
        let ifname = &entry.plan.delegates[place].ifname;
        let may = if let Some(error) = missing.remove(&place) {
            Err(error)
        } else if taken.contains(ifname) {
            Err(Error::new(code::TRY_AGAIN_LATER, "the interface of an earlier attachment is not removed"))
        } else {
            within(began, timeout)
        };
        add(invoker, &mut entry, place, &mut changed, may);
        journal.update(&entry)?;
    }
    changed.errors.extend(settle(&mut entry, wanted).err());
    journal.update(&entry)?;
    Ok(changed)
}

/// Takes an attachment's link out of the entry if it is in the sandbox.
fn take_link(entry: &mut Entry, place: usize) -> Result<Option<AttachedLink>, Error> {
    match &entry.attachments[place].link {
        Some(known) if attached_link::is_there(entry, known)? => Ok(entry.attachments[place].link.take()),
        _ => Ok(None),
    }
}

/// Removes the interface of one attachment before the DEL. If the link is not known, the plugins remove it.
fn release(
    invoker: &PluginInvoker,
    entry: &Entry,
    place: usize,
    delegate: &Delegate,
    seen: Option<&AttachedLink>,
) -> Result<(), Error> {
    match seen.or(entry.attachments[place].link.as_ref()) {
        Some(link) => {
            attached_link::release(entry, delegate, link, detach::removal(invoker, entry, delegate))
        }
        None => Ok(()),
    }
}

/// Checks that another network may be started.
fn within(began: Instant, timeout: Duration) -> Result<(), Error> {
    match began.elapsed() < timeout {
        true => Ok(()),
        false => {
            let why = format!("postponed: earlier networks took {} s", began.elapsed().as_secs());
            Err(Error::new(code::TRY_AGAIN_LATER, why))
        }
    }
}

/// Attaches one network if it may be started; a failed attempt is undone.
fn add(
    invoker: &PluginInvoker,
    entry: &mut Entry,
    place: usize,
    changed: &mut Changed,
    may: Result<(), Error>,
) {
    let delegate = entry.plan.delegates[place].clone();
    let started = Instant::now();
    let _ = invoker.take_ran();
    let attached = may
        .and_then(|()| attach::require_free_names(entry, [&delegate]))
        .map_err(|error| (error, false))
        .and_then(|net| {
            let (_, attached) =
                attach::attach_one(invoker, entry, &delegate, None).map_err(|error| (error, true))?;
            Ok((net, attached))
        });
    match attached {
        Ok((mut net, attached)) => {
            let ips = attached.success.ips.iter().map(|ip| ip.address.addr()).collect();
            let (network, ifname) = (delegate.network.clone(), delegate.ifname.clone());
            changed.done.push(NetworkChange { network, ifname, added: Some(ips) });
            entry.attachments[place] = Attachment {
                state: State::Attached,
                result: Some(attached.raw),
                link: attached_link::read(&mut net, entry, &delegate),
                rules: entry.attachments[place].rules.take(),
                programs: std::mem::take(&mut entry.attachments[place].programs),
                microseconds: u64::try_from(started.elapsed().as_micros()).ok(),
                never_ran: BTreeSet::new(),
                failure: None,
                policy_pending: false,
                never_begun: false,
            };
        }
        Err((error, begun)) => {
            entry.attachments[place].never_ran = attach::never_ran(invoker, &delegate);
            changed.errors.push(record_failure(entry, place, error, "attach"));
            let undone = if begun { detach::detach_one(invoker, entry, place, &delegate) } else { Ok(()) };
            match undone {
                Ok(()) => entry.attachments[place].state = State::Detached,
                Err(error) => changed.errors.push(record_failure(entry, place, error, "undo")),
            }
        }
    }
}

fn record_failure(entry: &mut Entry, place: usize, error: Error, what: &str) -> Error {
    let Delegate { network, ifname, .. } = &entry.plan.delegates[place];
    let error = error.context(format_args!("{what} {ifname} ({network})"));
    entry.attachments[place].failure = Some(error.clone());
    error
}

/// Updates the entry to the current state of the sandbox: removes detached networks, sets routes and status for the attached ones.
fn settle(entry: &mut Entry, wanted: usize) -> Result<(), Error> {
    let all =
        std::mem::take(&mut entry.plan.delegates).into_iter().zip(std::mem::take(&mut entry.attachments));
    let (there, left): (Vec<_>, Vec<_>) = all
        .enumerate()
        .filter(|(_, (_, attachment))| attachment.state != State::Detached)
        .partition(|(place, (_, attachment))| *place < wanted && attachment.state == State::Attached);
    let count = there.len();
    let kept = there.into_iter().chain(left).map(|(_, pair)| pair);
    (entry.plan.delegates, entry.attachments) = kept.unzip();
    // Complete as far as possible: the next task attaches networks that are still missing.
    (entry.complete, entry.changing) = (true, false);
    let delegates = entry.plan.delegates[..count].to_vec();
    let mut results: Vec<(Network, Success)> = Vec::with_capacity(count);
    for (place, delegate) in delegates.iter().enumerate() {
        let network = Network::parse(delegate.config.as_bytes(), &delegate.network)?;
        let result = entry.last_result(place, &network)?;
        results.push((network, result.map(|attached| attached.success).unwrap_or_default()));
    }
    let settled = attach::settle_routes(entry, &delegates, &mut results).context("default route");
    let of_these = Plan { delegates, ..entry.plan.clone() };
    entry.network_status = attach::statuses(&of_these, &results);
    settled.map(|_| ())
}
