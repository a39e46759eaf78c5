//! Protection of the host's connection tracking, which all pods of the node share.
//!
//! ```text
//! chain tracking { type filter hook prerouting priority raw
//!                  ip saddr @guarded4 iifname . ip saddr != @owners4 notrack
//!                  iifname @bound4    iifname . ip saddr != @owners4 notrack }
//! ```
//!
//! A packet of a tracked connection passes as a reply. Without the chain, a pod could send a packet with the source address
//! of another pod, whose connection the kernel would then track, and "reply" to it:
//! - with the address of a pod with isolated ingress, to reach that pod: `guarded`;
//! - with an address that it wants to reach, to an allowed peer, past its own isolated egress: `bound`.
//!
//! Such packets pass untracked. They are not dropped, because another network of the node may use the same addresses.
//!
//! Elements of `owners` and `bound` have the id of their attachment as comment.

use std::collections::BTreeSet;
use std::net::IpAddr;

use linux::Error;
use linux::nft::{
    BaseChain, Batch, ChainType, Data, Element, Family, Hook, Is, ListedElement, Nft, Policy, Selector, Set,
    Table, Type, priority,
};

use super::super::identity::{AttachmentId, TABLE};

/// Base chain before connection tracking.
const CHAIN: &str = "tracking";
/// Comment of its rules.
const COMMENT: &str = "addresses of isolated pods";

const RAW: BaseChain = BaseChain {
    chain_type: ChainType::Filter,
    hook: Hook::Prerouting,
    priority: priority::RAW,
    policy: Policy::Accept,
};

/// Addresses of an attachment.
pub(super) struct Guard<'a> {
    pub(super) id: &'a AttachmentId,
    pub(super) addresses: &'a [IpAddr],
    /// Links of the host on which packets with these addresses may arrive.
    pub(super) links: &'a [&'a str],
    /// Whether the ingress of the pod is isolated.
    pub(super) is_guarded: bool,
    /// Link whose packets have no other address, if the egress of the pod is isolated.
    pub(super) bound: Option<&'a str>,
}

/// Sets of one address family.
struct Sets {
    is_v4: bool,
    source: Selector,
    guarded: Set<'static>,
    bound: Set<'static>,
    owners: Set<'static>,
}

fn both() -> [Sets; 2] {
    [
        Sets {
            is_v4: true,
            source: Selector::Source4,
            guarded: Set::of("guarded4", &[Type::Ipv4]),
            bound: Set::of("bound4", &[Type::Link]),
            owners: Set::of("owners4", &[Type::Link, Type::Ipv4]),
        },
        Sets {
            is_v4: false,
            source: Selector::Source6,
            guarded: Set::of("guarded6", &[Type::Ipv6]),
            bound: Set::of("bound6", &[Type::Link]),
            owners: Set::of("owners6", &[Type::Link, Type::Ipv6]),
        },
    ]
}

/// Adds the operations that guard the addresses in the table of a family.
pub(super) fn write(family: Family, guard: &Guard<'_>, batch: &mut Batch) {
    let Guard { id, addresses, links, is_guarded, bound } = guard;
    let table = Table::new(family, TABLE);
    batch.ensure_table(table).ensure_base_chain(table, CHAIN, RAW).flush_chain(table, CHAIN);
    for sets in &both() {
        let Sets { is_v4, source, guarded: own, bound: ends, owners } = sets;
        batch.ensure_set(table, own).ensure_set(table, ends).ensure_set(table, owners);
        for (field, set) in [(*source, own), (Selector::LinkIn, ends)] {
            let forged = table.rule().look_up(&[field], Is::In, set.name()).look_up(
                &[Selector::LinkIn, *source],
                Is::NotIn,
                owners.name(),
            );
            batch.add_rule(table, CHAIN, &forged.untrack().comment(COMMENT));
        }
        let of_family: Vec<IpAddr> =
            addresses.iter().filter(|address| address.is_ipv4() == *is_v4).copied().collect();
        let tagged = |key: Data| Element::new(key).comment(id.to_string());
        let pairs: Vec<Element> = of_family
            .iter()
            .flat_map(|address| links.iter().map(|link| tagged(Data::link(link).and(*address))))
            .collect();
        batch.add_elements(table, owners.name(), &pairs);
        if *is_guarded {
            let keys: Vec<Element> = of_family.iter().map(|address| Element::new(*address)).collect();
            batch.add_elements(table, own.name(), &keys);
        }
        if let Some(link) = bound {
            batch.add_elements(table, ends.name(), &[tagged(Data::link(link))]);
        }
    }
}

/// Adds the operations that end the protection of attachments. An address that another one also has stays guarded.
pub(super) fn discard(
    nft: &mut Nft,
    table: Table<'_>,
    ids: &[AttachmentId],
    batch: &mut Batch,
) -> Result<(), Error> {
    let is_own = |element: &ListedElement| ids.iter().any(|id| element.comment == id.to_string());
    for Sets { guarded, bound, owners, .. } in &both() {
        let (own, others): (Vec<ListedElement>, Vec<ListedElement>) =
            elements(nft, table, owners.name())?.into_iter().partition(is_own);
        let ends = elements(nft, table, bound.name())?.into_iter().filter(is_own);
        let address = |pair: &ListedElement| pair.key.bytes()[Type::Link.length()..].to_vec();
        let kept: BTreeSet<Vec<u8>> = others.iter().map(address).collect();
        let free: BTreeSet<Vec<u8>> = own.iter().map(address).filter(|one| !kept.contains(one)).collect();
        let keys: Vec<Element> = free.into_iter().map(|bytes| Element::new(Data::of_bytes(bytes))).collect();
        let by_key = |element: ListedElement| Element::new(element.key);
        batch.delete_elements(table, owners.name(), &own.into_iter().map(by_key).collect::<Vec<_>>());
        batch.delete_elements(table, bound.name(), &ends.map(by_key).collect::<Vec<_>>());
        batch.discard_elements(table, guarded.name(), &keys);
    }
    Ok(())
}

/// Returns the elements of a set; none if it does not exist.
fn elements(nft: &mut Nft, table: Table<'_>, set: &str) -> Result<Vec<ListedElement>, Error> {
    match nft.elements(table, set) {
        Err(error) if error.kind() == linux::Kind::Absent => Ok(Vec::new()),
        listed => listed,
    }
}
