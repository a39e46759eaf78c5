//! ADD of a planned sandbox: one network after the other, each result recorded as it comes.
//!
//! - The entry is on the disk before the first effect (`docs/design/journal.md`).
//! - The first failure ends the ADD: what was attempted is taken down, last first, and what cannot be taken down stays in
//!   the journal for the next DEL.
//! - What a pod requests is verified in the result.
//!
//! Source: the multi-network specification 6.2, 7.1–7.3; CNI 1.1.0 §3 "Add".

use std::path::Path;
use std::time::Instant;

use cni::network::Network;
use cni::result::Success;
use cni::runtime::chain::{self, Attached};
use cni::{Context, Error, code};
use linux::Netns;
use npwg::outcome::Outcome;
use npwg::plan::{Delegate, Plan, Role};
use npwg::{status, verify};
use plugin_support::failure::OrRefused;
use rpc::journal::{Entry, State};

use super::journal::{Journal, Record};
use super::{attached_link, detach, devices, readiness, routes};
use crate::plugin_invoker::PluginInvoker;

/// Attaches every network of the entry's plan; returns the default network's result.
///
/// # Errors
/// The first failure, after everything was undone; what could not be undone is in its details.
pub(super) fn attach(
    journal: &Journal,
    invoker: &PluginInvoker,
    entry: &mut Entry,
) -> Result<Success, Error> {
    plugins_are_there(invoker, entry, &entry.plan.delegates)?;
    names_are_free(entry, &entry.plan.delegates)?;
    let mut record = journal.begin(entry)?;
    let carried = carry_out(&mut record, invoker, entry);
    let Err(error) = carried else { return carried };
    let undone = detach::take_down(journal, invoker, entry);
    Err(match undone {
        Ok(()) => error,
        Err(left) => {
            let details = format!("not undone, for the next DEL to do: {left}");
            let earlier = error.details.clone();
            error.details(if earlier.is_empty() { details } else { format!("{earlier}; {details}") })
        }
    })
}

/// Refuses delegates whose plugins cannot all be run: a misspelt `type` must not leave something behind that only
/// the plugin of that name could remove.
pub(super) fn plugins_are_there<'a>(
    invoker: &PluginInvoker,
    entry: &Entry,
    delegates: impl IntoIterator<Item = &'a Delegate>,
) -> Result<(), Error> {
    for delegate in delegates {
        let network = Network::parse(delegate.config.as_bytes(), &delegate.network)?;
        readiness::plugins_are_there(invoker, &network, &entry.path)
            .map_err(|error| Error { code: code::INVALID_CONFIG, ..error })
            .context(&delegate.network)?;
    }
    Ok(())
}

/// Refuses delegates one of whose interfaces is there already (S25): undoing it would remove what is not ours.
pub(super) fn names_are_free<'a>(
    entry: &Entry,
    delegates: impl IntoIterator<Item = &'a Delegate>,
) -> Result<(), Error> {
    // What to say of a namespace that is not there, the plugins know.
    let Some(netns) = Netns::find(Path::new(&entry.netns)).or_refused()? else { return Ok(()) };
    let mut net = netns.rtnl().or_refused()?;
    for delegate in delegates {
        let name = delegate.ifname.as_str();
        if net.find_link(name).or_refused()?.is_some() {
            let why = format!("interface {name:?} already exists in the container");
            return Err(Error::new(code::INVALID_ENVIRONMENT, why).context(&delegate.network));
        }
    }
    Ok(())
}

fn carry_out(record: &mut Record, invoker: &PluginInvoker, entry: &mut Entry) -> Result<Success, Error> {
    let Plan { pod, delegates, .. } = entry.plan.clone();
    let mut results = Vec::with_capacity(delegates.len());
    for (index, delegate) in delegates.iter().enumerate() {
        let started = Instant::now();
        let step = || match pod.name.as_str() {
            "" => format!("attach {}", delegate.ifname),
            name => format!("attach {}/{name} {}", pod.namespace, delegate.ifname),
        };
        let (network, attached) = match attach_one(invoker, entry, delegate) {
            Ok(attached) => attached,
            Err(error) => {
                // These were not attempted (NPWG1-7.2-2): nothing of them is to be torn down.
                for later in &mut entry.attachments[index + 1..] {
                    later.state = State::Detached;
                }
                return Err(error.context(step()));
            }
        };
        let link = attached_link::read(entry, delegate);
        let attachment = &mut entry.attachments[index];
        attachment.state = State::Attached;
        attachment.microseconds = u64::try_from(started.elapsed().as_micros()).ok();
        attachment.result = Some(attached.raw);
        attachment.link = link;
        results.push((network, attached.success));
        record.add(&entry.attachments_at(&[index])?)?;
    }
    let changed = settle_routes(entry, &delegates, &mut results)?;
    entry.network_status = statuses(&entry.plan, &results);
    entry.complete = true;
    record.add(&[entry.attachments_at(&changed)?, entry.completion()?].concat())?;
    let default = delegates.iter().position(|delegate| delegate.role == Role::Default).unwrap_or(0);
    match results.into_iter().nth(default) {
        Some((_, success)) => Ok(success),
        None => Err(Error::internal("the plan holds no network")),
    }
}

/// One network: its device, its plugins, and whether they did as asked.
pub(super) fn attach_one(
    invoker: &PluginInvoker,
    entry: &Entry,
    delegate: &Delegate,
) -> Result<(Network, Attached), Error> {
    if let Some(file) = &delegate.device_info {
        devices::publish(file)?;
    }
    let network = Network::parse(delegate.config.as_bytes(), &delegate.network)?;
    let attached = chain::add(invoker, &network, &entry.parameters(delegate))?;
    verify::verify(delegate, &attached.success).map_err(Error::from)?;
    Ok((network, attached))
}

/// Default routes, and the results that say what is now there; returns the places of those that changed.
pub(super) fn settle_routes(
    entry: &mut Entry,
    delegates: &[Delegate],
    results: &mut [(Network, Success)],
) -> Result<Vec<usize>, Error> {
    let parties = delegates.iter().zip(results.iter_mut());
    let mut parties: Vec<routes::Party<'_>> =
        parties.map(|(delegate, (_, result))| routes::Party { delegate, result, changed: false }).collect();
    routes::settle(Path::new(&entry.netns), &mut parties)?;
    let parties = parties.iter().enumerate();
    let changed: Vec<usize> = parties.filter(|(_, party)| party.changed).map(|(index, _)| index).collect();
    for &index in &changed {
        let (network, result) = &results[index];
        let value = result.to_value(network.version).context(&delegates[index].network)?;
        let raw = serde_json::value::to_raw_value(&value);
        let raw = raw.map_err(|cause| Error::internal(format!("encode a result: {cause}")))?;
        entry.attachments[index].result = Some(raw);
    }
    Ok(changed)
}

pub(super) fn statuses(plan: &Plan, results: &[(Network, Success)]) -> Vec<status::Entry> {
    let outcomes: Vec<Outcome> = results
        .iter()
        .map(|(network, result)| Outcome { version: Some(network.version), result: Some(result.clone()) })
        .collect();
    let attachments: Vec<status::Attachment<'_>> = plan
        .delegates
        .iter()
        .zip(&outcomes)
        .map(|(delegate, outcome)| status::Attachment {
            delegate,
            outcome,
            device_info: delegate.device_info.as_ref().and_then(devices::collect),
            added_by: String::new(),
        })
        .collect();
    status::entries(plan, &attachments)
}
