//! Routes.
//!
//! weft's routes have a separate protocol number, so that `ip route show proto 119` finds them all.
//!
//! Source: rtnetlink(7) RTM_NEWROUTE/GETROUTE/DELROUTE; ip-route(8).

pub mod lookup;
pub(crate) mod multipath;

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use rustix::io::Errno;

use crate::attributes::{Attributes, address_of, find, items, ne16_of, ne32_of};
use crate::error::Error;
use crate::netlink::Request;
use crate::rtnl::Rtnl;
use crate::rtnl::message::{DELETE_ROUTE, GET_ROUTE, INET, INET6, Message, NEW_ROUTE, RouteFields, family};

/// `RTA_DST`
const DESTINATION: u16 = 1;
/// `RTA_OIF`
const LINK: u16 = 4;
/// `RTA_GATEWAY`
const GATEWAY: u16 = 5;
/// `RTA_PRIORITY`
const PRIORITY: u16 = 6;
/// `RTA_PREFSRC`
const PREFERRED_SOURCE: u16 = 7;
/// `RTA_METRICS`
const METRICS: u16 = 8;
/// `RTA_MULTIPATH`
const MULTIPATH: u16 = 9;
/// `RTA_TABLE`
const TABLE: u16 = 15;
/// `RTAX_MTU`
const METRIC_MTU: u16 = 2;
/// `RTAX_ADVMSS`
const METRIC_ADVMSS: u16 = 8;
/// `RTN_UNICAST`
const UNICAST: u8 = 1;
/// `RT_SCOPE_NOWHERE`: in a removal request it stands for any scope.
const ANY_SCOPE: u8 = 255;
/// `RTNH_F_ONLINK`
const ONLINK: u32 = 4;
/// `RTM_F_CLONED`: a cache entry, not a route.
const CLONED: u32 = 0x200;

/// Protocol number for weft's routes. It is in no registry; 119 is the letter `w`.
pub const PROTOCOL: u8 = 119;

/// `RTPROT_KERNEL`: the kernel created the route itself.
const KERNEL: u8 = 2;

/// Main routing table.
pub const TABLE_MAIN: u32 = 254;

/// Route to add or remove, or as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination network; host bits are cleared before it is sent.
    pub dst: IpNet,
    /// Next hop; `None` for a directly connected destination.
    pub gateway: Option<IpAddr>,
    /// Interface index; 0 for a route without interface.
    pub link: u32,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// Metric; the lowest wins. `None` means the default: 0 for IPv4, 1024 for IPv6.
    pub priority: Option<u32>,
    /// Routing table.
    pub table: u32,
    /// Scope: 0 global, 253 link, 254 host. IPv6 has only 0.
    pub scope: u8,
    /// Protocol number, which tells what created the route.
    pub protocol: u8,
    /// MTU for this route, in bytes.
    pub mtu: Option<u32>,
    /// Maximum segment size to advertise, in bytes.
    pub advmss: Option<u32>,
    /// Whether the gateway counts as reachable even without a route to it.
    pub onlink: bool,
}

/// Scope for a route to a directly connected network.
pub const SCOPE_LINK: u8 = 253;
/// Scope for a route through a gateway.
pub const SCOPE_GLOBAL: u8 = 0;

/// Behaviour if such a route exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Fail.
    Refuse,
    /// Replace the first route that has the same destination, metric and table.
    Replace,
    /// Add it as another one (multipath for IPv6); an identical route is refused.
    Append,
}

impl Route {
    /// Describes a route through `link` in the main table, with a gateway if there is one.
    pub fn new(dst: IpNet, link: u32, gateway: Option<IpAddr>) -> Route {
        Route {
            dst,
            gateway,
            link,
            source: None,
            priority: None,
            table: TABLE_MAIN,
            scope: if gateway.is_none() && dst.addr().is_ipv4() { SCOPE_LINK } else { SCOPE_GLOBAL },
            protocol: PROTOCOL,
            mtu: None,
            advmss: None,
            onlink: false,
        }
    }

    /// Whether this is a default route.
    pub fn is_default(&self) -> bool {
        self.dst.prefix_len() == 0
    }

