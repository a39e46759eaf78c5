//! Default routes for a pod with several networks: which attachment keeps, gets or loses them.
//!
//! The plan contains the request for each attachment. Once every network is attached, this module sets the
//! routes, reads them back and updates the recorded results, so that a later CHECK compares with the real
//! state.
//!
//! IPv4 and IPv6 are independent. Only the main table and the interfaces on this sandbox's attachments are
//! changed.
//!
//! Source: the multi-network specification v1.1 4.1.2.1.9 (V11-4.1.2.1.9-1…3); conflicts C12–C15; Multus
//! defects M1–M4.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use cni::result::{Route as ResultRoute, Success};
use cni::{Context, Error};
use ipnet::IpNet;
use linux::link::Link;
use linux::route::{Existing, Family, Route, TABLE_MAIN};
use linux::{Netns, Rtnl};
use npwg::plan::{DefaultRouteAction, Delegate, Families, Gateway};
use plugin_support::failure::OrRefused;

/// Attachment: the delegate and the result, which is updated.
pub(super) struct Attached<'a> {
    /// Delegate in the plan.
    pub(super) delegate: &'a Delegate,
    /// Result that the plugins returned.
    pub(super) result: &'a mut Success,
    /// Whether the result was changed.
    pub(super) changed: bool,
}

