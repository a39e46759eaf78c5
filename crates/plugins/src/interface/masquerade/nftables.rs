//! Masquerading with nf_tables: one map entry for each address.
//!
//! ```text
//! table inet weft_masquerade {
//!   map sources4 { type ipv4_addr : verdict
//!                  10.1.0.5 comment "weft/bridge/net/c1/eth0" : jump subnet_10.1.0.0/24 }
//!   map sources6 { type ipv6_addr : verdict }
//!   chain postrouting { type nat hook postrouting priority srcnat; ip saddr vmap @sources4; ip6 saddr vmap @sources6 }
//!   chain subnet_10.1.0.0/24 { ip daddr 10.1.0.0/24 return; ip daddr 224.0.0.0/4 return; masquerade }
//!   chain single4 { ip daddr 224.0.0.0/4 return; masquerade }
//! }
//! ```
//!
//! Rules:
//! - Table, maps and chains are created once and shared. An attachment is one entry, found by address in constant time
//!   and identified by the comment.
//! - There is one chain for each subnet, and it is not removed. Addresses with /32 or /128 share one chain.
//! - An entry is removed only if the comment names the attachment: another container may have the address, too. See
//!   `entries`.
//!
//! Source: nft(8); plugins `pkg/ip/ipmasq_nftables_linux.go` (G5, which has one more rule for each address).

use std::net::IpAddr;

use cni::Error;
use cni::invocation::ValidAttachment;
use ipnet::IpNet;
use linux::nft::{
    BaseChain, Batch, ChainType, Data, Element, Family, Hook, Is, Nft, Policy, Selector, Set, Table, Type,
    Verdict, priority,
};
use plugin_support::failure::OrRefused;
use plugin_support::owner_tag::{COMMENT_MAX, OwnerTag};

use crate::entries::{self, Entry, EntrySets};

/// Table name.
pub(super) const NAME: &str = "weft_masquerade";
const TABLE: Table<'static> = Table::new(Family::Inet, NAME);
const CHAIN: &str = "postrouting";
const SOURCES4: &str = "sources4";
const SOURCES6: &str = "sources6";
/// Multicast networks. Packets to groups are not masqueraded.
const MULTICAST: [&str; 2] = ["224.0.0.0/4", "ff00::/8"];

/// Returns the maps. A narrow subnet has precedence: it exempts the fewest destinations, as with a rule for each attachment.
fn sets() -> [Set<'static>; 2] {
    [Set::to_verdicts(SOURCES4, &[Type::Ipv4]), Set::to_verdicts(SOURCES6, &[Type::Ipv6])]
}

