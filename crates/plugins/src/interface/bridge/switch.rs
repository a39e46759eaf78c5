//! The bridge itself: there, up, and carrying the gateway's addresses.
//!
//! A bridge is shared: by all containers of a network, maybe by networks, maybe with things we know
//! nothing of. So it is created if absent, never changed beyond what was asked, and only removed by
//! the very ADD that created it, if that ADD fails and nobody has joined.

use cni::config::Config;
use cni::result::Interface;
use cni::{Context, Error, code};
use ipnet::IpNet;
use linux::link::create::{NewKind, NewLink, Peer};
use linux::link::{Change, Detail, Link, mac_text};
use linux::netns::{Lock, Locked};
use linux::sysctl::{self, Family};
use linux::{Kind, Netns, Rtnl, Undo};
use plugin_support::failure::OrRefused;
use plugin_support::log;
use plugin_support::owner_tag::{ALIAS_MAX, OwnerTag};

use super::{NAME, Network, Reflection};
use crate::interface;

/// Keeps the bridge from being removed while a port is being made.
#[must_use = "dropping it lets the bridge be removed"]
pub(super) struct Hold {
    _lock: Locked,
}

impl Hold {
    /// Beside other ADDs.
    pub(super) fn shared(bridge: &str) -> Result<Hold, Error> {
        let lock = Netns::lock_own(Lock::Shared).or_refused();
        Ok(Hold { _lock: lock.context(format_args!("hold bridge {bridge}"))? })
    }
}

/// Makes sure the bridge is there and up; one that this ADD made goes again if it fails. `ip link add BR up type bridge`
pub(super) fn ensure(
    host: &mut Rtnl,
    network: &Network,
    config: &Config,
    undo: &mut Undo<'_>,
) -> Result<Link, Error> {
    let name = network.bridge.as_str();
    let mut created = false;
    let link = match host.find_link(name).or_refused()? {
        Some(link) => link,
        None => {
            created = create(host, network, config, undo)?;
            host.link(name).or_refused()?
        }
    };
    expect_bridge(&link)?;
    if !network.vlans.is_none() && link.detail == (Detail::Bridge { vlan_filtering: Some(false) }) {
        // As upstream, nobody else's bridge is changed; but traffic would silently not be separated.
        log!("bridge: {name} does not filter by VLAN, so vlan and vlanTrunk have no effect on it");
    }
    let promiscuous = network.reflection == Reflection::Promiscuous;
    if created || !link.up || (promiscuous && !link.promiscuous) {
        // Best effort, as upstream: the routes of this interface are ours.
        let _ = sysctl::write_interface(Family::V6, name, "accept_ra", "0");
        let change = Change { up: Some(true), promiscuous: promiscuous.then_some(true), ..Change::default() };
        host.change_link(link.index, name, &change).or_refused()?;
    }
    Ok(link)
}

/// The name may be another interface's.
fn expect_bridge(link: &Link) -> Result<(), Error> {
    match link.kind.as_str() {
        "bridge" => Ok(()),
        _ => {
            let why = "an interface of that name exists and is not a bridge";
            Err(Error::key("bridge", format!("{:?}", link.name), why))
        }
    }
}

/// STATUS: one that is not there is made.
pub(super) fn status(network: &Network) -> Result<(), Error> {
    let found = Rtnl::open().and_then(|mut host| host.find_link(&network.bridge)).or_refused()?;
    let able = found.as_ref().map_or(Ok(()), expect_bridge);
    able.map_err(|error| Error { code: code::NOT_AVAILABLE, ..error })
}

/// Creates the bridge; false if another ADD was faster.
fn create(host: &mut Rtnl, network: &Network, config: &Config, undo: &mut Undo<'_>) -> Result<bool, Error> {
    let alias = OwnerTag::shared(NAME, config).text(ALIAS_MAX);
    let kind = NewKind::Bridge { vlan_filtering: !network.vlans.is_none() };
    let mut link = NewLink::new(&network.bridge, kind);
    link.mtu = network.mtu;
    link.alias = Some(&alias);
    let made = host.add_link(&link);
    if matches!(&made, Err(error) if error.kind() == Kind::Exists) {
        return Ok(false);
    }
    // Also after an error: it was not there before, and the kernel's answer may have been lost.
    let name = network.bridge.clone();
    undo.push(move || remove_unused(&name));
    made.or_refused().map(|()| true)
}

/// Removes a bridge that this ADD created, unless somebody joined it meanwhile.
pub(super) fn remove_unused(name: &str) {
    let Ok(_alone) = Netns::lock_own(Lock::TryExclusive) else { return };
    let Ok(mut host) = Rtnl::open() else { return };
    let Ok(links) = host.links() else { return };
    let Some(bridge) = links.iter().find(|link| link.name == name) else { return };
    if !links.iter().any(|link| link.master == Some(bridge.index)) {
        // Undoing: the error that matters is the one that brought us here.
        let _ = host.delete_link(bridge.index, name);
    }
}

/// Where the gateway's addresses go.
pub(super) struct Segment {
    pub(super) link: Link,
    /// What is added to the result for it, if it is not the bridge.
    pub(super) interface: Option<Interface>,
}

