//! Rules in the pod's namespace that bind an attachment's addresses to the interface, if ingress is isolated.
//!
//! ```text
//! chain addresses { type filter hook prerouting priority raw
//!                   ip daddr 10.7.2.5 iifname != "net1" iifname != "lo" drop }
//! ```
//!
//! The kernel accepts a packet for any local address at any interface. So a packet for an isolated address could arrive
//! at another interface in the pod, where the attachment's rules do not see it: on another network on the same link, by
//! a route, or as a frame that names the address. Such packets are dropped.
//!
//! - IPv4: the kernel would also answer ARP requests for the address at every interface, so that peers that a policy allows
//!   could send to the wrong one. `arp_ignore` and `arp_announce` of the namespace prevent this. IPv6 needs neither.
//! - The rules are in the pod wherever the policy rules are, because no other namespace sees all interfaces.
//! - The rule comment is the attachment id.

use std::net::IpAddr;
use std::path::Path;

use cni::network::{Network, plugin_type};
use cni::result::Success;
use ipnet::IpNet;
use linux::nft::{BaseChain, Batch, ChainType, Family, Hook, Is, Nft, Policy, Table, Verdict, priority};
use linux::sysctl::{self, Family as IpFamily};
use linux::{Error, Kind, Netns, Rtnl};
use npwg::network_policy::{AttachmentPolicy, Direction};
use npwg::plan::Delegate;
use plugin_support::failure::OrRefused;
use plugin_support::log;
use rpc::journal::Entry;

use super::VRF;
use super::identity::{AttachmentId, TABLE};
use super::place::Place;

/// Base chain for the rules. The rule comment is the attachment id.
pub(super) const CHAIN: &str = "addresses";

/// Before connection tracking and address translation: the rules are about addresses that packets had on the network.
const RAW: BaseChain = BaseChain {
    chain_type: ChainType::Filter,
    hook: Hook::Prerouting,
    priority: priority::RAW,
    policy: Policy::Accept,
};

/// Link of a namespace for the packets to itself.
const LOOPBACK: &str = "lo";

/// Parameters that limit ARP in the namespace to the interface that has the address, with the values.
const ARP: [(&str, &str); 2] = [("arp_ignore", "1"), ("arp_announce", "2")];

/// Addresses of an attachment, with the links at which packets for them may arrive.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BoundAddresses {
    id: AttachmentId,
    links: Vec<String>,
    addresses: Vec<IpAddr>,
}

fn table() -> Table<'static> {
    Table::new(Family::Inet, TABLE)
}

// === impl BoundAddresses ===

impl BoundAddresses {
    /// Returns an attachment's addresses; none if ingress is not isolated.
    ///
    /// # Errors
    /// The links of the pod cannot be read.
    pub(super) fn of(
        entry: &Entry,
        delegate: &Delegate,
        policy: &AttachmentPolicy,
        result: &Success,
    ) -> Result<BoundAddresses, cni::Error> {
        let ifname = delegate.ifname.to_string();
        let mut bound = BoundAddresses {
            id: AttachmentId::of(entry, delegate),
            links: vec![ifname],
            addresses: Vec::new(),
        };
        if policy.isolated(Direction::Ingress).is_some() {
            bound.addresses = result.ips.iter().map(|ip| ip.address.addr()).collect();
        }
        if !bound.addresses.is_empty() && may_have_vrf(delegate) {
            let netns = Netns::open(Path::new(&entry.netns)).or_refused()?;
            bound.links.extend(vrf_of(&mut netns.rtnl().or_refused()?, delegate.ifname.as_str())?);
        }
        Ok(bound)
    }

    /// Whether no address is bound.
    pub(super) fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// Adds the operations that bind the addresses, beside those of other attachments.
    pub(super) fn write(&self, batch: &mut Batch) {
        let BoundAddresses { id, links, addresses } = self;
        if addresses.is_empty() {
            return;
        }
        batch.ensure_table(table()).ensure_base_chain(table(), CHAIN, RAW);
        for address in addresses {
            let mut rule = table().rule().destination(Is::In, IpNet::from(*address));
            for link in links.iter().map(String::as_str).chain([LOOPBACK]) {
                rule = rule.link_in(Is::NotIn, link);
            }
            batch.add_rule(table(), CHAIN, &rule.count().decide(&Verdict::Drop).comment(id.to_string()));
        }
    }

