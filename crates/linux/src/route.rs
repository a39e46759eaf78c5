//! Routes.
//!
//! Routes we make carry our own protocol number, so that `ip route show proto 119` finds them all.
//!
//! Source: rtnetlink(7) RTM_NEWROUTE/GETROUTE/DELROUTE; ip-route(8).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteProtocol,
    RouteScope, RouteType,
};

use crate::address::family;
use crate::error::Error;
use crate::netlink::Request;
use crate::rtnl::Rtnl;

/// Who made a route: us. Not in any registry; 119 is `w`.
pub const PROTOCOL: u8 = 119;

/// The main routing table.
pub const TABLE_MAIN: u32 = 254;

/// A route: to add, to remove, or as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination network; host bits are cleared when it is sent.
    pub dst: IpNet,
    /// Next hop; absent for what is reached directly.
    pub gateway: Option<IpAddr>,
    /// Index of the interface; 0 for routes without one.
    pub link: u32,
    /// Address to send from.
    pub source: Option<IpAddr>,
    /// Metric; lower wins. Absent: 0 for IPv4, 1024 for IPv6.
    pub priority: Option<u32>,
    /// Routing table.
    pub table: u32,
    /// Scope: 0 global, 253 link, 254 host. IPv6 knows only 0.
    pub scope: u8,
    /// Who made it.
    pub protocol: u8,
    /// MTU along the route, in bytes.
    pub mtu: Option<u32>,
    /// Maximal segment size to advertise, in bytes.
    pub advmss: Option<u32>,
    /// The gateway is reachable although no route says so.
    pub onlink: bool,
}

/// Scope of a route to a directly connected network.
pub const SCOPE_LINK: u8 = 253;
/// Scope of a route through a gateway.
pub const SCOPE_GLOBAL: u8 = 0;

/// What to do if there is such a route already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// Refuse.
    Refuse,
    /// Replace the first that matches destination, metric and table.
    Replace,
    /// Add beside it (multipath for IPv6); exactly the same one is refused.
    Append,
}

impl Route {
    /// A route through `link`, by `gateway` if there is one, in the main table.
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

    /// Does it lead everywhere?
    pub fn is_default(&self) -> bool {
        self.dst.prefix_len() == 0
    }

    fn message(&self) -> RouteMessage {
        let Route { dst, gateway, link, source, priority, table, scope, protocol, mtu, advmss, onlink } =
            self;
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: family(dst.addr()),
            destination_prefix_length: dst.prefix_len(),
            source_prefix_length: 0,
            tos: 0,
            table: u8::try_from(*table).unwrap_or(0),
            protocol: RouteProtocol::from(*protocol),
            scope: RouteScope::from(*scope),
            kind: RouteType::Unicast,
            flags: if *onlink { RouteFlags::Onlink } else { RouteFlags::empty() },
        };
        let list = &mut message.attributes;
        if dst.prefix_len() > 0 {
            list.push(RouteAttribute::Destination(RouteAddress::from(dst.network())));
        }
        list.extend(gateway.map(|ip| RouteAttribute::Gateway(RouteAddress::from(ip))));
        list.extend((*link != 0).then_some(RouteAttribute::Oif(*link)));
        list.extend(source.map(|ip| RouteAttribute::PrefSource(RouteAddress::from(ip))));
        list.extend(priority.map(RouteAttribute::Priority));
        list.push(RouteAttribute::Table(*table));
        let metrics = mtu.map(RouteMetric::Mtu).into_iter().chain(advmss.map(RouteMetric::Advmss));
        let metrics: Vec<RouteMetric> = metrics.collect();
        if !metrics.is_empty() {
            list.push(RouteAttribute::Metrics(metrics));
        }
        message
    }

    /// `10.0.0.0/8 via 10.1.0.1`: for error texts.
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
    /// [`crate::Kind::Exists`] if `existing` is [`Existing::Refuse`] and there is one, or if exactly
    /// this one is there; "network is unreachable" if the gateway is not.
    pub fn add_route(&mut self, route: &Route, existing: Existing) -> Result<(), Error> {
        let message = RouteNetlinkMessage::NewRoute(route.message());
        self.execute(existing.flags(), message, || format!("add route {}", route.describe()))
    }

    /// Adds several routes in one datagram, in order; on failure those after it have still been tried.
    pub fn add_routes(&mut self, routes: &[Route], existing: Existing) -> Result<(), Error> {
        let requests = routes.iter().map(|route| Request {
            flags: existing.flags(),
            message: RouteNetlinkMessage::NewRoute(route.message()),
        });
        self.execute_all(requests.collect(), |at| match routes.get(at) {
            Some(route) => format!("add route {}", route.describe()),
            None => "add routes".to_owned(),
        })
    }

    /// Removes a route. `ip route del DST [via GATEWAY] dev NAME …`
    pub fn delete_route(&mut self, route: &Route) -> Result<(), Error> {
        let mut message = route.message();
        // "Nowhere" matches any scope.
        message.header.scope = RouteScope::NoWhere;
        message.header.flags = RouteFlags::empty();
        message.attributes.retain(|attribute| !matches!(attribute, RouteAttribute::Metrics(_)));
        let message = RouteNetlinkMessage::DelRoute(message);
        self.execute(0, message, || format!("remove route {}", route.describe()))
    }

    /// Every unicast route of a family, in all tables but `local`. `ip -4|-6 route show table all`
    pub fn routes(&mut self, family: Family) -> Result<Vec<Route>, Error> {
        let mut query = RouteMessage::default();
        query.header.address_family = match family {
            Family::V4 => netlink_packet_route::AddressFamily::Inet,
            Family::V6 => netlink_packet_route::AddressFamily::Inet6,
        };
        let answers = self.dump(&RouteNetlinkMessage::GetRoute(query), || "list routes".to_owned())?;
        Ok(answers.into_iter().flat_map(unicast).collect())
    }
}

