//! Network policies for attachments, as nf_tables rules.
//!
//! - One transaction commits an attachment's rules before the plugins run, so no packet passes without them. They name
//!   interfaces, which need not exist yet.
//! - They are in the host's namespace where a host end exists that the pod cannot reach, else in the pod's ([`place`]).
//!   The journal records the place and the names before the first effect.
//! - Rules that need the attachment's addresses follow after the plugins: those for replies on the host, and those that
//!   bind the addresses to the interface ([`bound_addresses`]).
//! - DEL removes them after the interface. The rule names are derived from the attachment, so DEL needs no policy.
//! - Attachments without a policy cost nothing here.
//!
//! `docs/design/policy.md` has the hooks and the reasons.

mod ahead;
mod bound_addresses;
mod counters;
mod identity;
mod place;
mod ruleset;
mod update;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use cni::network::Network;
use cni::result::Success;
use cni::{Error, address};
use ipnet::IpNet;
use linux::conntrack::Conntrack;
use linux::nft::{Batch, Nft, Table};
use linux::{Kind, Netns, Rtnl};
use npwg::network_policy::AttachmentPolicy;
use npwg::plan::Delegate;
use plugin_support::failure::OrRefused;
use plugin_support::log;
use plugin_support::owner_tag::{COMMENT_MAX, OwnerTag};
use plugins::entries;
use rpc::journal::{Attachment, Entry, PolicyRules, State};
use serde::Deserialize;

use self::bound_addresses::BoundAddresses;
pub(crate) use self::counters::{LIST_IN_POD_MAX, are_in_pod, counters};
pub(crate) use self::identity::TABLE;
use self::identity::{AttachmentId, JournalId};
use self::place::Place;
pub(crate) use self::ruleset::LINKS;
use self::ruleset::{BaseChains, Leases, Phase, Ruleset, Target, commit_on_host};
use crate::plugin_invoker::PluginInvoker;

pub(super) use self::ahead::AheadRules;
pub(super) use self::update::{assign_running, difference, kept_ipv6_peers, restore, update};

/// IPAM plugin whose client exchanges packets on the attachment.
const DHCP: &str = "dhcp";
/// Stands for the plugin in the owner tags of rules.
const OWNER: &str = "policy";
/// Link kind that shows packets of a port to nf_tables as packets of the VRF's ports.
const VRF: &str = "vrf";

#[derive(Default, Deserialize)]
#[serde(default)]
struct IpamType {
    r#type: String,
}

/// Rules that are in force for an attachment, and the place; `None` without a policy.
pub(super) struct Enforced(Option<(Place, Ruleset)>);

/// Records place and names of the rules for each planned attachment with policies. The caller writes the entry before
/// [`enforce`]; `directory` is the journal directory.
pub(super) fn assign(directory: &Path, invoker: &PluginInvoker, entry: &mut Entry) -> Result<(), Error> {
    let all = entry.plan.delegates.iter().zip(&entry.attachments).enumerate();
    let lacks = |delegate: &Delegate, attachment: &Attachment| {
        delegate.policy.is_some() && attachment.rules.is_none() && attachment.state == State::Planned
    };
    let lacking: Vec<usize> =
        all.filter(|(_, (delegate, known))| lacks(delegate, known)).map(|(index, _)| index).collect();
    lacking.into_iter().try_for_each(|index| assign_one(directory, invoker, entry, index))
}

/// Records the names of rules that the attachments in a lost entry may have, whether a policy selects them now or not.
///
/// The rules are removed in every place, so the kernel is not asked whether it tracks connections on bridges. A kernel
/// without nf_tables has no rules.
pub(super) fn assign_lost(directory: &Path, invoker: &PluginInvoker, entry: &mut Entry) {
    if matches!(entries::tables(), Ok(None)) {
        return;
    }
    let journal = JournalId::of(directory);
    for index in 0..entry.attachments.len() {
        let delegate = &entry.plan.delegates[index];
        let id = AttachmentId::new(&journal, entry, delegate);
        // A configuration that cannot be read prevents no DEL.
        let place = Place::choose(invoker, entry, delegate, || false)
            .unwrap_or_else(|_| Place::in_pod(delegate.ifname.as_str()));
        entry.attachments[index].rules = Some(place.record(&id));
    }
}