/// The name of the gateway's interface in a VLAN.
pub(super) fn segment_name(bridge: &str, id: u16) -> String {
    format!("{bridge}.{id}")
}

/// The bridge; with a VLAN, a port of the bridge in that VLAN, made once and shared.
pub(super) fn gateway_link(
    host: &mut Rtnl,
    network: &Network,
    bridge: &Link,
    config: &Config,
) -> Result<Segment, Error> {
    let Some(id) = network.vlans.access() else {
        return Ok(Segment { link: bridge.clone(), interface: None });
    };
    let name = segment_name(&network.bridge, id);
    interface::check_name("bridge and vlan together", &name)?;
    let link = match host.find_link(&name).or_refused()? {
        Some(link) if link.up => link,
        // It is set up last: whoever began with it was killed, or is about to end.
        _ => create_gateway_port(host, network, bridge, &name, config)?,
    };
    let interface = Interface { name: link.name.clone(), mac: mac_text(&link.mac), ..Interface::default() };
    Ok(Segment { link, interface: Some(interface) })
}

fn create_gateway_port(
    host: &mut Rtnl,
    network: &Network,
    bridge: &Link,
    name: &str,
    config: &Config,
) -> Result<Link, Error> {
    let port_name = plugin_support::hash::hashed("veth", 12, &[name, "gateway"]);
    let alias = OwnerTag::shared(NAME, config).text(ALIAS_MAX);
    let peer = Peer { name, mtu: network.mtu, mac: None, queues: network.queues, netns: None };
    let mut pair = NewLink::new(&port_name, NewKind::Veth(peer));
    pair.mtu = network.mtu;
    pair.master = Some(bridge.index);
    pair.alias = Some(&alias);
    pair.up = true;
    linux::error::exists_is_fine(host.add_link(&pair)).or_refused()?;
    // Without it, what has the name is somebody's own.
    if let Some(port) = host.find_link(&port_name).or_refused()? {
        network.vlans.access_only().apply(host, &port)?;
    }
    let link = host.link(name).or_refused()?;
    host.set_up(link.index, name).or_refused()?;
    Ok(link)
}

/// Makes sure the gateway's address is on the link. `ip address add GATEWAY/LENGTH dev BR`
///
/// IPv4 allows one address, IPv6 several whose subnets do not overlap; another one in the way is
/// replaced with `forceAddress` and an error without.
pub(super) fn ensure_address(host: &mut Rtnl, link: &Link, wanted: IpNet, force: bool) -> Result<(), Error> {
    let mut replaced = if force { present(host, link)? } else { Vec::new() };
    if replaced.contains(&wanted) {
        return Ok(());
    }
    replaced.retain(|address| is_in_the_way(*address, wanted));
    // First: beside another one of its subnet ours would go with it.
    let mut removed = Ok(());
    for address in &replaced {
        let gone = host.delete_address(link.index, &link.name, *address);
        removed = removed.and(linux::error::absent_is_fine(gone));
    }
    let settled = match removed.and_then(|()| host.add_own_address(link.index, &link.name, wanted)) {
        // It is there already, but for the first container of the network.
        Err(error) if error.kind() == Kind::Exists => return Ok(()),
        Err(error) => Err(plugin_support::failure::refused(&error)),
        Ok(()) => settle_address(host, link, wanted, force).inspect_err(|_| {
            // Ours must not stay beside the one in the way.
            let _ = host.delete_address(link.index, &link.name, wanted);
        }),
    };
    if settled.is_err() {
        // The error that matters is the one we return.
        for address in replaced {
            let _ = host.add_own_address(link.index, &link.name, address);
        }
    }
    settled
}

fn present(host: &mut Rtnl, link: &Link) -> Result<Vec<IpNet>, Error> {
    let present = host.addresses(link.index, &link.name).or_refused()?;
    Ok(present.into_iter().map(|address| address.address).collect())
}

/// Can the gateway's address not be beside this one?
fn is_in_the_way(address: IpNet, wanted: IpNet) -> bool {
    match (address, wanted) {
        _ if address == wanted => false,
        (IpNet::V4(_), IpNet::V4(_)) => true,
        (IpNet::V6(a), IpNet::V6(b)) => a.contains(&b.addr()) || b.contains(&a.addr()),
        _ => false,
    }
}

/// The gateway's address was just added: without `force` nothing else may be in its way.
fn settle_address(host: &mut Rtnl, link: &Link, wanted: IpNet, force: bool) -> Result<(), Error> {
    let others = if force { Vec::new() } else { present(host, link)? };
    if let Some(address) = others.into_iter().find(|address| is_in_the_way(*address, wanted)) {
        return Err(Error::internal(format!(
            "{:?} already has an IP address different from {wanted}: {address}; set forceAddress to replace it",
            link.name
        )));
    }
    // Pin the bridge's own hardware address: else it becomes the lowest of its ports', and changes
    // under the containers' neighbour tables as ports come and go.
    // One that has lost its last port has none at all, until now.
    let mac = match link.mac.iter().all(|byte| *byte == 0) {
        true => host.link_at(link.index).or_refused()?.mac,
        false => link.mac.clone(),
    };
    host.change_link(link.index, &link.name, &Change { mac: Some(&mac), ..Change::default() }).or_refused()
}
