//! The backend `nftables`: one map entry for each port and address family.
//!
//! ```text
//! table inet weft_portmap {
//!   map ports4   { type inet_proto . inet_service : ipv4_addr . inet_service
//!                  tcp . 8080 comment "weft/portmap/net/c1/eth0" : 10.1.0.5 . 80 }
//!   map hosts4   { type ipv4_addr . inet_proto . inet_service : … }         if the runtime passes a hostIP
//!   map targets4 { type ipv4_addr : verdict; 10.1.0.5 : jump subnet_10.1.0.0/24 }       and the same with 6
//!   chain prerouting { type nat hook prerouting priority -99; CONDITIONS fib daddr type local jump forwarded4 }  output too
//!   set addresses4 { type ipv4_addr; 127.0.0.0/8, 192.0.2.1 }     in place of fib, if Services have local addresses
//!   chain forwarded4 { mark |= bit; dnat to … map @hosts4; dnat to … map @ports4; mark &= ~bit }
//!   chain postrouting { type nat hook postrouting; mark & bit ip daddr vmap @targets4 }
//!   chain subnet_10.1.0.0/24 { ip saddr 10.1.0.0/24 masquerade; ip saddr 127.0.0.0/8 masquerade }
//!   chain loopback { type filter hook prerouting priority raw; iifname != "lo" ip daddr 127.0.0.0/8 drop }
//! }
//! ```
//!
//! Rules:
//! - Only packets to an address of this host are forwarded (GHSA-jv3w-x3r3-g6rm), and no packet of a Service
//!   (CVE-2019-9946): [`Destinations`].
//! - Only packets that were forwarded here are masqueraded.
//! - Networks with other conditions or another mark bit have a separate table.
//! - The last attachment that requests a port gets it. When it is deleted, the port returns to another requester.
//!
//! Source: nft(8); plugins `plugins/meta/portmap/portmap_nftables.go`.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use cni::Error;
use cni::invocation::ValidAttachment;
use ipnet::IpNet;
use linux::Rtnl;
use linux::nft::{
    BaseChain, Batch, ChainType, Data, Element, Family as NftFamily, Hook, Is, Mapping as To, Nft, Policy,
    Protocol, Rule, Selector, Set, Table, Type, Verdict, priority,
};
use plugin_support::failure::OrRefused;
use plugin_support::hash::hashed;
use plugin_support::owner_tag::{COMMENT_MAX, OwnerTag};

use plugin_config::conditions::Conditions;
use plugin_config::portmap::{MARK_BIT, Masquerade};

use super::conditions::restrict;
use super::settings::Mapping;
use crate::entries::{self, Entry, EntrySets};
use crate::interface::masquerade::subnet_chain;
use crate::iptables::Family;

/// Table for networks without conditions, and prefix for the other table names.
const TABLE: &str = "weft_portmap";

/// Properties that distinguish one table from another, and the destinations of the host.
pub(super) struct Variant<'a> {
    pub(super) bit: u8,
    pub(super) conditions: &'a [Conditions; 2],
    pub(super) destinations: &'a Destinations,
}

/// Packet destinations that count as addresses of this host.
///
/// With kube-proxy in IPVS mode, all Service addresses are local addresses, too. They are on a separate link, but
/// nf_tables cannot ask which link has a local address. So the addresses on the other links are listed. An ADD
/// brings the list up to date: until the next one, ports are not forwarded for an address that the node got meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Destinations {
    /// Every local address.
    Local,
    /// These addresses, and those of 127.0.0.0/8.
    Only(Vec<IpAddr>),
}

/// Links with Service addresses, made by kube-proxy and kube-router.
const SERVICE_LINKS: [&str; 2] = ["kube-ipvs0", "kube-dummy-if"];

/// Object names for one address family.
struct Names {
    family: Family,
    addresses: &'static str,
    ports: &'static str,
    hosts: &'static str,
    targets: &'static str,
    forwarded: &'static str,
}

