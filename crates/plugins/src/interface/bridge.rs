//! `bridge`: connects the container to a bridge on the host with a veth pair.
//!
//! Rules beyond the reference plugin's:
//! - Everything is validated before any change, and a failed ADD undoes all changes.
//! - A default route without a gateway in `routes` and `isDefaultGateway` result in one route, not two.
//! - DEL needs neither the namespace, nor the interface, nor prevResult to find what to remove.
//!
//! Source: containernetworking/plugins `plugins/main/bridge` v1.9.1; docs/plugins/bridge.md.

mod inspection;
mod port;
mod spoofing;
mod switch;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use cni::invocation::{self, Attach, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::plugin::ipam::Ipam;
use cni::result::{Interface, Route, Success};
use cni::{Context, Error};
use ipnet::IpNet;
use linux::link::mac_text;
use linux::route::TABLE_MAIN;
use linux::{Netns, Rtnl, Undo};
use plugin_config::bridge::{ContainerInterface, Gateway, Network};
use plugin_support::failure::OrRefused;
use plugin_support::owner_tag::OwnerTag;

use crate::entries;
use crate::interface::{self, addressing, forwarding, masquerade, veth};

/// Plugin `bridge`.
pub struct Bridge;

const NAME: &str = "bridge";
/// Index that the container's interface has in the results: bridge, host end, container's end.
const CONTAINER: i32 = 2;

// === impl Plugin ===

impl Plugin for Bridge {
    fn name(&self) -> &'static str {
        NAME
    }

    fn creates_interface(&self) -> bool {
        true
    }

    fn host_link_name(&self, network: &str, who: &invocation::Attachment, attempt: u32) -> Option<String> {
        veth::candidate(network, who, attempt)
    }

    fn add(&self, request: &Attach, delegates: &dyn Invoke) -> Result<Success, Error> {
        let Attach { who, netns, call } = request;
        let network = Network::read(call)?;
        let netns = plugin_support::netns::open_netns(netns)?;
        let mut host = Rtnl::open().or_refused()?;
        let tag = OwnerTag::of(NAME, &call.config, who);
        let attachment = Attachment { request, network: &network, netns: &netns, tag: &tag };
        let undo = Undo::new();
        attachment.make(&mut host, delegates, undo)
    }

    fn del(&self, request: &Detach, delegates: &dyn Invoke) -> Result<(), Error> {
        let Detach { who, netns: _, call } = request;
        // An invalid configuration must not prevent a DEL.
        let network = Network::read(call).ok();
        let tag = OwnerTag::of(NAME, &call.config, who);
        interface::detach(&tag, request, delegates, || {
            let mut errors = Vec::new();
            // One list of the tables says for all rules that most attachments have none.
            let mut tables = entries::tables();
            // The configuration may have changed since ADD.
            if network.as_ref().is_none_or(|network| network.mac_spoof_check)
                || spoofing::may_be_checked(&mut tables, &tag)
            {
                errors.extend(spoofing::allow_any(&tag).err());
            }
            let backend = network.and_then(|network| network.masquerade);
            let known = masquerade::known(&call.config);
            errors.extend(masquerade::remove_from(tables, backend, &tag, &known).err());
            cni::error::collected(errors)
        })
    }

    fn check(&self, request: &Attach, delegates: &dyn Invoke) -> Result<(), Error> {
        let network = Network::read(&request.call)?;
        // Only if IPAM is configured: the Go plugin fails CHECK of every layer-2 network.
        if let Some(ipam) = Ipam::configured(&request.call, delegates)? {
            ipam.check()?;
        }
        inspection::inspect(request, &network)
    }

    fn gc(&self, request: &Sweep, delegates: &dyn Invoke) -> Result<(), Error> {
        let network = Network::read(&request.call)?;
        let mut errors: Vec<Error> = interface::sweep(NAME, &["veth"], request).err().into_iter().collect();
        errors.extend(spoofing::sweep(request).err());
        errors.extend(masquerade::sweep(NAME, network.masquerade, request).err());
        if let Some(ipam) = Ipam::configured(&request.call, delegates)? {
            errors.extend(ipam.gc().err());
        }
        cni::error::collected(errors)
    }

    fn status(&self, request: &Probe, delegates: &dyn Invoke) -> Result<(), Error> {
        switch::status(&Network::read(&request.call)?)?;
        match Ipam::configured(&request.call, delegates)? {
            Some(ipam) => ipam.status(),
            None => Ok(()),
        }
    }
}

/// State during one ADD.
struct Attachment<'a> {
    request: &'a Attach,
    network: &'a Network,
    netns: &'a Netns,
    tag: &'a OwnerTag,
}

