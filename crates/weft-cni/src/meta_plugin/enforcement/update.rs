//! Network policies for a running pod: replacement by new ones, and restoration of rules that were changed.
//!
//! - The caller holds the lock of the sandbox, and the journal says that the rules are being updated.
//! - The rules of one attachment are replaced in one transaction.
//! - Tracked connections that the new rules forbid are removed after it. The next packet then starts a new connection.
//! - The table in a pod's namespace belongs to the pod alone. It is written again as a whole if a process in the pod
//!   has changed it in a way that one attachment's rules cannot repair.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use cni::Error;
use cni::network::Network;
use cni::result::Success;
use linux::conntrack::{Conntrack, Flow};
use linux::nft::{Batch, Family, Nft, Table};
use linux::{Kind, Netns};
use npwg::network_policy::{AttachmentPolicy, Direction, Protocol};
use npwg::plan::Delegate;
use plugin_support::failure::OrRefused;
use plugin_support::log;
use rpc::journal::{Attachment, Entry, PolicyRules, State};

use super::bound_addresses::{self, BoundAddresses};
use super::identity::{AttachmentId, TABLE};
use super::place::{self, Place, TIME_IN_POD_MAX};
use super::ruleset::{BaseChains, Phase, Ruleset, Target};
use super::{
    assign_one, guarded, on_link, target, verify_in_pod, verify_on_host, withdraw_in_pod, withdraw_on_host,
};
use crate::plugin_invoker::PluginInvoker;

/// Puts the policies of an attachment in force. `known` are the policies whose rules are in force, if that is known.
///
/// # Errors
/// The rules are the old or the new ones.
pub(in super::super) fn update(
    invoker: &PluginInvoker,
    entry: &Entry,
    index: usize,
    known: Option<&AttachmentPolicy>,
) -> Result<(), Error> {
    let delegate = &entry.plan.delegates[index];
    let policy = match &delegate.policy {
        Some(policy) if !policy.is_open() => policy,
        _ => return lift(invoker, entry, delegate),
    };
    let result = result_of(entry, index, delegate)?;
    let target = target(invoker, entry, delegate)?;
    require_link(&target.place, entry, &result)?;
    let networks = on_link(&target.place, &result);
    let ruleset = Ruleset::new(&target, policy).with_networks(&networks);
    let mut nft = target.place.nft(&entry.netns)?;
    if known.is_none_or(|known| !isolates_the_same(known, policy)) {
        BoundAddresses::of(entry, delegate, policy, &result)?.replace(&entry.netns)?;
    }
    if !target.place.is_in_pod() && known.is_none_or(|known| !isolates_the_same(known, policy)) {
        guard(&ruleset, &mut nft, &result)?;
    }
    let known = known.filter(|known| has_same_rules(known, policy));
    let in_force = known.map(|known| Ruleset::new(&target, known).with_networks(&networks));
    let changes_sets = match ruleset.replace(&mut nft, &target.place, in_force.as_ref()).or_refused() {
        // A process in the pod can make its rules irreplaceable, by rules of its own that refer to them.
        Err(_) if target.place.is_in_pod() => rewrite(invoker, entry).map(|()| false)?,
        replaced => replaced.map_err(|error| error.context("network policy"))?,
    };
    // More peers forbid nothing that was allowed.
    if changes_sets && known.is_some_and(|known| has_all_peers_of(policy, known)) {
        return Ok(());
    }
    forget_forbidden(&target, entry, &result, policy)
}

/// Chooses and records where an attachment that never had a policy gets rules.
///
/// # Errors
/// The configuration of the network is invalid.
pub(in super::super) fn assign_running(
    directory: &Path,
    invoker: &PluginInvoker,
    entry: &mut Entry,
    index: usize,
) -> Result<(), Error> {
    let has_rules = entry.attachments[index].rules.is_some() || entry.plan.delegates[index].policy.is_some();
    if has_rules { Ok(()) } else { assign_one(directory, invoker, entry, index) }
}

