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
//! - with an address that it wants to reach, to an allowed peer, past the pod's isolated egress: `bound`.
//!
//! Such packets pass untracked. They are not dropped, because another network of the node may use the same addresses.
//!
//! The element of `owners` for the host end, and that of `bound`, have the attachment id as comment. Many attachments
//! have the same bridge as link, so they share the elements for it, which exist as long as an attachment has the
//! address.

use std::collections::BTreeSet;
use std::net::IpAddr;

use linux::Error;
use linux::nft::{
    BaseChain, Batch, ChainType, Data, Element, Family, Hook, Is, ListedElement, Nft, Policy, Selector, Set,
    Table, Type, priority,
};

use super::super::identity::{AttachmentId, TABLE};
use super::BaseChains;

/// Base chain before connection tracking.
const CHAIN: &str = "tracking";
/// Rule comment.
const COMMENT: &str = "addresses of isolated pods";
/// Number of rules.
const RULES: usize = 4;
/// Comment on a link's elements that other attachments have, too.
const SHARED: &str = "shared link";

const RAW: BaseChain = BaseChain {
    chain_type: ChainType::Filter,
    hook: Hook::Prerouting,
    priority: priority::RAW,
    policy: Policy::Accept,
};

/// Addresses that an attachment has.
pub(super) struct Guard<'a> {
    pub(super) id: &'a AttachmentId,
    pub(super) addresses: &'a [IpAddr],
    /// Links on the host on which packets with these addresses may arrive.
    pub(super) links: &'a [&'a str],
    /// Link that no other attachment has.
    pub(super) host_end: &'a str,
    /// Whether the pod's ingress is isolated.
    pub(super) is_guarded: bool,
    /// Whether packets from the host end have no other address, because the pod's egress is isolated.
    pub(super) is_bound: bool,
}

/// Sets for one address family.
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

// === impl Guard ===

impl Guard<'_> {
    /// Returns the elements for one address family's sets.
    fn elements(&self, sets: &Sets) -> [(&'static str, Vec<Element>); 3] {
        let Guard { id, addresses, links, host_end, is_guarded, is_bound } = self;
        let of_family: Vec<IpAddr> =
            addresses.iter().filter(|address| address.is_ipv4() == sets.is_v4).copied().collect();
        let tagged = |link: &str, key: Data| match link == *host_end {
            true => Element::new(key).comment(id.to_string()),
            false => Element::new(key).comment(SHARED),
        };
        let pair = |link: &str, address: IpAddr| tagged(link, Data::link(link).and(address));
        let pairs = of_family.iter().flat_map(|address| links.iter().map(|link| pair(link, *address)));
        let keys = of_family.iter().filter(|_| *is_guarded).map(|address| Element::new(*address));
        let ends = is_bound.then(|| tagged(host_end, Data::link(host_end)));
        [
            (sets.owners.name(), pairs.collect()),
            (sets.guarded.name(), keys.collect()),
            (sets.bound.name(), ends.into_iter().collect()),
        ]
    }
}

/// Adds the operations that guard the addresses in a family's table.
pub(super) fn write(family: Family, guard: &Guard<'_>, known: &mut BaseChains<'_>, batch: &mut Batch) {
    let table = Table::new(family, TABLE);
    batch.ensure_table(table);
    if !known.prepare(table, CHAIN, RAW, &[COMMENT; RULES], batch) {
        write_chain(table, batch);
    }
    for sets in &both() {
        for (set, elements) in guard.elements(sets) {
            batch.add_elements(table, set, &elements);
        }
    }
}

/// Adds the operations that create the chain and the sets.
fn write_chain(table: Table<'_>, batch: &mut Batch) {
    batch.ensure_base_chain(table, CHAIN, RAW).flush_chain(table, CHAIN);
    for Sets { is_v4: _, source, guarded, bound, owners } in &both() {
        batch.ensure_set(table, guarded).ensure_set(table, bound).ensure_set(table, owners);
        for (field, set) in [(*source, guarded), (Selector::LinkIn, bound)] {
            let forged = table.rule().look_up(&[field], Is::In, set.name()).look_up(
                &[Selector::LinkIn, *source],
                Is::NotIn,
                owners.name(),
            );
            batch.add_rule(table, CHAIN, &forged.untrack().comment(COMMENT));
        }
    }
}

