//! Rule: conditions, and statements for packets that meet all of them.
//!
//! A rule is built in the same order as in nft(8):
//! ```
//! # use linux::nft::{Family, Is, Table};
//! # const WEFT: Table<'_> = Table::new(Family::Inet, "weft");
//! // ip saddr 10.1.0.0/16 ip daddr != 10.1.0.0/16 counter masquerade comment "network web"
//! let net = "10.1.0.0/16".parse()?;
//! let rule = WEFT.rule().source(Is::In, net).destination(Is::NotIn, net).count().masquerade().comment("network web");
//! # Ok::<(), ipnet::AddrParseError>(())
//! ```
//! A condition on an address restricts the rule to that address family.
//!
//! Source: nft(8); nft `src/payload.c` for the conditions that nft adds itself.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use super::Family;
use super::comment;
use super::expression::{Base, Comparison, Expressions};
use super::set::{Data, Type, Verdict};
use crate::attributes::Attributes;

const RULE_EXPRESSIONS: u16 = 4;
const RULE_USER_DATA: u16 = 7;

// `NFT_META_…`
const META_LENGTH: u32 = 0;
const META_PROTOCOL: u32 = 1;
const META_MARK: u32 = 3;
const META_INDEX_IN: u32 = 4;
const META_INDEX_OUT: u32 = 5;
const META_LINK_IN: u32 = 6;
const META_LINK_OUT: u32 = 7;
const META_KIND_IN: u32 = 8;
const META_USER: u32 = 10;
const META_FAMILY: u32 = 15;
const META_TRANSPORT: u32 = 16;

// `NFT_CT_…`
const CONNECTION_STATE: u32 = 0;
const CONNECTION_STATUS: u32 = 2;

/// `IPS_DST_NAT`.
const STATUS_DESTINATION_NAT: u32 = 1 << 5;

/// `RTN_LOCAL`.
const ADDRESS_LOCAL: u32 = 2;

/// `ETH_P_ARP`.
const ETHERNET_ARP: u16 = 0x0806;

/// Beginning of an ARP packet about IPv4 addresses on Ethernet: kinds and lengths of the addresses.
const ARP_OF_ETHERNET_AND_IP4: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Length of an ARP packet, with the padding of Ethernet and some more.
const ARP_MAX: u32 = 64;

/// `IPPROTO_ICMPV6`.
const ICMP6: u8 = 58;

/// `ARPHRD_ETHER`.
const KIND_ETHER: u16 = 1;

