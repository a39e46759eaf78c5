//! One attachment's rules in the table [`TABLE`].
//!
//! ```text
//! chain prerouting  { type filter hook prerouting;  iifname vmap @links-in }     map links-in  { net1 : goto ingress-ID }
//! chain postrouting { type filter hook postrouting; oifname vmap @links-out }    map links-out { net1 : goto egress-ID }
//! chain ingress-ID  { what always passes; one rule for each kind of peer of a policy's rule; drop }
//! ```
//!
//! - At a host end the directions are the other way round: packets from the pod arrive there.
//! - A packet costs one lookup for the interface and, for each rule, one for the peer and one for the port.
//! - Replies pass by connection tracking, in both directions. On the host, all pods share the tracking table. The chain
//!   `tracking` keeps packets with another pod's address out of it ([`guard`]).
//! - Some rules need the attachment's addresses, which are known only after the ADD: [`Ruleset::with_networks`]. A
//!   second transaction adds them.
//! - On a bridge, ARP passes, and other frames than IPv4 and IPv6 pass only if a rule allows all traffic. A frame with one
//!   VLAN tag is judged by the packet in it.

mod always;
mod base_chains;
mod guard;
mod update;

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use linux::Error;
use linux::nft::{
    BaseChain, Batch, ChainType, Data, Element, Family, Hook, Is, Nft, Policy, Rule, Selector, Set, Table,
    Type, Verdict, priority, stored_comment,
};
use npwg::network_policy::{
    AddressRange, AttachmentPolicy, COMPILED_RULES_MAX, CompiledPeers, CompiledRule, Direction, PortRange,
    Protocol,
};

use self::always::Always;
pub(super) use self::base_chains::{BaseChains, commit_on_host};
use self::guard::Guard;
use super::bound_addresses;
use super::identity::{ARRIVAL, AttachmentId, TABLE};
use super::place::{HOST_FAMILIES, Place};

/// Comment of the rule that lets replies pass.
const REPLIES: &str = "replies";

/// Comment of the rules in base chains.
const BASE: &str = "links with network policies";

/// Comment of the rule for packets that no rule allows.
const NO_RULE: &str = "no rule";

/// Comment of the rule for packets that a bridge did not judge.
const PAST_THE_BRIDGE: &str = "frames to reserved addresses";

/// Hook with the base chain and the map from links to chains.
struct HookChain {
    name: &'static str,
    hook: Hook,
    map: &'static str,
    link: Selector,
}

/// Hooks, first that of arriving packets.
const HOOKS: [HookChain; 2] = [
    HookChain { name: ARRIVAL, hook: Hook::Prerouting, map: "links-in", link: Selector::LinkIn },
    HookChain { name: "postrouting", hook: Hook::Postrouting, map: "links-out", link: Selector::LinkOut },
];

/// Maps from links to chains; the entries have owner tags.
pub(crate) const LINKS: [&str; 2] = [HOOKS[0].map, HOOKS[1].map];

/// Attachment that rules are about.
pub(super) struct Target {
    pub(super) id: AttachmentId,
    /// Owner tag, by which `weft doctor` finds rules without an entry.
    pub(super) tag: String,
    pub(super) place: Place,
    pub(super) leases: Leases,
    /// Peers whose rules have a set for IPv6 also without an IPv6 address.
    pub(super) ipv6_peers: BTreeSet<String>,
}

/// Address assignment of the attachment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Leases {
    /// Without packets.
    None,
    /// By DHCPv4 or DHCPv6, whose packets pass.
    Dhcp,
}

/// Rules for one attachment.
pub(super) struct Ruleset {
    id: AttachmentId,
    tag: String,
    family: Family,
    link: String,
    chains: Vec<DirectionChain>,
    sets: Vec<OwnSet>,
}

/// Chain for one direction. Each rule has the comment beside it.
struct DirectionChain {
    name: String,
    hook: &'static HookChain,
    always: Always,
    /// Rules that exist until the attachment's addresses are known.
    before_addresses: Vec<(Rule, String)>,
    /// Rules that precede the others once the addresses are known.
    with_networks: Vec<(Rule, String)>,
    rules: Vec<(Rule, String)>,
}

