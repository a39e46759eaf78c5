//! Bridge setup: creates the bridge if it is absent, sets it up, and adds the gateways' addresses.
//!
//! All containers on a network share a bridge, possibly with other networks and programs. So it is created if
//! absent and never changed beyond the configuration. Only a failed ADD that created it removes it, if it has
//! no ports.

use cni::config::Config;
use cni::result::Interface;
use cni::{Context, Error, code};
use ipnet::IpNet;
use linux::link::create::{NewKind, NewLink, Peer};
use linux::link::{Change, Detail, Link, mac_text, random_mac};
use linux::netns::{Lock, Locked};
use linux::sysctl::{self, Family};
use linux::{Kind, Netns, Rtnl, Undo};
use plugin_config::bridge::{Gateway, Network, Reflection};
use plugin_config::interface::check_name;
use plugin_support::failure::OrRefused;
use plugin_support::log;
use plugin_support::owner_tag::{ALIAS_MAX, OwnerTag};

use super::NAME;
use super::port::PortVlans;
use crate::interface::veth;

/// Lock that prevents the bridge from being removed while a port is created.
#[must_use = "the bridge may be removed when this value is dropped"]
pub(super) struct Hold {
    _lock: Locked,
}

impl Hold {
    /// Takes the lock, shared with other ADDs.
    pub(super) fn shared(bridge: &str) -> Result<Hold, Error> {
        let lock = Netns::lock_own(Lock::Shared).or_refused();
        Ok(Hold { _lock: lock.context(format_args!("lock bridge {bridge}"))? })
    }
}

/// Bridge that an ADD uses.
pub(super) struct Switch {
    pub(super) link: Link,
    /// Whether it keeps the hardware address whatever ports it has. False if that is unknown.
    mac_is_fixed: bool,
}

/// Creates the bridge if it does not exist, and sets it up; a failed ADD removes a bridge that it created.
///
/// `ip link add BR up type bridge`
pub(super) fn ensure(
    host: &mut Rtnl,
    network: &Network,
    config: &Config,
    undo: &mut Undo<'_>,
) -> Result<Switch, Error> {
    let name = network.bridge.as_str();
    let found = host.find_link(name).or_refused()?;
    let is_new = found.is_none();
    let mut mac_is_fixed = false;
    let link = match found {
        Some(link) => link,
        None => {
            mac_is_fixed = create(host, network, config, undo)?;
            host.link(name).or_refused()?
        }
    };
    expect_bridge(&link)?;
    if !network.vlans.is_none() && link.detail == (Detail::Bridge { vlan_filtering: Some(false) }) {
        // As in the reference plugin, an existing bridge is not changed; but traffic would silently not be separated.
        log!("bridge: {name} does not filter by VLAN, so vlan and vlanTrunk have no effect on it");
    }
    let promiscuous = network.reflection == Reflection::Promiscuous;
    if is_new || !link.up || (promiscuous && !link.promiscuous) {
        // A bridge that is down without being new is left from a killed ADD, or belongs to another program.
        if is_new || is_own(&link) {
            prepare_ipv6(name);
        }
        let change = Change { up: Some(true), promiscuous: promiscuous.then_some(true), ..Change::default() };
        host.change_link(link.index, name, &change).or_refused()?;
    }
    Ok(Switch { link, mac_is_fixed })
}

/// Whether this plugin created the bridge.
fn is_own(bridge: &Link) -> bool {
    OwnerTag::read(&bridge.alias).is_some_and(|tag| tag.plugin == NAME && tag.container.is_empty())
}

/// Prepares this plugin's link on the host, which is still down, for IPv6: containers cannot add routes by
/// router advertisements, and the link-local address answers to the first container without duplicate address
/// detection.
///
/// Best effort: a kernel without IPv6 has none of these files.
fn prepare_ipv6(name: &str) {
    for parameter in ["accept_ra", "accept_dad"] {
        let _ = sysctl::write_interface(Family::V6, name, parameter, "0");
    }
}

