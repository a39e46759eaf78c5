//! `ptp`: connects the container to the host with a veth pair and routes, without a bridge.
//!
//! Rules beyond the reference plugin's:
//! - A failed ADD leaves nothing.
//! - DEL removes the interface before it releases the address.
//! - IPv6 duplicate address detection is off, because the link has only two ends.
//!
//! Source: containernetworking/plugins `plugins/main/ptp` v1.9.1.

use std::net::IpAddr;

use cni::Error;
use cni::invocation::{Attach, Attachment, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::plugin::ipam::Ipam;
use cni::result::{Interface, IpConfig, Success};
use ipnet::IpNet;
use linux::link::Link;
use linux::route::{Existing, Family, Route, SCOPE_GLOBAL, SCOPE_LINK, TABLE_MAIN};
use linux::{Kind, Netns, Rtnl, Undo, sysctl};
use plugin_config::interface::expect_ipam;
use plugin_config::ptp::{Network, WHY_IPAM};
use plugin_support::failure::{OrRefused, refused};
use plugin_support::owner_tag::OwnerTag;

use crate::interface::inspection::{
    compare_addressing, differs, expect_addresses, expect_kind, find_host_end, find_inside, own_ips,
};
use crate::interface::{self, addressing, forwarding, masquerade, veth};

/// Plugin `ptp`.
pub struct Ptp;

const NAME: &str = "ptp";
/// Index that the container's interface has in the results: host end, container's end.
const CONTAINER: i32 = 1;

// === impl Plugin ===

impl Plugin for Ptp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn creates_interface(&self) -> bool {
        true
    }

    fn host_link_name(&self, network: &str, who: &Attachment, attempt: u32) -> Option<String> {
        veth::candidate(network, who, attempt)
    }

    fn add(&self, request: &Attach, delegates: &dyn Invoke) -> Result<Success, Error> {
        let Attach { who, netns: path, call } = request;
        let network = Network::read(call)?;
        expect_ipam(call, WHY_IPAM)?;
        let netns = plugin_support::netns::open_netns(path)?;
        let tag = OwnerTag::of(NAME, &call.config, who);
        let mut host = Rtnl::open().or_refused()?;
        let mut undo = Undo::new();
        let ipam = Ipam::new(call, delegates);
        let reserved = ipam.add()?;
        undo.push(move || drop(ipam.del()));
        let mut result = Success::default();
        interface::adopt(reserved, CONTAINER, &mut result)?;
        check_gateways(&result)?;

        let pair = veth::Veth {
            container_name: who.ifname.as_str(),
            netns: &netns,
            mtu: network.mtu,
            mac: None,
            queues: veth::queues(network.queues),
            master: None,
            tag: &tag,
        };
        let host_end = pair.create(&mut host)?;
        undo.push(|| veth::forget_host_end(&tag));
        // Best effort, as in the container. Neighbour discovery for the container needs a usable address of the host.
        let _ = sysctl::write_interface(sysctl::Family::V6, &host_end, "accept_dad", "0");
        let host_end = host.link(&host_end).or_refused()?;
        let (_, inside) = interface::link_in(&netns, who.ifname.as_str())?;
        let sandbox = path.display().to_string();
        let container_end = Interface { sandbox, ..interface::describe(&inside) };
        result.interfaces = vec![interface::describe(&host_end), container_end];
        configure_inside(&netns, &inside, &result)?;
        configure_host(&mut host, &host_end, &result)?;
        let addresses: Vec<IpNet> = result.ips.iter().map(|ip| ip.address).collect();
        forwarding::enable(&addresses)?;
        if let Some(backend) = network.masquerade {
            let (tag, known) = (&tag, addresses.clone());
            undo.push(move || drop(masquerade::remove(Some(backend), tag, &known)));
            masquerade::add(backend, tag, &addresses)?;
        }
        interface::prefer_dns(call, &mut result)?;
        undo.commit();
        Ok(result)
    }

    fn del(&self, request: &Detach, delegates: &dyn Invoke) -> Result<(), Error> {
        // An invalid configuration must not prevent a DEL.
        let backend = Network::read(&request.call).ok().and_then(|network| network.masquerade);
        let tag = OwnerTag::of(NAME, &request.call.config, &request.who);
        interface::detach(&tag, request, delegates, || {
            masquerade::remove(backend, &tag, &masquerade::known(&request.call.config))
        })
    }

    fn check(&self, request: &Attach, delegates: &dyn Invoke) -> Result<(), Error> {
        let network = Network::read(&request.call)?;
        Ipam::new(&request.call, delegates).check()?;
        let result = request.call.config.require_prev_result()?;
        let netns = plugin_support::netns::open_netns(&request.netns)?;
        let mut inside = find_inside(request, &result, &netns)?;
        expect_kind(&inside.link, "veth")?;
        inspect_host(&result, &inside.link)?;
        if network.masquerade.is_some() {
            let addresses: Vec<IpNet> = own_ips(&result, &inside.link.name).map(|ip| ip.address).collect();
            masquerade::inspect(&OwnerTag::of(NAME, &request.call.config, &request.who), &addresses)?;
        }
        compare_addressing(&mut inside, &result)?;
        inspect_gateway_routes(&mut inside.net, &inside.link, &result)
    }

    fn gc(&self, request: &Sweep, delegates: &dyn Invoke) -> Result<(), Error> {
        let network = Network::read(&request.call)?;
        let mut errors: Vec<Error> = interface::sweep(NAME, &["veth"], request).err().into_iter().collect();
        errors.extend(masquerade::sweep(NAME, network.masquerade, request).err());
        if let Some(ipam) = Ipam::configured(&request.call, delegates)? {
            errors.extend(ipam.gc().err());
        }
        cni::error::collected(errors)
    }

    fn status(&self, request: &Probe, delegates: &dyn Invoke) -> Result<(), Error> {
        Network::read(&request.call)?;
        Ipam::new(&request.call, delegates).status()
    }
}

