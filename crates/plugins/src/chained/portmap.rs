//! `portmap`: forwards ports on the host to container ports.
//!
//! Rules beyond the reference plugin's:
//! - A call changes the packet filter in one transaction (with iptables: one for each address family).
//! - DEL needs no configuration, addresses or mappings. It removes what either backend, or the reference
//!   plugin, created for the attachment.
//! - If two containers request the same port with nftables, the last one gets it. When it is deleted, the first gets
//!   the port back. With iptables the first keeps it, as with the reference plugin, because that jump comes first.
//! - Service addresses do not count as host addresses, and Service ports come first (CVE-2019-9946).
//! - ADD and DEL delete the UDP flows that still lead to the port's previous target.
//!
//! Source: containernetworking/plugins `plugins/meta/portmap` v1.9.1.

mod conditions;
pub mod iptables;
mod nftables;
mod reference;
mod settings;

use cni::error::collected;
use cni::invocation::{Attach, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::Success;
use cni::{Error, code};
use ipnet::IpNet;
use linux::conntrack::Conntrack;
use linux::nft::Protocol;
use linux::sysctl::{self, Family};
use linux::{Rtnl, Undo};
use plugin_config::portmap::{Backend, Masquerade, Settings};
use plugin_support::failure::OrRefused;
use plugin_support::netns::open_netns;
use plugin_support::owner_tag::OwnerTag;

use self::iptables::Forwarding;
use self::nftables::{Destinations, Variant};
use self::settings::{Mapping, container_addresses};

/// Plugin `portmap`.
pub struct Portmap;

const NAME: &str = "portmap";

// === impl Plugin ===

impl Plugin for Portmap {
    fn name(&self) -> &'static str {
        NAME
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        let (wanted, result) = RequestedPorts::read(request)?;
        open_netns(&request.netns)?;
        if let Some(wanted) = wanted {
            let mut undo = Undo::new();
            if wanted.settings.masquerade != Masquerade::Nothing {
                route_loopback(&wanted.addresses, &mut undo)?;
            }
            wanted.add()?;
            undo.commit();
            forget(&wanted.udp_ports());
        }
        Ok(result)
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        remove(&OwnerTag::of(NAME, &request.call.config, &request.who))
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        match RequestedPorts::read(request)? {
            (Some(wanted), _) => wanted.check(),
            (None, _) => Ok(()),
        }
    }

    fn gc(&self, request: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        let Some(valid) = request.valid()? else { return Ok(()) };
        let network = request.call.config.name.as_str();
        let swept = [nftables::sweep(NAME, network, &valid), iptables::sweep(network, &valid)];
        finish(swept)
    }

    fn status(&self, request: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        let able = match Settings::read(&request.call.config)?.backend {
            Backend::Nftables { .. } => nftables::status(),
            Backend::Iptables { .. } => iptables::status(),
        };
        able.map_err(|error| Error { code: code::NOT_AVAILABLE, ..error })
    }
}

/// Mappings to add, the targets and the settings.
struct RequestedPorts {
    tag: OwnerTag,
    settings: Settings,
    mappings: Vec<Mapping>,
    addresses: Vec<IpNet>,
}

// === impl RequestedPorts ===

impl RequestedPorts {
    /// Reads the request, `None` if the runtime passes no mappings, and the previous plugin's result.
    fn read(request: &Attach) -> Result<(Option<RequestedPorts>, Success), Error> {
        let Attach { who, netns: _, call } = request;
        let settings = Settings::read(&call.config)?;
        let mappings = Mapping::all(&call.config)?;
        let result = call.config.require_prev_result()?;
        if mappings.is_empty() {
            return Ok((None, result));
        }
        let ifname = who.ifname.as_str();
        let addresses = container_addresses(&result, ifname);
        if addresses.is_empty() {
            let why = format!("prevResult has no address of {ifname} to forward them to");
            let named = format!("{} port mappings", mappings.len());
            return Err(Error::key("runtimeConfig: portMappings", named, why));
        }
        let tag = OwnerTag::of(NAME, &call.config, who);
        Ok((Some(RequestedPorts { tag, settings, mappings, addresses }), result))
    }

