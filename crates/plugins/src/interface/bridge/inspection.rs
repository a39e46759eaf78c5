//! CHECK for a bridge attachment: bridge, veth pair and port are connected and configured as recorded.

use cni::Error;
use cni::invocation::Attach;
use cni::result::{Interface, IpConfig, Success};
use ipnet::IpNet;
use linux::Rtnl;
use linux::link::Link;
use plugin_config::bridge::{ContainerInterface, Gateway, Network, Reflection};
use plugin_support::failure::OrRefused;
use plugin_support::netns::open_netns;
use plugin_support::owner_tag::OwnerTag;

use super::port::PortVlans;
use super::{NAME, spoofing, switch};
use crate::interface::inspection::{
    compare, compare_addressing, differs, expect_addresses, expect_kind, find_host_end, find_inside, own_ips,
};
use crate::interface::masquerade;

/// Compares prevResult and configuration with the kernel.
pub(super) fn inspect(request: &Attach, network: &Network) -> Result<(), Error> {
    let result = request.call.config.require_prev_result()?;
    let netns = open_netns(&request.netns)?;
    let mut host = Rtnl::open().or_refused()?;
    let bridge = inspect_bridge(&mut host, network, &result)?;
    let mut inside = find_inside(request, &result, &netns)?;
    expect_kind(&inside.link, "veth")?;
    let port = inspect_port(&mut host, network, &result, &bridge, &inside.link)?;
    let ifname = request.who.ifname.as_str();
    inspect_gateways(&mut host, network, &bridge, &result, ifname)?;
    let tag = OwnerTag::of(NAME, &request.call.config, &request.who);
    if network.mac_spoof_check {
        spoofing::inspect(&port.name, &tag)?;
    }
    if network.masquerade.is_some() {
        let addresses: Vec<IpNet> = own_ips(&result, ifname).map(|ip| ip.address).collect();
        masquerade::inspect(&tag, &addresses)?;
    }
    match network.interface {
        ContainerInterface::Addressed => compare_addressing(&mut inside, &result),
        ContainerInterface::Layer2 | ContainerInterface::Untouched => Ok(()),
    }
}

fn inspect_bridge(host: &mut Rtnl, network: &Network, result: &Success) -> Result<Link, Error> {
    let bridge = host.link(&network.bridge).or_refused()?;
    expect_kind(&bridge, "bridge")?;
    if let Some(recorded) =
        result.interfaces.iter().find(|i| i.name == network.bridge && i.sandbox.is_empty())
    {
        // A bridge without an address takes the hardware address of a port; a gateway's address is fixed.
        let mac = if network.gateway == Gateway::None { String::new() } else { recorded.mac.clone() };
        compare(&Interface { mac, ..recorded.clone() }, &bridge)?;
    }
    let wanted = network.reflection == Reflection::Promiscuous;
    if bridge.promiscuous != wanted {
        return Err(differs(&bridge.name, "promisc", &bridge.promiscuous.to_string(), &wanted.to_string()));
    }
    Ok(bridge)
}

/// Returns the host end. Fails unless it is a port on the bridge, is the peer of the container's interface,
/// and is configured as requested.
fn inspect_port(
    host: &mut Rtnl,
    network: &Network,
    result: &Success,
    bridge: &Link,
    inside: &Link,
) -> Result<Link, Error> {
    let Some(port) = find_host_end(host, result, inside, Some(bridge.index))? else {
        return Err(Error::internal(format!(
            "no port of bridge {} is connected to {} in the container",
            bridge.name, inside.name
        )));
    };
    let hairpin = network.reflection == Reflection::Hairpin;
    match port.port {
        Some(state) if state.hairpin != hairpin => {
            return Err(differs(&port.name, "hairpin", &state.hairpin.to_string(), &hairpin.to_string()));
        }
        Some(state) if state.isolated != network.port_isolation => {
            let wanted = network.port_isolation.to_string();
            return Err(differs(&port.name, "isolated", &state.isolated.to_string(), &wanted));
        }
        _ => network.vlans.inspect(host, &port)?,
    }
    Ok(port)
}

/// Fails unless the gateways' addresses are on the bridge, or on the bridge port in the VLAN.
fn inspect_gateways(
    host: &mut Rtnl,
    network: &Network,
    bridge: &Link,
    result: &Success,
    ifname: &str,
) -> Result<(), Error> {
    if network.gateway == Gateway::None {
        return Ok(());
    }
    let gateway_link = match network.vlans.access {
        None => bridge.clone(),
        Some(id) => host.link(&switch::gateway_link_name(&network.bridge, id)).or_refused()?,
    };
    let of = |ip: &IpConfig| IpNet::new(ip.gateway?, ip.address.prefix_len()).ok();
    expect_addresses(host, &gateway_link, own_ips(result, ifname).filter_map(of))
}