/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`.
const FULLY_RANDOM: u32 = 1 << 4;

/// Whether a condition is negated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Is {
    /// Equal, or within.
    In,
    /// Not equal, or not within.
    NotIn,
}

/// Transport protocol that has ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// Connection state in conntrack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Packets have been seen in both directions.
    Established,
    /// The packet belongs to another connection, for example an ICMP error.
    Related,
    /// The packet is the first one.
    New,
    /// The packet belongs to no connection.
    Invalid,
}

/// Field in a packet, or in the packet metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selector {
    /// `iif`: link index. The link must exist when the rule is added; the rule matches it under any name.
    IndexIn,
    /// `oif`
    IndexOut,
    /// `iifname`
    LinkIn,
    /// `oifname`
    LinkOut,
    /// `ip saddr`
    Source4,
    /// `ip daddr`
    Destination4,
    /// `ip6 saddr`
    Source6,
    /// `ip6 daddr`
    Destination6,
    /// `ether saddr`
    EtherSource,
    /// `ether daddr`
    EtherDestination,
    /// `meta l4proto`
    Transport,
    /// `th sport`; the rule must also match the protocol, or look it up together with the port.
    SourcePort,
    /// `th dport`; the same applies as for `SourcePort`.
    DestinationPort,
    /// `meta mark`
    Mark,
}

/// Value type in a map for address translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// `ipv4_addr`
    Address4,
    /// `ipv4_addr . inet_service`
    Address4AndPort,
    /// `ipv6_addr`
    Address6,
    /// `ipv6_addr . inet_service`
    Address6AndPort,
}

/// Conditions and statements; [`super::Batch::add_rule`] adds them to a chain.
#[derive(Clone, Debug)]
#[must_use = "a rule does nothing outside a chain"]
pub struct Rule {
    family: Family,
    expressions: Expressions,
    comment: String,
    /// Address family that earlier conditions have already required: [`Rule::require_family`].
    address_family: Option<AddressFamily>,
    is_ether: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressFamily {
    Ip4,
    Ip6,
}

// === impl Rule ===

impl Rule {
    pub(super) fn new(family: Family) -> Rule {
        let expressions = Expressions::default();
        Rule { family, expressions, comment: String::new(), address_family: None, is_ether: false }
    }

    /// `comment "…"`, which `nft list` prints and [`super::Nft::rules`] returns. At most 128 bytes; quotes and control
    /// characters become `_`.
    pub fn comment(mut self, comment: impl Into<String>) -> Rule {
        self.comment = comment.into();
        self
    }

    // --- conditions ---

    /// `iifname "eth0"`, or `iifname != "eth0"`
    pub fn link_in(self, is: Is, name: &str) -> Rule {
        self.field(Selector::LinkIn, is, &Data::link(name))
    }

    /// `oifname "eth0"`, or `oifname != "eth0"`
    pub fn link_out(self, is: Is, name: &str) -> Rule {
        self.field(Selector::LinkOut, is, &Data::link(name))
    }

    /// `iif 7`, by link index: cheaper than by name, but no longer matches once the link is removed
    pub fn index_in(self, is: Is, index: u32) -> Rule {
        self.field(Selector::IndexIn, is, &Data::number(index))
    }

    /// `oif 7`, by link index
    pub fn index_out(self, is: Is, index: u32) -> Rule {
        self.field(Selector::IndexOut, is, &Data::number(index))
    }

    /// `ip saddr 10.1.0.0/16`, or `ip6 saddr …`, or `!=`
    pub fn source(self, is: Is, network: IpNet) -> Rule {
        match network {
            IpNet::V4(_) => self.network(Selector::Source4, is, network),
            IpNet::V6(_) => self.network(Selector::Source6, is, network),
        }
    }

    /// `ip daddr 10.1.0.0/16`, or `ip6 daddr …`, or `!=`
    pub fn destination(self, is: Is, network: IpNet) -> Rule {
        match network {
            IpNet::V4(_) => self.network(Selector::Destination4, is, network),
            IpNet::V6(_) => self.network(Selector::Destination6, is, network),
        }
    }

    /// `meta nfproto ipv4`, without any other condition.
    pub fn ip4(mut self) -> Rule {
        self.require_family(AddressFamily::Ip4);
        self
    }

    /// `meta nfproto ipv6`
    pub fn ip6(mut self) -> Rule {
        self.require_family(AddressFamily::Ip6);
        self
    }

    /// `ether saddr 02:00:00:00:00:01`, or `!=`
    pub fn ether_source(self, is: Is, address: [u8; 6]) -> Rule {
        self.field(Selector::EtherSource, is, &address.into())
    }

    /// `meta l4proto tcp`
    pub fn transport(self, protocol: Protocol) -> Rule {
        self.field(Selector::Transport, Is::In, &Data::protocol(protocol.number()))
    }

    /// `icmpv6 type 133-136`
    pub fn icmp6_types(mut self, first: u8, last: u8) -> Rule {
        self.require_family(AddressFamily::Ip6);
        self.expressions.load_meta(META_TRANSPORT, 0);
        self.expressions.compare(0, Comparison::Equal, &[ICMP6]);
        self.expressions.load_payload(Base::Transport, 0, 1, 0);
        self.expressions.compare(0, Comparison::AtLeast, &[first]);
        self.expressions.compare(0, Comparison::AtMost, &[last]);
        self
    }

    /// `icmpv6 code 0`, after [`Rule::icmp6_types`]
    pub fn icmp6_code(mut self, code: u8) -> Rule {
        self.expressions.load_payload(Base::Transport, 1, 1, 0);
        self.expressions.compare(0, Comparison::Equal, &[code]);
        self
    }

    /// `ip6 hoplimit 255`
    pub fn ip6_hop_limit(mut self, hops: u8) -> Rule {
        self.require_family(AddressFamily::Ip6);
        self.expressions.load_payload(Base::Network, 7, 1, 0);
        self.expressions.compare(0, Comparison::Equal, &[hops]);
        self
    }

    /// `ip6 nexthdr icmpv6`: ICMPv6 without extension headers
    pub fn ip6_next_is_icmp6(mut self) -> Rule {
        self.require_family(AddressFamily::Ip6);
        self.expressions.load_payload(Base::Network, 6, 1, 0);
        self.expressions.compare(0, Comparison::Equal, &[ICMP6]);
        self
    }

    /// `ip6 length <= 64`: bytes behind the IPv6 header
    pub fn ip6_length_at_most(mut self, bytes: u16) -> Rule {
        self.require_family(AddressFamily::Ip6);
        self.expressions.load_payload(Base::Network, 4, 2, 0);
        self.expressions.compare(0, Comparison::AtMost, &bytes.to_be_bytes());
        self
    }

    /// `meta skuid >= 0`: a process of this namespace sent the packet, and not the kernel
    pub fn from_process(mut self) -> Rule {
        self.expressions.load_meta(META_USER, 0);
        self.expressions.swap_bytes(0);
        self.expressions.compare(0, Comparison::AtLeast, &[0; 4]);
        self
    }

    /// `meta protocol arp arp htype 1 arp ptype ip arp hlen 6 arp plen 4 arp operation 1-2 meta length <= 64`, in the families
    /// bridge and netdev: requests and replies about IPv4 addresses, without other content
    pub fn arp(mut self) -> Rule {
        self.expressions.load_meta(META_PROTOCOL, 0);
        self.expressions.compare(0, Comparison::Equal, &ETHERNET_ARP.to_be_bytes());
        self.expressions.load_payload(Base::Network, 0, 6, 0);
        self.expressions.compare(0, Comparison::Equal, &ARP_OF_ETHERNET_AND_IP4);
        self.expressions.load_payload(Base::Network, 6, 2, 0);
        self.expressions.compare(0, Comparison::AtLeast, &1_u16.to_be_bytes());
        self.expressions.compare(0, Comparison::AtMost, &2_u16.to_be_bytes());
        self.expressions.load_meta(META_LENGTH, 0);
        self.expressions.swap_bytes(0);
        self.expressions.compare(0, Comparison::AtMost, &ARP_MAX.to_be_bytes());
        self
    }

    /// `tcp sport 80`
    pub fn source_port(self, protocol: Protocol, port: u16) -> Rule {
        self.transport(protocol).field(Selector::SourcePort, Is::In, &port.into())
    }

    /// `tcp dport 80`
    pub fn destination_port(self, protocol: Protocol, port: u16) -> Rule {
        self.transport(protocol).field(Selector::DestinationPort, Is::In, &port.into())
    }

    /// `tcp dport 80-90`
    pub fn destination_ports(self, protocol: Protocol, first: u16, last: u16) -> Rule {
        if first == last {
            return self.destination_port(protocol, first);
        }
        let mut rule = self.transport(protocol);
        rule.load(&[Selector::DestinationPort]);
        rule.expressions.compare(0, Comparison::AtLeast, &first.to_be_bytes());
        rule.expressions.compare(0, Comparison::AtMost, &last.to_be_bytes());
        rule
    }

    /// `fib daddr type local`: the packet is for one of this host's addresses; or `!= local`
    pub fn destination_is_local(mut self, is: Is) -> Rule {
        self.expressions.load_destination_type(0);
        self.expressions.compare(0, is.comparison(), &ADDRESS_LOCAL.to_ne_bytes());
        self
    }

    /// `ct state established,related`: any of these
    pub fn state(mut self, states: &[State]) -> Rule {
        let mask = states.iter().fold(0, |mask, state| mask | state.bit());
        self.expressions.load_connection(CONNECTION_STATE, 0);
        self.any_bit(mask)
    }

    /// `ct status dnat`: the connection's destination was translated
    pub fn was_destination_translated(mut self) -> Rule {
        self.expressions.load_connection(CONNECTION_STATUS, 0);
        self.any_bit(STATUS_DESTINATION_NAT)
    }

    /// `meta mark & 0x2000 == 0x2000`, or `!=`
    pub fn mark(mut self, is: Is, value: u32, mask: u32) -> Rule {
        self.expressions.load_meta(META_MARK, 0);
        if mask != u32::MAX {
            self.expressions.bitwise(0, &mask.to_ne_bytes(), &[0; 4]);
        }
        self.expressions.compare(0, is.comparison(), &(value & mask).to_ne_bytes());
        self
    }

    /// `-m mark --mark 0x2000/0x2000`: like [`Rule::mark`], but in a form that every iptables version can show, for
    /// iptables chains. Versions before 1.8.8 show a condition that they do not know as no condition at all.
    ///
    /// Source: kernel `include/uapi/linux/netfilter/xt_mark.h`, `struct xt_mark_mtinfo1`.
    pub fn mark_for_iptables(mut self, value: u32, mask: u32) -> Rule {
        let mut information = [0; 16];
        information[..4].copy_from_slice(&value.to_ne_bytes());
        information[4..8].copy_from_slice(&mask.to_ne_bytes());
        self.expressions.extension("mark", 1, &information);
        self
    }

    /// `ip saddr @masq4`, or `ip daddr . th dport != @open`: the fields in the same order as in the set's key.
    ///
    /// An address among the fields restricts the rule to that address family.
    pub fn look_up(mut self, fields: &[Selector], is: Is, set: &str) -> Rule {
        self.load(fields);
        self.expressions.look_up(set, is.comparison());
        self
    }

    // --- statements ---

    /// `ip saddr vmap @pods`: the verdict that the map has for these fields, if any.
    pub fn verdict_of(mut self, fields: &[Selector], map: &str) -> Rule {
        self.load(fields);
        self.expressions.map_to_verdict(map);
        self
    }

    /// `counter`
    pub fn count(mut self) -> Rule {
        self.expressions.count();
        self
    }

    /// `meta mark set mark | 0x2000`: sets the bits in `mask` to those in `value`
    pub fn set_mark(mut self, value: u32, mask: u32) -> Rule {
        self.expressions.load_meta(META_MARK, 0);
        self.expressions.bitwise(0, &(!mask).to_ne_bytes(), &(value & mask).to_ne_bytes());
        self.expressions.store_meta(META_MARK, 0);
        self
    }

    /// `notrack`: the packet belongs to no connection. Only works before connection tracking, with
    /// [`super::priority::RAW`].
    pub fn untrack(mut self) -> Rule {
        self.expressions.untrack();
        self
    }

    /// `masquerade`
    pub fn masquerade(mut self) -> Rule {
        self.expressions.masquerade(0);
        self
    }

    /// `masquerade fully-random`
    pub fn masquerade_randomly(mut self) -> Rule {
        self.expressions.masquerade(FULLY_RANDOM);
        self
    }

    /// `dnat ip to 10.1.0.5:80`
    pub fn destination_nat(mut self, to: SocketAddr) -> Rule {
        let (family, port) = self.load_socket(to);
        self.expressions.translate(1, family, 0, Some(port));
        self
    }

    /// `snat ip to 192.0.2.1:1024`
    pub fn source_nat_to_port(mut self, to: SocketAddr) -> Rule {
        let (family, port) = self.load_socket(to);
        self.expressions.translate(0, family, 0, Some(port));
        self
    }

    /// `snat ip to 192.0.2.1`
    pub fn source_nat(mut self, to: IpAddr) -> Rule {
        let family = match to {
            IpAddr::V4(_) => Family::Ip,
            IpAddr::V6(_) => Family::Ip6,
        };
        self.expressions.load_constant(&to.into(), 0);
        self.expressions.translate(0, family.number(), 0, None);
        self
    }

    /// `dnat ip to tcp dport map @ports`: the address that the map has for these fields. If there is none, evaluation
    /// continues with the next rule.
    pub fn destination_nat_of(mut self, fields: &[Selector], map: &str, mapping: Mapping) -> Rule {
        self.load(fields);
        self.expressions.map(map);
        let (family, port) = match mapping {
            Mapping::Address4 => (Family::Ip, None),
            Mapping::Address4AndPort => (Family::Ip, Some(slots(Type::Ipv4))),
            Mapping::Address6 => (Family::Ip6, None),
            Mapping::Address6AndPort => (Family::Ip6, Some(slots(Type::Ipv6))),
        };
        self.expressions.translate(1, family.number(), 0, port);
        self
    }

    /// `accept`, `drop`, `return`, `jump CHAIN`, `goto CHAIN`
    pub fn decide(mut self, verdict: &Verdict) -> Rule {
        self.expressions.decide(verdict);
        self
    }

    // --- expressions ---

    pub(super) fn write(&self, attributes: &mut Attributes) {
        let Rule { family: _, expressions, comment, address_family: _, is_ether: _ } = self;
        attributes.nested(RULE_EXPRESSIONS, |inner| {
            inner.append(&expressions.0);
        });
        if !comment.is_empty() {
            attributes.bytes(RULE_USER_DATA, &comment::user_data(comment));
        }
    }

    fn field(mut self, field: Selector, is: Is, value: &Data) -> Rule {
        self.load(&[field]);
        self.expressions.compare(0, is.comparison(), value.bytes());
        self
    }

    fn network(mut self, field: Selector, is: Is, network: IpNet) -> Rule {
        self.load(&[field]);
        if network.prefix_len() != network.max_prefix_len() {
            let mask = Data::from(network.netmask());
            self.expressions.bitwise(0, mask.bytes(), &vec![0; mask.bytes().len()]);
        }
        self.expressions.compare(0, is.comparison(), Data::from(network.network()).bytes());
        self
    }

    /// Ends the rule unless one of these bits is set in slot 0, in this machine's byte order.
    fn any_bit(mut self, mask: u32) -> Rule {
        self.expressions.bitwise(0, &mask.to_ne_bytes(), &[0; 4]);
        self.expressions.compare(0, Comparison::NotEqual, &[0; 4]);
        self
    }

    /// Loads fields side by side from slot 0 on, after the conditions that they require.
    fn load(&mut self, fields: &[Selector]) {
        for field in fields {
            match field {
                Selector::Source4 | Selector::Destination4 => self.require_family(AddressFamily::Ip4),
                Selector::Source6 | Selector::Destination6 => self.require_family(AddressFamily::Ip6),
                Selector::EtherSource | Selector::EtherDestination => self.require_ether(),
                _ => {}
            }
        }
        let mut slot = 0;
        for field in fields {
            field.load(&mut self.expressions, slot);
            slot += slots(field.kind());
        }
    }

    /// Loads the address, then the port; returns the family and the port's slot.
    fn load_socket(&mut self, socket: SocketAddr) -> (u8, u32) {
        let (family, kind) = match socket {
            SocketAddr::V4(_) => (Family::Ip, Type::Ipv4),
            SocketAddr::V6(_) => (Family::Ip6, Type::Ipv6),
        };
        let port = slots(kind);
        self.expressions.load_constant(&socket.ip().into(), 0);
        self.expressions.load_constant(&socket.port().into(), port);
        (family.number(), port)
    }

    /// `meta nfproto ipv4`, unless the table implies it. On a bridge it is in the Ethernet header.
    fn require_family(&mut self, wanted: AddressFamily) {
        let (protocol, ethernet) = match wanted {
            AddressFamily::Ip4 => (Family::Ip, 0x0800_u16),
            AddressFamily::Ip6 => (Family::Ip6, 0x86dd),
        };
        if self.family == protocol || self.address_family.replace(wanted) == Some(wanted) {
            return;
        }
        match self.family {
            Family::Bridge | Family::Netdev => {
                self.expressions.load_meta(META_PROTOCOL, 0);
                self.expressions.compare(0, Comparison::Equal, &ethernet.to_be_bytes());
            }
            Family::Inet | Family::Ip | Family::Ip6 => {
                self.expressions.load_meta(META_FAMILY, 0);
                self.expressions.compare(0, Comparison::Equal, &[protocol.number()]);
            }
        }
    }

    /// `meta iiftype ether`, if packets may arrive on links of another kind.
    fn require_ether(&mut self) {
        let known = std::mem::replace(&mut self.is_ether, true);
        if !known && !matches!(self.family, Family::Bridge | Family::Netdev) {
            self.expressions.load_meta(META_KIND_IN, 0);
            self.expressions.compare(0, Comparison::Equal, &KIND_ETHER.to_ne_bytes());
        }
    }
}

/// Returns how many slots a field takes.
fn slots(kind: Type) -> u32 {
    kind.padded() as u32 / 4
}

// === impl Selector ===

impl Selector {
    fn kind(self) -> Type {
        match self {
            Selector::IndexIn | Selector::IndexOut => Type::LinkIndex,
            Selector::LinkIn | Selector::LinkOut => Type::Link,
            Selector::Source4 | Selector::Destination4 => Type::Ipv4,
            Selector::Source6 | Selector::Destination6 => Type::Ipv6,
            Selector::EtherSource | Selector::EtherDestination => Type::Ether,
            Selector::Transport => Type::Protocol,
            Selector::SourcePort | Selector::DestinationPort => Type::Port,
            Selector::Mark => Type::Mark,
        }
    }

    /// Loads a field; offsets are those in the Ethernet, IPv4, IPv6 and transport headers.
    fn load(self, expressions: &mut Expressions, slot: u32) {
        let length = self.kind().length() as u32;
        let mut payload = |base, offset| expressions.load_payload(base, offset, length, slot);
        match self {
            Selector::EtherDestination => payload(Base::Link, 0),
            Selector::EtherSource => payload(Base::Link, 6),
            Selector::Source4 => payload(Base::Network, 12),
            Selector::Destination4 => payload(Base::Network, 16),
            Selector::Source6 => payload(Base::Network, 8),
            Selector::Destination6 => payload(Base::Network, 24),
            Selector::SourcePort => payload(Base::Transport, 0),
            Selector::DestinationPort => payload(Base::Transport, 2),
            Selector::IndexIn => expressions.load_meta(META_INDEX_IN, slot),
            Selector::IndexOut => expressions.load_meta(META_INDEX_OUT, slot),
            Selector::LinkIn => expressions.load_meta(META_LINK_IN, slot),
            Selector::LinkOut => expressions.load_meta(META_LINK_OUT, slot),
            Selector::Transport => expressions.load_meta(META_TRANSPORT, slot),
            Selector::Mark => expressions.load_meta(META_MARK, slot),
        }
    }
}

// === impl Is, Protocol, State ===

impl Is {
    fn comparison(self) -> Comparison {
        match self {
            Is::In => Comparison::Equal,
            Is::NotIn => Comparison::NotEqual,
        }
    }
}

impl Protocol {
    /// Returns the protocol number in an IP header.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }
}

impl State {
    /// `NF_CT_STATE_BIT`, `NF_CT_STATE_INVALID_BIT`.
    fn bit(self) -> u32 {
        match self {
            State::Invalid => 1,
            State::Established => 2,
            State::Related => 4,
            State::New => 8,
        }
    }
}