impl<'a> Attachment<'a> {
    /// Executes the steps in an ADD; a failure undoes the completed ones.
    fn make(&self, host: &mut Rtnl, delegates: &'a dyn Invoke, mut undo: Undo<'a>) -> Result<Success, Error> {
        let Attachment { request, network, netns, tag } = self;
        let hold = switch::Hold::shared(&network.bridge)?;
        let bridge = switch::ensure(host, network, &request.call.config, &mut undo)?;
        let pair = veth::Veth {
            container_name: request.who.ifname.as_str(),
            netns,
            mtu: network.mtu,
            mac: network.mac.as_deref(),
            queues: veth::queues(network.queues),
            master: Some(bridge.link.index),
            tag,
        };
        let host_end = pair.create(host)?;
        drop(hold);
        let tag = *tag;
        undo.push(move || veth::forget_host_end(tag));
        port::configure(host, network, &host_end)?;
        let mut result = Success::default();
        let mut gateways = Vec::new();
        if let Some(ipam) = Ipam::configured(&request.call, delegates)? {
            let reserved = ipam.add()?;
            undo.push(move || drop(ipam.del()));
            interface::adopt(reserved, CONTAINER, &mut result)?;
            gateways = choose_gateways(network.gateway, &mut result)?;
        }
        self.finish_inside(&host_end, &mut result)?;
        if network.mac_spoof_check {
            undo.push(move || drop(spoofing::allow_any(tag)));
            spoofing::allow_only(&host_end, &result.interfaces[CONTAINER as usize].mac, tag)?;
        }
        self.finish_outside(host, &bridge, &gateways, &mut result, &mut undo)?;
        let forwarding = network.interface != ContainerInterface::Untouched;
        // Read last: a bridge without a fixed address takes the lowest address of its ports.
        let links = port::await_forwarding(host, &network.bridge, &host_end, forwarding)?;
        for (interface, link) in result.interfaces.iter_mut().zip(&links) {
            interface.mac = mac_text(&link.mac);
        }
        interface::prefer_dns(&request.call, &mut result)?;
        undo.commit();
        Ok(result)
    }

    /// Configures the container end in one visit to the namespace: name, addresses and routes. Adds bridge, host end
    /// and container end to the result; interfaces on the host get the hardware address later.
    fn finish_inside(&self, host_end: &str, result: &mut Success) -> Result<(), Error> {
        let Attachment { request, network, netns, tag: _ } = self;
        let ifname = request.who.ifname.as_str();
        let sandbox = request.netns.display().to_string();
        let visit = || {
            let mut net = Rtnl::open().or_refused()?;
            let link = net.link(ifname).or_refused()?;
            let on_host = |name: &str| Interface { name: name.to_owned(), ..Interface::default() };
            let inside = Interface { sandbox, ..interface::describe(&link) };
            result.interfaces = vec![on_host(&network.bridge), on_host(host_end), inside];
            match network.interface {
                ContainerInterface::Addressed => {
                    interface::announce(&mut net, &link, network.enable_dad)?;
                    addressing::configure(&mut net, &link, result)
                }
                ContainerInterface::Layer2 => net.set_up(link.index, ifname).or_refused(),
                ContainerInterface::Untouched => Ok(()),
            }
        };
        netns.run(visit).or_refused()?
    }

    /// Configures the host for the addresses: gateway, forwarding, masquerading.
    fn finish_outside(
        &self,
        host: &mut Rtnl,
        bridge: &switch::Switch,
        gateways: &[IpNet],
        result: &mut Success,
        undo: &mut Undo<'a>,
    ) -> Result<(), Error> {
        let Attachment { request, network, netns: _, tag } = self;
        if !gateways.is_empty() {
            let mut gateway_link = switch::gateway_link(host, network, bridge, &request.call.config)?;
            result.interfaces.extend(gateway_link.interface.take());
            for gateway in gateways {
                switch::ensure_address(host, &mut gateway_link, *gateway, network.force_address)?;
            }
            forwarding::enable(gateways)?;
        }
        if let Some(backend) = network.masquerade.filter(|_| !result.ips.is_empty()) {
            let addresses: Vec<IpNet> = result.ips.iter().map(|ip| ip.address).collect();
            let (tag, known) = (*tag, addresses.clone());
            undo.push(move || drop(masquerade::remove(Some(backend), tag, &known)));
            masquerade::add(backend, tag, &addresses).context("masquerade")?;
        }
        Ok(())
    }
}

/// Completes the gateways in a result and returns the addresses that the bridge must have.
///
/// A missing gateway becomes the first address in the subnet. `isDefaultGateway` adds a default route for
/// each address family. If the result has one without a gateway, that route gets this gateway instead.
fn choose_gateways(gateway: Gateway, result: &mut Success) -> Result<Vec<IpNet>, Error> {
    let mut gateways = Vec::new();
    for ip in &mut result.ips {
        if gateway == Gateway::None {
            continue;
        }
        let chosen = match ip.gateway {
            Some(chosen) => chosen,
            None => *ip.gateway.insert(first_address(ip.address)),
        };
        if chosen.is_ipv4() != ip.address.addr().is_ipv4() {
            let why = format!("not of the family of {}", ip.address);
            return Err(Error::internal(format!("ipam: gateway {chosen}: {why}")));
        }
        let with_length = IpNet::new(chosen, ip.address.prefix_len());
        gateways.extend(with_length.ok());
        if gateway == Gateway::Default {
            add_default_route(&mut result.routes, chosen);
        }
    }
    Ok(gateways)
}

fn add_default_route(routes: &mut Vec<Route>, gateway: IpAddr) {
    let everywhere = match gateway {
        IpAddr::V4(_) => IpNet::from(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        IpAddr::V6(_) => IpNet::from(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    };
    let Ok(everywhere) = IpNet::new(everywhere.addr(), 0) else { return };
    let is_main = |route: &Route| route.named_table().is_none_or(|table| table == TABLE_MAIN);
    match routes.iter_mut().find(|route| route.dst == everywhere && is_main(route)) {
        Some(route) => {
            route.gw.get_or_insert(gateway);
        }
        None => routes.push(Route::new(everywhere, Some(gateway))),
    }
}

/// Returns the first address after the network's own.
fn first_address(net: IpNet) -> IpAddr {
    match net.network() {
        IpAddr::V4(ip) => IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits().wrapping_add(1))),
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits().wrapping_add(1))),
    }
}

#[cfg(test)]
mod tests;