/// Part of the rules that is in force.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The plugins of the network have not run.
    BeforeAddresses,
    /// The addresses of the attachment are known.
    Attached,
}

/// Set of one rule.
struct OwnSet {
    name: String,
    key: &'static [Type],
    is_of_ranges: bool,
    elements: Vec<Element>,
}

// === impl HookChain ===

impl HookChain {
    /// Adds the operations that create the base chain and the map, unless they are intact.
    fn write(&self, table: Table<'_>, family: Family, known: &mut BaseChains<'_>, batch: &mut Batch) {
        let HookChain { name, hook, map, link } = self;
        let chain = base(family, *hook);
        if known.prepare(table, name, chain, &[BASE], batch) {
            return;
        }
        batch.ensure_set(table, &Set::to_verdicts(map, &[Type::Link]));
        batch.ensure_base_chain(table, name, chain).flush_chain(table, name);
        batch.add_rule(table, name, &table.rule().verdict_of(&[*link], map).comment(BASE));
    }
}

// === impl Ruleset ===

impl Ruleset {
    /// Returns an attachment's rules.
    pub(super) fn new(target: &Target, policy: &AttachmentPolicy) -> Ruleset {
        let Target { id, tag, place, leases, ipv6_peers } = target;
        let family = place.family();
        let (mut chains, mut sets) = (Vec::new(), Vec::new());
        for direction in Direction::ALL {
            let Some(isolated) = policy.isolated(direction) else { continue };
            let arrives = (direction == Direction::Ingress) == place.is_in_pod();
            let hook = &HOOKS[usize::from(!arrives)];
            let always = Always { family, direction, is_in_pod: place.is_in_pod(), leases: *leases };
            let rules = always.first();
            let mut writer = RuleWriter { id, family, direction, policy, ipv6_peers, rules, sets: &mut sets };
            for (index, rule) in isolated.rules.iter().enumerate() {
                writer.rule(index, rule);
            }
            writer.rules.extend(always.last());
            writer.push(|rule| rule.count().decide(&Verdict::Drop), NO_RULE.to_owned());
            let (before_addresses, rules) = (always.before_addresses(), writer.rules);
            let name = id.chain(direction);
            chains.push(DirectionChain {
                name,
                hook,
                before_addresses,
                with_networks: Vec::new(),
                rules,
                always,
            });
        }
        Ruleset { id: id.clone(), tag: tag.clone(), family, link: place.link().to_owned(), chains, sets }
    }

    /// Adds the rules that need the attachment's on-link networks.
    pub(super) fn with_networks(mut self, networks: &[IpNet]) -> Ruleset {
        for chain in &mut self.chains {
            chain.with_networks = chain.always.with_networks(networks);
        }
        self
    }

    /// Adds the operations that put the rules in force. Base chains that are `known` are not written again.
    pub(super) fn write(&self, phase: Phase, known: &mut BaseChains<'_>, batch: &mut Batch) {
        let Ruleset { id: _, tag, family, link, chains, sets } = self;
        let table = Table::new(*family, TABLE);
        batch.ensure_table(table);
        HOOKS.iter().for_each(|hook| hook.write(table, *family, known, batch));
        if *family == Family::Bridge {
            self.write_past_the_bridge(known, batch);
        }
        for OwnSet { name, key, is_of_ranges, elements } in sets {
            let set = if *is_of_ranges { Set::of_ranges(name, key) } else { Set::of(name, key) };
            batch.ensure_set(table, &set).flush_set(table, name).add_elements(table, name, elements);
        }
        for chain in chains {
            let (name, map) = (&chain.name, chain.hook.map);
            batch.ensure_chain(table, name).flush_chain(table, name);
            for (rule, _) in chain.all(phase) {
                batch.add_rule(table, name, rule);
            }
            let entry = Element::new(Data::link(link)).verdict(Verdict::Goto(name.clone()));
            let entry = entry.comment(tag.as_str());
            batch.add_elements(table, map, &[entry]);
        }
    }

