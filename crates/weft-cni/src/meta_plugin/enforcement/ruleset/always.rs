//! Packets that pass under every policy: replies, and the protocols by which the attachment gets neighbours and
//! addresses. A rule matches what such a protocol sends to the link, and nothing that a router forwards.
//!
//! - Neighbour discovery has hop limit 255, code 0, no extension headers and at most 64 bytes. A pod sends 133, 135 and
//!   136 to link groups and link-local addresses, and 135 and 136 to on-link neighbours. It receives 135 and 136, and
//!   router advertisements (134, of any length) from link-local addresses.
//! - Messages about multicast have hop limit 1, a group as destination and a link-local source; reports (131, 132, 143) also
//!   `::`. A pod receives queries (130).
//! - DHCPv4 is broadcast, or exchanged with an on-link server; DHCPv6 has link-local sources.
//! - On a bridge, ARP about IPv4 addresses passes.
//!
//! A packet with hop limit 255 was not forwarded, but the first router may forward it. So what is sent to a neighbour's
//! address is limited to what needs no router:
//! - On the host, to the attachment's networks, which are known after the ADD.
//! - In the pod, to packets that the pod's kernel sends. Processes cannot influence the content of these packets.
//!
//! Source: RFC 4861 sections 4 and 7.1, RFC 2710, RFC 3590, RFC 3810, RFC 6980, RFC 2131 section 4.4, RFC 8415 section 14.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use linux::nft::{Family, Is, Protocol, Rule, State, Table, Verdict};
use npwg::network_policy::Direction;

use super::super::identity::TABLE;
use super::{Leases, NO_RULE, REPLIES};

/// Maximum length of a neighbour discovery message after the IPv6 header. The longest have 56 bytes, on InfiniBand.
const NEIGHBOUR_MAX: u16 = 64;

/// Ports of DHCP clients and servers.
const DHCP4: (u16, u16) = (68, 67);
const DHCP6: (u16, u16) = (546, 547);

/// Group of all DHCPv6 servers and relays on a link.
const DHCP6_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

const NEIGHBOURS: &str = "neighbour discovery";
const ROUTERS: &str = "router advertisements";
const REPORTS: &str = "multicast reports";
const QUERIES: &str = "multicast queries";

/// Rule and comment.
type Commented = (Rule, String);

/// Writer of one direction's rules.
pub(super) struct Always {
    pub(super) family: Family,
    pub(super) direction: Direction,
    pub(super) is_in_pod: bool,
    pub(super) leases: Leases,
}

/// Returns an IPv6 network: all groups on the link, all groups, all link-local addresses, or `::`.
fn ip6(first: u16, second: u16, prefix_len: u8) -> IpNet {
    let address = IpAddr::from([first, 0, 0, 0, 0, 0, 0, second]);
    IpNet::new(address, prefix_len).unwrap_or_else(|_| IpNet::from(address))
}

fn link_groups() -> IpNet {
    ip6(0xff02, 0, 16)
}

fn groups() -> IpNet {
    ip6(0xff00, 0, 8)
}

fn link_local() -> IpNet {
    ip6(0xfe80, 0, 10)
}

fn unspecified() -> IpNet {
    ip6(0, 0, 128)
}

// === impl Always ===

impl Always {
    fn named(&self, comment: &str, fill: impl FnOnce(Rule) -> Rule) -> Commented {
        let rule = fill(Table::new(self.family, TABLE).rule()).decide(&Verdict::Accept);
        (rule.comment(comment), comment.to_owned())
    }

    fn is_egress(&self) -> bool {
        self.direction == Direction::Egress
    }

    /// Returns the rule for replies.
    fn replies(&self) -> Commented {
        self.named(REPLIES, |rule| rule.state(&[State::Established, State::Related]))
    }

    /// Returns the rules that precede those of policies from the first transaction on.
    pub(super) fn first(&self) -> Vec<Commented> {
        let mut rules = Vec::new();
        if self.is_in_pod {
            rules.push(self.replies());
        }
        if self.family == Family::Bridge {
            rules.push(self.named("ARP", Rule::arp));
        }
        if self.is_egress() {
            let solicits = |rule: Rule| neighbour(rule, 133, 133).destination(Is::In, link_groups());
            rules.push(self.named(NEIGHBOURS, solicits));
            for to in [link_groups(), link_local()] {
                rules.push(self.named(NEIGHBOURS, |rule| neighbour(rule, 135, 136).destination(Is::In, to)));
            }
            for (from, (first, last)) in [link_local(), unspecified()]
                .into_iter()
                .flat_map(|from| [(131, 132), (143, 143)].map(|types| (from, types)))
            {
                rules.push(self.named(REPORTS, |rule| listener(rule, first, last).source(Is::In, from)));
            }
        } else {
            rules.push(self.named(NEIGHBOURS, |rule| neighbour(rule, 135, 136)));
            rules.push(self.named(ROUTERS, |rule| link_message(rule, 134, 134).source(Is::In, link_local())));
            rules.push(self.named(QUERIES, |rule| listener(rule, 130, 130).source(Is::In, link_local())));
        }
        if self.leases == Leases::Dhcp {
            rules.extend(self.leases_of_link());
        }
        rules
    }

