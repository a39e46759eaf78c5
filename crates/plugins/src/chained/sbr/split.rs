//! Decides which of an interface's routes go into which table. `sbr.rs` executes the decision.
//!
//! Rules:
//! - An address's table gets three kinds of routes: those from or through the subnet, those in the same family without
//!   source and gateway, and the default route through the address's gateway.
//! - A route that fits no address goes into every table in that family, and stays in the main table if there is none,
//!   so no route is lost.
//! - IPv6 link-local networks are copied and also stay in the main table, where neighbour discovery needs
//!   them.
//! - A table gets routes without a gateway first, because gateways must be reachable.

use std::net::IpAddr;

use cni::result::IpConfig;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use linux::route::{Route, SCOPE_LINK};

use super::FIRST_TABLE;
use plugin_config::sbr::{Settings, Subnets};

/// Plan for the routing tables.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Address, table, and the table's routes in the order in which they are added.
    pub tables: Vec<(IpAddr, u32, Vec<Route>)>,
    /// Routes to add to the main table.
    pub hints: Vec<Route>,
    /// Routes to remove from the main table.
    pub leave: Vec<Route>,
}

impl Split {
    /// Returns the plan. `own`: the routes that link `link` has in the main table; `taken`: tables that rules
    /// or routes use.
    pub fn plan(
        settings: &Settings,
        addresses: &[IpConfig],
        link: u32,
        own: &[Route],
        taken: &[u32],
    ) -> Split {
        let mut split = Split::default();
        let mut next = FIRST_TABLE;
        for ip in addresses {
            while taken.contains(&next) {
                next += 1;
            }
            let mut routes = routes_of(ip, addresses, own);
            add_default(settings, ip, link, &mut routes);
            routes.iter_mut().for_each(|route| route.table = next);
            split.tables.push((ip.address.addr(), next, direct_first(routes)));
            next += 1;
        }
        if settings.subnets == Subnets::StayWithSource {
            split.hints = addresses.iter().map(|ip| hint(ip, link)).collect();
        }
        let stays = |route: &Route| {
            let replaced = split.hints.iter().any(|hint| hint.dst == route.dst);
            let direct = route.gateway.is_none() && !replaced;
            let has_table =
                addresses.iter().any(|ip| ip.address.addr().is_ipv4() == route.dst.addr().is_ipv4());
            !has_table || is_link_local(route.dst) || (direct && settings.subnets == Subnets::StayWithSource)
        };
        let leave = own.iter().filter(|route| !stays(route)).cloned().collect();
        // Routes through a gateway depend on direct routes, so they are removed first.
        split.leave = direct_first(leave);
        let direct = split.leave.iter().take_while(|route| route.gateway.is_none()).count();
        split.leave.rotate_left(direct);
        split
    }
}

/// Sorts routes without a gateway before the others, which may need them.
pub fn direct_first(routes: Vec<Route>) -> Vec<Route> {
    let (mut direct, others): (Vec<Route>, Vec<Route>) =
        routes.into_iter().partition(|route| route.gateway.is_none());
    direct.extend(others);
    direct
}

/// Returns the routes that the address `ip` needs, among an interface's routes.
fn routes_of(ip: &IpConfig, addresses: &[IpConfig], own: &[Route]) -> Vec<Route> {
    let fits = |ip: &IpConfig, route: &Route| {
        let within = |address: Option<IpAddr>| address.is_some_and(|address| ip.address.contains(&address));
        within(route.source) || within(route.gateway)
    };
    let wanted = |route: &&Route| {
        let general = route.source.is_none() && route.gateway.is_none();
        route.dst.addr().is_ipv4() == ip.address.addr().is_ipv4()
            && (general || fits(ip, route) || !addresses.iter().any(|other| fits(other, route)))
    };
    own.iter().filter(wanted).cloned().collect()
}

/// Adds the default route through the address's gateway. A configured gateway replaces any other default route. Without
/// one, an existing default route is kept, because it also has a metric and an MTU.
fn add_default(settings: &Settings, ip: &IpConfig, link: u32, routes: &mut Vec<Route>) {
    let configured = settings.gateway(ip.address.addr());
    if configured.is_some() {
        routes.retain(|route| !route.is_default());
    }
    let Some(gateway) = configured.or(ip.gateway) else { return };
    if !routes.iter().any(|route| route.is_default() && route.gateway == Some(gateway)) {
        let everywhere = match gateway {
            IpAddr::V4(_) => IpNet::V4(Ipv4Net::default()),
            IpAddr::V6(_) => IpNet::V6(Ipv6Net::default()),
        };
        routes.push(Route::new(everywhere, link, Some(gateway)));
    }
}

