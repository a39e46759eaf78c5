//! The backend `nftables`: containers are elements of sets, and one rule in each chain that drops accepts the packets
//! that these sets mark.
//!
//! ```text
//! table inet weft_firewall {
//!   set pods4 { type ipv4_addr; 10.1.0.5 comment "weft/firewall/net/c1/eth0" }            and pods6
//!   chain forward { type filter hook forward, before all others;
//!     mark &= ~0x1000; jump ingress; jump admin
//!     ip saddr @pods4 mark |= 0x1000; ct state established,related ip daddr @pods4 mark |= 0x1000 }
//!   chain admin { }                                    the node's administrator adds rules here, for example to drop
//! }
//! chain ip filter FORWARD { mark & 0x1000 accept; … }   and every other forwarding chain whose policy is drop
//! ```
//!
//! An accept in a separate table is not enough, because a later table can still drop the packet. So each chain that
//! drops gets one rule, which all containers share.
//!
//! Source: nft(8) "verdict statements"; plugins `plugins/meta/firewall/iptables.go`.

use std::net::IpAddr;

use cni::Error;
use cni::invocation::ValidAttachment;
use ipnet::IpNet;
use linux::nft::{
    BaseChain, Batch, ChainType, Data, Element, Family as NftFamily, Hook, Is, ListedChain, Nft, Policy,
    Rule, Selector, Set, State, Table, Type, Verdict,
};
use plugin_support::failure::OrRefused;
use plugin_support::owner_tag::{COMMENT_MAX, OwnerTag};

use crate::entries::{self, Entry, EntrySets, any_verdict};
use crate::iptables::Family;

/// Table for routed traffic.
pub(super) const TABLE: Table<'static> = Table::new(NftFamily::Inet, "weft_firewall");
const CHAIN: &str = "forward";
/// Chain for the rules that the node's administrator adds.
const ADMIN: &str = "admin";
/// Chain for ingress policies.
pub(super) const INGRESS: &str = "ingress";
const SETS: [&str; 2] = ["pods4", "pods6"];
/// Address sets for a firewalld zone. firewalld does not store who owns an address, and DEL and GC need it.
const ZONED: [&str; 2] = ["zoned4", "zoned6"];

/// Bit in the packet mark that says "accept". Kubernetes (14, 15), Calico (16–31), Cilium (8–11) and portmap
/// (13) do not use it. It is set in the hook `forward`, after the routing decision, so no routing rule sees
/// it.
const BIT: u32 = 1 << 12;

/// Comment on the rule in chains that drop.
const ACCEPT_COMMENT: &str = "weft firewall";

/// Priority before every other chain that may drop forwarded packets.
const FIRST: i32 = -400;

fn pods() -> [Set<'static>; 2] {
    [Set::of(SETS[0], &[Type::Ipv4]), Set::of(SETS[1], &[Type::Ipv6])]
}

fn zoned() -> [Set<'static>; 2] {
    [Set::of(ZONED[0], &[Type::Ipv4]), Set::of(ZONED[1], &[Type::Ipv6])]
}

