//! CHECK: compares the container's interface with the ADD result.
//!
//! Rules:
//! - Only what the result names is compared, because later plugins in a chain may add more.
//! - Nothing is changed.
//!
//! Source: SPEC 1.1.0 §2 CHECK (S16); plugins `pkg/ip/route_linux.go`, `pkg/ip/link_linux.go`.

use std::path::Path;

use cni::Error;
use cni::invocation::Attach;
use cni::result::{Interface, IpConfig, Success};
use ipnet::IpNet;
use linux::link::{Link, mac_text};
use linux::{Netns, Rtnl};
use plugin_support::failure::OrRefused;

/// Interface in the container: recorded and present state.
pub struct Inside {
    /// Entry in prevResult.
    pub recorded: Interface,
    /// Link in the container.
    pub link: Link,
    /// Socket in the container's namespace.
    pub net: Rtnl,
}

/// Finds the interface that CNI_IFNAME names in prevResult in the container's namespace and compares them.
pub fn find_inside(request: &Attach, result: &Success, netns: &Netns) -> Result<Inside, Error> {
    let ifname = request.who.ifname.as_str();
    let recorded = result.interfaces.iter().find(|i| i.name == ifname && !i.sandbox.is_empty());
    let Some(recorded) = recorded.cloned() else {
        return Err(Error::config(format!("prevResult has no interface {ifname:?} with a sandbox")));
    };
    if Path::new(&recorded.sandbox) != request.netns {
        let why = format!("prevResult says {}", recorded.sandbox);
        return Err(Error::key("CNI_NETNS", request.netns.display(), why));
    }
    let mut net = netns.rtnl().or_refused()?;
    let link = net.link(ifname).or_refused()?;
    compare(&recorded, &link)?;
    Ok(Inside { recorded, link, net })
}

/// Fails unless the link has the recorded hardware address and MTU, if any.
pub fn compare(recorded: &Interface, link: &Link) -> Result<(), Error> {
    let mac = mac_text(&link.mac);
    if !recorded.mac.is_empty() && !recorded.mac.eq_ignore_ascii_case(&mac) {
        return Err(differs(&link.name, "address", &mac, &recorded.mac));
    }
    match recorded.mtu {
        Some(mtu) if mtu != 0 && mtu != link.mtu => {
            Err(differs(&link.name, "mtu", &link.mtu.to_string(), &mtu.to_string()))
        }
        _ => Ok(()),
    }
}

/// Fails unless the link has this kind.
pub fn expect_kind(link: &Link, kind: &str) -> Result<(), Error> {
    match link.kind == kind {
        true => Ok(()),
        false => Err(differs(&link.name, "type", &link.kind, kind)),
    }
}

/// Fails unless the interface has every address in the result, is up if there is one, and the container has
/// every route. A route may be in any table unless the result names one, because a later plugin may have
/// moved it.
pub fn compare_addressing(inside: &mut Inside, result: &Success) -> Result<(), Error> {
    let Inside { recorded: _, link, net } = inside;
    if !link.up && own_ips(result, &link.name).next().is_some() {
        return Err(Error::internal(format!("interface {} is down", link.name)));
    }
    expect_addresses(net, link, own_ips(result, &link.name).map(|ip| ip.address))?;
    compare_routes(net, link, result)
}

/// Returns the addresses in a result that belong to this interface, or to none.
pub fn own_ips<'a>(result: &'a Success, ifname: &'a str) -> impl Iterator<Item = &'a IpConfig> {
    result.ips.iter().filter(move |ip| {
        let interface = ip.interface.and_then(|index| usize::try_from(index).ok());
        let interface = interface.and_then(|index| result.interfaces.get(index));
        interface.is_none_or(|interface| interface.name == ifname)
    })
}

/// Fails unless the link has all these addresses.
pub fn expect_addresses(
    net: &mut Rtnl,
    link: &Link,
    wanted: impl Iterator<Item = IpNet>,
) -> Result<(), Error> {
    let present = net.addresses(link.index, &link.name).or_refused()?;
    for wanted in wanted {
        if !present.iter().any(|address| address.address == wanted) {
            return Err(Error::internal(format!("interface {} lacks address {wanted}", link.name)));
        }
    }
    Ok(())
}

/// Returns the host end of the container's veth pair and compares it with the result. It must be a port on
/// `master`, if that is given.
pub fn find_host_end(
    host: &mut Rtnl,
    result: &Success,
    inside: &Link,
    master: Option<u32>,
) -> Result<Option<Link>, Error> {
    for recorded in result.interfaces.iter().filter(|interface| interface.sandbox.is_empty()) {
        let Some(end) = host.find_link(&recorded.name).or_refused()? else { continue };
        let is_pair = end.link == Some(inside.index) && inside.link == Some(end.index);
        if end.kind == "veth" && is_pair && end.master == master {
            compare(recorded, &end)?;
            return Ok(Some(end));
        }
    }
    Ok(None)
}

fn compare_routes(net: &mut Rtnl, link: &Link, result: &Success) -> Result<(), Error> {
    use linux::route::Family;
    if result.routes.is_empty() {
        return Ok(());
    }
    let mut present = net.routes(Family::V4).or_refused()?;
    present.extend(net.routes(Family::V6).or_refused()?);
    for route in &result.routes {
        let wanted = super::addressing::kernel_route(link, result, route);
        let found = present.iter().any(|there| {
            there.dst == wanted.dst.trunc()
                && route.named_table().is_none_or(|table| there.table == table)
                && (route.gw.is_none() || there.gateway == wanted.gateway)
                && wanted.priority.is_none_or(|priority| there.priority == Some(priority))
        });
        if !found {
            let via = route.gw.map(|gw| format!(" via {gw}")).unwrap_or_default();
            return Err(Error::internal(format!("the container lacks route {}{via}", route.dst)));
        }
    }
    Ok(())
}

/// Returns an error such as `interface eth0: mtu is 1500, not 1400`.
pub fn differs(interface: &str, what: &str, is: &str, should_be: &str) -> Error {
    Error::internal(format!("interface {interface}: {what} is {is}, not {should_be}"))
}