const NAMES: [Names; 2] = [
    Names {
        family: Family::V4,
        addresses: "addresses4",
        ports: "ports4",
        hosts: "hosts4",
        targets: "targets4",
        forwarded: "forwarded4",
    },
    Names {
        family: Family::V6,
        addresses: "addresses6",
        ports: "ports6",
        hosts: "hosts6",
        targets: "targets6",
        forwarded: "forwarded6",
    },
];

/// Chain of networks that masquerade every source.
const ALL_SOURCES: &str = "everyone";

// === impl Destinations ===

impl Destinations {
    /// Returns the destinations in the namespace of the calling thread.
    pub(super) fn find() -> Result<Destinations, Error> {
        let has_link = |name: &&str| Path::new("/proc/sys/net/ipv4/conf").join(name).exists();
        if !SERVICE_LINKS.iter().any(has_link) {
            return Ok(Destinations::Local);
        }
        let mut host = Rtnl::open().or_refused()?;
        let mut of_services = Vec::new();
        for name in SERVICE_LINKS {
            of_services.extend(host.find_link(name).or_refused()?.map(|link| link.index));
        }
        let all = host.all_addresses().or_refused()?;
        let own = all.iter().filter(|address| !of_services.contains(&address.link));
        let mut own: Vec<IpAddr> = own.map(|one| one.address.addr()).filter(|ip| !ip.is_loopback()).collect();
        own.sort_unstable();
        own.dedup();
        Ok(Destinations::Only(own))
    }

    /// Returns the elements of a family's set; none if no set is used.
    fn elements(&self, family: Family) -> Option<Vec<Element>> {
        let Destinations::Only(own) = self else { return None };
        let loopback = match family {
            Family::V4 => [IpAddr::from([127, 0, 0, 0]), IpAddr::from([127, 255, 255, 255])],
            Family::V6 => [IpAddr::from(Ipv6Addr::LOCALHOST); 2],
        };
        let mut ranges = vec![loopback];
        for ip in own.iter().filter(|ip| family.has(**ip)) {
            match ranges.last_mut() {
                // Ranges of a set must not touch.
                Some([_, last]) if next(*last) == Some(*ip) => *last = *ip,
                _ => ranges.push([*ip; 2]),
            }
        }
        Some(ranges.into_iter().flat_map(|[first, last]| Element::range(first, last)).collect())
    }
}

/// Returns the address after this one.
fn next(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().checked_add(1).map(|bits| Ipv4Addr::from_bits(bits).into()),
        IpAddr::V6(ip) => ip.to_bits().checked_add(1).map(|bits| Ipv6Addr::from_bits(bits).into()),
    }
}

// === impl Variant ===

impl Variant<'_> {
    fn table(&self) -> String {
        let Variant { bit, conditions, destinations: _ } = self;
        match *bit == MARK_BIT && conditions.iter().all(Conditions::is_empty) {
            true => TABLE.to_owned(),
            false => {
                let [four, six] = conditions.each_ref().map(ToString::to_string);
                hashed("weft_portmap_", 25, &[&bit.to_string(), &four, &six])
            }
        }
    }
}

fn table(name: &str) -> Table<'_> {
    Table::new(NftFamily::Inet, name)
}

/// Returns all maps.
fn maps() -> [Set<'static>; 6] {
    const TO: [[Type; 2]; 2] = [[Type::Ipv4, Type::Port], [Type::Ipv6, Type::Port]];
    const HOSTS: [[Type; 3]; 2] =
        [[Type::Ipv4, Type::Protocol, Type::Port], [Type::Ipv6, Type::Protocol, Type::Port]];
    let [four, six] = &NAMES;
    [
        Set::to_values(four.ports, &[Type::Protocol, Type::Port], &TO[0]),
        Set::to_values(four.hosts, &HOSTS[0], &TO[0]),
        Set::to_verdicts(four.targets, &[Type::Ipv4]),
        Set::to_values(six.ports, &[Type::Protocol, Type::Port], &TO[1]),
        Set::to_values(six.hosts, &HOSTS[1], &TO[1]),
        Set::to_verdicts(six.targets, &[Type::Ipv6]),
    ]
}