    /// Drops packets that arrive at the port itself: frames to addresses that IEEE 802.1D reserves reach the IP layer
    /// without passing the bridge hooks.
    fn write_past_the_bridge(&self, known: &mut BaseChains<'_>, batch: &mut Batch) {
        let Ruleset { id, tag, family: _, link, chains, sets: _ } = self;
        let [arrival, _] = &HOOKS;
        if !chains.iter().any(|chain| chain.hook.name == arrival.name) {
            return;
        }
        let table = Table::new(Family::Inet, TABLE);
        batch.ensure_table(table);
        arrival.write(table, Family::Inet, known, batch);
        let chain = id.chain(Direction::Egress);
        let dropped = table.rule().count().decide(&Verdict::Drop).comment(PAST_THE_BRIDGE);
        batch.ensure_chain(table, &chain).flush_chain(table, &chain).add_rule(table, &chain, &dropped);
        let entry = Element::new(Data::link(link)).verdict(Verdict::Goto(chain)).comment(tag.as_str());
        batch.add_elements(table, arrival.map, &[entry]);
    }

    /// Adds the operations that put the rules in force that need the attachment's addresses, after [`Ruleset::write`]
    /// without them. On the host, replies pass from then on.
    pub(super) fn attach(&self, batch: &mut Batch) {
        let table = Table::new(self.family, TABLE);
        for chain in &self.chains {
            let name = &chain.name;
            if chain.before_addresses.is_empty() {
                for (rule, _) in chain.with_networks.iter().rev() {
                    batch.insert_rule(table, name, rule);
                }
            } else {
                batch.flush_chain(table, name);
                for (rule, _) in chain.all(Phase::Attached) {
                    batch.add_rule(table, name, rule);
                }
            }
        }
    }

    /// Adds the operations that keep packets with forged addresses out of the host's connection tracking. `links` are
    /// the host links on which packets from the attachment's addresses arrive.
    pub(super) fn guard(
        &self,
        links: &[&str],
        addresses: &[IpAddr],
        bridges_track: impl FnOnce() -> bool,
        known: &mut BaseChains<'_>,
        batch: &mut Batch,
    ) {
        for (family, guard) in self.guards(links, addresses, bridges_track) {
            guard::write(family, &guard, known, batch);
        }
    }

    /// Returns the address protection, for each table that has it.
    fn guards<'a>(
        &'a self,
        links: &'a [&'a str],
        addresses: &'a [IpAddr],
        bridges_track: impl FnOnce() -> bool,
    ) -> Vec<(Family, Guard<'a>)> {
        if addresses.is_empty() {
            return Vec::new();
        }
        let isolates = |hook: &HookChain| self.chains.iter().any(|chain| chain.hook.name == hook.name);
        let [arrival, departure] = &HOOKS;
        let (is_bound, is_guarded) = (isolates(arrival), isolates(departure));
        let has_bridge = self.family == Family::Bridge || bridges_track();
        let families = HOST_FAMILIES.into_iter().filter(|family| *family != Family::Bridge || has_bridge);
        let guard = |family: Family| Guard {
            id: &self.id,
            addresses,
            links,
            host_end: &self.link,
            is_guarded,
            is_bound: is_bound && family == self.family,
        };
        families.map(|family| (family, guard(family))).collect()
    }

    /// Returns the first part of the address protection that the host lacks.
    pub(super) fn guard_difference(
        &self,
        nft: &mut Nft,
        links: &[&str],
        addresses: &[IpAddr],
        bridges_track: impl FnOnce() -> bool,
    ) -> Result<Option<String>, Error> {
        for (family, guard) in self.guards(links, addresses, bridges_track) {
            if let Some(difference) = guard::difference(nft, family, &guard)? {
                return Ok(Some(difference));
            }
        }
        Ok(None)
    }

    /// Returns the maximum size of the kernel's lists for these rules, in bytes. The rest of a namespace may have some
    /// more: old kernels list the rules in other chains, too.
    pub(super) fn lists_max(&self) -> usize {
        const OTHERS: usize = 1 << 20;
        const RULE: usize = 1 << 10;
        const ELEMENT: usize = 128;
        let rules: usize = self.chains.iter().map(|chain| chain.rules.len()).sum();
        let elements: usize = self.sets.iter().map(|set| set.elements.len()).sum();
        OTHERS + rules * RULE + elements * ELEMENT
    }

    /// Returns the first difference between these rules and those of the kernel.
    pub(super) fn difference(&self, nft: &mut Nft) -> Result<Option<String>, Error> {
        let Ruleset { id: _, tag: _, family, link, chains, sets } = self;
        let table = Table::new(*family, TABLE);
        for chain in chains {
            let comments: Vec<String> =
                chain.all(Phase::Attached).map(|(_, comment)| stored_comment(comment)).collect();
            let comments: Vec<&str> = comments.iter().map(String::as_str).collect();
            let DirectionChain { name, hook, .. } = chain;
            if let Some(difference) = chain_difference(nft, table, link, hook, name, &comments)? {
                return Ok(Some(difference));
            }
        }
        for OwnSet { name, elements, .. } in sets {
            let keys = |all: Vec<linux::nft::ListedElement>| {
                let mut keys: Vec<Vec<u8>> = all.iter().map(|element| element.key.bytes().to_vec()).collect();
                keys.sort_unstable();
                keys
            };
            let expected = keys(elements.iter().map(Element::listed).collect());
            if keys(nft.elements(table, name)?) != expected {
                return Ok(Some(format!("the elements of set {table} {name} were changed")));
            }
        }
        let [arrival, _] = &HOOKS;
        if *family == Family::Bridge && chains.iter().any(|chain| chain.hook.name == arrival.name) {
            let (table, chain) = (Table::new(Family::Inet, TABLE), self.id.chain(Direction::Egress));
            return chain_difference(nft, table, link, arrival, &chain, &[PAST_THE_BRIDGE]);
        }
        Ok(None)
    }
}