/// Protects the addresses on the host, and ends tracked connections, because other pods may have caused some. A
/// connection that continues is tracked again.
fn guard(ruleset: &Ruleset, nft: &mut Nft, result: &Success) -> Result<(), Error> {
    let (links, guarded) = guarded(result);
    ruleset.replace_guard(nft, &links, &guarded).or_refused()?;
    let mut conntrack = Conntrack::open().or_refused()?;
    if conntrack.is_empty().or_refused()? {
        return Ok(());
    }
    result.ips.iter().try_for_each(|ip| conntrack.forget_address(ip.address.addr()).or_refused())
}

/// Returns the first part of an attachment's address protection that the host lacks.
fn guard_difference(ruleset: &Ruleset, nft: &mut Nft, result: &Success) -> Result<Option<String>, Error> {
    let (links, guarded) = guarded(result);
    ruleset.guard_difference(nft, &links, &guarded, place::bridges_track).or_refused()
}

/// Returns the first difference between an attachment's rules and the kernel's, including the address protection.
///
/// # Errors
/// The kernel's rules cannot be read.
pub(in super::super) fn difference(
    invoker: &PluginInvoker,
    entry: &Entry,
    delegate: &Delegate,
) -> Result<Option<String>, Error> {
    let Some(policy) = &delegate.policy else { return Ok(None) };
    let target = target(invoker, entry, delegate)?;
    let result = result_of_attached(entry, delegate)?;
    let ruleset = Ruleset::new(&target, policy).with_networks(&on_link(&target.place, &result));
    if !target.place.is_in_pod() {
        let mut nft = target.place.nft(&entry.netns)?;
        let difference = match ruleset.difference(&mut nft).or_refused()? {
            None => guard_difference(&ruleset, &mut nft, &result)?,
            found => found,
        };
        if difference.is_some() {
            return Ok(difference);
        }
    }
    let bound = BoundAddresses::of(entry, delegate, policy, &result)?;
    let mut nft = Place::in_pod("").nft(&entry.netns)?.within(ruleset.lists_max(), TIME_IN_POD_MAX);
    let compared = match target.place.is_in_pod() {
        true => ruleset.difference(&mut nft),
        false => Ok(None),
    };
    let compared = compared.and_then(|found| match found {
        None => bound.difference(&mut nft),
        found => Ok(found),
    });
    match compared {
        // More than these rules is a change, whatever it is.
        Err(error) if error.kind() == Kind::Exceeded => {
            Ok(Some(format!("{error}: a process in the pod added to them")))
        }
        compared => compared.or_refused(),
    }
}

/// Writes an attachment's rules again. In the pod's namespace, the rules for all attachments are written, in place of
/// everything else in the table. Then removes the tracked connections that the rules forbid: without the rules, others
/// may have begun.
///
/// # Errors
/// The rules may be in force, and forbidden connections may continue.
pub(in super::super) fn restore(
    invoker: &PluginInvoker,
    entry: &Entry,
    delegate: &Delegate,
) -> Result<(), Error> {
    let Some(policy) = &delegate.policy else { return Ok(()) };
    let target = target(invoker, entry, delegate)?;
    let result = result_of_attached(entry, delegate)?;
    if target.place.is_in_pod() {
        rewrite(invoker, entry)?;
    } else {
        let mut nft = target.place.nft(&entry.netns)?;
        let ruleset = Ruleset::new(&target, policy).with_networks(&on_link(&target.place, &result));
        // With the protection in force, no forged connection is tracked, and translated ones need not end.
        if guard_difference(&ruleset, &mut nft, &result)?.is_some() {
            guard(&ruleset, &mut nft, &result)?;
        }
        let replaced = ruleset.replace(&mut nft, &target.place, None).or_refused();
        replaced.map_err(|error| error.context("network policy"))?;
        rewrite(invoker, entry)?;
    }
    forget_forbidden(&target, entry, &result, policy)
}

/// Whether the policies isolate the same directions.
fn isolates_the_same(one: &AttachmentPolicy, other: &AttachmentPolicy) -> bool {
    Direction::ALL
        .into_iter()
        .all(|direction| one.isolated(direction).is_some() == other.isolated(direction).is_some())
}

/// Whether the policies differ in the content of sets only.
fn has_same_rules(one: &AttachmentPolicy, other: &AttachmentPolicy) -> bool {
    (&one.ingress, &one.egress) == (&other.ingress, &other.egress)
}

