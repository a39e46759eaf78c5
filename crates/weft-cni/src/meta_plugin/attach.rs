//! ADD of a planned sandbox: attaches one network after the other and records each result.
//!
//! - All plugins are installed and all interface names are free, or the ADD fails without an effect.
//! - The entry is on the disk before the first effect (`docs/design/journal.md`).
//! - The first failure ends the ADD: attempted networks are taken down, last first. Those that cannot be taken down
//!   stay in the journal for the next DEL.
//! - Each result is compared with the pod's request.
//!
//! Source: the multi-network specification 6.2, 7.1–7.3; CNI 1.1.0 §3 "Add".

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use cni::name::PluginType;
use cni::network::Network;
use cni::result::Success;
use cni::runtime::chain::{self, Attached};
use cni::{Context, Error, code};
use linux::{Netns, Rtnl};
use npwg::outcome::Outcome;
use npwg::plan::{Delegate, Plan, Role};
use npwg::{status, verify};
use plugin_support::failure::OrRefused;
use plugin_support::log;
use rpc::journal::{Entry, State};

use super::enforcement::{AheadRules, Enforced};
use super::journal::{Journal, Record};
use super::{attached_link, detach, devices, enforcement, readiness, routes};
use crate::plugin_invoker::PluginInvoker;

/// Attaches every network of the entry's plan; returns the default network's result.
///
/// # Errors
/// The first failure, after everything was undone; the details contain what could not be undone.
pub(super) fn attach(
    journal: &Journal,
    invoker: &PluginInvoker,
    entry: &mut Entry,
) -> Result<Success, Error> {
    assign_programs(invoker, entry, 0..entry.plan.delegates.len())?;
    let net = require_free_names(entry, &entry.plan.delegates)?;
    enforcement::assign(journal.directory(), invoker, entry)?;
    let mut record = journal.begin(entry)?;
    let carried = carry_out(&mut record, invoker, entry, net);
    let Err(error) = carried else { return carried };
    let undone = detach::take_down(journal, invoker, entry);
    Err(match undone {
        Ok(()) => error,
        Err(left) => {
            let details = format!("not undone, left to the next DEL: {left}");
            let earlier = error.details.clone();
            error.details(if earlier.is_empty() { details } else { format!("{earlier}; {details}") })
        }
    })
}

/// Records the programs for new attachments, and refuses delegates whose plugins are not all installed. A misspelt
/// `type` must not leave behind state that only a plugin with that name could remove.
pub(super) fn assign_programs(
    invoker: &PluginInvoker,
    entry: &mut Entry,
    places: impl IntoIterator<Item = usize>,
) -> Result<(), Error> {
    for place in places {
        let delegate = &entry.plan.delegates[place];
        let network = Network::parse(delegate.config.as_bytes(), &delegate.network)?;
        let programs = readiness::find_programs(invoker, &network, &entry.path)
            .map_err(|error| Error { code: code::INVALID_CONFIG, ..error })
            .context(&delegate.network)?;
        entry.attachments[place].programs = programs;
    }
    Ok(())
}

/// Refuses delegates with an interface that exists already (S25): an undo would remove an interface that weft did not
/// create. Returns the netlink socket in the sandbox, which records the attached interfaces later.
pub(super) fn require_free_names<'a>(
    entry: &Entry,
    delegates: impl IntoIterator<Item = &'a Delegate>,
) -> Result<Option<Rtnl>, Error> {
    // A missing namespace is reported by the plugins.
    let Some(netns) = Netns::find(Path::new(&entry.netns)).or_refused()? else { return Ok(None) };
    let mut net = netns.rtnl().or_refused()?;
    for delegate in delegates {
        let name = delegate.ifname.as_str();
        if net.find_link(name).or_refused()?.is_some() {
            let why = format!("interface {name:?} already exists in the container");
            return Err(Error::new(code::INVALID_ENVIRONMENT, why).context(&delegate.network));
        }
    }
    Ok(Some(net))
}