// === impl DirectionChain ===

impl DirectionChain {
    /// Returns the rules in order.
    fn all(&self, phase: Phase) -> impl Iterator<Item = &(Rule, String)> {
        let first = match phase {
            Phase::BeforeAddresses => &self.before_addresses,
            Phase::Attached => &self.with_networks,
        };
        first.iter().chain(&self.rules)
    }
}

/// Returns the first difference between the kernel's chain for a direction and one whose rules have these comments.
fn chain_difference(
    nft: &mut Nft,
    table: Table<'_>,
    link: &str,
    hook: &HookChain,
    chain: &str,
    comments: &[&str],
) -> Result<Option<String>, Error> {
    if nft.is_dormant(table)? {
        return Ok(Some(format!("table {table} is dormant: its rules see no packet")));
    }
    // A rule before it could accept everything.
    if !matches!(nft.rules(table, hook.name)?.as_slice(), [only] if only.comment == BASE) {
        return Ok(Some(format!("the rules of chain {table} {} were changed", hook.name)));
    }
    if nft.base_chain(table, hook.name)? != Some(base(table.family(), hook.hook)) {
        return Ok(Some(format!("hook, priority or policy of chain {table} {} was changed", hook.name)));
    }
    let entry = nft.element(table, hook.map, &Data::link(link))?;
    if entry.and_then(|entry| entry.verdict) != Some(Verdict::Goto(chain.to_owned())) {
        return Ok(Some(format!("map {table} {} does not lead to the rules of {link}", hook.map)));
    }
    let listed = nft.rules(table, chain)?;
    if !listed.iter().map(|rule| rule.comment.as_str()).eq(comments.iter().copied()) {
        return Ok(Some(format!("the rules of chain {table} {chain} were changed")));
    }
    Ok(None)
}

/// Writer of one direction's rules.
struct RuleWriter<'a> {
    id: &'a AttachmentId,
    family: Family,
    direction: Direction,
    policy: &'a AttachmentPolicy,
    ipv6_peers: &'a BTreeSet<String>,
    rules: Vec<(Rule, String)>,
    sets: &'a mut Vec<OwnSet>,
}

// === impl RuleWriter ===

