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
//! - Table, maps and chains are created once and shared. An attachment is one entry, found by its address in constant
//!   time and identified by its comment.
//! - There is one chain for each subnet, and it is not removed. Addresses with /32 or /128 share one chain.
//! - An entry is removed only if its comment names the attachment: the address may belong to another container by now.
//!
//! Source: nft(8); plugins `pkg/ip/ipmasq_nftables_linux.go` (G5, which has one more rule for each address).

use std::net::IpAddr;

use cni::Error;
use cni::invocation::ValidAttachment;
use ipnet::IpNet;
use linux::Kind;
use linux::nft::{
    BaseChain, Batch, ChainType, Data, Element, Family, Hook, Is, Nft, Policy, Selector, Set, Table, Type,
    Verdict, priority,
};
use plugin_support::failure::{OrRefused, refused};
use plugin_support::owner_tag::{COMMENT_MAX, OwnerTag};

use crate::entries;

/// Name of the table.
pub(super) const NAME: &str = "weft_masquerade";
const TABLE: Table<'static> = Table::new(Family::Inet, NAME);
const CHAIN: &str = "postrouting";
const SOURCES4: &str = "sources4";
const SOURCES6: &str = "sources6";
const SOURCES: [&str; 2] = [SOURCES4, SOURCES6];
/// Multicast networks. Packets to groups are not masqueraded.
const MULTICAST: [&str; 2] = ["224.0.0.0/4", "ff00::/8"];

/// Adds the entries in one transaction; a second one creates the objects that they need.
pub(super) fn add(tag: &OwnerTag, addresses: &[IpNet]) -> Result<(), Error> {
    let comment = tag.text(COMMENT_MAX);
    let mut nft = Nft::open().or_refused()?;
    match nft.commit(all(addresses, &comment)) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == Kind::Absent => nft.commit(shared_objects(addresses)?).or_refused()?,
        Err(error) if error.kind() == Kind::Exists => {}
        Err(error) => return Err(refused(&error)),
    }
    // Either the objects did not exist, or an entry is left from a container that was never deleted.
    take_over(&mut nft, addresses, &comment)
}

/// Returns a batch that adds the entries and fails if an address has one already.
fn all(addresses: &[IpNet], comment: &str) -> Batch {
    let mut batch = Batch::new();
    for net in addresses {
        let target = Verdict::Jump(chain_of(net));
        let element = Element::new(net.addr()).verdict(target).comment(comment);
        batch.create_elements(TABLE, map(net.addr()), &[element]);
    }
    batch
}

/// Replaces existing entries in one transaction.
fn take_over(nft: &mut Nft, addresses: &[IpNet], comment: &str) -> Result<(), Error> {
    let mut batch = Batch::new();
    for net in addresses {
        let present = nft.element(TABLE, map(net.addr()), &Data::from(net.addr())).or_refused()?;
        if present.is_some() {
            batch.delete_elements(TABLE, map(net.addr()), &[Element::new(net.addr())]);
        }
    }
    for net in addresses {
        let target = Verdict::Jump(chain_of(net));
        let element = Element::new(net.addr()).verdict(target).comment(comment);
        batch.create_elements(TABLE, map(net.addr()), &[element]);
    }
    nft.commit(batch).or_refused()
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
        .ensure_set(TABLE, &Set::to_verdicts(SOURCES4, &[Type::Ipv4]))
        .ensure_set(TABLE, &Set::to_verdicts(SOURCES6, &[Type::Ipv6]))
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
    let mut batch = Batch::new();
    for net in known {
        if has(nft, net, &comment)? {
            batch.delete_elements(TABLE, map(net.addr()), &[Element::new(net.addr())]);
        }
    }
    match nft.commit(batch) {
        Ok(()) if !known.is_empty() => Ok(()),
        Err(error) if error.kind() != Kind::Absent => Err(refused(&error)),
        // No address is known, or another process removed an entry meanwhile and the whole batch failed.
        _ => entries::remove(nft, TABLE, &SOURCES, |found| found == comment).map(|_| ()),
    }
}

/// Returns those of the addresses that have no entry of the attachment.
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
    let element = nft.element(TABLE, map(net.addr()), &Data::from(net.addr())).or_refused()?;
    Ok(element.is_some_and(|element| element.comment == comment))
}

/// Removes the entries of attachments of `plugin` and `network` that are not valid any more.
pub(super) fn sweep(plugin: &str, network: &str, valid: &[ValidAttachment]) -> Result<(), Error> {
    let Some(mut nft) = entries::open()? else { return Ok(()) };
    let is_stale = entries::is_stale(plugin, network, valid);
    entries::remove(&mut nft, TABLE, &SOURCES, is_stale).map(|_| ())
}

fn map(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => SOURCES4,
        IpAddr::V6(_) => SOURCES6,
    }
}

/// Returns the chain that the entry of an address jumps to.
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

/// Returns the name of a subnet's chain, which all its addresses share. A colon would have to be quoted in nft.
pub fn subnet_chain(net: &IpNet) -> String {
    format!("subnet_{}", net.trunc()).replace(':', "-")
}