/// Fails unless each address has a gateway, which becomes an address on the host end.
fn check_gateways(result: &Success) -> Result<(), Error> {
    for ip in &result.ips {
        match ip.gateway {
            Some(gateway) if gateway.is_ipv4() == ip.address.addr().is_ipv4() => {}
            Some(gateway) => {
                return Err(Error::internal(format!(
                    "ipam: gateway {gateway} is not of the family of {}",
                    ip.address
                )));
            }
            None => {
                return Err(Error::internal(format!("ipam: address {} has no gateway", ip.address)));
            }
        }
    }
    Ok(())
}

/// Configures addresses, then routes each subnet through the gateway instead of directly, then adds the routes. For an
/// address without a subnet only the route to the gateway makes it reachable.
///
/// `ip route del SUBNET dev ETH; ip route add GW dev ETH scope link src IP; ip route add SUBNET via GW src
/// IP`
fn configure_inside(netns: &Netns, link: &Link, result: &Success) -> Result<(), Error> {
    addressing::enter_between(netns, link, result, |net, routes| {
        add_gateway_routes(net, link, result)?;
        // The subnet is not on the link any more, so another gateway in it must be declared to be there.
        let is_another = |gateway: IpAddr| {
            result.ips.iter().any(|ip| ip.address.contains(&gateway))
                && result.ips.iter().all(|ip| ip.gateway != Some(gateway))
        };
        routes.iter_mut().for_each(|route| route.onlink = route.gateway.is_some_and(is_another));
        Ok(())
    })
}

fn add_gateway_routes(net: &mut Rtnl, link: &Link, result: &Success) -> Result<(), Error> {
    for IpConfig { interface: _, address, gateway } in &result.ips {
        let Some(gateway) = gateway else { continue };
        let subnet = address.trunc();
        linux::error::absent_is_fine(net.delete_route(&subnet_route(subnet, link))).or_refused()?;
        let mut to_gateway = Route::new(IpNet::from(*gateway), link.index, None);
        to_gateway.scope = scope(*gateway, SCOPE_LINK);
        to_gateway.source = Some(address.addr());
        let mut to_subnet = Route::new(subnet, link.index, Some(*gateway));
        to_subnet.source = Some(address.addr());
        net.add_routes(&[to_gateway, to_subnet], Existing::Append).or_refused()?;
    }
    Ok(())
}

/// Returns the route that the kernel added for an address's subnet.
fn subnet_route(subnet: IpNet, link: &Link) -> Route {
    let mut route = Route::new(subnet, link.index, None);
    // Any protocol.
    route.protocol = 0;
    route
}

/// Adds the gateways' addresses to the host end, and a route to each container address.
fn configure_host(host: &mut Rtnl, link: &Link, result: &Success) -> Result<(), Error> {
    for IpConfig { interface: _, address, gateway } in &result.ips {
        if let Some(gateway) = gateway {
            linux::error::exists_is_fine(host.add_own_address(link.index, &link.name, IpNet::from(*gateway)))
                .or_refused()?;
        }
        let mut route = Route::new(IpNet::from(address.addr()), link.index, None);
        route.scope = scope(address.addr(), SCOPE_HOST);
        match host.add_route(&route, Existing::Refuse) {
            Err(error) if error.kind() != Kind::Exists => return Err(refused(&error)),
            _ => {}
        }
    }
    Ok(())
}

/// Fails unless the container has the route to each gateway, without which it reaches nothing. It may be in any table,
/// because a later plugin may have moved it.
fn inspect_gateway_routes(net: &mut Rtnl, link: &Link, result: &Success) -> Result<(), Error> {
    for gateway in own_ips(result, &link.name).filter_map(|ip| ip.gateway) {
        let (wanted, family) =
            (IpNet::from(gateway), if gateway.is_ipv4() { Family::V4 } else { Family::V6 });
        let routes = net.routes(family).or_refused()?;
        if !routes.iter().any(|route| route.link == link.index && route.dst == wanted) {
            return Err(Error::internal(format!("the container lacks route {wanted} dev {}", link.name)));
        }
    }
    Ok(())
}

/// Fails unless the host end is up, has the gateways' addresses, and has the routes to the container.
fn inspect_host(result: &Success, inside: &Link) -> Result<(), Error> {
    let mut host = Rtnl::open().or_refused()?;
    let Some(end) = find_host_end(&mut host, result, inside, None)? else {
        return Err(Error::internal(format!(
            "no interface of the host is connected to {} in the container",
            inside.name
        )));
    };
    if !end.up {
        return Err(differs(&end.name, "state", "down", "up"));
    }
    let gateways = own_ips(result, &inside.name).filter_map(|ip| ip.gateway);
    expect_addresses(&mut host, &end, gateways.map(IpNet::from))?;
    let routes = host.routes_through(end.index, TABLE_MAIN).or_refused()?;
    for IpConfig { address, .. } in own_ips(result, &inside.name) {
        let wanted = IpNet::from(address.addr());
        if !routes.iter().any(|route| route.dst == wanted) {
            return Err(Error::internal(format!("the host lacks route {wanted} dev {}", end.name)));
        }
    }
    Ok(())
}

/// Scope for a route that does not leave this host, as in the reference plugin's host routes.
const SCOPE_HOST: u8 = 254;

/// Returns a route's scope; IPv6 routes have none.
fn scope(address: IpAddr, scope: u8) -> u8 {
    if address.is_ipv4() { scope } else { SCOPE_GLOBAL }
}