/// Fails if the name belongs to an interface that is no bridge.
fn expect_bridge(link: &Link) -> Result<(), Error> {
    match link.kind.as_str() {
        "bridge" => Ok(()),
        _ => {
            let why = "an interface of that name exists and is not a bridge";
            Err(Error::key("bridge", format!("{:?}", link.name), why))
        }
    }
}

/// Fails if ADD could not use the bridge's name. A bridge that does not exist is no error: ADD creates it.
pub(super) fn status(network: &Network) -> Result<(), Error> {
    let found = Rtnl::open().and_then(|mut host| host.find_link(&network.bridge)).or_refused()?;
    let able = found.as_ref().map_or(Ok(()), expect_bridge);
    able.map_err(|error| Error { code: code::NOT_AVAILABLE, ..error })
}

/// Creates the bridge; succeeds if another ADD created it first. Returns whether it got a fixed hardware address.
fn create(host: &mut Rtnl, network: &Network, config: &Config, undo: &mut Undo<'_>) -> Result<bool, Error> {
    let alias = OwnerTag::shared(NAME, config).text(ALIAS_MAX);
    let kind = NewKind::Bridge { vlan_filtering: !network.vlans.is_none() };
    let mut link = NewLink::new(&network.bridge, kind);
    link.mtu = network.mtu;
    // A gateway's address is fixed from the beginning: ADDs at the same time record it before it has an IP address.
    let mac = random_mac();
    link.mac = (network.gateway != Gateway::None).then_some(mac.as_slice());
    link.alias = Some(&alias);
    let made = host.add_link(&link);
    if matches!(&made, Err(error) if error.kind() == Kind::Exists) {
        return Ok(false);
    }
    // Also after an error: the bridge did not exist before, and the kernel's answer may have been lost.
    let name = network.bridge.clone();
    undo.push(move || remove_unused(&name));
    made.or_refused()?;
    Ok(link.mac.is_some())
}

/// Removes a bridge that this ADD created, unless it has a port by now.
pub(super) fn remove_unused(name: &str) {
    let Ok(_lock) = Netns::lock_own(Lock::TryExclusive) else { return };
    let Ok(mut host) = Rtnl::open() else { return };
    let Ok(links) = host.links() else { return };
    let Some(bridge) = links.iter().find(|link| link.name == name) else { return };
    if !links.iter().any(|link| link.master == Some(bridge.index)) {
        // Best effort: the caller returns the original error.
        let _ = host.delete_link(bridge.index, name);
    }
}

/// Link that has the gateway's addresses.
pub(super) struct GatewayLink {
    pub(super) link: Link,
    /// Additional interface in the result, if the link is not the bridge.
    pub(super) interface: Option<Interface>,
    /// As in [`Switch`].
    mac_is_fixed: bool,
}

/// Returns the name for the gateway's interface in a VLAN.
pub(super) fn gateway_link_name(bridge: &str, id: u16) -> String {
    format!("{bridge}.{id}")
}

/// Returns the link for the gateways' addresses: the bridge, or with a VLAN a shared bridge port in that
/// VLAN.
pub(super) fn gateway_link(
    host: &mut Rtnl,
    network: &Network,
    bridge: &Switch,
    config: &Config,
) -> Result<GatewayLink, Error> {
    let Switch { link: bridge, mac_is_fixed } = bridge;
    let Some(id) = network.vlans.access else {
        return Ok(GatewayLink { link: bridge.clone(), interface: None, mac_is_fixed: *mac_is_fixed });
    };
    let name = gateway_link_name(&network.bridge, id);
    check_name("bridge and vlan together", &name)?;
    let link = match host.find_link(&name).or_refused()? {
        Some(link) if link.up => link,
        // It is set up in the last step: the ADD that created it was killed, or is still running.
        _ => create_gateway_port(host, network, bridge, &name, config)?,
    };
    let interface = Interface { name: link.name.clone(), mac: mac_text(&link.mac), ..Interface::default() };
    // Only a bridge takes the address of a port.
    let mac_is_fixed = link.kind != "bridge";
    Ok(GatewayLink { link, interface: Some(interface), mac_is_fixed })
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
    let peer = Peer { name, mtu: network.mtu, mac: None, queues: veth::queues(network.queues), netns: None };
    let mut pair = NewLink::new(&port_name, NewKind::Veth(peer));
    pair.mtu = network.mtu;
    pair.master = Some(bridge.index);
    pair.alias = Some(&alias);
    pair.up = true;
    linux::error::exists_is_fine(host.add_link(&pair)).or_refused()?;
    // If there is no such port, the name belongs to an interface of another program.
    if let Some(port) = host.find_link(&port_name).or_refused()? {
        network.vlans.access_only().apply(host, &port)?;
    }
    let link = host.link(name).or_refused()?;
    prepare_ipv6(name);
    host.set_up(link.index, name).or_refused()?;
    Ok(link)
}