fn shared<'a>(table: Table<'a>, sets: &'a [Set<'static>]) -> EntrySets<'a> {
    EntrySets { table, sets, precedence: width }
}

/// Precedence of the chain that a verdict jumps to: of two subnets, the wider one masquerades more sources.
fn width(verdict: &Verdict) -> u8 {
    let Verdict::Jump(chain) = verdict else { return 0 };
    let length = chain.rsplit_once('/').map_or(Some(0), |(_, length)| length.parse::<u8>().ok());
    u8::MAX - length.unwrap_or(u8::MAX)
}

// === ADD ===

/// Forwards the ports to the container's addresses, in one transaction.
///
/// An existing entry is replaced, even if it belongs to another attachment, which gets it back after DEL. Other entries
/// for the same attachment are removed.
pub(super) fn add(
    variant: &Variant<'_>,
    tag: &OwnerTag,
    mappings: &[Mapping],
    masquerade: Masquerade,
    addresses: &[IpNet],
) -> Result<(), Error> {
    let comment = tag.text(COMMENT_MAX);
    let own = own_entries(&comment, mappings, masquerade, addresses);
    let name = variant.table();
    let shared_objects = || shared_objects(variant, table(&name), addresses);
    let mut nft = Nft::open().or_refused()?;
    if *variant.destinations != Destinations::Local {
        nft.commit(shared_objects()?).or_refused()?;
    }
    entries::put(&mut nft, shared(table(&name), &maps()), &comment, &own, shared_objects)
}

/// Returns the entries of an attachment: one for each port and address family, and one for each address.
fn own_entries(
    comment: &str,
    mappings: &[Mapping],
    masquerade: Masquerade,
    addresses: &[IpNet],
) -> Vec<Entry> {
    let mut entries = Vec::new();
    for net in addresses {
        let names = &NAMES[usize::from(net.addr().is_ipv6())];
        let mut known = HashSet::new();
        let before = entries.len();
        for mapping in mappings.iter().filter(|mapping| mapping.is_of(names.family)) {
            let port = Data::protocol(mapping.protocol.number()).and(mapping.host_port.get());
            let (map, key) = match mapping.host_address() {
                None => (names.ports, port),
                Some(ip) => {
                    let data = Data::from(ip)
                        .and(Data::protocol(mapping.protocol.number()))
                        .and(mapping.host_port.get());
                    (names.hosts, data)
                }
            };
            // If a host port is mapped twice, the first mapping counts, as in the reference plugin.
            if !known.insert((map, key.clone())) {
                continue;
            }
            let value = Data::from(net.addr()).and(mapping.container_port.get());
            let element = Element::new(key.clone()).value(value.clone()).comment(comment);
            entries.push(Entry { set: map, key, value: Some(value), element });
        }
        if entries.len() > before && masquerade != Masquerade::Nothing {
            let key = Data::from(net.addr());
            let chain = target_chain(masquerade, net);
            let element = Element::new(key.clone()).verdict(Verdict::Jump(chain)).comment(comment);
            entries.push(Entry { set: names.targets, key, value: None, element });
        }
    }
    entries
}

/// Returns the chain that masquerades an address's connections.
fn target_chain(masquerade: Masquerade, net: &IpNet) -> String {
    match masquerade {
        Masquerade::Everything => ALL_SOURCES.to_owned(),
        Masquerade::Needed | Masquerade::Nothing => subnet_chain(net),
    }
}

// === objects that the entries need ===

/// Chain and rules.
struct Chain {
    name: String,
    base: Option<BaseChain>,
    rules: Vec<Rule>,
}

impl Chain {
    fn base(name: &str, chain_type: ChainType, hook: Hook, priority: i32, rules: Vec<Rule>) -> Chain {
        let base = BaseChain { chain_type, hook, priority, policy: Policy::Accept };
        Chain { name: name.to_owned(), base: Some(base), rules }
    }

    fn plain(name: impl Into<String>, rules: Vec<Rule>) -> Chain {
        Chain { name: name.into(), base: None, rules }
    }
}