/// Returns the peers whose rules keep a set for IPv6 when a policy replaces the `known` one: those that have one, if the rules
/// stay the same.
pub(in super::super) fn kept_ipv6_peers(
    rules: &PolicyRules,
    known: Option<&AttachmentPolicy>,
    policy: Option<&AttachmentPolicy>,
) -> BTreeSet<String> {
    let (Some(known), Some(policy)) = (known, policy) else { return BTreeSet::new() };
    if !has_same_rules(known, policy) {
        return BTreeSet::new();
    }
    let has_ipv6 = |addresses: &Vec<IpAddr>| addresses.iter().any(IpAddr::is_ipv6);
    let with = known.sets.iter().filter(|(_, addresses)| has_ipv6(addresses)).map(|(name, _)| name.clone());
    rules.ipv6_peers.iter().cloned().chain(with).collect()
}

/// Whether a policy's sets have every peer that the sets in `known` have.
fn has_all_peers_of(policy: &AttachmentPolicy, known: &AttachmentPolicy) -> bool {
    known.sets.iter().all(|(name, peers)| {
        let now: BTreeSet<&IpAddr> = policy.sets.get(name).into_iter().flatten().collect();
        peers.iter().all(|peer| now.contains(peer))
    })
}

/// Returns the ADD result for an attached network; an empty one if it is not attached.
fn result_of_attached(entry: &Entry, delegate: &Delegate) -> Result<Success, Error> {
    let is_meant = |(known, attachment): (&Delegate, &Attachment)| {
        attachment.state == State::Attached
            && known.ifname == delegate.ifname
            && known.network == delegate.network
    };
    match entry.plan.delegates.iter().zip(&entry.attachments).position(is_meant) {
        Some(index) => result_of(entry, index, delegate),
        None => Ok(Success::default()),
    }
}

/// Returns the result of an attachment's ADD.
fn result_of(entry: &Entry, index: usize, delegate: &Delegate) -> Result<Success, Error> {
    let network = Network::parse(delegate.config.as_bytes(), &delegate.network)?;
    Ok(entry.last_result(index, &network)?.map(|attached| attached.success).unwrap_or_default())
}

/// Fails if the rules would not see the packets of the attachment.
fn require_link(place: &Place, entry: &Entry, result: &Success) -> Result<(), Error> {
    if place.is_in_pod() {
        let netns = Netns::open(Path::new(&entry.netns)).or_refused()?;
        return verify_in_pod(&mut netns.rtnl().or_refused()?, place.link());
    }
    verify_on_host(place.link(), result)
}

/// Removes the rules of an attachment that no policy selects any more.
fn lift(invoker: &PluginInvoker, entry: &Entry, delegate: &Delegate) -> Result<(), Error> {
    let ids = [AttachmentId::of(entry, delegate)];
    let in_pod = Place::in_pod(delegate.ifname.as_str());
    if let Some(mut nft) = in_pod.find_nft(&entry.netns)?
        && withdraw_in_pod(&mut nft, &entry.netns, &ids).is_err()
    {
        rewrite(invoker, entry)?;
    }
    withdraw_on_host(&mut Nft::open().or_refused()?, &ids)
}

