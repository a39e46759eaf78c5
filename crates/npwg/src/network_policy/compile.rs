//! Compilation of the policies of one attachment: selectors become addresses, named ports become numbers.
//!
//! - A peer counts with its addresses on every network that its policy names, because several definitions can describe
//!   one network.
//! - A named port of an ingress rule is that of the pod itself. A named port of an egress rule is that of each peer, so
//!   the rule is divided by the numbers that the peers have for it. Address blocks have no named ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use thiserror::Error;

use super::address_range::merge;
use super::attachment_policy::{ADDRESSES_MAX, COMPILED_RULES_MAX};
use super::{
    AttachmentPolicy, CompiledPeers, CompiledRule, Direction, IsolatedDirection, NetworkPolicy,
    PodAttachment, PolicyPeer, PolicyPort, PolicyRule, PortRange, Ports,
};

/// Error of policies that are too large for one attachment.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CompileError {
    /// Too many rules.
    #[error("its policies have more than {COMPILED_RULES_MAX} {direction} rules")]
    Rules {
        /// Direction of the rules.
        direction: Direction,
    },
    /// Too many addresses.
    #[error("the peers of its policies have more than {ADDRESSES_MAX} addresses")]
    Addresses,
}

/// Returns the policies of an attachment. `peers` are the attachments of all pods, or at least of those that the policies
/// select as peers.
///
/// # Errors
/// The policies are too large; the attachment must then be refused.
pub fn compile<'a>(
    policies: &[NetworkPolicy],
    own: &PodAttachment<'_>,
    peers: &[PodAttachment<'a>],
) -> Result<AttachmentPolicy, CompileError> {
    let selecting: Vec<&NetworkPolicy> = policies.iter().filter(|policy| policy.selects(own)).collect();
    let mut compiled = AttachmentPolicy::default();
    let mut room = ADDRESSES_MAX;
    for direction in Direction::ALL {
        let isolating: Vec<&NetworkPolicy> =
            selecting.iter().copied().filter(|policy| policy.rules(direction).isolates).collect();
        if isolating.is_empty() {
            continue;
        }
        let mut rules = Vec::new();
        for policy in isolating {
            for (rule, content) in policy.rules(direction).rules.iter().enumerate() {
                let source = Source { policy, direction, rule, content };
                for part in source.parts(own, peers) {
                    let Part { rule, set } = part;
                    rules.push(rule);
                    if let Some((name, addresses)) = set {
                        room = room.checked_sub(addresses.len()).ok_or(CompileError::Addresses)?;
                        compiled.sets.insert(name, addresses.into_iter().collect());
                    }
                }
                if rules.len() > COMPILED_RULES_MAX {
                    return Err(CompileError::Rules { direction });
                }
            }
        }
        let isolated = Some(IsolatedDirection { rules });
        match direction {
            Direction::Ingress => compiled.ingress = isolated,
            Direction::Egress => compiled.egress = isolated,
        }
    }
    Ok(compiled)
}

/// Rule of a policy with its place.
struct Source<'a> {
    policy: &'a NetworkPolicy,
    direction: Direction,
    rule: usize,
    content: &'a PolicyRule,
}

/// Compiled rule with the addresses of its set.
struct Part {
    rule: CompiledRule,
    set: Option<(String, BTreeSet<IpAddr>)>,
}

// === impl Source ===