    /// Replaces the rules of the attachment by these, and limits ARP.
    pub(super) fn replace(&self, netns: &str) -> Result<(), cni::Error> {
        let mut nft = Place::in_pod("").nft(netns)?;
        let mut batch = Batch::new();
        if nft.tables(Family::Inet).or_refused()?.iter().any(|name| name == TABLE) {
            let chains = nft.chains(table()).or_refused()?;
            discard(&mut nft, table(), &chains, std::slice::from_ref(&self.id), &mut batch).or_refused()?;
        }
        self.bind(netns, batch)
    }

    /// Returns the difference between these rules and the kernel's. `nft` is in the pod.
    pub(super) fn difference(&self, nft: &mut Nft) -> Result<Option<String>, Error> {
        if self.addresses.is_empty() {
            return Ok(None);
        }
        if nft.is_dormant(table())? {
            return Ok(Some(format!("table {} is dormant: its rules see no packet", table())));
        }
        let id = self.id.to_string();
        let listed = match nft.rules(table(), CHAIN) {
            Err(error) if error.kind() == Kind::Absent => Vec::new(),
            listed => listed?,
        };
        // A rule of another program could accept everything before them.
        let is_note = |comment: &str| ARP.iter().any(|(name, _)| comment == changed(name));
        let is_own =
            |comment: &str| is_note(comment) || comment.starts_with('p') && comment.len() == id.len();
        let is_changed = listed.iter().filter(|rule| rule.comment == id).count() != self.addresses.len()
            || listed.iter().any(|rule| !is_own(&rule.comment))
            || nft.base_chain(table(), CHAIN)? != Some(RAW);
        Ok(is_changed.then(|| format!("the rules of chain {} {CHAIN} were changed", table())))
    }

    /// Commits operations that bind the addresses in the pod's namespace, after `others`, and limits ARP there.
    ///
    /// Parameters are noted before they change, so that a DEL after a kill finds them.
    pub(super) fn bind(&self, netns: &str, mut others: Batch) -> Result<(), cni::Error> {
        self.write(&mut others);
        let netns = Netns::open(Path::new(netns)).or_refused()?;
        let bound = netns.run(|| {
            let limits = self.limits(&["0"]);
            note(&limits, &mut others);
            Nft::open()?.commit(others)?;
            limit(&limits);
            Ok(())
        });
        bound.and_then(|bound| bound).or_refused().map_err(|error| error.context("network policy"))
    }

    /// Returns the ARP parameters in the calling thread's namespace that limit it and have one of the values `before`.
    /// None without an IPv4 address.
    pub(super) fn limits(&self, before: &[&str]) -> Vec<Limit> {
        let has_v4 = self.addresses.iter().any(IpAddr::is_ipv4);
        let is_open = |(name, value): &Limit| {
            let now = sysctl::read_interface(IpFamily::V4, "all", name).unwrap_or_default();
            before.contains(&now.as_str()) || (before.len() > 1 && now == *value)
        };
        ARP.into_iter().filter(|limit| has_v4 && is_open(limit)).collect()
    }
}

/// Parameter of ARP with the value that limits it.
pub(super) type Limit = (&'static str, &'static str);

/// Adds rules without effect whose comments name the parameters that weft changes.
pub(super) fn note(limits: &[Limit], batch: &mut Batch) {
    for (name, _) in limits {
        let rule = table().rule().link_in(Is::In, LOOPBACK).comment(changed(name));
        batch.ensure_base_chain(table(), CHAIN, RAW).add_rule(table(), CHAIN, &rule);
    }
}

/// Returns the comment that says that weft changed a parameter from 0.
fn changed(name: &str) -> String {
    format!("{name} was 0")
}

