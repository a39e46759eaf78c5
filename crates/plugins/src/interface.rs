//! Plugins that create or move an interface, and the code that they share.
//!
//! Every plugin's file has the same order: header, `Conf` as written, the validated configuration, `impl
//! Plugin`, the steps in the order in which they are called, tests.

pub mod addressing;
pub mod bridge;
pub mod dummy;
pub mod forwarding;
pub mod host_device;
pub mod inspection;
pub mod ipvlan;
pub mod loopback;
pub mod macvlan;
pub mod masquerade;
pub mod neutron;
pub mod parent;
pub mod ptp;
pub mod single;
pub mod tap;
pub mod veth;
pub mod vlan;

use cni::error::collected;
use cni::invocation::{Call, Detach, Sweep};
use cni::invoke::Invoke;
use cni::plugin::ipam::Ipam;
use cni::result::{Interface, Success};
use cni::{Error, code};
use linux::link::removal::LinkRemoval;
use linux::link::{Change, Link, mac_text};
use linux::sysctl::{self, Family};
use linux::{Kind, Netns, Rtnl};
use plugin_support::failure::OrRefused;
use plugin_support::log;
use plugin_support::owner_tag::{ALIAS_MAX, OwnerTag};

/// Returns the link `name` in a namespace.
///
/// # Errors
/// The namespace has no link with this name.
pub fn link_in(netns: &Netns, name: &str) -> Result<(Rtnl, Link), Error> {
    let mut net = netns.rtnl().or_refused()?;
    let link = net.link(name).or_refused()?;
    Ok((net, link))
}

/// Fails if the container already has an interface with this name (S25).
pub fn expect_no_link(inside: &mut Rtnl, name: &str) -> Result<(), Error> {
    match inside.find_link(name).or_refused()? {
        None => Ok(()),
        Some(_) => Err(Error::new(
            code::INVALID_ENVIRONMENT,
            format!("interface {name:?} already exists in the container"),
        )),
    }
}

/// Prepares an interface, which is still down, for addresses. Call it inside the namespace.
///
/// Duplicate address detection takes one to two seconds, so it runs only if the configuration requests it.
/// The sysctls are best effort, as in the reference plugins: a kernel without IPv6 has none of these files.
/// The kernel announces new IPv4 addresses (`arp_notify`).
pub fn announce(net: &mut Rtnl, link: &Link, detect_duplicates: bool) -> Result<(), Error> {
    if detect_duplicates {
        let _ = sysctl::write_interface(Family::V6, &link.name, "enhanced_dad", "1");
    }
    let dad = if detect_duplicates { "1" } else { "0" };
    let _ = sysctl::write_interface(Family::V6, &link.name, "accept_dad", dad);
    let change = Change { arp_notify: Some(true), ..Change::default() };
    net.change_link(link.index, &link.name, &change).or_refused()
}

/// Copies addresses, routes and DNS from an IPAM result into `result`; the addresses belong to interface `index`.
pub fn adopt(reserved: Success, index: i32, result: &mut Success) -> Result<(), Error> {
    let Success { interfaces: _, ips, routes, dns } = reserved;
    if ips.is_empty() {
        return Err(Error::internal("ipam: the result has no address"));
    }
    (result.ips, result.routes, result.dns) = (ips, routes, dns);
    for ip in &mut result.ips {
        ip.interface = Some(index);
        // The unspecified address stands for none.
        ip.gateway = ip.gateway.filter(|gateway| !gateway.is_unspecified());
    }
    Ok(())
}

/// Replaces the DNS settings in the IPAM result with those in the configuration, if it has any. An empty list
/// is a setting: it removes the name servers that IPAM returned.
pub fn prefer_dns(call: &Call, result: &mut Success) -> Result<(), Error> {
    if call.config.sets_dns() {
        result.dns = call.config.dns()?;
    }
    Ok(())
}

/// Returns a link as an interface in a result. It is on the host unless the caller sets a sandbox.
pub fn describe(link: &Link) -> Interface {
    Interface { name: link.name.clone(), mac: mac_text(&link.mac), ..Interface::default() }
}

/// Removes an interface in the container during an undo. Errors are ignored: the caller returns the original
/// error.
pub fn remove_inside(netns: &Netns, name: &str) {
    if let Ok((mut net, link)) = link_in(netns, name) {
        let _ = net.delete_link(link.index, name);
    }
}

/// Runs DEL for a plugin that created one interface: `rest`, then removes the interface, then releases the addresses.
pub fn detach(
    tag: &OwnerTag,
    request: &Detach,
    delegates: &dyn Invoke,
    rest: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let take_down =
        || collected([rest(), remove(request, tag)].into_iter().filter_map(Result::err).collect());
    release_after(request, delegates, take_down)
}

