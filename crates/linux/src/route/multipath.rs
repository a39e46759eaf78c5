//! Routes to one destination with several next hops.
//!
//! The kernel merges IPv6 routes with the same destination and metric into one multipath route. With two such IPv4
//! routes it uses only one, and a route that replaces another removes the other's remaining next hops. Such routes are
//! therefore sent as one.
//!
//! Source: rtnetlink(7) RTA_MULTIPATH; ip-route(8) "nexthop".

use std::collections::{HashMap, HashSet};

use super::{GATEWAY, HOP, ONLINK, Route};
use crate::attributes::Attributes;

/// Metric that an IPv6 route gets by default.
const METRIC_V6: u32 = 1024;

/// Maximum number of next hops per route, because an attribute has at most 64 KiB.
const HOPS_MAX: usize = 1024;

/// Groups routes that are one route for the kernel, because they differ only in gateway and link. A route that repeats
/// another one, with the same next hop, is left out. A route without a gateway forms a separate group.
pub(crate) fn groups(routes: &[Route]) -> Vec<Vec<Route>> {
    let mut groups: Vec<Vec<Route>> = Vec::new();
    let (mut known, mut open) = (HashSet::new(), HashMap::new());
    for route in routes {
        let key = (route.dst.trunc(), route.table, metric(route));
        if !known.insert((key, route.gateway, route.link)) {
            continue;
        }
        let options = (route.source, route.scope, route.protocol, route.mtu, route.advmss);
        let at = open.entry((key, options)).or_insert(usize::MAX);
        match groups.get_mut(*at).filter(|group| route.gateway.is_some() && group.len() < HOPS_MAX) {
            Some(group) => group.push(route.clone()),
            None => {
                if route.gateway.is_some() {
                    *at = groups.len();
                }
                groups.push(vec![route.clone()]);
            }
        }
    }
    groups
}

/// Returns the metric that the kernel uses.
fn metric(route: &Route) -> u32 {
    let default = if route.dst.addr().is_ipv4() { 0 } else { METRIC_V6 };
    route.priority.filter(|priority| *priority != 0).unwrap_or(default)
}

/// Encodes the next hops for `RTA_MULTIPATH`: `struct rtnexthop`, each followed by the gateway.
pub(super) fn hops(routes: &[Route]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for route in routes {
        let mut attributes = Attributes::new();
        if let Some(gateway) = route.gateway {
            attributes.address(GATEWAY, gateway);
        }
        let length = u16::try_from(HOP + attributes.len()).unwrap_or(u16::MAX);
        let flags = if route.onlink { ONLINK.to_le_bytes()[0] } else { 0 };
        bytes.extend(length.to_ne_bytes());
        // Flags, and the weight minus one.
        bytes.extend([flags, 0]);
        bytes.extend(route.link.to_ne_bytes());
        bytes.extend(attributes.as_bytes());
    }
    bytes
}

/// Formats all next hops for errors: `10.0.0.0/8 via 10.1.0.1, 10.1.0.2`.
pub(super) fn describe(group: &[Route]) -> String {
    let Some((first, others)) = group.split_first() else { return String::new() };
    let others = others.iter().filter_map(|route| route.gateway);
    others.fold(first.describe(), |text, gateway| format!("{text}, {gateway}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(dst: &str, gateway: Option<&str>) -> Route {
        Route::new(dst.parse().unwrap(), 7, gateway.map(|gateway| gateway.parse().unwrap()))
    }

    #[test]
    fn multipath_routes_are_grouped_and_repeated_ones_left_out() {
        let by = |gateway| route("10.7.1.0/16", Some(gateway));
        let slow = Route { priority: Some(5), ..by("10.1.0.1") };
        let small = Route { mtu: Some(1300), ..by("10.1.0.3") };
        let six = |priority| Route { priority, ..route("::/0", Some("fd00::1")) };
        let routes = [
            by("10.1.0.1"),
            route("10.7.0.0/16", Some("10.1.0.2")),
            route("10.7.0.0/16", None),
            by("10.1.0.1"),
            slow,
            small,
            route("10.7.0.0/16", None),
            six(None),
            six(Some(1024)),
        ];
        let texts: Vec<String> = groups(&routes).iter().map(|group| describe(group)).collect();
        let expected = [
            "10.7.1.0/16 via 10.1.0.1, 10.1.0.2",
            "10.7.0.0/16",
            "10.7.1.0/16 via 10.1.0.1",
            "10.7.1.0/16 via 10.1.0.3",
            "::/0 via fd00::1",
        ];
        assert_eq!(texts, expected);
    }
}