/// Makes the kernel of the calling thread's namespace answer ARP requests only at the interface that has the address.
///
/// `sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2`. The rules do not depend on it, so a failure is
/// logged.
pub(super) fn limit(limits: &[Limit]) {
    let write = |(name, value): &Limit| sysctl::write_interface(IpFamily::V4, "all", name, value);
    if let Err(error) = limits.iter().try_for_each(write) {
        log!("weft: ARP requests may be answered at other interfaces of the pod: {error}");
    }
}

/// Undoes the ARP limits in a pod if no other attachment than these has bound addresses. `nft` is in the pod.
pub(super) fn release_arp(
    nft: &mut Nft,
    chains: &[String],
    ids: &[AttachmentId],
    netns: &str,
    batch: &mut Batch,
) -> Result<(), cni::Error> {
    if !chains.iter().any(|name| name == CHAIN) {
        return Ok(());
    }
    let rules = nft.rules(table(), CHAIN).or_refused()?;
    let note_of = |comment: &str| ARP.into_iter().find(|(name, _)| comment == changed(name));
    let is_of_other =
        |comment: &str| note_of(comment).is_none() && !ids.iter().any(|id| comment == id.to_string());
    if rules.iter().any(|rule| is_of_other(&rule.comment)) {
        return Ok(());
    }
    let noted: Vec<Limit> = rules.iter().filter_map(|rule| note_of(&rule.comment)).collect();
    for rule in rules.iter().filter(|rule| note_of(&rule.comment).is_some()) {
        batch.delete_rule(table(), CHAIN, rule.handle);
    }
    let Some(netns) = Netns::find(Path::new(netns)).or_refused()?.filter(|_| !noted.is_empty()) else {
        return Ok(());
    };
    let reset =
        || noted.iter().try_for_each(|(name, _)| sysctl::write_interface(IpFamily::V4, "all", name, "0"));
    netns.run(reset).and_then(|reset| reset).or_refused()
}

/// Whether a plugin of the network may put the interface into a VRF.
fn may_have_vrf(delegate: &Delegate) -> bool {
    let Ok(network) = Network::parse(delegate.config.as_bytes(), &delegate.network) else { return true };
    network.plugins.iter().any(|plugin| plugin_type(plugin).is_ok_and(|name| name.as_str() == VRF))
}

/// Returns the VRF of a link: packets arrive there once more after they arrived at the link.
fn vrf_of(net: &mut Rtnl, name: &str) -> Result<Option<String>, cni::Error> {
    let Some(link) = net.find_link(name).or_refused()? else { return Ok(None) };
    let Some(master) = link.master else { return Ok(None) };
    let master = net.link_at(master).or_refused()?;
    Ok((master.kind == VRF).then_some(master.name))
}

/// Returns the attachments with bound addresses. `chains` are those of the table.
pub(super) fn attachments(
    nft: &mut Nft,
    table: Table<'_>,
    chains: &[String],
) -> Result<Vec<AttachmentId>, Error> {
    if !chains.iter().any(|name| name == CHAIN) {
        return Ok(Vec::new());
    }
    let rules = nft.rules(table, CHAIN)?;
    let is_note = |comment: &str| ARP.iter().any(|(name, _)| comment == changed(name));
    let bound = rules.iter().filter(|rule| !is_note(&rule.comment));
    Ok(bound.map(|rule| AttachmentId::read(&rule.comment)).collect())
}

/// Adds the operations that release attachments' addresses. `chains` are the ones in the table.
pub(super) fn discard(
    nft: &mut Nft,
    table: Table<'_>,
    chains: &[String],
    ids: &[AttachmentId],
    batch: &mut Batch,
) -> Result<(), Error> {
    if !chains.iter().any(|name| name == CHAIN) {
        return Ok(());
    }
    let is_own = |comment: &str| ids.iter().any(|id| comment == id.to_string());
    for rule in nft.rules(table, CHAIN)?.iter().filter(|rule| is_own(&rule.comment)) {
        batch.delete_rule(table, CHAIN, rule.handle);
    }
    Ok(())
}