fn shared<'a>(sets: &'a [Set<'static>]) -> EntrySets<'a> {
    EntrySets { table: TABLE, sets, precedence: any_verdict }
}

/// Accepts the container's traffic, in one transaction; a second one if a chain that drops has no rule yet.
pub(super) fn add(tag: &OwnerTag, addresses: &[IpNet]) -> Result<(), Error> {
    if addresses.is_empty() {
        return Ok(());
    }
    let comment = tag.text(COMMENT_MAX);
    let mut nft = Nft::open().or_refused()?;
    accept_in_dropping_chains(&mut nft, addresses)?;
    let own = own_entries(SETS, &comment, addresses);
    entries::put(&mut nft, shared(&pods()), &comment, &own, || Ok(shared_objects()))
}

/// Records who owns addresses in a firewalld zone.
pub(super) fn record_zone_owner(tag: &OwnerTag, addresses: &[IpNet]) -> Result<(), Error> {
    let comment = tag.text(COMMENT_MAX);
    let own = own_entries(ZONED, &comment, addresses);
    let mut nft = Nft::open().or_refused()?;
    entries::put(&mut nft, shared(&zoned()), &comment, &own, || Ok(shared_objects()))
}

fn own_entries(sets: [&'static str; 2], comment: &str, addresses: &[IpNet]) -> Vec<Entry> {
    let entry = |net: &IpNet| {
        let key = Data::from(net.addr());
        let element = Element::new(key.clone()).comment(comment);
        Entry { set: sets[usize::from(net.addr().is_ipv6())], key, value: None, element }
    };
    addresses.iter().map(entry).collect()
}

/// Returns the rules for the chain `forward`: policies first, as in the reference plugin.
fn rules() -> [Rule; 7] {
    let replies = [State::Established, State::Related];
    let from = |field, set| TABLE.rule().look_up(&[field], Is::In, set).set_mark(BIT, BIT);
    let to = |field, set| TABLE.rule().state(&replies).look_up(&[field], Is::In, set).set_mark(BIT, BIT);
    [
        TABLE.rule().set_mark(0, BIT),
        TABLE.rule().decide(&Verdict::Jump(INGRESS.to_owned())),
        TABLE.rule().decide(&Verdict::Jump(ADMIN.to_owned())),
        from(Selector::Source4, SETS[0]),
        from(Selector::Source6, SETS[1]),
        to(Selector::Destination4, SETS[0]),
        to(Selector::Destination6, SETS[1]),
    ]
}

/// Returns the table, sets and chains; rules in other tables and in the chain `admin` stay.
pub(super) fn shared_objects() -> Batch {
    let base = BaseChain {
        chain_type: ChainType::Filter,
        hook: Hook::Forward,
        priority: FIRST,
        policy: Policy::Accept,
    };
    let mut batch = Batch::new();
    batch.ensure_table(TABLE);
    for set in pods().iter().chain(&zoned()) {
        batch.ensure_set(TABLE, set);
    }
    batch
        .ensure_chain(TABLE, INGRESS)
        .ensure_chain(TABLE, ADMIN)
        .ensure_base_chain(TABLE, CHAIN, base)
        .flush_chain(TABLE, CHAIN);
    for rule in &rules() {
        batch.add_rule(TABLE, CHAIN, rule);
    }
    batch
}

// === chains that drop ===

/// Returns the chains that could drop forwarded packets with these addresses: iptables' own, as in the
/// reference plugin, and those with policy drop. Chains that drop by a rule are left alone: an administrator
/// wrote that rule.
fn dropping_chains(nft: &mut Nft, addresses: &[IpNet]) -> Result<Vec<(NftFamily, ListedChain)>, Error> {
    let mut families = vec![NftFamily::Inet];
    families.extend(addresses.iter().any(|net| Family::V4.has(net.addr())).then_some(NftFamily::Ip));
    families.extend(addresses.iter().any(|net| Family::V6.has(net.addr())).then_some(NftFamily::Ip6));
    let mut dropping_chains = Vec::new();
    for family in families {
        let chains = nft.filters(family, Hook::Forward).or_refused()?;
        let dropping = chains.into_iter().filter(|chain| chain.drops || is_of_iptables(family, chain));
        dropping_chains.extend(dropping.map(|chain| (family, chain)));
    }
    Ok(dropping_chains)
}

fn is_of_iptables(family: NftFamily, chain: &ListedChain) -> bool {
    family != NftFamily::Inet && chain.table == "filter" && chain.name == "FORWARD"
}

fn has_accept_rule(nft: &mut Nft, table: Table<'_>, chain: &str) -> Result<bool, Error> {
    Ok(nft.rules(table, chain).or_refused()?.iter().any(|rule| rule.comment == ACCEPT_COMMENT))
}

fn accept_in_dropping_chains(nft: &mut Nft, addresses: &[IpNet]) -> Result<(), Error> {
    let mut batch = Batch::new();
    for (family, chain) in dropping_chains(nft, addresses)? {
        let table = Table::new(family, &chain.table);
        if !has_accept_rule(nft, table, &chain.name)? {
            let rule = match is_of_iptables(family, &chain) {
                true => table.rule().mark_for_iptables(BIT, BIT).count(),
                false => table.rule().mark(Is::In, BIT, BIT),
            };
            batch.insert_rule(table, &chain.name, &rule.decide(&Verdict::Accept).comment(ACCEPT_COMMENT));
        }
    }
    nft.commit(batch).or_refused()
}

// === CHECK, DEL, GC ===

/// Fails unless the container's traffic is accepted.
pub(super) fn check(tag: &OwnerTag, addresses: &[IpNet]) -> Result<(), Error> {
    if addresses.is_empty() {
        return Ok(());
    }
    let comment = tag.text(COMMENT_MAX);
    let mut nft = Nft::open().or_refused()?;
    let own = own_entries(SETS, &comment, addresses);
    if let Some(Entry { set, .. }) = entries::missing(&mut nft, TABLE, &comment, &own)? {
        return Err(Error::internal(format!("table {TABLE}: an address of the container is not in {set}")));
    }
    let found = nft.rules(TABLE, CHAIN).or_refused()?.len();
    if found != rules().len() {
        let why = format!("table {TABLE}: chain {CHAIN} has {found} rules, not {}", rules().len());
        return Err(Error::internal(why));
    }
    for (family, chain) in dropping_chains(&mut nft, addresses)? {
        let table = Table::new(family, &chain.table);
        // A chain of iptables whose policy is accept needs no rule. It may have been created after ADD.
        if chain.drops && !has_accept_rule(&mut nft, table, &chain.name)? {
            return Err(Error::internal(format!(
                "chain {table} {} does not accept the traffic of containers",
                chain.name
            )));
        }
    }
    Ok(())
}

/// Whether a set contains one of the container's addresses.
pub(super) fn has(tag: &OwnerTag, addresses: &[IpNet]) -> Result<bool, Error> {
    let comment = tag.text(COMMENT_MAX);
    let mut nft = Nft::open().or_refused()?;
    for Entry { set, key, value: _, element: _ } in own_entries(SETS, &comment, addresses) {
        if entries::has(&mut nft, TABLE, set, &key, &comment)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the addresses that have no recorded owner in a firewalld zone.
pub(super) fn without_zone_owner(addresses: &[IpNet]) -> Result<Vec<IpNet>, Error> {
    let Some(mut nft) = entries::open()? else { return Ok(addresses.to_vec()) };
    let mut free = Vec::new();
    for net in addresses {
        let set = ZONED[usize::from(net.addr().is_ipv6())];
        if nft.element(TABLE, set, &Data::from(net.addr())).or_refused()?.is_none() {
            free.push(*net);
        }
    }
    Ok(free)
}

/// Addresses that [`remove`] or [`sweep`] removed.
#[derive(Clone, Debug, Default)]
pub(super) struct Removed {
    /// Addresses that no container in a firewalld zone has any more.
    pub(super) left_zone: Vec<IpNet>,
    /// Whether there was any.
    pub(super) any: bool,
}

/// Removes the container's addresses.
pub(super) fn remove(tag: &OwnerTag) -> Result<Removed, Error> {
    let comment = tag.text(COMMENT_MAX);
    remove_all(|found| found == comment)
}

/// Removes the addresses that attachments of `plugin` to `network` had and that are not valid any more.
pub(super) fn sweep(plugin: &str, network: &str, valid: &[ValidAttachment]) -> Result<Removed, Error> {
    remove_all(entries::is_stale(plugin, network, valid))
}

fn remove_all(matches: impl Fn(&str) -> bool) -> Result<Removed, Error> {
    let Some(mut nft) = entries::open()? else { return Ok(Removed::default()) };
    let all = [pods(), zoned()].concat();
    let entries = entries::remove(&mut nft, shared(&all), matches)?;
    let left = entries.iter().filter(|entry| ZONED.contains(&entry.set) && !entry.is_claimed);
    Ok(Removed {
        left_zone: left.filter_map(|entry| address(&entry.key)).collect(),
        any: !entries.is_empty(),
    })
}

fn address(key: &Data) -> Option<IpNet> {
    let four = <[u8; 4]>::try_from(key.bytes()).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(key.bytes()).map(IpAddr::from)).ok().map(IpNet::from)
}

/// Fails unless nf_tables is available.
pub(super) fn status() -> Result<(), Error> {
    Nft::open().and_then(|mut nft| nft.tables(NftFamily::Inet)).or_refused().map(drop)
}