    fn message(&self, kind: u16) -> Message {
        let Route { dst, gateway, link, source, priority, table, scope, protocol, mtu, advmss, onlink } =
            self;
        let fields = RouteFields {
            destination: dst.prefix_len(),
            source: 0,
            table: u8::try_from(*table).unwrap_or(0),
            protocol: *protocol,
            // A route to remove may have any scope, and its flags do not matter.
            scope: if kind == DELETE_ROUTE { ANY_SCOPE } else { *scope },
            action: UNICAST,
            flags: if *onlink && kind != DELETE_ROUTE { ONLINK } else { 0 },
        };
        let mut message = Message::route(kind, family(dst.addr()), fields);
        let list = &mut message.attributes;
        if dst.prefix_len() > 0 {
            list.address(DESTINATION, dst.network());
        }
        if let Some(gateway) = gateway {
            list.address(GATEWAY, *gateway);
        }
        if *link != 0 {
            list.ne32(LINK, *link);
        }
        if let Some(source) = source {
            list.address(PREFERRED_SOURCE, *source);
        }
        if let Some(priority) = priority {
            list.ne32(PRIORITY, *priority);
        }
        list.ne32(TABLE, *table);
        let metrics = [(METRIC_MTU, mtu), (METRIC_ADVMSS, advmss)];
        if kind != DELETE_ROUTE && metrics.iter().any(|(_, value)| value.is_some()) {
            list.nested(METRICS, |inner: &mut Attributes| {
                for (kind, value) in metrics {
                    if let Some(value) = value {
                        inner.ne32(kind, *value);
                    }
                }
            });
        }
        message
    }

    /// Encodes a route that has this next hop and those in `others`.
    fn multipath(&self, others: &[Route]) -> Message {
        let hops = multipath::hops(&[std::slice::from_ref(self), others].concat());
        let common = Route { gateway: None, link: 0, onlink: false, ..self.clone() };
        let mut message = common.message(NEW_ROUTE);
        message.attributes.bytes(MULTIPATH, &hops);
        message
    }

    /// Formats the route for an error: `10.0.0.0/8 via 10.1.0.1`.
    fn describe(&self) -> String {
        match self.gateway {
            Some(gateway) => format!("{} via {gateway}", self.dst),
            None => self.dst.to_string(),
        }
    }
}

impl Rtnl {
    /// Adds a route. `ip route add|replace|append DST [via GATEWAY] dev NAME …`
    ///
    /// # Errors
    /// [`crate::Kind::Exists`]: with [`Existing::Refuse`] if there is such a route, otherwise if exactly this route
    /// exists. "Network is unreachable": the gateway is not reachable.
    pub fn add_route(&mut self, route: &Route, existing: Existing) -> Result<(), Error> {
        let message = route.message(NEW_ROUTE);
        self.execute(existing.flags(), message, || format!("add route {}", route.describe()))
    }

    /// Adds several routes in one datagram, in order. If one fails, the later ones are still tried.
    ///
    /// Routes to one destination through several gateways become one multipath route. A repeated route is added only
    /// once.
    pub fn add_routes(&mut self, routes: &[Route], existing: Existing) -> Result<(), Error> {
        let groups = multipath::groups(routes);
        let requests = groups.iter().filter_map(|group| group.split_first()).map(|(first, others)| {
            let message = if others.is_empty() { first.message(NEW_ROUTE) } else { first.multipath(others) };
            Request { flags: existing.flags(), message }
        });
        self.execute_all(requests.collect(), |at| match groups.get(at) {
            Some(group) => format!("add route {}", multipath::describe(group)),
            None => "add routes".to_owned(),
        })
    }

    /// Removes a route. `ip route del DST [via GATEWAY] dev NAME …`
    pub fn delete_route(&mut self, route: &Route) -> Result<(), Error> {
        let message = route.message(DELETE_ROUTE);
        self.execute(0, message, || format!("remove route {}", route.describe()))
    }

