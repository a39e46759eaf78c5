//! DEL of a sandbox: from the journal alone, last network first.
//!
//! - Every attachment that may have been begun is taken down. A failure does not stop the others; the remaining ones stay
//!   in the entry for the next DEL (`docs/design/journal.md`).
//! - Plugins get the path of the sandbox's namespace, or none if it leads elsewhere or nowhere: [`namespace`].
//! - Interfaces of the host return first: a process in the sandbox could mix them up with the links that are removed.
//! - If a killed ADD has not begun a network, the plugins are still called, but failures are excused.
//! - Links of built-in plugins are then removed with one request, so that the grace period of the kernel passes once.
//!
//! Source: the multi-network specification 7.2; CNI 1.1.0 §3 "Delete".

use std::path::Path;

use cni::invocation::Attachment;
use cni::invoke::Invoke;
use cni::name::PluginType;
use cni::network::{Network, plugin_type};
use cni::plugin::Plugin;
use cni::runtime::chain::{self, PluginFailure};
use cni::{Error, code};
use linux::link::removal::LinkRemoval;
use linux::{Netns, Rtnl};
use npwg::plan::Delegate;
use plugin_support::failure::OrRefused;
use plugin_support::log;
use plugin_support::owner_tag::{ALIAS_MAX, OwnerTag};
use plugins::interface::belongs_to_other;
use rpc::journal::{AttachedLink, Entry, State};
use serde::Deserialize;

use super::attached_link::{self, Removal};
use super::journal::Journal;
use super::{devices, enforcement, namespace};
use crate::builtins;
use crate::plugin_invoker::{AttachmentInvoker, Excuse, PluginInvoker};