impl RuleWriter<'_> {
    fn push(&mut self, fill: impl FnOnce(Rule) -> Rule, comment: String) {
        let rule = fill(Table::new(self.family, TABLE).rule()).comment(comment.as_str());
        self.rules.push((rule, comment));
    }

    /// Adds a policy rule: one kernel rule for each family and kind of peer.
    fn rule(&mut self, index: usize, rule: &CompiledRule) {
        let CompiledRule { policy, rule, peers, ports } = rule;
        let comment = comment(index, policy, *rule);
        let ports = self.ports(index, ports);
        match peers {
            CompiledPeers::Any => self.allow(None, &ports, &comment),
            CompiledPeers::Only { set, ranges } => {
                for is_v4 in [true, false] {
                    let family = if is_v4 { "4" } else { "6" };
                    if let Some(elements) = set.as_ref().and_then(|name| self.peers(name, is_v4)) {
                        let name = self.id.set(self.direction, index, &format!("pods{family}"));
                        self.sets.push(OwnSet {
                            name: name.clone(),
                            key: address_key(is_v4),
                            is_of_ranges: false,
                            elements,
                        });
                        self.allow(Some(PeerMatch::Set(&name, is_v4)), &ports, &comment);
                    }
                    let ranges: Vec<&AddressRange> =
                        ranges.iter().filter(|range| range.first.is_ipv4() == is_v4).collect();
                    if let Some(network) = only_network(&ranges) {
                        self.allow(Some(PeerMatch::Network(network)), &ports, &comment);
                    } else if !ranges.is_empty() {
                        let elements =
                            ranges.iter().flat_map(|range| Element::range(range.first, range.last)).collect();
                        let name = self.id.set(self.direction, index, &format!("blocks{family}"));
                        self.sets.push(OwnSet {
                            name: name.clone(),
                            key: address_key(is_v4),
                            is_of_ranges: true,
                            elements,
                        });
                        self.allow(Some(PeerMatch::Set(&name, is_v4)), &ports, &comment);
                    }
                }
            }
        }
    }

    /// Returns the elements in a rule's peer set; `None` if the rule needs no set for this family.
    ///
    /// Most networks have only IPv4, and each set makes every ADD slower. So an IPv6 set is created with the first IPv6
    /// address. It stays when the last one goes, because removing it and creating it again would write all rules twice.
    fn peers(&self, name: &str, is_v4: bool) -> Option<Vec<Element>> {
        let addresses = self.policy.sets.get(name).into_iter().flatten();
        let of_family = addresses.filter(|address| address.is_ipv4() == is_v4);
        let elements: Vec<Element> = of_family.map(|address| Element::new(*address)).collect();
        (is_v4 || !elements.is_empty() || self.ipv6_peers.contains(name)).then_some(elements)
    }

    /// Returns the port condition for a rule. Several port ranges need a set, which is added.
    fn ports(&mut self, index: usize, ports: &[PortRange]) -> PortMatch {
        match ports {
            [] => return PortMatch::Any,
            [only] => return PortMatch::Range(*only),
            _ => {}
        }
        let key = |protocol: Protocol, port: u16| Data::protocol(number(protocol)).and(port);
        let element = |range: &PortRange| {
            let PortRange { protocol, first, last } = *range;
            Element::new(key(protocol, first)).to(key(protocol, last))
        };
        let name = self.id.set(self.direction, index, "ports");
        self.sets.push(OwnSet {
            name: name.clone(),
            key: &[Type::Protocol, Type::Port],
            is_of_ranges: true,
            elements: ports.iter().map(element).collect(),
        });
        PortMatch::Set(name)
    }

    /// Adds a rule that accepts packets with these peers and ports.
    fn allow(&mut self, peers: Option<PeerMatch<'_>>, ports: &PortMatch, comment: &str) {
        let direction = self.direction;
        let peer = |is_v4: bool| match (direction, is_v4) {
            (Direction::Ingress, true) => Selector::Source4,
            (Direction::Ingress, false) => Selector::Source6,
            (Direction::Egress, true) => Selector::Destination4,
            (Direction::Egress, false) => Selector::Destination6,
        };
        self.push(
            |rule| {
                let rule = match (peers, direction) {
                    (None, _) => rule,
                    (Some(PeerMatch::Set(set, is_v4)), _) => rule.look_up(&[peer(is_v4)], Is::In, set),
                    (Some(PeerMatch::Network(network)), Direction::Ingress) => rule.source(Is::In, network),
                    (Some(PeerMatch::Network(network)), Direction::Egress) => {
                        rule.destination(Is::In, network)
                    }
                };
                let rule = match ports {
                    PortMatch::Any => rule,
                    PortMatch::Range(PortRange { protocol, first, last }) => {
                        rule.destination_ports(transport(*protocol), *first, *last)
                    }
                    PortMatch::Set(set) => {
                        rule.look_up(&[Selector::Transport, Selector::DestinationPort], Is::In, set)
                    }
                };
                rule.count().decide(&Verdict::Accept)
            },
            comment.to_owned(),
        );
    }
}