impl Source<'_> {
    /// Returns the compiled rules: one for the numbered ports, and one for each number of a named port.
    fn parts(&self, own: &PodAttachment<'_>, peers: &[PodAttachment<'_>]) -> Vec<Part> {
        let (named, numbered): (Vec<&PolicyPort>, Vec<&PolicyPort>) =
            self.content.ports.iter().partition(|port| matches!(port.ports, Ports::Named(_)));
        let mut ranges: BTreeSet<PortRange> = numbered.iter().filter_map(|port| range(port)).collect();
        let mut parts = Vec::new();
        match self.direction {
            Direction::Ingress => ranges.extend(named.iter().filter_map(|port| number_of(port, own))),
            Direction::Egress => parts.extend(self.named_parts(&named, peers)),
        }
        if self.content.ports.is_empty() || !ranges.is_empty() {
            let fits = |_: &PodAttachment<'_>| true;
            parts.push(self.part("", ranges, peers, &fits, true));
        }
        parts
    }

    /// Returns the rules for the named ports of peers, grouped by port number.
    fn named_parts(&self, named: &[&PolicyPort], peers: &[PodAttachment<'_>]) -> Vec<Part> {
        let numbers: BTreeSet<PortRange> =
            peers.iter().flat_map(|peer| named.iter().filter_map(|port| number_of(port, peer))).collect();
        let part = |range: PortRange| {
            let fits =
                |peer: &PodAttachment<'_>| named.iter().any(|port| number_of(port, peer) == Some(range));
            let name = format!(":{}:{}", range.protocol, range.first);
            self.part(&name, BTreeSet::from([range]), peers, &fits, false)
        };
        numbers.into_iter().map(part).collect()
    }

    fn part(
        &self,
        suffix: &str,
        ports: BTreeSet<PortRange>,
        peers: &[PodAttachment<'_>],
        fits: &dyn Fn(&PodAttachment<'_>) -> bool,
        with_blocks: bool,
    ) -> Part {
        let Source { policy, direction, rule, content } = self;
        let is_any = content.peers.is_empty() && with_blocks;
        let has_selector = content.peers.iter().any(|peer| matches!(peer, PolicyPeer::Pods { .. }));
        let blocks = content.peers.iter().filter_map(|peer| match peer {
            PolicyPeer::Block(ranges) if with_blocks => Some(ranges),
            _ => None,
        });
        let ranges = merge(blocks.flatten().copied().collect());
        let is_peer = |pod: &&PodAttachment<'_>| {
            fits(pod)
                && match content.peers.as_slice() {
                    // Only of a named port: the pods of the policy's networks that have it.
                    [] => policy.networks.contains(pod.network),
                    all => all.iter().any(|peer| policy.peer_selects(peer, pod)),
                }
        };
        let set = (!is_any && (has_selector || !with_blocks)).then(|| {
            let addresses = peers.iter().filter(is_peer).flat_map(|pod| pod.addresses.iter().copied());
            (format!("{policy}:{direction}:{rule}{suffix}"), addresses.collect::<BTreeSet<IpAddr>>())
        });
        let compiled = match is_any {
            true => CompiledPeers::Any,
            false => CompiledPeers::Only { set: set.as_ref().map(|(name, _)| name.clone()), ranges },
        };
        let ports = join(ports);
        Part { rule: CompiledRule { policy: policy.to_string(), rule: *rule, peers: compiled, ports }, set }
    }
}

/// Returns the numbers of a port that is not named.
fn range(port: &PolicyPort) -> Option<PortRange> {
    let PolicyPort { protocol, ports } = port;
    let (first, last) = match ports {
        Ports::All => (0, u16::MAX),
        Ports::Range(first, last) => (*first, *last),
        Ports::Named(_) => return None,
    };
    Some(PortRange { protocol: *protocol, first, last })
}

/// Returns the number that a pod has for a named port.
fn number_of(port: &PolicyPort, pod: &PodAttachment<'_>) -> Option<PortRange> {
    let Ports::Named(name) = &port.ports else { return None };
    let (protocol, number) = pod.ports.get(name).filter(|(protocol, _)| *protocol == port.protocol)?;
    Some(PortRange { protocol: *protocol, first: *number, last: *number })
}

/// Returns the same ports as ranges that neither overlap nor touch.
fn join(ports: BTreeSet<PortRange>) -> Vec<PortRange> {
    let mut joined: BTreeMap<super::Protocol, Vec<PortRange>> = BTreeMap::new();
    for range in ports {
        let known = joined.entry(range.protocol).or_default();
        match known.last_mut() {
            Some(last) if range.first <= last.last.saturating_add(1) => last.last = last.last.max(range.last),
            _ => known.push(range),
        }
    }
    joined.into_values().flatten().collect()
}