/// Writes the table in the pod's namespace again, with the rules for all attachments, in one transaction. It reads
/// nothing in the namespace, which a process in the pod may have filled.
fn rewrite(invoker: &PluginInvoker, entry: &Entry) -> Result<(), Error> {
    let mut batch = Batch::new();
    let in_pod = Place::in_pod("");
    let table = Table::new(in_pod.family(), TABLE);
    batch.ensure_table(table).delete_table(table);
    let mut limits_arp = None;
    for (delegate, attachment) in entry.plan.delegates.iter().zip(&entry.attachments) {
        let Some(policy) = delegate.policy.as_ref().filter(|_| attachment.state == State::Attached) else {
            continue;
        };
        let target = target(invoker, entry, delegate)?;
        let result = result_of_attached(entry, delegate)?;
        if target.place.is_in_pod() {
            let ruleset = Ruleset::new(&target, policy).with_networks(&on_link(&target.place, &result));
            ruleset.write(Phase::Attached, &mut BaseChains::Unknown, &mut batch);
        }
        let bound = BoundAddresses::of(entry, delegate, policy, &result)?;
        bound.write(&mut batch);
        limits_arp = Some(bound).filter(|bound| !bound.is_empty()).or(limits_arp);
    }
    let netns = Netns::open(Path::new(&entry.netns)).or_refused()?;
    let limits = match &limits_arp {
        // A limit that is in force is taken for that of weft: the notes were in the table.
        Some(bound) => netns.run(|| bound.limits(&["0", "1"])).or_refused()?,
        None => Vec::new(),
    };
    bound_addresses::note(&limits, &mut batch);
    in_pod.nft(&entry.netns)?.commit(batch).or_refused().map_err(|error| error.context("network policy"))?;
    netns.run(|| bound_addresses::limit(&limits)).or_refused()
}

/// Removes an attachment's tracked connections that the policies forbid.
fn forget_forbidden(
    target: &Target,
    entry: &Entry,
    result: &Success,
    policy: &AttachmentPolicy,
) -> Result<(), Error> {
    let forget = || -> Result<(), Error> {
        let mut conntrack = if target.place.is_in_pod() {
            Netns::open(Path::new(&entry.netns)).or_refused()?.conntrack().or_refused()?
        } else {
            Conntrack::open().or_refused()?
        };
        if conntrack.is_empty().or_refused()? {
            return Ok(());
        }
        for ip in &result.ips {
            let own = ip.address.addr();
            conntrack
                .forget_flows(own, |flow| is_forbidden(policy, &target.place, own, flow))
                .or_refused()?;
        }
        Ok(())
    };
    match forget() {
        // The namespace may be one in which the kernel does not list connections.
        Err(error) if target.place.is_in_pod() => {
            log!("weft: {}: forbidden connections may continue: {error}", entry.container_id);
            Ok(())
        }
        forgotten => forgotten.map_err(|error| error.context("network policy")),
    }
}

/// Whether the policies for the attachment with the address `own` forbid a connection. Both IP layer hooks see the
/// translated destination and the original source. A bridge port sees packets that leave the pod before the host
/// translates them, and those that arrive after it.
fn is_forbidden(policy: &AttachmentPolicy, place: &Place, own: IpAddr, flow: &Flow) -> bool {
    let Flow { original, reply } = flow;
    let is_bridge = place.family() == Family::Bridge;
    let (direction, peer, port) = match (original.source == own, reply.source == own) {
        (true, false) if is_bridge => (Direction::Egress, original.destination, original.destination_port),
        (true, false) => (Direction::Egress, reply.source, reply.source_port),
        (false, true) if is_bridge => (Direction::Ingress, reply.destination, reply.source_port),
        (false, true) => (Direction::Ingress, original.source, reply.source_port),
        _ => return false,
    };
    let protocol = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
        .into_iter()
        .find(|protocol| super::ruleset::number(*protocol) == reply.protocol);
    !policy.allows_flow(direction, peer, protocol.map(|protocol| (protocol, port)))
}

#[cfg(test)]
mod tests {
    use linux::conntrack::FlowEnds;
    use npwg::network_policy::{CompiledPeers, CompiledRule, IsolatedDirection, PortRange};
    use rpc::journal::RulePlace;

    use super::*;

    fn flow(source: [u8; 4], destination: [u8; 4], translated: [u8; 4], protocol: u8) -> Flow {
        let ends = |source: [u8; 4], destination: [u8; 4], source_port, destination_port| FlowEnds {
            source: source.into(),
            destination: destination.into(),
            protocol,
            source_port,
            destination_port,
        };
        Flow { original: ends(source, destination, 4000, 80), reply: ends(translated, source, 8080, 4000) }
    }