/// Condition on a rule's peers. A single network needs no set, which would take most of the time when the rule is
/// committed.
#[derive(Clone, Copy)]
enum PeerMatch<'a> {
    /// Set name, and whether it is for IPv4.
    Set(&'a str, bool),
    Network(IpNet),
}

/// Condition on a rule's ports.
enum PortMatch {
    Any,
    Range(PortRange),
    /// Set name.
    Set(String),
}

/// Returns the network that the ranges are, if they are a single one.
fn only_network(ranges: &[&AddressRange]) -> Option<IpNet> {
    let [AddressRange { first, last }] = ranges else { return None };
    let equal_bits = match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => (first.to_bits() ^ last.to_bits()).leading_zeros(),
        (IpAddr::V6(first), IpAddr::V6(last)) => (first.to_bits() ^ last.to_bits()).leading_zeros(),
        _ => return None,
    };
    let network = IpNet::new(*first, u8::try_from(equal_bits).ok()?).ok()?;
    (network.network() == *first && network.broadcast() == *last).then_some(network)
}

/// Returns a base chain. On a bridge it follows connection tracking and precedes `br_netfilter`, which skips chains
/// with the same priority.
fn base(family: Family, hook: Hook) -> BaseChain {
    let priority = if family == Family::Bridge { priority::MANGLE } else { priority::FILTER };
    BaseChain { chain_type: ChainType::Filter, hook, priority, policy: Policy::Accept }
}

/// Part of the policies that decides about packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decider {
    /// A compiled rule, by index.
    Rule(usize),
    /// No rule allows the packets.
    NoRule,
}

/// Returns the part of the policies for which a rule with this comment stands; `None` for replies and the like.
pub(super) fn decider(comment: &str) -> Option<Decider> {
    if [NO_RULE, PAST_THE_BRIDGE].contains(&comment) {
        return Some(Decider::NoRule);
    }
    let (index, _) = comment.strip_prefix('#')?.split_once(' ')?;
    index.parse().ok().filter(|index| *index < COMPILED_RULES_MAX).map(Decider::Rule)
}

/// Returns a rule comment: the index, and the beginning of the policy name, which `nft list` shows.
fn comment(index: usize, policy: &str, rule: usize) -> String {
    const NAME_MAX: usize = 96;
    let name: String = policy.chars().take(NAME_MAX).collect();
    format!("#{index} {name}[{rule}]")
}

fn address_key(is_v4: bool) -> &'static [Type] {
    if is_v4 { &[Type::Ipv4] } else { &[Type::Ipv6] }
}

fn transport(protocol: Protocol) -> linux::nft::Protocol {
    match protocol {
        Protocol::Tcp => linux::nft::Protocol::Tcp,
        Protocol::Udp => linux::nft::Protocol::Udp,
        Protocol::Sctp => linux::nft::Protocol::Sctp,
    }
}

pub(super) fn number(protocol: Protocol) -> u8 {
    transport(protocol).number()
}