/// The two families that have routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
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

/// The table the kernel keeps for itself.
const TABLE_LOCAL: u32 = 255;

/// The route of an answer; a multipath route is one for each hop.
fn unicast(message: RouteNetlinkMessage) -> Vec<Route> {
    let RouteNetlinkMessage::NewRoute(message) = message else { return Vec::new() };
    let header = &message.header;
    if header.kind != RouteType::Unicast || header.flags.contains(RouteFlags::Cloned) {
        return Vec::new();
    }
    let unspecified: IpAddr = match header.address_family {
        netlink_packet_route::AddressFamily::Inet => Ipv4Addr::UNSPECIFIED.into(),
        netlink_packet_route::AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => return Vec::new(),
    };
    let Ok(nowhere) = IpNet::new(unspecified, 0) else { return Vec::new() };
    let mut route = Route::new(nowhere, 0, None);
    route.table = u32::from(header.table);
    route.scope = header.scope.into();
    route.protocol = header.protocol.into();
    route.onlink = header.flags.contains(RouteFlags::Onlink);
    let mut hops = Vec::new();
    for attribute in message.attributes {
        match attribute {
            RouteAttribute::Destination(to) => {
                let net = ip(&to).and_then(|ip| IpNet::new(ip, header.destination_prefix_length).ok());
                route.dst = net.unwrap_or(nowhere);
            }
            RouteAttribute::Gateway(to) => route.gateway = ip(&to),
            RouteAttribute::PrefSource(from) => route.source = ip(&from),
            RouteAttribute::Oif(index) => route.link = index,
            RouteAttribute::Priority(priority) => route.priority = Some(priority),
            RouteAttribute::Table(table) => route.table = table,
            RouteAttribute::Metrics(metrics) => route.read_metrics(&metrics),
            RouteAttribute::MultiPath(list) => hops = list,
            _ => {}
        }
    }
    if route.table == TABLE_LOCAL {
        return Vec::new();
    }
    if hops.is_empty() {
        return vec![route];
    }
    let one_hop = |hop: netlink_packet_route::route::RouteNextHop| Route {
        link: hop.interface_index,
        gateway: hop.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Gateway(to) => ip(to),
            _ => None,
        }),
        ..route.clone()
    };
    hops.into_iter().map(one_hop).collect()
}

impl Route {
    fn read_metrics(&mut self, metrics: &[RouteMetric]) {
        for metric in metrics {
            match metric {
                RouteMetric::Mtu(mtu) => self.mtu = Some(*mtu),
                RouteMetric::Advmss(advmss) => self.advmss = Some(*advmss),
                _ => {}
            }
        }
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    }
}
