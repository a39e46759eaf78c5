//! The default route of a pod with several networks: who has it, and who gives it up.
//!
//! The plan says what is wished; this carries it out once every network is attached, reads it back, and
//! brings the recorded results in line, so that a later CHECK looks for what is really there.
//!
//! Rules: families are apart; only the main table; only interfaces of this sandbox's attachments.
//!
//! Source: the standard v1.1 4.1.2.1.9 (V11-4.1.2.1.9-1…3); conflicts C12–C15; Multus defects M1–M4.

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

/// One attachment: its delegate, and its result, which is brought in line.
pub(super) struct Party<'a> {
    /// What was planned.
    pub(super) delegate: &'a Delegate,
    /// What the plugins answered.
    pub(super) result: &'a mut Success,
    /// Was the result changed?
    pub(super) changed: bool,
}

/// Carries out the wishes, if there are any.
///
/// # Errors
/// The first refusal; the routes are then as far as they came, and the caller takes the sandbox down.
pub(super) fn settle(netns: &Path, parties: &mut [Party<'_>]) -> Result<(), Error> {
    let Some(holder) = parties.iter().position(|party| asks(&party.delegate.default_route)) else {
        return Ok(());
    };
    let netns = Netns::open(netns).or_refused()?;
    let mut net = netns.rtnl().or_refused()?;
    let links: Vec<Vec<Link>> =
        parties.iter().map(|party| links(&mut net, party.result)).collect::<Result<_, _>>()?;
    let families = held(&mut net, &parties[holder].delegate.default_route, &links[holder])?;
    for (party, links) in parties.iter_mut().zip(&links) {
        let step = format!("default route: {} on {}", party.delegate.network, party.delegate.ifname);
        match &party.delegate.default_route {
            DefaultRouteAction::Untouched | DefaultRouteAction::Keep => {}
            DefaultRouteAction::Yield { to: _, families: asked } => {
                let families: Vec<Family> = match asked {
                    Families::OfHolder => families.clone(),
                    asked => of(*asked),
                };
                give_up(&mut net, links, &families).context(step)?;
                forget(party, &families);
            }
            DefaultRouteAction::Via { gateways } => {
                give_up(&mut net, links, &families).context(&step)?;
                forget(party, &families);
                take(&mut net, party, links, gateways).context(step)?;
            }
        }
    }
    let yielding = parties
        .iter()
        .zip(&links)
        .filter(|(party, _)| matches!(party.delegate.default_route, DefaultRouteAction::Yield { .. }));
    let yielding: Vec<Link> = yielding.flat_map(|(_, links)| links.iter().cloned()).collect();
    confirm(&mut net, &families, &links[holder], &yielding)
}

fn asks(wish: &DefaultRouteAction) -> bool {
    matches!(wish, DefaultRouteAction::Keep | DefaultRouteAction::Via { .. })
}

/// The attachment's interfaces in the sandbox.
fn links(net: &mut Rtnl, result: &Success) -> Result<Vec<Link>, Error> {
    let mut links = Vec::new();
    for interface in result.interfaces.iter().filter(|interface| !interface.sandbox.is_empty()) {
        links.extend(net.find_link(&interface.name).or_refused()?);
    }
    Ok(links)
}

/// The families the holder has, or will have, the default route of.
fn held(net: &mut Rtnl, wish: &DefaultRouteAction, links: &[Link]) -> Result<Vec<Family>, Error> {
    if let DefaultRouteAction::Via { gateways } = wish {
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

/// The default routes of a family that lead through one of `links`.
fn defaults(net: &mut Rtnl, family: Family, links: &[Link]) -> Result<Vec<Route>, Error> {
    let mut routes = net.routes(family).or_refused()?;
    routes.retain(|route| {
        route.is_default() && route.table == TABLE_MAIN && links.iter().any(|link| link.index == route.link)
    });
    Ok(routes)
}

/// `ip route del default dev ETH`
fn give_up(net: &mut Rtnl, links: &[Link], families: &[Family]) -> Result<(), Error> {
    for family in families {
        for route in defaults(net, *family, links)? {
            linux::error::absent_is_fine(net.delete_route(&route)).or_refused()?;
        }
    }
    Ok(())
}

/// The default routes of these families leave the result, too.
fn forget(party: &mut Party<'_>, families: &[Family]) {
    let gone = |route: &ResultRoute| {
        let family = if route.dst.addr().is_ipv4() { Family::V4 } else { Family::V6 };
        route.dst.prefix_len() == 0
            && route.named_table().is_none_or(|table| table == TABLE_MAIN)
            && families.contains(&family)
    };
    let before = party.result.routes.len();
    party.result.routes.retain(|route| !gone(route));
    party.changed |= party.result.routes.len() != before;
}

/// `ip route add default via GATEWAY dev ETH [metric N]`
fn take(net: &mut Rtnl, party: &mut Party<'_>, links: &[Link], gateways: &[Gateway]) -> Result<(), Error> {
    let own = links.iter().find(|link| link.name == party.delegate.ifname.as_str()).or_else(|| links.first());
    let Some(link) = own else {
        let why = "the attachment has no interface in the sandbox that a default route could use";
        return Err(Error::config(why));
    };
    for Gateway { address, metric } in gateways {
        let everywhere = everywhere(*address)?;
        let mut route = Route::new(everywhere, link.index, Some(*address));
        route.priority = *metric;
        net.add_route(&route, Existing::Append).or_refused()?;
        let mut recorded = ResultRoute::new(everywhere, Some(*address));
        recorded.priority = *metric;
        party.result.routes.push(recorded);
        party.changed = true;
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

/// Reads it back: in these families the default route leads through the holder and no longer through those
/// who gave it up.
fn confirm(net: &mut Rtnl, families: &[Family], holder: &[Link], yielding: &[Link]) -> Result<(), Error> {
    for family in families {
        if defaults(net, *family, holder)?.is_empty() {
            return Err(Error::internal("default route: it is not there after it was set"));
        }
        if let Some(left) = defaults(net, *family, yielding)?.first() {
            let through = yielding.iter().find(|link| link.index == left.link).map_or("", |link| &link.name);
            return Err(Error::internal(format!("default route: one through {through} is still there")));
        }
    }
    Ok(())
}