fn network(text: &str) -> Result<IpNet, Error> {
    text.parse().map_err(|_| Error::internal(format!("{text} is no network")))
}

/// Returns all chains; the targets of jumps come first.
fn chains(variant: &Variant<'_>, table: Table<'_>, addresses: &[IpNet]) -> Result<Vec<Chain>, Error> {
    let loopback = network("127.0.0.0/8")?;
    let bit = 1_u32 << variant.bit;
    let mut chains = vec![Chain::plain(ALL_SOURCES, vec![table.rule().masquerade()])];
    for net in addresses {
        let mut rules = vec![table.rule().source(Is::In, net.trunc()).masquerade()];
        if net.addr().is_ipv4() {
            rules.push(table.rule().source(Is::In, loopback).masquerade());
        }
        chains.push(Chain::plain(subnet_chain(net), rules));
    }
    let (mut entrances, mut exits) = (Vec::new(), Vec::new());
    for (names, conditions) in NAMES.iter().zip(variant.conditions) {
        let (destination, address, to) = match names.family {
            Family::V4 => (Selector::Destination4, table.rule().ip4(), To::Address4AndPort),
            Family::V6 => (Selector::Destination6, table.rule().ip6(), To::Address6AndPort),
        };
        let port = [Selector::Transport, Selector::DestinationPort];
        let host = [destination, Selector::Transport, Selector::DestinationPort];
        // Translated packets leave the chain with the mark, all others continue without it.
        let rules = vec![
            table.rule().set_mark(bit, bit),
            table.rule().destination_nat_of(&host, names.hosts, to),
            table.rule().destination_nat_of(&port, names.ports, to),
            table.rule().set_mark(0, bit),
        ];
        chains.push(Chain::plain(names.forwarded, rules));
        let jump = Verdict::Jump(names.forwarded.to_owned());
        let restricted = restrict(conditions, address).into_iter();
        entrances.extend(restricted.map(|rule| {
            let rule = match variant.destinations {
                Destinations::Local => rule.destination_is_local(Is::In),
                Destinations::Only(_) => rule.look_up(&[destination], Is::In, names.addresses),
            };
            rule.decide(&jump)
        }));
        exits.push(table.rule().mark(Is::In, bit, bit).verdict_of(&[destination], names.targets));
    }
    // With `route_localnet` the kernel accepts packets for 127.0.0.0/8 from other hosts; this chain drops them.
    let martian = table.rule().link_in(Is::NotIn, "lo").destination(Is::In, loopback).decide(&Verdict::Drop);
    chains.extend([
        Chain::base("prerouting", ChainType::Nat, Hook::Prerouting, AFTER_SERVICES, entrances.clone()),
        Chain::base("output", ChainType::Nat, Hook::Output, AFTER_SERVICES, entrances),
        Chain::base("postrouting", ChainType::Nat, Hook::Postrouting, BEFORE_SOURCE_NAT, exits),
        Chain::base("loopback", ChainType::Filter, Hook::Prerouting, priority::RAW, vec![martian]),
    ]);
    Ok(chains)
}

/// Priority after chains that translate the addresses and node ports of Services, whichever is created first.
const AFTER_SERVICES: i32 = priority::DESTINATION_NAT + 1;

/// Priority before chains that masquerade all traffic leaving a network: they would not masquerade traffic within it.
const BEFORE_SOURCE_NAT: i32 = priority::SOURCE_NAT - 1;

/// Returns everything that the entries need; it can be committed repeatedly.
fn shared_objects(variant: &Variant<'_>, table: Table<'_>, addresses: &[IpNet]) -> Result<Batch, Error> {
    let mut batch = Batch::new();
    batch.ensure_table(table);
    for map in &maps() {
        batch.ensure_set(table, map);
    }
    for Names { family, addresses: name, .. } in &NAMES {
        let Some(elements) = variant.destinations.elements(*family) else { continue };
        let kind = if *family == Family::V4 { [Type::Ipv4] } else { [Type::Ipv6] };
        batch.ensure_set(table, &Set::of_ranges(name, &kind)).flush_set(table, name);
        batch.add_elements(table, name, &elements);
    }
    for Chain { name, base, rules } in &chains(variant, table, addresses)? {
        match base {
            Some(base) => batch.ensure_base_chain(table, name, *base),
            None => batch.ensure_chain(table, name),
        };
        batch.flush_chain(table, name);
        for rule in rules {
            batch.add_rule(table, name, rule);
        }
    }
    Ok(batch)
}