    /// Returns the rules for DHCP messages that no router forwards.
    fn leases_of_link(&self) -> [Commented; 2] {
        let broadcast = IpNet::from(IpAddr::from(Ipv4Addr::BROADCAST));
        let to = if self.is_egress() { IpNet::from(IpAddr::from(DHCP6_SERVERS)) } else { link_local() };
        [
            self.named("DHCPv4", |rule| self.ports(rule.destination(Is::In, broadcast), DHCP4)),
            self.named("DHCPv6", |rule| {
                self.ports(rule.source(Is::In, link_local()).destination(Is::In, to), DHCP6)
            }),
        ]
    }

    fn ports(&self, rule: Rule, (client, server): (u16, u16)) -> Rule {
        let (source, destination) = if self.is_egress() { (client, server) } else { (server, client) };
        rule.source_port(Protocol::Udp, source).destination_port(Protocol::Udp, destination)
    }

    /// Returns the rules that exist until the addresses of the attachment are known: a server sends the first lease to an
    /// address that no one knows. In the pod, the client reads frames before the rules see them.
    pub(super) fn before_addresses(&self) -> Vec<Commented> {
        let receives = self.leases == Leases::Dhcp && !self.is_egress() && !self.is_in_pod;
        receives.then(|| self.named("DHCPv4", |rule| self.ports(rule, DHCP4))).into_iter().collect()
    }

    /// Returns the rules that precede all others once the attachment's on-link networks are known. On a bridge, an
    /// attachment without IPv6 addresses from IPAM may have some that a router advertises, in any network.
    pub(super) fn with_networks(&self, networks: &[IpNet]) -> Vec<Commented> {
        let mut rules = Vec::new();
        let of =
            |is_v4: bool| networks.iter().filter(move |network| network.addr().is_ipv4() == is_v4).copied();
        if !self.is_in_pod {
            rules.push(self.replies());
            if self.is_egress() {
                let to = |network| {
                    self.named(NEIGHBOURS, |rule| neighbour(rule, 135, 136).destination(Is::In, network))
                };
                rules.extend(of(false).map(to));
                if self.family == Family::Bridge && of(false).next().is_none() {
                    rules.push(self.named(NEIGHBOURS, |rule| neighbour(rule, 135, 136)));
                }
            }
        }
        if self.leases == Leases::Dhcp {
            let server = |network| {
                self.named("DHCPv4", |rule| {
                    let rule = match self.direction {
                        Direction::Egress => rule.destination(Is::In, network),
                        Direction::Ingress => rule.source(Is::In, network),
                    };
                    self.ports(rule, DHCP4)
                })
            };
            rules.extend(of(true).map(server));
        }
        rules
    }

    /// Returns the rules that follow those of policies.
    pub(super) fn last(&self) -> Vec<Commented> {
        if !(self.is_in_pod && self.is_egress()) {
            return Vec::new();
        }
        let by_process = neighbour(Table::new(self.family, TABLE).rule(), 135, 136).from_process();
        let dropped = by_process.count().decide(&Verdict::Drop).comment(NO_RULE);
        let by_kernel = self.named(NEIGHBOURS, |rule| neighbour(rule, 135, 136));
        vec![(dropped, NO_RULE.to_owned()), by_kernel]
    }
}

/// Adds the conditions on a short message of neighbour discovery.
fn neighbour(rule: Rule, first: u8, last: u8) -> Rule {
    link_message(rule, first, last).ip6_length_at_most(NEIGHBOUR_MAX)
}

/// Adds the conditions on a message that no router forwarded.
fn link_message(rule: Rule, first: u8, last: u8) -> Rule {
    rule.ip6_hop_limit(255).ip6_next_is_icmp6().icmp6_types(first, last).icmp6_code(0)
}

/// Adds the conditions on a message of multicast listener discovery. It has an extension header, the router alert.
fn listener(rule: Rule, first: u8, last: u8) -> Rule {
    rule.ip6_hop_limit(1).destination(Is::In, groups()).icmp6_types(first, last).icmp6_code(0)
}