/// Returns the route to an address's subnet, with the address as source.
fn hint(ip: &IpConfig, link: u32) -> Route {
    let mut route = Route::new(ip.address.trunc(), link, None);
    route.source = Some(ip.address.addr());
    if ip.address.addr().is_ipv4() {
        route.scope = SCOPE_LINK;
    }
    route
}

fn is_link_local(net: IpNet) -> bool {
    matches!(net, IpNet::V6(net) if net.network().is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(address: &str, gateway: &str) -> IpConfig {
        IpConfig { interface: None, address: address.parse().unwrap(), gateway: gateway.parse().ok() }
    }

    fn route(dst: &str, gateway: &str, source: &str) -> Route {
        let mut route = Route::new(dst.parse().unwrap(), 7, gateway.parse().ok());
        route.source = source.parse().ok();
        route
    }

    fn text(routes: &[Route]) -> Vec<String> {
        let via = |route: &Route| route.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
        routes.iter().map(|route| format!("{}{}", route.dst, via(route))).collect()
    }

    #[test]
    fn sbr_each_address_gets_a_free_table_with_its_routes() {
        let own = [
            route("0.0.0.0/0", "10.1.0.1", ""),
            route("10.1.0.0/24", "", "10.1.0.5"),
            route("10.2.0.0/24", "", "10.2.0.5"),
            route("192.0.2.0/24", "10.2.0.1", ""),
            route("198.51.100.0/24", "172.16.0.1", ""),
            route("fd01::/64", "", ""),
            route("fe80::/64", "", ""),
        ];
        let addresses = [ip("10.1.0.5/24", "10.1.0.1"), ip("10.2.0.5/24", "10.2.0.1"), ip("fd01::5/64", "")];
        let split = Split::plan(&Settings::default(), &addresses, 7, &own, &[100, 102, 254]);
        let tables: Vec<u32> = split.tables.iter().map(|(_, table, _)| *table).collect();
        assert_eq!(tables, [101, 103, 104]);
        let of = |at: usize| text(&split.tables[at].2);
        assert_eq!(of(0), ["10.1.0.0/24", "0.0.0.0/0 via 10.1.0.1", "198.51.100.0/24 via 172.16.0.1"]);
        assert_eq!(
            of(1),
            [
                "10.2.0.0/24",
                "192.0.2.0/24 via 10.2.0.1",
                "198.51.100.0/24 via 172.16.0.1",
                "0.0.0.0/0 via 10.2.0.1"
            ]
        );
        assert_eq!(of(2), ["fd01::/64", "fe80::/64"]);
        assert_eq!(split.leave.len(), 6, "all but the link-local network");
        assert!(split.leave[0].gateway.is_some() && split.hints.is_empty());
    }

    #[test]
    fn sbr_source_hints_keep_direct_routes_in_the_main_table() {
        let own = [
            route("0.0.0.0/0", "10.1.0.1", ""),
            route("10.1.0.0/24", "", "10.1.0.5"),
            route("10.7.0.0/16", "", ""),
            route("fd01::/64", "", ""),
        ];
        let mut settings = Settings::default();
        settings.subnets = Subnets::StayWithSource;
        let addresses = [ip("10.1.0.5/24", "10.1.0.1"), ip("fd01::5/64", "")];
        let split = Split::plan(&settings, &addresses, 7, &own, &[]);
        assert_eq!(text(&split.leave), ["0.0.0.0/0 via 10.1.0.1", "10.1.0.0/24", "fd01::/64"]);
        assert_eq!(text(&split.hints), ["10.1.0.0/24", "fd01::/64"]);
        assert_eq!(split.hints[0].source, Some("10.1.0.5".parse().unwrap()));
    }

    #[test]
    fn sbr_routes_of_a_family_without_address_stay_in_main() {
        let own =
            [route("10.1.0.0/24", "", "10.1.0.5"), route("fd11::/64", "", ""), route("::/0", "fd01::1", "")];
        let split = Split::plan(&Settings::default(), &[ip("10.1.0.5/24", "")], 7, &own, &[]);
        assert_eq!(text(&split.tables[0].2), ["10.1.0.0/24"]);
        assert_eq!(text(&split.leave), ["10.1.0.0/24"]);
    }

    #[test]
    fn sbr_interface_without_routes_gets_a_default_route() {
        let split = Split::plan(&Settings::default(), &[ip("10.1.0.5/24", "10.1.0.1")], 7, &[], &[]);
        assert_eq!(text(&split.tables[0].2), ["0.0.0.0/0 via 10.1.0.1"]);
        assert_eq!((split.tables[0].2[0].table, split.tables[0].2[0].link), (100, 7));
    }
}