// === CHECK ===

/// Fails unless the objects that [`add`] created for the attachment are unchanged.
pub(super) fn check(
    variant: &Variant<'_>,
    tag: &OwnerTag,
    mappings: &[Mapping],
    masquerade: Masquerade,
    addresses: &[IpNet],
) -> Result<(), Error> {
    let comment = tag.text(COMMENT_MAX);
    let name = variant.table();
    let mut nft = Nft::open().or_refused()?;
    let own = own_entries(&comment, mappings, masquerade, addresses);
    // No mapping is of an address family of the container: ADD created nothing.
    if own.is_empty() {
        return Ok(());
    }
    if let Some(Entry { set, key, .. }) = entries::missing(&mut nft, table(&name), &comment, &own)? {
        let what = describe(set, key);
        return Err(Error::internal(format!("table inet {name}: {what} does not lead to this container")));
    }
    for Chain { name: chain, base: _, rules } in chains(variant, table(&name), addresses)? {
        let found = nft.rules(table(&name), &chain).or_refused()?.len();
        if found != rules.len() {
            let why = format!("table inet {name}: chain {chain} has {found} rules, not {}", rules.len());
            return Err(Error::internal(why));
        }
    }
    Ok(())
}

/// Returns a text such as `tcp port 8080`, or the name of the map.
fn describe(map: &str, key: &Data) -> String {
    match protocol_and_port(map, key) {
        Some((protocol, port)) => format!("{} port {port}", format!("{protocol:?}").to_lowercase()),
        None => format!("an entry of map {map}"),
    }
}

/// Returns protocol and port of an entry in a port map.
fn protocol_and_port(map: &str, key: &Data) -> Option<(Protocol, u16)> {
    let ports = NAMES.iter().any(|names| map == names.ports || map == names.hosts);
    let [.., protocol, _, _, _, high, low, _, _] = key.bytes() else { return None };
    let known = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let protocol = known.into_iter().find(|known| known.number() == *protocol)?;
    ports.then_some((protocol, u16::from_be_bytes([*high, *low])))
}

// === DEL, GC ===

/// Removes the attachment's entries from all tables; returns the UDP ports among them.
pub(super) fn remove(tag: &OwnerTag) -> Result<Vec<u16>, Error> {
    let comment = tag.text(COMMENT_MAX);
    remove_all(|found| found == comment)
}

/// Removes entries for attachments by `plugin` to `network` that are no longer valid.
pub(super) fn sweep(plugin: &str, network: &str, valid: &[ValidAttachment]) -> Result<Vec<u16>, Error> {
    remove_all(entries::is_stale(plugin, network, valid))
}

fn remove_all(matches: impl Fn(&str) -> bool) -> Result<Vec<u16>, Error> {
    let Some(mut nft) = entries::open()? else { return Ok(Vec::new()) };
    let mut ports = Vec::new();
    for name in nft.tables(NftFamily::Inet).or_refused()? {
        if name.starts_with(TABLE) {
            let removed = entries::remove(&mut nft, shared(table(&name), &maps()), &matches)?;
            let known = removed.iter().filter_map(|entry| protocol_and_port(entry.set, &entry.key));
            ports.extend(known.filter(|(protocol, _)| *protocol == Protocol::Udp).map(|(_, port)| port));
        }
    }
    Ok(ports)
}

// === STATUS ===

/// Fails unless nf_tables is available.
pub(super) fn status() -> Result<(), Error> {
    Nft::open().and_then(|mut nft| nft.tables(NftFamily::Inet)).or_refused().map(drop)
}