/// Takes an interface down and releases the addresses; a failure stops neither step.
///
/// The interface goes first: another container must not get an address while this one still answers to it.
/// The kernel also works while the IPAM plugin runs. A plugin that needs the interface to release a lease
/// (`dhcp`) runs before.
pub fn release_after(
    request: &Detach,
    delegates: &dyn Invoke,
    take_down: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let mut errors = Vec::new();
    // An invalid section names no plugin that could release an address. A repeated DEL would fail in the same way.
    let ipam = Ipam::configured(&request.call, delegates).unwrap_or_else(|error| {
        log!("no address is released: {error}");
        None
    });
    let by_interface = ipam.is_some_and(|ipam| ipam.needs_interface());
    if let Some(ipam) = ipam.filter(|_| by_interface) {
        errors.extend(ipam.del().err());
    }
    errors.extend(take_down().err());
    if let Some(ipam) = ipam.filter(|_| !by_interface) {
        errors.extend(ipam.del().err());
    }
    collected(errors)
}

/// Removes an attachment's interface on the host and in the container.
fn remove(request: &Detach, tag: &OwnerTag) -> Result<(), Error> {
    let mut errors = Vec::new();
    let mut host = Rtnl::open().or_refused()?;
    match veth::remove_host_end(&mut host, tag) {
        // The kernel removed the other end, too.
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(error) => errors.push(error),
    }
    if let Some(path) = &request.netns
        && let Some(netns) = Netns::find(path).or_refused()?
    {
        let mut net = netns.rtnl().or_refused()?;
        if let Some(link) = net.find_link(request.who.ifname.as_str()).or_refused()?
            && !belongs_to_other(&mut host, &link, tag)?
        {
            let deleted = LinkRemoval::within(&netns).and_then(|removal| removal.delete(&[link.index]));
            errors.extend(deleted.or_refused().err());
        }
    }
    collected(errors)
}

/// Whether an interface in a container belongs to another attachment or to the host, or is hardware or `lo`. A veth
/// pair has the owner tag on the host end.
///
/// # Errors
/// The host end or the records about moved devices cannot be read, so the owner is unknown.
pub fn belongs_to_other(host: &mut Rtnl, link: &Link, tag: &OwnerTag) -> Result<bool, Error> {
    let is_its_own = |found: OwnerTag, alias: &str| {
        OwnerTag { plugin: found.plugin, ..tag.clone() }.text(ALIAS_MAX) == alias
    };
    let is_marked =
        |link: &Link| OwnerTag::read(&link.alias).is_some_and(|found| !is_its_own(found, &link.alias));
    if link.kind.is_empty() || is_marked(link) || host_device::is_moved(link, &tag.container)? {
        return Ok(true);
    }
    let outside = match link.link.filter(|_| link.kind == "veth").map(|end| host.link_at(end)) {
        Some(Err(error)) if error.kind() != Kind::Absent => return Err(error).or_refused(),
        outside => outside.and_then(Result::ok),
    };
    Ok(outside.is_some_and(|end| end.link == Some(link.index) && is_marked(&end)))
}

/// Removes the links on the host that `plugin` created for attachments that are no longer valid.
///
/// `kinds` are the link kinds that the plugin creates there. Another link with an owner tag got it from a pod, which
/// may set the alias of each interface that it has, or from a person: it is not removed.
pub fn sweep(plugin: &str, kinds: &[&str], request: &Sweep) -> Result<(), Error> {
    let Some(valid) = request.valid()? else { return Ok(()) };
    let mut host = Rtnl::open().or_refused()?;
    let network = request.call.config.name.as_str();
    let keep: Vec<String> =
        valid.iter().map(|v| OwnerTag::of_valid(plugin, network, v).text(ALIAS_MAX)).collect();
    let stale = |link: &Link| {
        let Some(tag) = OwnerTag::read(&link.alias) else { return false };
        tag.is_of(plugin, network) && !tag.container.is_empty() && !keep.contains(&link.alias)
    };
    let links = host.links().or_refused()?;
    let (created, foreign): (Vec<&Link>, Vec<&Link>) =
        links.iter().filter(|link| stale(link)).partition(|link| kinds.contains(&link.kind.as_str()));
    for Link { name, alias, .. } in foreign {
        log!("weft: {name}: left alone: its alias is {alias:?}, but {plugin} creates no link of its kind");
    }
    let created: Vec<u32> = created.iter().map(|link| link.index).collect();
    host.delete_links(&created).or_refused()
}