fn shared<'a>(sets: &'a [Set<'static>; 2]) -> EntrySets<'a> {
    EntrySets { table: TABLE, sets, precedence: prefix_length }
}

/// Returns the prefix length in the name of the chain that a verdict jumps to.
fn prefix_length(verdict: &Verdict) -> u8 {
    let Verdict::Jump(chain) = verdict else { return 0 };
    chain.rsplit_once('/').map_or(u8::MAX, |(_, length)| length.parse().unwrap_or(0))
}

/// Adds the entries in one transaction; a second one creates the objects that they need.
pub(super) fn add(tag: &OwnerTag, addresses: &[IpNet]) -> Result<(), Error> {
    let comment = tag.text(COMMENT_MAX);
    let entry = |net: &IpNet| {
        let key = Data::from(net.addr());
        let verdict = Verdict::Jump(chain_of(net));
        let element = Element::new(key.clone()).verdict(verdict).comment(comment.as_str());
        Entry { set: map(net.addr()), key, value: None, element }
    };
    let own: Vec<Entry> = addresses.iter().map(entry).collect();
    let mut nft = Nft::open().or_refused()?;
    entries::put(&mut nft, shared(&sets()), &comment, &own, || shared_objects(addresses))
}

/// Returns everything that the entries need; it can be committed repeatedly.
fn shared_objects(addresses: &[IpNet]) -> Result<Batch, Error> {
    let mut batch = Batch::new();
    let base = BaseChain {
        chain_type: ChainType::Nat,
        hook: Hook::Postrouting,
        priority: priority::SOURCE_NAT,
        policy: Policy::Accept,
    };
    batch
        .ensure_table(TABLE)
        .ensure_set(TABLE, &sets()[0])
        .ensure_set(TABLE, &sets()[1])
        .ensure_base_chain(TABLE, CHAIN, base)
        .flush_chain(TABLE, CHAIN)
        .add_rule(TABLE, CHAIN, &TABLE.rule().verdict_of(&[Selector::Source4], SOURCES4))
        .add_rule(TABLE, CHAIN, &TABLE.rule().verdict_of(&[Selector::Source6], SOURCES6));
    for net in addresses {
        let chain = chain_of(net);
        let multicast = MULTICAST[usize::from(net.addr().is_ipv6())];
        let multicast =
            multicast.parse().map_err(|_| Error::internal("the multicast network is no network"))?;
        batch.ensure_chain(TABLE, &chain).flush_chain(TABLE, &chain);
        if !is_single(net) {
            let within = TABLE.rule().destination(Is::In, net.trunc()).decide(&Verdict::Return);
            batch.add_rule(TABLE, &chain, &within);
        }
        batch
            .add_rule(TABLE, &chain, &TABLE.rule().destination(Is::In, multicast).decide(&Verdict::Return))
            .add_rule(TABLE, &chain, &TABLE.rule().masquerade());
    }
    Ok(batch)
}

/// Removes the attachment's entries: at the `known` addresses, in constant time, or by comment if there are none.
pub(super) fn remove(nft: &mut Nft, tag: &OwnerTag, known: &[IpNet]) -> Result<(), Error> {
    let comment = tag.text(COMMENT_MAX);
    let is_own = |found: &str| found == comment;
    let keys: Vec<_> = known.iter().map(|net| (map(net.addr()), Data::from(net.addr()))).collect();
    let removed = match keys.is_empty() {
        true => entries::remove(nft, shared(&sets()), is_own),
        false => entries::remove_known(nft, shared(&sets()), &keys, is_own),
    };
    removed.map(drop)
}

/// Returns the addresses for which the attachment has no entry.
pub(super) fn without_entry(nft: &mut Nft, tag: &OwnerTag, addresses: &[IpNet]) -> Result<Vec<IpNet>, Error> {
    let comment = tag.text(COMMENT_MAX);
    let mut missing = Vec::new();
    for net in addresses {
        if !has(nft, net, &comment)? {
            missing.push(*net);
        }
    }
    Ok(missing)
}

fn has(nft: &mut Nft, net: &IpNet, comment: &str) -> Result<bool, Error> {
    entries::has(nft, TABLE, map(net.addr()), &Data::from(net.addr()), comment)
}

/// Removes the entries that attachments of `plugin` to `network` have and that are not valid any more.
pub(super) fn sweep(plugin: &str, network: &str, valid: &[ValidAttachment]) -> Result<(), Error> {
    let Some(mut nft) = entries::open()? else { return Ok(()) };
    let is_stale = entries::is_stale(plugin, network, valid);
    entries::remove(&mut nft, shared(&sets()), is_stale).map(drop)
}

fn map(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => SOURCES4,
        IpAddr::V6(_) => SOURCES6,
    }
}

/// Returns the chain that an address's entry jumps to.
fn chain_of(net: &IpNet) -> String {
    match net.addr() {
        IpAddr::V4(_) if is_single(net) => "single4".to_owned(),
        IpAddr::V6(_) if is_single(net) => "single6".to_owned(),
        _ => subnet_chain(net),
    }
}

fn is_single(net: &IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

/// Returns the name for a subnet's chain, which all addresses in the subnet share. A colon would have to be quoted in
/// nft.
pub fn subnet_chain(net: &IpNet) -> String {
    format!("subnet_{}", net.trunc()).replace(':', "-")
}
