//! CHECK for a sandbox: network policies, and each attachment.
//!
//! - Built-in plugins are checked in every version, in 0.4.0 if the network's version has no CHECK. External
//!   plugins are called only in a version with CHECK, and only by the program that made the attachment.
//! - If an attachment has a plugin that is not checked, interface and addresses are compared with the ADD result.
//!   `rpc::journal::Entry::unchecked` names these plugins for people.
//! - A network with `disableCheck` is not checked.
//!
//! Source: CNI 1.1.0 §2 "CHECK"; libcni `CheckNetworkList`, which refuses older versions.

use std::path::Path;

use cni::name::IfName;
use cni::network::{Network, plugin_type};
use cni::object::Object;
use cni::result::Success;
use cni::runtime::chain::{self, Attached};
use cni::{Context, Error, Version};
use linux::Netns;
use npwg::outcome::Own;
use npwg::plan::Delegate;
use plugin_support::failure::OrRefused;
use rpc::journal::{Entry, fails_check};

use super::enforcement;
use crate::plugin_invoker::PluginInvoker;

/// Checks every attachment.
pub(super) fn check_all(invoker: &PluginInvoker, entry: &Entry) -> Result<(), Error> {
    let (_, errors) = check_each(invoker, entry);
    cni::error::collected(errors)
}

/// Checks every attachment; returns the interfaces that differ, and the errors.
pub(super) fn check_each(invoker: &PluginInvoker, entry: &Entry) -> (Vec<IfName>, Vec<Error>) {
    let check = |(index, delegate): (usize, &Delegate)| {
        let step = format!("check {} ({})", delegate.ifname, delegate.network);
        let error = check_one(invoker, entry, index, delegate).context(step).err()?;
        Some((delegate.ifname.clone(), error))
    };
    entry.plan.delegates.iter().enumerate().filter_map(check).unzip()
}

fn check_one(invoker: &PluginInvoker, entry: &Entry, index: usize, delegate: &Delegate) -> Result<(), Error> {
    if entry.attachments[index].policy_pending {
        let why = "network policy: an update of the rules has not ended; the agent sends it again";
        return Err(Error::internal(why));
    }
    enforcement::check(invoker, entry, delegate)?;
    let network = Network::parse(delegate.config.as_bytes(), &delegate.network)?;
    if network.disable_check {
        return Ok(());
    }
    let (last, served) = (entry.last_result(index, &network)?, invoker.attachment(entry, delegate));
    let has_check = network.version >= cni::Verb::Check.since();
    let is_checked = |plugin: &&Object| {
        let Ok(kind) = plugin_type(plugin) else { return false };
        let is_replaced = served.is_replaced(&kind, &entry.path);
        // Results before 0.3.0 lack the interfaces that a plugin checks.
        let is_built_in = served.in_process(&kind, &entry.path);
        let is_known = is_built_in && network.version >= Version::V0_3_0;
        let can_succeed = is_built_in || !fails_check(kind.as_str(), plugin);
        !is_replaced && can_succeed && (has_check || is_known)
    };
    let plugins: Vec<Object> = network.plugins.iter().filter(is_checked).cloned().collect();
    if plugins.len() < network.plugins.len()
        && let Some(last) = &last
    {
        compare(entry, index, delegate, &last.success)?;
    }
    if plugins.is_empty() {
        return Ok(());
    }
    let version = network.version.max(Version::V0_4_0);
    let last = last.map(|last| Attached::read_in(last.raw.get().as_bytes(), network.version, version));
    let mut checked = network;
    (checked.version, checked.plugins) = (version, plugins);
    chain::check(&served, &checked, &entry.parameters(delegate), last.transpose()?.as_ref())
}

/// Compares an attachment's interface and addresses with the ADD result.
fn compare(entry: &Entry, index: usize, delegate: &Delegate, result: &Success) -> Result<(), Error> {
    let Own { interface, addresses } = Own::of(result, &delegate.ifname);
    if interface.is_none() && entry.attachments[index].link.is_none() {
        // Its ADD created no interface that is known.
        return Ok(());
    }
    let name = interface.map_or(delegate.ifname.as_str(), |interface| interface.name.as_str());
    let netns = Netns::open(Path::new(&entry.netns)).or_refused()?;
    let mut net = netns.rtnl().or_refused()?;
    let Some(link) = net.find_link(name).or_refused()? else {
        return Err(Error::internal(format!("interface {name} does not exist in the pod")));
    };
    let present = net.all_addresses().or_refused()?;
    let is_present = |ip: std::net::IpAddr| {
        present.iter().any(|known| known.link == link.index && known.address.addr() == ip)
    };
    match addresses.iter().find(|ip| !is_present(ip.address.addr())) {
        Some(missing) => {
            Err(Error::internal(format!("interface {name} lacks the address {}", missing.address)))
        }
        None => Ok(()),
    }
}