/// Removes other attachments' rules to which the interface of `target` leads packets, that is, rules that an earlier
/// attachment left.
///
/// # Errors
/// Listing or commit fails.
pub(super) fn clear_the_way(nft: &mut Nft, target: &Target) -> Result<(), Error> {
    let key = Data::link(target.place.link());
    let tables = nft.all_tables()?;
    let mut batch = Batch::new();
    let family = target.place.family();
    for family in [Some(family), (family != Family::Inet).then_some(Family::Inet)].into_iter().flatten() {
        if !tables.iter().any(|(of, name)| *of == family && name == TABLE) {
            continue;
        }
        let mut left = BTreeSet::new();
        for HookChain { map, .. } in &HOOKS {
            for entry in nft.elements(Table::new(family, TABLE), map)? {
                if let (true, Some(Verdict::Goto(chain))) = (entry.key == key, &entry.verdict) {
                    left.extend(attachment_of(chain));
                }
            }
        }
        left.remove(&target.id);
        discard(nft, family, &left.into_iter().collect::<Vec<_>>(), &mut batch)?;
    }
    nft.commit(batch)
}

/// Returns the attachment whose packets a chain decides.
fn attachment_of(chain: &str) -> Option<AttachmentId> {
    let id =
        Direction::ALL.iter().find_map(|direction| chain.strip_prefix(direction.word())?.strip_prefix('-'));
    id.map(AttachmentId::read)
}

/// Returns the attachments that have chains or bound addresses in the table.
pub(super) fn attachments(nft: &mut Nft, family: Family) -> Result<BTreeSet<AttachmentId>, Error> {
    let table = Table::new(family, TABLE);
    let chains = nft.chains(table)?;
    let mut found: BTreeSet<AttachmentId> = chains.iter().filter_map(|chain| attachment_of(chain)).collect();
    found.extend(bound_addresses::attachments(nft, table, &chains)?);
    Ok(found)
}

/// Adds the operations that remove attachments' chains, sets and map entries.
pub(super) fn discard(
    nft: &mut Nft,
    family: Family,
    ids: &[AttachmentId],
    batch: &mut Batch,
) -> Result<(), Error> {
    let table = Table::new(family, TABLE);
    let chains: BTreeSet<String> =
        ids.iter().flat_map(|id| Direction::ALL.map(|direction| id.chain(direction))).collect();
    for HookChain { map, .. } in &HOOKS {
        let entries = match nft.elements(table, map) {
            Err(error) if error.kind() == linux::Kind::Absent => continue,
            entries => entries?,
        };
        let leads = |verdict: &Option<Verdict>| matches!(verdict, Some(Verdict::Goto(chain)) if chains.contains(chain));
        let own: Vec<Element> = entries
            .iter()
            .filter(|entry| leads(&entry.verdict))
            .map(|entry| entry.at(entry.key.clone()))
            .collect();
        batch.delete_elements(table, map, &own);
    }
    let existing = nft.chains(table)?;
    for chain in existing.iter().filter(|name| chains.contains(*name)) {
        batch.flush_chain(table, chain).delete_chain(table, chain);
    }
    bound_addresses::discard(nft, table, &existing, ids, batch)?;
    let is_own = |name: &String| ids.iter().any(|id| name.starts_with(&format!("{id}-")));
    for set in nft.sets(table)?.iter().filter(|name| is_own(name)) {
        batch.delete_set(table, set);
    }
    guard::discard(nft, table, ids, batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_policy_range_that_is_a_network_needs_no_set() {
        let network = |first: &str, last: &str| {
            let range = AddressRange {
                first: first.parse().expect("an address"),
                last: last.parse().expect("an address"),
            };
            only_network(&[&range]).map(|network| network.to_string())
        };
        for (first, last, expected) in [
            ("10.1.0.0", "10.1.255.255", Some("10.1.0.0/16")),
            ("10.1.0.7", "10.1.0.7", Some("10.1.0.7/32")),
            ("0.0.0.0", "255.255.255.255", Some("0.0.0.0/0")),
            ("fd00::", "fd00::ffff", Some("fd00::/112")),
            ("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", Some("::/0")),
            ("10.1.0.1", "10.1.0.2", None),
            ("10.1.0.0", "10.1.0.2", None),
            ("10.1.0.1", "10.1.0.3", None),
            ("fd00::1", "fd00::ffff", None),
        ] {
            assert_eq!(network(first, last).as_deref(), expected, "{first}-{last}");
        }
        assert_eq!(only_network(&[]), None);
    }
}