    fn add(&self) -> Result<(), Error> {
        let RequestedPorts { tag, settings, mappings, addresses } = self;
        match &settings.backend {
            Backend::Nftables { bit, conditions } => {
                let variant = Variant { bit: *bit, conditions, destinations: &Destinations::find()? };
                let added = nftables::add(&variant, tag, mappings, settings.masquerade, addresses);
                // The kernel may have executed the transaction, and its answer been lost.
                added.inspect_err(|_| drop(nftables::remove(tag)))
            }
            Backend::Iptables { marking, conditions } => {
                let masquerade = settings.masquerade;
                let forwarding = Forwarding { tag, mappings, masquerade, marking, conditions };
                // The other family's commit may have succeeded.
                forwarding.add(addresses).inspect_err(|_| drop(iptables::remove(tag)))
            }
        }
    }

    fn check(&self) -> Result<(), Error> {
        let RequestedPorts { tag, settings, mappings, addresses } = self;
        match &settings.backend {
            Backend::Nftables { bit, conditions } => {
                let variant = Variant { bit: *bit, conditions, destinations: &Destinations::find()? };
                let checked = nftables::check(&variant, tag, mappings, settings.masquerade, addresses);
                // Created by the reference plugin, before the node was migrated to weft.
                checked.or_else(|error| if reference::exists(tag)? { Ok(()) } else { Err(error) })
            }
            Backend::Iptables { marking, conditions } => {
                let masquerade = settings.masquerade;
                Forwarding { tag, mappings, masquerade, marking, conditions }.check(addresses)
            }
        }
    }

    fn udp_ports(&self) -> Vec<u16> {
        let udp = self.mappings.iter().filter(|mapping| mapping.protocol == Protocol::Udp);
        udp.map(|mapping| mapping.host_port.get()).collect()
    }
}

/// Allows packets from 127.0.0.0/8 on the link to the container. The host itself can then use the port with such an
/// address.
///
/// `sysctl -w net.ipv4.conf.LINK.route_localnet=1`. IPv6 has no such parameter.
fn route_loopback(addresses: &[IpNet], undo: &mut Undo<'_>) -> Result<(), Error> {
    const PARAMETER: &str = "route_localnet";
    let Some(net) = addresses.iter().find(|net| net.addr().is_ipv4()) else { return Ok(()) };
    let mut host = Rtnl::open().or_refused()?;
    let Some(index) = host.link_towards(net.addr()).or_refused()? else { return Ok(()) };
    let link = host.link_at(index).or_refused()?.name;
    let before = sysctl::read_interface(Family::V4, &link, PARAMETER).or_refused()?;
    if before != "1" {
        sysctl::write_interface(Family::V4, &link, PARAMETER, "1").or_refused()?;
        undo.push(move || drop(sysctl::write_interface(Family::V4, &link, PARAMETER, &before)));
    }
    Ok(())
}

/// Removes what either backend or the reference plugin created for an attachment.
fn remove(tag: &OwnerTag) -> Result<(), Error> {
    let by_reference = reference::remove(tag).map(|()| Vec::new());
    finish([nftables::remove(tag), iptables::remove(tag), by_reference])
}

/// Deletes the UDP flows to removed ports, and collects all errors.
fn finish<const N: usize>(removed: [Result<Vec<u16>, Error>; N]) -> Result<(), Error> {
    let (mut ports, mut errors) = (Vec::new(), Vec::new());
    for result in removed {
        match result {
            Ok(freed) => ports.extend(freed),
            Err(error) => errors.push(error),
        }
    }
    forget(&ports);
    collected(errors)
}

/// Deletes the UDP flows to these ports on the host, because a client that keeps sending would stay connected to the
/// previous target. Best effort, as in the reference plugin: flows time out.
fn forget(ports: &[u16]) {
    if !ports.is_empty() {
        let _ = Conntrack::open().and_then(|mut conntrack| conntrack.forget_ports(Protocol::Udp, ports));
    }
}