/// Records place and names of the rules for one attachment.
fn assign_one(
    directory: &Path,
    invoker: &PluginInvoker,
    entry: &mut Entry,
    index: usize,
) -> Result<(), Error> {
    let Some(delegate) = entry.plan.delegates.get(index) else { return Ok(()) };
    let id = AttachmentId::new(&JournalId::of(directory), entry, delegate);
    let place = Place::choose(invoker, entry, delegate, place::bridges_track)?;
    entry.attachments[index].rules = Some(place.record(&id));
    Ok(())
}

/// Returns the record about an attachment's rules.
fn recorded<'a>(entry: &'a Entry, delegate: &Delegate) -> Option<&'a PolicyRules> {
    let all = entry.plan.delegates.iter().zip(&entry.attachments);
    let mut own =
        all.filter(|(known, _)| known.ifname == delegate.ifname && known.network == delegate.network);
    own.find_map(|(_, attachment)| attachment.rules.as_ref())
}

/// Commits an attachment's rules; does nothing without a policy.
///
/// On the host, replies do not pass before [`verify`]: the kernel may still track connections of the address's previous
/// owner, whose packets would pass as replies.
pub(super) fn enforce(
    invoker: &PluginInvoker,
    entry: &Entry,
    delegate: &Delegate,
) -> Result<Enforced, Error> {
    let Some(policy) = &delegate.policy else { return Ok(Enforced(None)) };
    commit_rules(target(invoker, entry, delegate)?, policy, &entry.netns)
}

/// Commits the rules of an attachment to a sandbox with the namespace `netns`.
fn commit_rules(target: Target, policy: &AttachmentPolicy, netns: &str) -> Result<Enforced, Error> {
    let ruleset = Ruleset::new(&target, policy);
    let mut nft = target.place.nft(netns)?;
    let phase = Phase::BeforeAddresses;
    let write = |nft: &mut Nft| match target.place.is_in_pod() {
        true => {
            let mut batch = Batch::new();
            ruleset.write(phase, &mut BaseChains::Unknown, &mut batch);
            nft.commit(batch)
        }
        false => commit_on_host(nft, |known, batch| ruleset.write(phase, known, batch)),
    };
    let written = match write(&mut nft) {
        // An earlier attachment had an interface of this name, and its rules could not be removed.
        Err(error) if error.kind() == Kind::Exists => {
            ruleset::clear_the_way(&mut nft, &target).and_then(|()| write(&mut nft))
        }
        written => written,
    };
    in_context(written)?;
    Ok(Enforced(Some((target.place, ruleset))))
}

fn commit(nft: &mut Nft, batch: Batch) -> Result<(), Error> {
    in_context(nft.commit(batch))
}

fn in_context(committed: Result<(), linux::Error>) -> Result<(), Error> {
    committed.or_refused().map_err(|error| error.context("network policy"))
}

/// Puts rules in force that need the attachment's addresses.
///
/// On the host it first ends tracked connections of these addresses. From then on replies pass.
///
/// # Errors
/// The interface that the rules are about does not exist: packets of the attachment would pass without them.
pub(super) fn verify(
    enforced: Enforced,
    entry: &Entry,
    delegate: &Delegate,
    result: &Success,
) -> Result<(), Error> {
    let (Some((place, ruleset)), Some(policy)) = (enforced.0, &delegate.policy) else { return Ok(()) };
    let ruleset = ruleset.with_networks(&on_link(&place, result));
    let mut in_pod = Batch::new();
    if place.is_in_pod() {
        let netns = Netns::open(Path::new(&entry.netns)).or_refused()?;
        verify_in_pod(&mut netns.rtnl().or_refused()?, place.link())?;
        ruleset.attach(&mut in_pod);
    } else {
        verify_on_host(place.link(), result)?;
        let mut conntrack = Conntrack::open().or_refused()?;
        // To list the connections takes as long as an ADD, where the kernel cannot remove them by address.
        if !conntrack.is_empty().or_refused()? {
            for ip in &result.ips {
                conntrack.forget_address(ip.address.addr()).or_refused()?;
            }
        }
        let (links, addresses) = guarded(result);
        in_context(commit_on_host(&mut place.nft(&entry.netns)?, |known, batch| {
            ruleset.guard(&links, &addresses, place::bridges_track, known, batch);
            ruleset.attach(batch);
        }))?;
    }
    let bound = BoundAddresses::of(entry, delegate, policy, result)?;
    match bound.is_empty() && in_pod.is_empty() {
        true => Ok(()),
        false => bound.bind(&entry.netns, in_pod),
    }
}