/// Adds the gateway's address to the link. `ip address add GATEWAY/LENGTH dev BR`
///
/// A bridge may have one IPv4 address, and several IPv6 addresses whose subnets do not overlap. A conflicting address
/// is replaced with `forceAddress` and an error without.
pub(super) fn ensure_address(
    host: &mut Rtnl,
    gateway: &mut GatewayLink,
    wanted: IpNet,
    force: bool,
) -> Result<(), Error> {
    let GatewayLink { link, interface: _, mac_is_fixed } = gateway;
    let link = &*link;
    let mut replaced = if force { present(host, link)? } else { Vec::new() };
    if replaced.contains(&wanted) {
        return Ok(());
    }
    replaced.retain(|address| conflicts(*address, wanted));
    // Removed first: the kernel removes a secondary address together with the primary one of its subnet.
    let mut removed = Ok(());
    for address in &replaced {
        let gone = host.delete_address(link.index, &link.name, *address);
        removed = removed.and(linux::error::absent_is_fine(gone));
    }
    let settled = match removed.and_then(|()| host.add_own_address(link.index, &link.name, wanted)) {
        // The address exists already, except for the first container of the network.
        Err(error) if error.kind() == Kind::Exists => return Ok(()),
        Err(error) => Err(plugin_support::failure::refused(&error)),
        Ok(()) => {
            let confirmed = confirm_address(host, link, wanted, force);
            let settled = confirmed.and_then(|()| if *mac_is_fixed { Ok(()) } else { fix_mac(host, link) });
            *mac_is_fixed |= settled.is_ok();
            settled.inspect_err(|_| {
                // The new address must not stay beside the conflicting one.
                let _ = host.delete_address(link.index, &link.name, wanted);
            })
        }
    };
    if settled.is_err() {
        // Best effort: the caller returns the original error.
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

/// Whether `address` conflicts with the gateway's address.
fn conflicts(address: IpNet, wanted: IpNet) -> bool {
    match (address, wanted) {
        _ if address == wanted => false,
        (IpNet::V4(_), IpNet::V4(_)) => true,
        (IpNet::V6(a), IpNet::V6(b)) => a.contains(&b.addr()) || b.contains(&a.addr()),
        _ => false,
    }
}

/// Fails if the added address conflicts with another one, unless `force`.
fn confirm_address(host: &mut Rtnl, link: &Link, wanted: IpNet, force: bool) -> Result<(), Error> {
    let others = if force { Vec::new() } else { present(host, link)? };
    if let Some(address) = others.into_iter().find(|address| conflicts(*address, wanted)) {
        return Err(Error::internal(format!(
            "{:?} already has an IP address different from {wanted}: {address}; set forceAddress to replace it",
            link.name
        )));
    }
    Ok(())
}

/// Fixes the bridge's hardware address. `ip link set dev BR address MAC`
///
/// Without it the bridge uses the lowest address among the ports, and the containers' neighbour tables become invalid
/// when ports change.
fn fix_mac(host: &mut Rtnl, link: &Link) -> Result<(), Error> {
    // A bridge that lost its last port has no address until now.
    let mac = match link.mac.iter().all(|byte| *byte == 0) {
        true => host.link_at(link.index).or_refused()?.mac,
        false => link.mac.clone(),
    };
    host.change_link(link.index, &link.name, &Change { mac: Some(&mac), ..Change::default() }).or_refused()
}