fn carry_out(
    record: &mut Record,
    invoker: &PluginInvoker,
    entry: &mut Entry,
    mut net: Option<Rtnl>,
) -> Result<Success, Error> {
    let Plan { pod, delegates, .. } = entry.plan.clone();
    let mut rules = AheadRules::begin(invoker, entry);
    let mut results = Vec::with_capacity(delegates.len());
    for (index, delegate) in delegates.iter().enumerate() {
        let started = Instant::now();
        let step = || match pod.name.as_str() {
            "" => format!("attach {}", delegate.ifname),
            name => format!("attach {}/{name} {}", pod.namespace, delegate.ifname),
        };
        let enforced = rules.take(index);
        let _ = invoker.take_ran();
        let (network, attached) = match attach_one(invoker, entry, delegate, enforced) {
            Ok(attached) => attached,
            Err(error) => {
                note_never_ran(record, invoker, entry, index);
                // These networks were not attempted (NPWG1-7.2-2): there is nothing else to tear down.
                rules.abandon(entry, index + 1);
                return Err(error.context(step()));
            }
        };
        let link = attached_link::read(&mut net, entry, delegate);
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
        None => Err(Error::internal("the plan contains no network")),
    }
}

/// Records the plugins that never ran for a failed attachment, for the undo and for a DEL after a kill.
fn note_never_ran(record: &mut Record, invoker: &PluginInvoker, entry: &mut Entry, index: usize) {
    let never_ran = never_ran(invoker, &entry.plan.delegates[index]);
    if never_ran.is_empty() {
        return;
    }
    entry.attachments[index].never_ran = never_ran;
    let recorded = entry.attachments_at(&[index]).and_then(|values| record.add(&values));
    if let Err(error) = recorded {
        // The undo follows at once, and needs no record.
        log!("weft: {error}");
    }
}

/// Returns the plugins that did not run in a network's failed ADD.
pub(super) fn never_ran(invoker: &PluginInvoker, delegate: &Delegate) -> BTreeSet<PluginType> {
    let ran = invoker.take_ran();
    let network = Network::parse(delegate.config.as_bytes(), &delegate.network);
    let needs = network.and_then(|network| network.needs()).unwrap_or_default();
    needs.into_iter().filter(|plugin| !ran.contains(plugin)).collect()
}

/// Attaches one network: publishes the device, enforces the policies unless they are `enforced`, calls the plugins and
/// verifies the result.
pub(super) fn attach_one(
    invoker: &PluginInvoker,
    entry: &Entry,
    delegate: &Delegate,
    enforced: Option<Result<Enforced, Error>>,
) -> Result<(Network, Attached), Error> {
    if let Some(file) = &delegate.device_info {
        devices::publish(file)?;
    }
    let network = Network::parse(delegate.config.as_bytes(), &delegate.network)?;
    let enforced = enforced.unwrap_or_else(|| enforcement::enforce(invoker, entry, delegate))?;
    let attached = chain::add(&invoker.attachment(entry, delegate), &network, &entry.parameters(delegate))?;
    enforcement::verify(enforced, entry, delegate, &attached.success)?;
    verify::verify(delegate, &attached.success).map_err(Error::from)?;
    Ok((network, attached))
}

/// Sets the default routes and updates the results; returns the indexes of the changed results.
pub(super) fn settle_routes(
    entry: &mut Entry,
    delegates: &[Delegate],
    results: &mut [(Network, Success)],
) -> Result<Vec<usize>, Error> {
    let attached = delegates.iter().zip(results.iter_mut());
    let mut attached: Vec<routes::Attached<'_>> = attached
        .map(|(delegate, (_, result))| routes::Attached { delegate, result, changed: false })
        .collect();
    routes::settle(Path::new(&entry.netns), &mut attached)?;
    let attached = attached.iter().enumerate();
    let changed: Vec<usize> = attached.filter(|(_, one)| one.changed).map(|(index, _)| index).collect();
    for &index in &changed {
        let (network, result) = &results[index];
        let value = result.to_value(network.version).context(&delegates[index].network)?;
        let raw = serde_json::value::to_raw_value(&value);
        let raw = raw.map_err(|cause| Error::internal(format!("encode a result: {cause}")))?;
        entry.attachments[index].result = Some(raw);
    }
    Ok(changed)
}

/// Returns the network-status of the plan's attachments.
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