/// Returns the networks whose addresses the pod reaches without a router: on a routed link only the gateways' networks,
/// else also those of the attachment's addresses.
fn on_link(place: &Place, result: &Success) -> Vec<IpNet> {
    let networks = result.ips.iter().map(|ip| ip.address.trunc()).filter(|_| !place.is_routed());
    let gateways = result.ips.iter().filter_map(|ip| ip.gateway).map(IpNet::from);
    networks.chain(gateways).collect::<BTreeSet<IpNet>>().into_iter().collect()
}

/// Fails unless the host end of a result has this name.
fn verify_on_host(link: &str, result: &Success) -> Result<(), Error> {
    let mut on_host = result.interfaces.iter().filter(|interface| interface.sandbox.is_empty());
    if on_host.any(|interface| interface.name == link) {
        return Ok(());
    }
    Err(Error::internal(format!(
        "network policy: the host end is not {link:?}, because another link has this name"
    )))
}

/// Returns the host links on which an attachment's packets arrive, and the addresses to protect.
fn guarded(result: &Success) -> (Vec<&str>, Vec<IpAddr>) {
    let (on_host, inside): (Vec<_>, Vec<_>) =
        result.interfaces.iter().partition(|interface| interface.sandbox.is_empty());
    let links = on_host.iter().map(|interface| interface.name.as_str()).collect();
    let mut addresses: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.addr()).collect();
    if !addresses.is_empty() {
        addresses.extend(inside.iter().filter_map(|interface| link_local(&interface.mac)));
    }
    (links, addresses)
}

/// Returns the link-local address that the kernel gives an interface with this hardware address; RFC 4291, appendix A.
fn link_local(mac: &str) -> Option<IpAddr> {
    let [a, b, c, d, e, f] = <[u8; 6]>::try_from(address::parse_mac(mac)?).ok()?;
    Some(IpAddr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f]))
}

/// Fails unless the interface exists and the rules see packets on it: on a bridge port, packets belong to the bridge.
fn verify_in_pod(net: &mut Rtnl, name: &str) -> Result<(), Error> {
    let Some(link) = net.find_link(name).or_refused()? else {
        return Err(Error::internal(format!(
            "network policy: the kernel of the pod has no interface {name:?} whose packets it could filter"
        )));
    };
    let Some(master) = link.master else { return Ok(()) };
    let master = net.link_at(master).or_refused()?;
    match master.kind == VRF {
        true => Ok(()),
        false => Err(Error::internal(format!(
            "network policy: interface {name:?} is a port of {:?} in the pod, so no rule would see its packets",
            master.name
        ))),
    }
}

/// Fails unless an attachment's rules are in force unchanged.
pub(super) fn check(invoker: &PluginInvoker, entry: &Entry, delegate: &Delegate) -> Result<(), Error> {
    match difference(invoker, entry, delegate)? {
        None => Ok(()),
        Some(difference) => Err(Error::internal(format!("network policy: {difference}"))),
    }
}

/// Removes an attachment's rules; does nothing if it never had a policy. Rules that do not exist are no error.
///
/// The rules stay if they now belong to another attachment in the sandbox: hot-plug may attach a network to the same
/// interface name before the previous one's DEL succeeds.
///
/// It looks in both namespaces: another program may have replaced a built-in plugin since the ADD. A process in the pod
/// can make rules in the pod's namespace irremovable, by adding rules that refer to them. They end with the namespace,
/// so they do not fail the DEL.
pub(super) fn remove(entry: &Entry, index: usize, delegate: &Delegate) -> Result<(), Error> {
    if !has_own_rules(entry, index, delegate) {
        return Ok(());
    }
    withdraw(entry, &[delegate])
}

