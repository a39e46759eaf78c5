//! Taking a sandbox down: from the journal alone, last network first.
//!
//! Rules:
//! - a namespace that is another one by now than the sandbox's is not entered: [`namespace`];
//! - every attachment that may have been begun is taken down, also the one whose ADD failed;
//! - a failure stops none of the others; it is kept, and what is left is tried again by the next DEL;
//! - the kernel's grace period for removing interfaces is paid once for the sandbox: links that our
//!   own plugins made are removed together first, and their DEL finds nothing left to remove.
//!
//! Source: the standard 7.2 (NPWG1-7.2-3…5); SPEC 1.1.0 §3 "Delete".

use std::path::Path;

use cni::network::{Network, plugin_type};
use cni::runtime::chain;
use cni::{Error, code};
use linux::{Netns, Rtnl};
use npwg::plan::Delegate;
use plugin_support::failure::OrRefused;
use plugin_support::owner_tag::Mark;
use plugins::chained::bandwidth::{self, shaper::find_ifb};
use plugins::interface::{REMOVAL_GROUP, is_anothers, veth};
use rpc::journal::{Entry, State};
use serde::Deserialize;

use super::journal::Journal;
use super::{devices, namespace};
use crate::builtins;
use crate::plugin_invoker::PluginInvoker;

/// Takes down what the entry says may be there, and removes the entry when nothing is left.
///
/// # Errors
/// All failures in one; the entry then holds what is left.
pub(super) fn take_down(journal: &Journal, hands: &PluginInvoker, entry: &mut Entry) -> Result<(), Error> {
    let mut errors = Vec::new();
    let recorded = entry.netns.clone();
    namespace::forget_another(entry)?;
    let delegates = entry.plan.delegates.clone();
    errors.extend(unregister(hands, entry, &delegates).err());
    for (index, delegate) in delegates.iter().enumerate().rev() {
        if entry.attachments.get(index).is_none_or(|attachment| attachment.state == State::Detached) {
            continue;
        }
        let outcome = detach_one(hands, entry, index, delegate);
        let outcome = outcome.map_err(|error| error.context(format_args!("detach {}", delegate.ifname)));
        let attachment = &mut entry.attachments[index];
        match outcome {
            Ok(()) => attachment.state = State::Detached,
            Err(error) => {
                attachment.failure = Some(error.clone());
                errors.push(error);
            }
        }
    }
    (entry.complete, entry.changing) = (false, false);
    entry.netns = recorded;
    let recorded = match errors.is_empty() {
        true => journal.remove(&entry.container_id),
        false => journal.update(entry),
    };
    errors.extend(recorded.err());
    cni::error::collected(errors)
}

pub(super) fn detach_one(
    hands: &PluginInvoker,
    entry: &Entry,
    index: usize,
    delegate: &Delegate,
) -> Result<(), Error> {
    let network = Network::parse(delegate.config.as_bytes(), &delegate.network)?;
    // One that cannot be read keeps no network from its end: a plugin knows by itself what it made.
    let last = entry.last_result(index, &network).unwrap_or_else(|error| {
        plugin_support::log!(
            "weft: {}: the result of {} is not passed on: {error}",
            entry.container_id,
            delegate.ifname
        );
        None
    });
    let mut errors = chain::del_all(hands, &network, &entry.parameters(delegate), last.as_ref());
    if entry.attachments[index].state == State::Planned {
        // A plugin that refuses the version of a configuration has never done anything for it.
        errors.retain(|error| error.code != code::INCOMPATIBLE_VERSION);
    }
    if let Some(file) = &delegate.device_info {
        errors.extend(devices::withdraw(file).err());
    }
    cni::error::collected(errors)
}

/// Removes together the links that DEL of the built-in plugins would remove one by one.
///
/// A request removes links of one namespace. Where there are links on the host to be removed anyhow (an ifb), the
/// pairs go by their ends there, too.
fn unregister(hands: &PluginInvoker, entry: &Entry, delegates: &[Delegate]) -> Result<(), Error> {
    let pending = delegates.iter().zip(&entry.attachments);
    let pending = pending.filter(|(_, attachment)| attachment.state != State::Detached);
    let own: Vec<Own<'_>> = pending.filter_map(|(delegate, _)| Own::of(hands, entry, delegate)).collect();
    let mut host = Rtnl::open().or_refused()?;
    let mut outside = Vec::new();
    for one in own.iter().filter(|one| one.has_ifb) {
        // Of one without a mark its plugin decides.
        let ifb = find_ifb(&mut host, &one.mark(bandwidth::NAME), &|| Ok(Some(0)))?;
        outside.extend(ifb.map(|ifb| ifb.index));
    }
    let by_host_end = !outside.is_empty();
    let mut names = Vec::new();
    for one in &own {
        if one.is_veth && by_host_end {
            let end = veth::find_host_end(&mut host, &one.mark(&one.maker))?;
            outside.extend(end.map(|end| end.index));
        } else {
            names.push(one);
        }
    }
    // One link alone is removed by its own plugin, for the same price.
    if outside.len() > 1 {
        host.delete_links(&outside, REMOVAL_GROUP).or_refused()?;
    }
    if names.len() < 2 {
        return Ok(());
    }
    let Some(netns) = Netns::find(Path::new(&entry.netns)).or_refused()? else { return Ok(()) };
    let mut net = netns.rtnl().or_refused()?;
    let mut indexes = Vec::with_capacity(names.len());
    for one in names {
        let link = net.find_link(one.ifname).or_refused()?;
        let link = link.filter(|link| !is_anothers(&mut host, link, &one.mark(&one.maker)));
        indexes.extend(link.map(|link| link.index));
    }
    net.delete_links(&indexes, REMOVAL_GROUP).or_refused()
}

/// An attachment that is nothing but links which our own plugins made and would remove.
struct Own<'a> {
    ifname: &'a str,
    container: &'a str,
    network: String,
    maker: String,
    is_veth: bool,
    has_ifb: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct IpamType {
    r#type: String,
}

impl<'a> Own<'a> {
    /// A foreign plugin in the chain may want to see the interface before it goes, and a lease is given back through
    /// it: then it is none.
    fn of(hands: &PluginInvoker, entry: &'a Entry, delegate: &'a Delegate) -> Option<Own<'a>> {
        let network = Network::parse(delegate.config.as_bytes(), &delegate.network).ok()?;
        let types = network.plugins.iter().map(plugin_type).collect::<Result<Vec<_>, _>>().ok()?;
        let ipam: IpamType = network.plugins.first()?.read("ipam").ok()?.unwrap_or_default();
        if ipam.r#type == dhcp::NAME {
            return None;
        }
        let maker = types.first().filter(|first| builtins::makes_link(first.as_str()))?;
        types.iter().all(|plugin| hands.in_process(plugin, &entry.path)).then(|| Own {
            ifname: delegate.ifname.as_str(),
            container: entry.container_id.as_str(),
            network: network.name.to_string(),
            is_veth: builtins::makes_veth(maker.as_str()),
            has_ifb: types.iter().any(|plugin| plugin.as_str() == bandwidth::NAME),
            maker: maker.as_str().to_owned(),
        })
    }

    fn mark(&self, plugin: &str) -> Mark {
        Mark {
            plugin: plugin.to_owned(),
            network: self.network.clone(),
            container: self.container.to_owned(),
            ifname: self.ifname.to_owned(),
        }
    }
}