/// Returns the first part of the protection that a family's table lacks.
pub(super) fn difference(nft: &mut Nft, family: Family, guard: &Guard<'_>) -> Result<Option<String>, Error> {
    let table = Table::new(family, TABLE);
    if nft.is_dormant(table)? {
        return Ok(Some(format!("table {table} is dormant: its rules see no packet")));
    }
    let rules = nft.rules(table, CHAIN)?;
    if rules.len() != RULES || rules.iter().any(|rule| rule.comment != COMMENT) {
        return Ok(Some(format!("the rules of chain {table} {CHAIN} were changed")));
    }
    if nft.base_chain(table, CHAIN)? != Some(RAW) {
        return Ok(Some(format!("hook, priority or policy of chain {table} {CHAIN} was changed")));
    }
    for sets in &both() {
        for (set, elements) in guard.elements(sets) {
            for element in elements {
                if nft.element(table, set, &element.listed().key)?.is_none() {
                    return Ok(Some(format!("set {table} {set} lacks an address of the attachment")));
                }
            }
        }
    }
    Ok(None)
}

/// Elements in `owners` that end with attachments.
struct Ended<'a> {
    /// Those for the attachments' host ends.
    own: Vec<&'a ListedElement>,
    /// Those for shared links.
    shared: Vec<&'a ListedElement>,
    /// Addresses that no other attachment has.
    addresses: BTreeSet<&'a [u8]>,
}

// === impl Ended ===

impl<'a> Ended<'a> {
    /// Returns the elements that end with the attachments that `is_own` accepts.
    fn of(pairs: &'a [ListedElement], is_own: impl Fn(&ListedElement) -> bool) -> Ended<'a> {
        let address = |pair: &'a ListedElement| -> &'a [u8] { &pair.key.bytes()[Type::Link.length()..] };
        let (shared, ends): (Vec<_>, Vec<_>) = pairs.iter().partition(|pair| pair.comment == SHARED);
        let (own, others): (Vec<_>, Vec<_>) = ends.into_iter().partition(|pair| is_own(pair));
        let kept: BTreeSet<&[u8]> = others.into_iter().map(address).collect();
        let addresses: BTreeSet<&[u8]> =
            own.iter().copied().map(address).filter(|one| !kept.contains(one)).collect();
        let shared = shared.into_iter().filter(|&pair| addresses.contains(address(pair))).collect();
        Ended { own, shared, addresses }
    }
}

/// Adds the operations that end the protection for attachments. An address that another one also has stays
/// guarded.
pub(super) fn discard(
    nft: &mut Nft,
    table: Table<'_>,
    ids: &[AttachmentId],
    batch: &mut Batch,
) -> Result<(), Error> {
    let is_own = |element: &ListedElement| ids.iter().any(|id| element.comment == id.to_string());
    let by_key = |element: &ListedElement| Element::new(element.key.clone());
    for Sets { guarded, bound, owners, .. } in &both() {
        let pairs = elements(nft, table, owners.name())?;
        let Ended { own, shared, addresses } = Ended::of(&pairs, is_own);
        let ends = elements(nft, table, bound.name())?;
        let ends: Vec<Element> = ends.iter().filter(|end| is_own(end)).map(by_key).collect();
        let keys: Vec<Element> =
            addresses.into_iter().map(|bytes| Element::new(Data::of_bytes(bytes.to_vec()))).collect();
        let of = |pairs: Vec<&ListedElement>| pairs.into_iter().map(by_key).collect::<Vec<_>>();
        batch.delete_elements(table, owners.name(), &of(own));
        batch.delete_elements(table, bound.name(), &ends);
        batch.discard_elements(table, owners.name(), &of(shared));
        batch.discard_elements(table, guarded.name(), &keys);
    }
    Ok(())
}

/// Returns a set's elements; none if it does not exist.
fn elements(nft: &mut Nft, table: Table<'_>, set: &str) -> Result<Vec<ListedElement>, Error> {
    match nft.elements(table, set) {
        Err(error) if error.kind() == linux::Kind::Absent => Ok(Vec::new()),
        listed => listed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_policy_shared_address_stays_guarded_for_next_owner() {
        let element = |link: &str, last: u8, comment: &str| {
            Element::new(Data::link(link).and(IpAddr::from([10, 9, 0, last]))).comment(comment).listed()
        };
        // The address of `old` was allocated to `new` before the DEL of `old`.
        let pairs = [
            element("br9", 11, SHARED),
            element("veth-old", 11, "old"),
            element("veth-new", 11, "new"),
            element("br9", 12, SHARED),
            element("veth-old", 12, "old"),
        ];
        let ended = |own: &'static str| Ended::of(&pairs, move |pair| pair.comment == own);
        let old = ended("old");
        assert_eq!(old.own, [&pairs[1], &pairs[4]]);
        assert_eq!(old.shared, [&pairs[3]], "the bridge keeps the address of new");
        assert_eq!(old.addresses, BTreeSet::from([&[10, 9, 0, 12][..]]));
        let new = ended("new");
        assert_eq!((new.own.len(), new.shared.len(), new.addresses.len()), (1, 0, 0));
        assert_eq!(ended("other").own.len(), 0);
    }
}