/// Whether an attachment may have rules that do not belong to another one.
fn has_own_rules(entry: &Entry, index: usize, delegate: &Delegate) -> bool {
    let has_rules = delegate.policy.is_some() || recorded(entry, delegate).is_some();
    has_rules && !has_successor(entry, index, delegate)
}

/// Removes attachments' rules, with one list and one transaction in the pod's namespace and in the host's.
fn withdraw(entry: &Entry, delegates: &[&Delegate]) -> Result<(), Error> {
    let ids: Vec<AttachmentId> = delegates.iter().map(|delegate| AttachmentId::of(entry, delegate)).collect();
    let in_pod = Place::in_pod("");
    let mut errors = Vec::new();
    match in_pod.find_nft(&entry.netns) {
        Ok(Some(mut nft)) => {
            if let Err(error) = withdraw_in_pod(&mut nft, &entry.netns, &ids) {
                let names = names(delegates);
                log!("weft: {}: rules of {names} stay in the pod: {error}", entry.container_id);
            }
        }
        // The rules ended with the namespace.
        Ok(None) => {}
        Err(error) => errors.push(error),
    }
    let mut host = Nft::open().or_refused()?;
    errors.extend(withdraw_on_host(&mut host, &ids).err());
    cni::error::collected(errors)
}

/// Returns the interface names of attachments, for a message.
fn names(delegates: &[&Delegate]) -> String {
    delegates.iter().map(|delegate| delegate.ifname.as_str()).collect::<Vec<_>>().join(", ")
}

/// Whether another attachment is in force that has rules with the names of this one.
fn has_successor(entry: &Entry, index: usize, delegate: &Delegate) -> bool {
    let id = AttachmentId::of(entry, delegate);
    let all = entry.plan.delegates.iter().zip(&entry.attachments).enumerate();
    let mut others = all.filter(|(other, _)| *other != index).map(|(_, pair)| pair);
    others.any(|(known, attachment)| {
        attachment.state == State::Attached
            && (known.policy.is_some() || attachment.rules.is_some())
            && AttachmentId::of(entry, known) == id
    })
}

/// Returns the attachments in this journal that have rules in the host's namespace.
pub(super) fn on_host(directory: &Path) -> Result<BTreeSet<AttachmentId>, Error> {
    let mut found = BTreeSet::new();
    let Some(mut tables) = entries::tables()? else { return Ok(found) };
    let journal = JournalId::of(directory);
    for family in place::HOST_FAMILIES {
        if tables.has(family, TABLE) {
            let all = ruleset::attachments(&mut tables.nft, family).or_refused()?;
            found.extend(all.into_iter().filter(|id| id.is_of(&journal)));
        }
    }
    Ok(found)
}

/// Removes these attachments' rules in the host's namespace, except for those in the `kept` entries.
pub(super) fn sweep(found: &BTreeSet<AttachmentId>, kept: &[Entry]) -> Result<(), Error> {
    let known: BTreeSet<AttachmentId> = kept
        .iter()
        .flat_map(|entry| entry.plan.delegates.iter().map(|delegate| AttachmentId::of(entry, delegate)))
        .collect();
    let stale: Vec<AttachmentId> = found.difference(&known).cloned().collect();
    if stale.is_empty() {
        return Ok(());
    }
    withdraw_on_host(&mut Nft::open().or_refused()?, &stale)
}

/// Returns the attachment that the rules are about.
fn target(invoker: &PluginInvoker, entry: &Entry, delegate: &Delegate) -> Result<Target, Error> {
    let network = Network::parse(delegate.config.as_bytes(), &delegate.network)?;
    let ipam: IpamType =
        network.plugins.first().and_then(|plugin| plugin.read("ipam").ok().flatten()).unwrap_or_default();
    let leases = if ipam.r#type == DHCP { Leases::Dhcp } else { Leases::None };
    let tag = OwnerTag {
        plugin: OWNER.to_owned(),
        network: network.name.to_string(),
        container: entry.container_id.to_string(),
        ifname: delegate.ifname.to_string(),
    };
    Ok(Target {
        id: AttachmentId::of(entry, delegate),
        tag: tag.text(COMMENT_MAX),
        place: Place::of(invoker, entry, delegate)?,
        leases,
        ipv6_peers: recorded(entry, delegate).map(|rules| rules.ipv6_peers.clone()).unwrap_or_default(),
    })
}

