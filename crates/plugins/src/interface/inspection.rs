//! CHECK: is the container's interface as the last ADD left it?
//!
//! Rules: only what the result names is looked at, so that what later plugins of a chain added is no
//! fault; nothing is changed.
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

/// The container's interface: as recorded, and as it is.
pub struct Inside {
    /// Its entry in prevResult.
    pub recorded: Interface,
    /// The link itself.
    pub link: Link,
    /// A socket in the container's namespace.
    pub net: Rtnl,
}

/// Finds the interface CNI_IFNAME of prevResult in the container's namespace and compares what both say.
pub fn find_inside(request: &Attach, result: &Success, netns: &Netns) -> Result<Inside, Error> {
    let ifname = request.who.ifname.as_str();
    let recorded = result.interfaces.iter().find(|i| i.name == ifname && !i.sandbox.is_empty());
    let Some(recorded) = recorded.cloned() else {
        return Err(Error::config(format!("prevResult holds no interface {ifname:?} with a sandbox")));
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

/// The hardware address and MTU that were recorded, if any, must be the link's.
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

/// The link must be of this kind.
pub fn expect_kind(link: &Link, kind: &str) -> Result<(), Error> {
    match link.kind == kind {
        true => Ok(()),
        false => Err(differs(&link.name, "type", &link.kind, kind)),
    }
}

/// Every address of the result for this interface is on it, and every route of the result is there: in whatever
/// table, unless it names one, since a later plugin may have moved it.
pub fn compare_addressing(inside: &mut Inside, result: &Success) -> Result<(), Error> {
    let Inside { recorded: _, link, net } = inside;
    expect_addresses(net, link, own_ips(result, &link.name).map(|ip| ip.address))?;
    compare_routes(net, link, result)
}

/// The addresses of a result that are an interface's of the container, or nobody's.
pub fn own_ips<'a>(result: &'a Success, ifname: &'a str) -> impl Iterator<Item = &'a IpConfig> {
    result.ips.iter().filter(move |ip| {
        let interface = ip.interface.and_then(|index| usize::try_from(index).ok());
        let interface = interface.and_then(|index| result.interfaces.get(index));
        interface.is_none_or(|interface| interface.name == ifname)
    })
}

/// The link must have all of these.
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

/// The host end of the pair whose other end is in the container, as recorded and as it is; it is a port of `master`,
/// if there is one.
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
                && (route.table.is_none() || there.table == wanted.table)
                && (route.gw.is_none() || there.gateway == route.gw)
                && wanted.priority.is_none_or(|priority| there.priority == Some(priority))
        });
        if !found {
            let via = route.gw.map(|gw| format!(" via {gw}")).unwrap_or_default();
            return Err(Error::internal(format!("the container lacks route {}{via}", route.dst)));
        }
    }
    Ok(())
}

/// `interface eth0: mtu is 1500, not 1400`
pub fn differs(interface: &str, what: &str, is: &str, should_be: &str) -> Error {
    Error::internal(format!("interface {interface}: {what} is {is}, not {should_be}"))
}