/// Sets the requested default routes, if any are requested.
///
/// # Errors
/// The first failure. Some routes may have been changed; the caller takes the sandbox down.
pub(super) fn settle(netns: &Path, attached: &mut [Attached<'_>]) -> Result<(), Error> {
    let Some(holder) = attached.iter().position(|one| keeps_or_gets(&one.delegate.default_route)) else {
        return Ok(());
    };
    let netns = Netns::open(netns).or_refused()?;
    let mut net = netns.rtnl().or_refused()?;
    let links: Vec<Vec<Link>> =
        attached.iter().map(|one| links(&mut net, one.result)).collect::<Result<_, _>>()?;
    let families = families_of_holder(&mut net, &attached[holder].delegate.default_route, &links[holder])?;
    for (one, links) in attached.iter_mut().zip(&links) {
        let step = format!("default route: {} on {}", one.delegate.network, one.delegate.ifname);
        match &one.delegate.default_route {
            DefaultRouteAction::Untouched | DefaultRouteAction::Keep => {}
            DefaultRouteAction::Yield { to: _, families: asked } => {
                let families: Vec<Family> = match asked {
                    Families::OfHolder => families.clone(),
                    asked => of(*asked),
                };
                delete_default_routes(&mut net, links, &families).context(step)?;
                forget_default_routes(one, &families);
            }
            DefaultRouteAction::Via { gateways } => {
                delete_default_routes(&mut net, links, &families).context(&step)?;
                forget_default_routes(one, &families);
                add_default_routes(&mut net, one, links, gateways).context(step)?;
            }
        }
    }
    let yielding = attached
        .iter()
        .zip(&links)
        .filter(|(one, _)| matches!(one.delegate.default_route, DefaultRouteAction::Yield { .. }));
    let yielding: Vec<Link> = yielding.flat_map(|(_, links)| links.iter().cloned()).collect();
    verify(&mut net, &families, &links[holder], &yielding)
}

fn keeps_or_gets(action: &DefaultRouteAction) -> bool {
    matches!(action, DefaultRouteAction::Keep | DefaultRouteAction::Via { .. })
}

/// Returns the attachment's interfaces in the sandbox.
fn links(net: &mut Rtnl, result: &Success) -> Result<Vec<Link>, Error> {
    let mut links = Vec::new();
    for interface in result.interfaces.iter().filter(|interface| !interface.sandbox.is_empty()) {
        links.extend(net.find_link(&interface.name).or_refused()?);
    }
    Ok(links)
}

/// Returns the families in which the holder has, or gets, the default route.
fn families_of_holder(
    net: &mut Rtnl,
    action: &DefaultRouteAction,
    links: &[Link],
) -> Result<Vec<Family>, Error> {
    if let DefaultRouteAction::Via { gateways } = action {
        let has = |ipv4: bool| gateways.iter().any(|gateway| gateway.address.is_ipv4() == ipv4);
        let both = [(has(true), Family::V4), (has(false), Family::V6)];
        return Ok(both.into_iter().filter(|(has, _)| *has).map(|(_, family)| family).collect());
    }
    let mut families = Vec::new();
    for family in [Family::V4, Family::V6] {
        if !defaults(net, family, links)?.is_empty() {
            families.push(family);
        }
    }
    Ok(families)
}

fn of(families: Families) -> Vec<Family> {
    match families {
        Families::V4 => vec![Family::V4],
        Families::V6 => vec![Family::V6],
        Families::Both | Families::OfHolder => vec![Family::V4, Family::V6],
    }
}

/// Returns the default routes in a family that lead through one of `links`.
fn defaults(net: &mut Rtnl, family: Family, links: &[Link]) -> Result<Vec<Route>, Error> {
    let mut routes = net.routes(family).or_refused()?;
    routes.retain(|route| {
        route.is_default() && route.table == TABLE_MAIN && links.iter().any(|link| link.index == route.link)
    });
    Ok(routes)
}

/// `ip route del default dev ETH`
fn delete_default_routes(net: &mut Rtnl, links: &[Link], families: &[Family]) -> Result<(), Error> {
    for family in families {
        for route in defaults(net, *family, links)? {
            linux::error::absent_is_fine(net.delete_hop(&route)).or_refused()?;
        }
    }
    Ok(())
}

/// Removes the default routes in these families from the result.
fn forget_default_routes(one: &mut Attached<'_>, families: &[Family]) {
    let gone = |route: &ResultRoute| {
        let family = if route.dst.addr().is_ipv4() { Family::V4 } else { Family::V6 };
        route.dst.prefix_len() == 0
            && route.named_table().is_none_or(|table| table == TABLE_MAIN)
            && families.contains(&family)
    };
    let before = one.result.routes.len();
    one.result.routes.retain(|route| !gone(route));
    one.changed |= one.result.routes.len() != before;
}

/// `ip route add default via GATEWAY dev ETH [metric N]`
fn add_default_routes(
    net: &mut Rtnl,
    one: &mut Attached<'_>,
    links: &[Link],
    gateways: &[Gateway],
) -> Result<(), Error> {
    let own = links.iter().find(|link| link.name == one.delegate.ifname.as_str()).or_else(|| links.first());
    let Some(link) = own else {
        let why = "the attachment has no interface in the sandbox for a default route";
        return Err(Error::config(why));
    };
    expect_other_hosts(net, links, gateways)?;
    for Gateway { address, metric } in gateways {
        let everywhere = everywhere(*address)?;
        let mut route = Route::new(everywhere, link.index, Some(*address));
        route.priority = *metric;
        net.add_route(&route, Existing::Append).or_refused()?;
        let mut recorded = ResultRoute::new(everywhere, Some(*address));
        recorded.priority = *metric;
        one.result.routes.push(recorded);
        one.changed = true;
    }
    Ok(())
}

/// Fails if a gateway is an address of the pod itself, or the subnet's network or broadcast address: the kernel accepts
/// some of these routes, and the packets go nowhere.
///
/// The first address of an IPv6 subnet is no error: it belongs to the subnet's routers (RFC 4291, 2.6.1).
fn expect_other_hosts(net: &mut Rtnl, links: &[Link], gateways: &[Gateway]) -> Result<(), Error> {
    for link in links {
        for address in net.addresses(link.index, &link.name).or_refused()? {
            let subnet = address.address;
            let why = |gateway: IpAddr| match subnet {
                _ if gateway == subnet.addr() => Some("the address of the pod itself"),
                IpNet::V4(subnet) if subnet.prefix_len() < 31 => match gateway {
                    IpAddr::V4(gateway) if gateway == subnet.network() => Some("the address of the network"),
                    IpAddr::V4(gateway) if gateway == subnet.broadcast() => Some("the broadcast address"),
                    _ => None,
                },
                _ => None,
            };
            if let Some((gateway, why)) =
                gateways.iter().find_map(|one| Some((one.address, why(one.address)?)))
            {
                let which = format!("{why} on {} ({subnet})", link.name);
                let text = format!("it is {which}; set it to the address of a router in that subnet");
                return Err(Error::key("default-route", format!("\"{gateway}\""), text));
            }
        }
    }
    Ok(())
}

fn everywhere(gateway: IpAddr) -> Result<IpNet, Error> {
    let unspecified = match gateway {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    IpNet::new(unspecified, 0).map_err(|cause| Error::internal(cause.to_string()))
}

/// Verifies the routes by reading them back: in these families the default route leads through the holder, and through no
/// attachment that yields it.
fn verify(net: &mut Rtnl, families: &[Family], holder: &[Link], yielding: &[Link]) -> Result<(), Error> {
    for family in families {
        if defaults(net, *family, holder)?.is_empty() {
            return Err(Error::internal("default route: missing after it was set"));
        }
        if let Some(left) = defaults(net, *family, yielding)?.first() {
            let through = yielding.iter().find(|link| link.index == left.link).map_or("", |link| &link.name);
            return Err(Error::internal(format!("default route: the one through {through} was not removed")));
        }
    }
    Ok(())
}