/// Removes attachments' rules in the pod's namespace, and the table after the last one.
///
/// The caller holds the sandbox lock, so no other process uses the table.
fn withdraw_in_pod(nft: &mut Nft, netns: &str, ids: &[AttachmentId]) -> Result<(), Error> {
    let family = Place::in_pod("").family();
    if !nft.tables(family).or_refused()?.iter().any(|name| name == TABLE) {
        return Ok(());
    }
    let mut others = ruleset::attachments(nft, family).or_refused()?;
    others.retain(|id| !ids.contains(id));
    let mut batch = Batch::new();
    let chains = nft.chains(Table::new(family, TABLE)).or_refused()?;
    bound_addresses::release_arp(nft, &chains, ids, netns, &mut batch)?;
    if others.is_empty() {
        batch = Batch::new();
        batch.delete_table(Table::new(family, TABLE));
    } else {
        ruleset::discard(nft, family, ids, &mut batch).or_refused()?;
    }
    commit(nft, batch)
}

/// Removes attachments' rules from the host tables, in one transaction.
fn withdraw_on_host(nft: &mut Nft, ids: &[AttachmentId]) -> Result<(), Error> {
    let tables = nft.all_tables().or_refused()?;
    let mut batch = Batch::new();
    for family in place::HOST_FAMILIES {
        if tables.iter().any(|(of, name)| *of == family && name == TABLE) {
            ruleset::discard(nft, family, ids, &mut batch).or_refused()?;
        }
    }
    commit(nft, batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sandbox in which hot-plug attached `ns/b` to `net1`, while the DEL of `ns/a` on it had failed.
    const ENTRY: &str = r#"{"version":1,"network":"weft","containerId":"c1","netns":"","ifname":"eth0","args":"","path":"",
      "plan":{"version":1,"container":"c1","pod":{"namespace":"ns","name":"web","uid":"u"},
      "status":{"addresses":"bare","keys":"standard"},"delegates":[
        {"network":"ns/b","role":"selected","configName":"b","config":"{}","ifname":"net1","runtimeConfig":{},"args":[],
         "verify":{},"defaultRoute":"untouched","policy":{"ingress":{"rules":[]}},"because":[]},
        {"network":"ns/a","role":"selected","configName":"a","config":"{}","ifname":"net1","runtimeConfig":{},"args":[],
         "verify":{},"defaultRoute":"untouched","policy":{"ingress":{"rules":[]}},"because":[]}],"warnings":[]},
      "attachments":[
        {"state":"attached","rules":{"place":"host","link":"veth1","id":"p1"}},
        {"state":"attached","rules":{"place":"host","link":"veth1","id":"p1"}}]}"#;

    #[test]
    fn network_policy_of_a_replaced_interface_stays_after_del() {
        let mut entry = Entry::read(ENTRY.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
        let is_kept = |entry: &Entry, index: usize| has_successor(entry, index, &entry.plan.delegates[index]);
        assert!(is_kept(&entry, 1), "the rules are those of ns/b");
        entry.attachments[0].state = State::Planned;
        assert!(!is_kept(&entry, 1), "ns/b has no rules yet");
        entry.attachments[0].state = State::Detached;
        assert!(!is_kept(&entry, 1), "the last DEL removes the rules");
        entry.attachments[0].state = State::Attached;
        entry.attachments[1].state = State::Detached;
        assert!(!is_kept(&entry, 0), "ns/a was detached before");
        entry.attachments[1].state = State::Attached;
        (entry.plan.delegates[0].policy, entry.attachments[0].rules) = (None, None);
        assert!(!is_kept(&entry, 1), "no policy selects ns/b");
        entry.attachments[0].rules = Some(PolicyRules {
            link: "veth2".into(),
            id: "p2".into(),
            ..entry.attachments[1].rules.clone().expect("rules")
        });
        assert!(!is_kept(&entry, 1), "the rules of ns/b have other names");
    }
}