    #[test]
    fn network_policy_update_ends_only_forbidden_flows() {
        let (own, peer, other, service) = ([10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 3], [10, 9, 9, 9]);
        let ports = vec![PortRange { protocol: Protocol::Tcp, first: 8080, last: 8080 }];
        let peers = CompiledPeers::Only { set: Some("a".into()), ranges: Vec::new() };
        let rule = CompiledRule { policy: "n/p".into(), rule: 0, peers, ports };
        let mut policy = AttachmentPolicy {
            ingress: Some(IsolatedDirection { rules: vec![rule] }),
            sets: [("a".to_owned(), vec![peer.into()])].into(),
            ..AttachmentPolicy::default()
        };
        let place = Place::in_pod("net1");
        let forbidden = |policy: &AttachmentPolicy, flow| is_forbidden(policy, &place, own.into(), &flow);
        assert!(!forbidden(&policy, flow(peer, service, own, 6)), "the port after translation counts");
        assert!(forbidden(&policy, flow(peer, service, own, 17)));
        assert!(forbidden(&policy, flow(other, own, own, 6)));
        assert!(forbidden(&policy, flow(peer, own, own, 1)), "a rule with ports allows no ICMP");
        assert!(!forbidden(&policy, flow(own, service, other, 6)), "egress is not isolated");
        assert!(!forbidden(&policy, flow(own, own, own, 17)), "traffic of the pod to itself");
        std::mem::swap(&mut policy.ingress, &mut policy.egress);
        assert!(!forbidden(&policy, flow(own, service, peer, 6)));
        assert!(forbidden(&policy, flow(own, service, other, 6)));
        assert!(!forbidden(&policy, flow(other, own, own, 6)));
    }

    #[test]
    fn network_policy_update_on_bridge_judges_translated_flows() {
        let (own, client, gateway) = ([10, 0, 0, 1], [10, 9, 9, 9], [10, 0, 0, 254]);
        let peers = CompiledPeers::Only { set: Some("a".into()), ranges: Vec::new() };
        let rule = CompiledRule { policy: "n/p".into(), rule: 0, peers, ports: Vec::new() };
        let isolated = Some(IsolatedDirection { rules: vec![rule] });
        let allows = |peer: [u8; 4]| AttachmentPolicy {
            ingress: isolated.clone(),
            egress: isolated.clone(),
            sets: [("a".to_owned(), vec![peer.into()])].into(),
        };
        let rules = PolicyRules {
            place: RulePlace::Bridge,
            link: "veth1".into(),
            id: String::new(),
            ipv6_peers: BTreeSet::new(),
        };
        let (bridge, routed) = (Place::recorded(&rules), Place::in_pod("net1"));
        let forbidden = |place, peer, flow: &Flow| is_forbidden(&allows(peer), place, own.into(), flow);
        // The host gives the client the address of the gateway.
        let mut masqueraded = flow(client, own, own, 6);
        masqueraded.reply.destination = gateway.into();
        assert!(!forbidden(&bridge, gateway, &masqueraded) && forbidden(&bridge, client, &masqueraded));
        assert!(!forbidden(&routed, client, &masqueraded) && forbidden(&routed, gateway, &masqueraded));
        // The host leads the pod from the address of a Service to a backend.
        let (service, backend) = ([10, 96, 0, 1], [10, 0, 0, 3]);
        let to_service = flow(own, service, backend, 6);
        assert!(!forbidden(&bridge, service, &to_service) && forbidden(&bridge, backend, &to_service));
        assert!(!forbidden(&routed, backend, &to_service) && forbidden(&routed, service, &to_service));
    }

    #[test]
    fn network_policy_update_with_more_peers_forbids_no_flow() {
        let of = |sets: &[(&str, &[[u8; 4]])]| AttachmentPolicy {
            sets: sets
                .iter()
                .map(|(name, peers)| {
                    ((*name).to_owned(), peers.iter().map(|peer| IpAddr::from(*peer)).collect())
                })
                .collect(),
            ..AttachmentPolicy::default()
        };
        let (one, two) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let known = of(&[("a", &[one]), ("b", &[])]);
        assert!(has_all_peers_of(&of(&[("a", &[two, one]), ("b", &[])]), &known));
        assert!(has_all_peers_of(&known, &known));
        assert!(!has_all_peers_of(&of(&[("a", &[two])]), &known), "a peer is replaced");
        assert!(!has_all_peers_of(&of(&[("b", &[one])]), &known), "a set is missing");
    }
}
