//! Compiles the policies for one attachment: selectors become peer addresses, named ports become numbers.
//!
//! - In an ingress rule, a named port is the pod's own. In an egress rule, every peer can have another number for it,
//!   so the rule is divided by the numbers for which [`PolicyAddresses`] has sets.
//! - If a policy's addresses are missing, the sets are empty: the rules then allow no peer that a selector would
//!   select.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use thiserror::Error;

use super::address_range::merge;
use super::attachment_policy::{ADDRESSES_MAX, COMPILED_RULES_MAX};
use super::{
    AttachmentPolicy, CompiledPeers, CompiledRule, Direction, IsolatedDirection, NetworkPolicy, PeerSet,
    PodAttachment, PolicyAddresses, PolicyPeer, PolicyPort, PolicyRule, PortRange, Ports, Protocol,
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

/// Returns an attachment's compiled policies. `addresses` are peer addresses by policy name.
///
/// # Errors
/// The policies are too large; the attachment must then be refused.
pub fn compile(
    policies: &[NetworkPolicy],
    own: &PodAttachment<'_>,
    addresses: &BTreeMap<String, PolicyAddresses>,
) -> Result<AttachmentPolicy, CompileError> {
    let unknown = PolicyAddresses::default();
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
            let addresses = addresses.get(&policy.to_string()).unwrap_or(&unknown);
            for (rule, content) in policy.rules(direction).rules.iter().enumerate() {
                let source = Source { policy, direction, rule, content, addresses };
                for part in source.parts(own) {
                    let Part { rule, set } = part;
                    rules.push(rule);
                    if let Some((name, addresses)) = set {
                        room = room.checked_sub(addresses.len()).ok_or(CompileError::Addresses)?;
                        compiled.sets.insert(name, addresses);
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

/// Policy rule, where it comes from, and the policy's peer addresses.
struct Source<'a> {
    policy: &'a NetworkPolicy,
    direction: Direction,
    rule: usize,
    content: &'a PolicyRule,
    addresses: &'a PolicyAddresses,
}

/// Compiled rule and the addresses in the set.
struct Part {
    rule: CompiledRule,
    set: Option<(String, Vec<IpAddr>)>,
}

// === impl Source ===

impl Source<'_> {
    /// Returns the compiled rules: one for the numbered ports, and one for each number of a named port.
    fn parts(&self, own: &PodAttachment<'_>) -> Vec<Part> {
        let (named, numbered): (Vec<&PolicyPort>, Vec<&PolicyPort>) =
            self.content.ports.iter().partition(|port| matches!(port.ports, Ports::Named(_)));
        let mut ranges: BTreeSet<PortRange> = numbered.iter().filter_map(|port| range(port)).collect();
        let mut parts = Vec::new();
        match self.direction {
            Direction::Ingress => ranges.extend(named.iter().filter_map(|port| port.number_of(own)).map(one)),
            Direction::Egress => parts.extend(self.named_parts(&named)),
        }
        if self.content.ports.is_empty() || !ranges.is_empty() {
            parts.push(self.plain_part(ranges));
        }
        parts
    }

    /// Returns the rules for the named ports of peers, grouped by port number.
    fn named_parts(&self, named: &[&PolicyPort]) -> Vec<Part> {
        let Source { direction, rule, addresses, .. } = *self;
        let has_name = |(protocol, _): &(Protocol, u16)| named.iter().any(|port| port.protocol == *protocol);
        let part = |port: (Protocol, u16)| {
            let set = self.set(Some(port));
            let peers = CompiledPeers::Only { set: Some(set.0.clone()), ranges: Vec::new() };
            Part { rule: self.compiled(peers, vec![one(port)]), set: Some(set) }
        };
        addresses.ports(direction, rule).filter(has_name).map(part).collect()
    }

    /// Returns the rule for ports that do not depend on the peer.
    fn plain_part(&self, ports: BTreeSet<PortRange>) -> Part {
        let peers = &self.content.peers;
        let has_selector = peers.iter().any(|peer| matches!(peer, PolicyPeer::Pods { .. }));
        let blocks = peers.iter().filter_map(|peer| match peer {
            PolicyPeer::Block(ranges) => Some(ranges),
            PolicyPeer::Pods { .. } => None,
        });
        let ranges = merge(blocks.flatten().copied().collect());
        let set = has_selector.then(|| self.set(None));
        let compiled = match peers.is_empty() {
            true => CompiledPeers::Any,
            false => CompiledPeers::Only { set: set.as_ref().map(|(name, _)| name.clone()), ranges },
        };
        Part { rule: self.compiled(compiled, join(ports)), set }
    }

    /// Returns the name and the addresses of a set.
    fn set(&self, port: Option<(Protocol, u16)>) -> (String, Vec<IpAddr>) {
        let Source { policy, direction, rule, addresses, .. } = *self;
        let suffix = port.map(|(protocol, number)| format!(":{protocol}:{number}")).unwrap_or_default();
        let found = addresses.find(&PeerSet { direction, rule, port });
        let addresses = found.map(|all| all.iter().collect()).unwrap_or_default();
        (format!("{policy}:{direction}:{rule}{suffix}"), addresses)
    }

    fn compiled(&self, peers: CompiledPeers, ports: Vec<PortRange>) -> CompiledRule {
        CompiledRule { policy: self.policy.to_string(), rule: self.rule, peers, ports }
    }
}

/// Returns a single port as a range.
fn one((protocol, number): (Protocol, u16)) -> PortRange {
    PortRange { protocol, first: number, last: number }
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

/// Returns the same ports as ranges that neither overlap nor touch.
fn join(ports: BTreeSet<PortRange>) -> Vec<PortRange> {
    let mut joined: BTreeMap<Protocol, Vec<PortRange>> = BTreeMap::new();
    for range in ports {
        let known = joined.entry(range.protocol).or_default();
        match known.last_mut() {
            Some(last) if range.first <= last.last.saturating_add(1) => last.last = last.last.max(range.last),
            _ => known.push(range),
        }
    }
    joined.into_values().flatten().collect()
}