/// Takes down everything that may exist according to the entry, and removes the entry if nothing remains.
///
/// # Errors
/// All failures in one; the entry then contains the remaining attachments.
pub(super) fn take_down(journal: &Journal, invoker: &PluginInvoker, entry: &mut Entry) -> Result<(), Error> {
    let mut errors = Vec::new();
    let recorded = entry.netns.clone();
    namespace::forget_gone(entry)?;
    let delegates = entry.plan.delegates.clone();
    let (moved, others): (Vec<usize>, Vec<usize>) =
        (0..delegates.len()).rev().partition(|index| moves_interface(&delegates[*index]));
    for index in moved {
        errors.extend(detach_next(invoker, entry, index, &delegates[index]).err());
    }
    // An interface that did not return is still in the sandbox: then each plugin removes its own link.
    if errors.is_empty() {
        errors.extend(unregister(invoker, entry, &delegates).err());
    }
    for index in others {
        errors.extend(detach_next(invoker, entry, index, &delegates[index]).err());
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

/// Detaches a network that may be attached, and notes the outcome.
fn detach_next(
    invoker: &PluginInvoker,
    entry: &mut Entry,
    index: usize,
    delegate: &Delegate,
) -> Result<(), Error> {
    if entry.attachments.get(index).is_none_or(|attachment| attachment.state == State::Detached) {
        return Ok(());
    }
    let outcome = detach_one(invoker, entry, index, delegate);
    let outcome = outcome.map_err(|error| error.context(format_args!("detach {}", delegate.ifname)));
    let attachment = &mut entry.attachments[index];
    match &outcome {
        Ok(()) => attachment.state = State::Detached,
        Err(error) => attachment.failure = Some(error.clone()),
    }
    outcome
}

/// Whether a network consists of a host interface.
fn moves_interface(delegate: &Delegate) -> bool {
    let network = Network::parse(delegate.config.as_bytes(), &delegate.network);
    network.is_ok_and(|network| {
        let first = network.plugins.first().and_then(|plugin| plugin_type(plugin).ok());
        first.and_then(|name| builtins::find(name.as_str())).is_some_and(Plugin::moves_interface)
    })
}

pub(super) fn detach_one(
    invoker: &PluginInvoker,
    entry: &Entry,
    index: usize,
    delegate: &Delegate,
) -> Result<(), Error> {
    let mut errors = call_plugins(invoker, entry, index, delegate)?;
    // After the interface: no packet passes without the rules.
    if errors.is_empty() {
        errors.extend(enforcement::remove(entry, index, delegate).err());
    }
    if let Some(file) = &delegate.device_info {
        errors.extend(devices::withdraw(file).err());
    }
    cni::error::collected(errors)
}

/// Calls DEL for a network's plugins; returns the errors.
fn call_plugins(
    invoker: &PluginInvoker,
    entry: &Entry,
    index: usize,
    delegate: &Delegate,
) -> Result<Vec<Error>, Error> {
    let network = Network::parse(delegate.config.as_bytes(), &delegate.network)?;
    // An unreadable result does not prevent the DEL: a plugin finds its own resources without it.
    let last = entry.last_result(index, &network).unwrap_or_else(|error| {
        log!("weft: {}: the result of {} is not passed on: {error}", entry.container_id, delegate.ifname);
        None
    });
    let parameters = entry.parameters(delegate);
    let attachment = &entry.attachments[index];
    let is_unfinished = attachment.state == State::Planned;
    let mut never_ran = attachment.never_ran.clone();
    if attachment.never_begun {
        never_ran.extend(network.needs().unwrap_or_default());
    }
    let excuse = Excuse { never_ran, is_unfinished };
    let plugins = invoker.attachment(entry, delegate);
    let mut failures =
        invoker.excusing(excuse, || chain::del_all(&plugins, &network, &parameters, last.as_ref()));
    if is_unfinished {
        failures.retain(|failure| !never_acted(&plugins, &entry.path, failure));
    }
    Ok(failures.into_iter().map(|failure| failure.error).collect())
}

/// Whether a plugin that fails at DEL cannot have done anything in an incomplete ADD: it refuses the version, or it is built
/// in and refuses the configuration, which it reads before it acts. Programs that were not executed: [`Excuse`].
fn never_acted(plugins: &AttachmentInvoker<'_>, path: &str, failure: &PluginFailure<'_>) -> bool {
    let PluginFailure { plugin, error } = failure;
    let Ok(kind) = plugin_type(plugin) else { return false };
    let never = match error.code {
        code::INCOMPATIBLE_VERSION => true,
        code::UNSUPPORTED_FIELD | code::DECODING_FAILURE | code::INVALID_CONFIG => {
            let ipam: IpamType = plugin.read("ipam").ok().flatten().unwrap_or_default();
            let ipam = PluginType::new(&ipam.r#type).ok();
            [Some(kind), ipam].into_iter().flatten().all(|plugin| plugins.in_process(&plugin, path))
        }
        _ => false,
    };
    if never {
        log!("weft: {error}: the plugin has done nothing for this network, so there is nothing to remove");
    }
    never
}

/// Removes the links that the built-in plugins' DEL would remove one by one, all at once.
///
/// A request removes links in one namespace. If links on the host must be removed anyway (an ifb), the same request
/// removes veth pairs by the host ends.
fn unregister(invoker: &PluginInvoker, entry: &Entry, delegates: &[Delegate]) -> Result<(), Error> {
    let pending = delegates.iter().zip(&entry.attachments);
    let pending = pending.filter(|(_, attachment)| attachment.state != State::Detached);
    let own: Vec<LinkAttachment> = pending
        .filter_map(|(delegate, attachment)| {
            LinkAttachment::of(invoker, entry, delegate)
                .map(|own| LinkAttachment { link: attachment.link.clone(), ..own })
        })
        .collect();
    let mut host = Rtnl::open().or_refused()?;
    let mut outside = Vec::new();
    for one in &own {
        for plugin in &one.on_host {
            outside.extend(one.host_link(&mut host, *plugin)?);
        }
    }
    let by_host_end = !outside.is_empty();
    let mut names = Vec::new();
    for one in &own {
        if by_host_end && one.host_link_name(one.creator, 0).is_some() {
            outside.extend(one.host_link(&mut host, one.creator)?);
        } else {
            names.push(one);
        }
    }
    // A single link is removed by its own plugin at the same cost.
    if outside.len() > 1 {
        LinkRemoval::open().and_then(|removal| removal.delete(&outside)).or_refused()?;
    }
    // One link alone is removed by its own plugin, unless that finds it only by a name, which a pod can change.
    let by_index = |one: &&LinkAttachment| one.link.is_some() && one.host_link_name(one.creator, 0).is_none();
    if names.len() < 2 && !names.iter().any(by_index) {
        return Ok(());
    }
    let Some(netns) = Netns::find(Path::new(&entry.netns)).or_refused()? else { return Ok(()) };
    let mut net = netns.rtnl().or_refused()?;
    let mut indexes = Vec::with_capacity(names.len());
    for one in names {
        let link = match &one.link {
            Some(known) => attached_link::find(&mut net, known)?.filter(|link| !link.kind.is_empty()),
            None => match net.find_link(one.who.ifname.as_str()).or_refused()? {
                Some(link) if belongs_to_other(&mut host, &link, &one.tag(one.creator))? => None,
                found => found,
            },
        };
        indexes.extend(link.map(|link| link.index));
    }
    LinkRemoval::within(&netns).and_then(|removal| removal.delete(&indexes)).or_refused()
}

/// Returns how the interface of a network is removed.
pub(super) fn removal(invoker: &PluginInvoker, entry: &Entry, delegate: &Delegate) -> Removal {
    match LinkAttachment::of(invoker, entry, delegate) {
        Some(own) if own.host_link_name(own.creator, 0).is_some() => Removal::ByHostEnd,
        Some(_) => Removal::Inside,
        None => Removal::ByPlugin,
    }
}

/// Attachment whose links built-in plugins created and remove at DEL.
struct LinkAttachment {
    who: Attachment,
    network: String,
    creator: &'static dyn Plugin,
    /// Link in the sandbox, if the journal has it.
    link: Option<AttachedLink>,
    /// Plugins of the chain that also have a link on the host.
    on_host: Vec<&'static dyn Plugin>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct IpamType {
    r#type: String,
}

impl LinkAttachment {
    /// Returns `None` if an external plugin in the chain may need the interface during DEL, or if addresses are
    /// released through the interface.
    fn of(invoker: &PluginInvoker, entry: &Entry, delegate: &Delegate) -> Option<LinkAttachment> {
        let network = Network::parse(delegate.config.as_bytes(), &delegate.network).ok()?;
        let types = network.plugins.iter().map(plugin_type).collect::<Result<Vec<_>, _>>().ok()?;
        let ipam: IpamType = network.plugins.first()?.read("ipam").ok()?.unwrap_or_default();
        if invoker.releases_through_interface(&ipam.r#type) {
            return None;
        }
        let mut plugins = types.iter().filter_map(|name| builtins::find(name.as_str()));
        let creator = plugins.next().filter(|first| first.creates_interface())?;
        let served = invoker.attachment(entry, delegate);
        if !types.iter().all(|plugin| served.in_process(plugin, &entry.path)) {
            return None;
        }
        let who = Attachment { container: entry.container_id.clone(), ifname: delegate.ifname.clone() };
        let mut own = LinkAttachment {
            who,
            network: network.name.to_string(),
            creator,
            link: None,
            on_host: Vec::new(),
        };
        own.on_host = plugins.filter(|plugin| own.host_link_name(*plugin, 0).is_some()).collect();
        Some(own)
    }

    fn host_link_name(&self, plugin: &dyn Plugin, attempt: u32) -> Option<String> {
        plugin.host_link_name(&self.network, &self.who, attempt)
    }

    /// Returns the index of a plugin's link on the host; `None` if it lacks the owner tag and is left to the plugin's DEL.
    fn host_link(&self, host: &mut Rtnl, plugin: &dyn Plugin) -> Result<Option<u32>, Error> {
        let alias = self.tag(plugin).text(ALIAS_MAX);
        let mut attempt = 0;
        while let Some(name) = self.host_link_name(plugin, attempt) {
            match host.find_link(&name).or_refused()? {
                Some(link) if link.alias == alias => return Ok(Some(link.index)),
                _ => attempt += 1,
            }
        }
        Ok(None)
    }

    fn tag(&self, plugin: &dyn Plugin) -> OwnerTag {
        OwnerTag {
            plugin: plugin.name().to_owned(),
            network: self.network.clone(),
            container: self.who.container.to_string(),
            ifname: self.who.ifname.to_string(),
        }
    }
}