    /// Returns the index of the link through which packets to this address leave; `None` if there is no route. `ip
    /// route get ADDRESS`
    pub fn link_towards(&mut self, address: IpAddr) -> Result<Option<u32>, Error> {
        let fields = RouteFields { destination: IpNet::from(address).prefix_len(), ..RouteFields::default() };
        let mut query = Message::route(GET_ROUTE, family(address), fields);
        query.attributes.address(DESTINATION, address);
        match self.ask(query, || format!("find route to {address}")) {
            Ok(answers) => {
                Ok(answers.iter().find_map(|answer| answer.attributes.find(LINK).and_then(ne32_of)))
            }
            Err(error) => match error.errno() {
                Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS | Errno::INVAL) => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Lists a family's unicast routes in all tables except `local`. `ip -4|-6 route show table all`
    ///
    /// A kernel without the family (`ipv6.disable=1`) would list the other families' routes; the result is then empty.
    pub fn routes(&mut self, family: Family) -> Result<Vec<Route>, Error> {
        Ok(self.routes_with_hops(family)?.into_iter().flatten().collect())
    }

    /// Like [`Rtnl::routes`], but returns the next hops of each route together.
    fn routes_with_hops(&mut self, family: Family) -> Result<Vec<Vec<Route>>, Error> {
        let query = Message::route(GET_ROUTE, family.number(), RouteFields::default());
        let answers = self.dump_family(&query, || "list routes".to_owned())?;
        let own = answers.iter().filter(|answer| answer.byte_at(0) == family.number());
        Ok(own.map(unicast).collect())
    }

    /// Removes a route; of a multipath route only this next hop.
    ///
    /// A removal by one hop would delete a whole IPv4 route with several, or not find it, so the route is replaced by
    /// one with the other hops. IPv6 hops are separate routes.
    pub fn delete_hop(&mut self, hop: &Route) -> Result<(), Error> {
        if hop.dst.addr().is_ipv4() {
            let routes = self.routes_with_hops(Family::V4)?;
            if let Some(hops) = routes.iter().find(|hops| hops.len() > 1 && hops.contains(hop)) {
                let others: Vec<Route> = hops.iter().filter(|other| *other != hop).cloned().collect();
                return self.add_routes(&others, Existing::Replace);
            }
        }
        self.delete_route(hop)
    }
}

impl Rtnl {
    /// Lists the routes through one link in one table, except those that the kernel created itself. Directly connected
    /// ones come first, so that all can be added again in this order.
    pub fn routes_through(&mut self, link: u32, table: u32) -> Result<Vec<Route>, Error> {
        let mut routes = self.routes(Family::V4)?;
        routes.extend(self.routes(Family::V6)?);
        routes.retain(|route| route.link == link && route.table == table && route.protocol != KERNEL);
        routes.sort_by_key(|route| route.gateway.is_some());
        Ok(routes)
    }
}

/// Address family for routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// `AF_INET` or `AF_INET6`.
    pub(crate) fn number(self) -> u8 {
        match self {
            Family::V4 => INET,
            Family::V6 => INET6,
        }
    }

    fn everywhere(self) -> IpNet {
        match self {
            Family::V4 => IpNet::V4(Ipv4Net::default()),
            Family::V6 => IpNet::V6(Ipv6Net::default()),
        }
    }
}

impl Existing {
    fn flags(self) -> u16 {
        match self {
            Existing::Refuse => NLM_F_CREATE | NLM_F_EXCL,
            Existing::Replace => NLM_F_CREATE | NLM_F_REPLACE,
            Existing::Append => NLM_F_CREATE | NLM_F_APPEND,
        }
    }
}

/// Reads the routes in an answer; a multipath route becomes one route per hop.
fn unicast(message: &Message) -> Vec<Route> {
    let family = match message.byte_at(0) {
        INET => Family::V4,
        INET6 => Family::V6,
        _ => return Vec::new(),
    };
    let flags = message.word_at(8);
    if message.kind() != NEW_ROUTE || message.byte_at(7) != UNICAST || flags & CLONED != 0 {
        return Vec::new();
    }
    let mut route = Route::new(family.everywhere(), 0, None);
    route.table = u32::from(message.byte_at(4));
    route.protocol = message.byte_at(5);
    route.scope = message.byte_at(6);
    route.onlink = flags & ONLINK != 0;
    let mut hops: &[u8] = &[];
    for (kind, value) in message.attributes.items() {
        match kind {
            DESTINATION => {
                let net = address_of(value).and_then(|ip| IpNet::new(ip, message.byte_at(1)).ok());
                route.dst = net.unwrap_or(route.dst);
            }
            GATEWAY => route.gateway = address_of(value),
            PREFERRED_SOURCE => route.source = address_of(value),
            LINK => route.link = ne32_of(value).unwrap_or_default(),
            PRIORITY => route.priority = ne32_of(value),
            TABLE => route.table = ne32_of(value).unwrap_or(route.table),
            METRICS => {
                route.mtu = find(value, METRIC_MTU).and_then(ne32_of);
                route.advmss = find(value, METRIC_ADVMSS).and_then(ne32_of);
            }
            MULTIPATH => hops = value,
            _ => {}
        }
    }
    if route.table == TABLE_LOCAL {
        return Vec::new();
    }
    if hops.is_empty() { vec![route] } else { next_hops(&route, hops) }
}

/// Routing table that the kernel maintains.
const TABLE_LOCAL: u32 = 255;

/// Length of `struct rtnexthop`, in bytes.
const HOP: usize = 8;

/// Returns one route for each hop in a multipath route.
fn next_hops(route: &Route, mut hops: &[u8]) -> Vec<Route> {
    let mut routes = Vec::new();
    while let (Some(length), Some(index)) =
        (hops.get(..2).and_then(ne16_of), hops.get(4..HOP).and_then(ne32_of))
    {
        let length = usize::from(length);
        let Some(attributes) = hops.get(HOP..length) else { break };
        let gateway =
            items(attributes).find(|(kind, _)| *kind == GATEWAY).and_then(|(_, value)| address_of(value));
        routes.push(Route { link: index, gateway, ..route.clone() });
        hops = hops.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    routes
}
