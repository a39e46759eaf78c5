//! Verdict on one connection, and the policies and rule that decide it.
//!
//! The verdict comes from the compiled rules ([`AttachmentPolicy::decide`]), from which the kernel rules are written: a
//! selector means the addresses in the rule's set, not labels. Each pair of addresses counts as a separate connection,
//! because a rule may allow only one address family.
//!
//! A pod that was never attached has no known addresses. It counts as a member of every set that fits the pod labels,
//! and of no address block; rules with blocks are returned as undecided.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use serde::Serialize;
use thiserror::Error;

use super::attachment_policy::{CompiledPeers, IsolatedDirection};
use super::{
    AttachmentPolicy, CompileError, CompiledRule, Direction, NetworkPolicy, PodAttachment, PolicyAddresses,
    Protocol, compile,
};

/// Stands for the addresses of a pod that are not known. No pod has it.
const UNKNOWN: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub enum Party<'a> {
    /// A pod, by one attachment.
    Pod(PodAttachment<'a>),
    /// Address that belongs to no pod with policies.
    Address(IpAddr),
}

/// Rule of a policy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PolicyRuleReference {
    /// Policy that contains it, as `namespace/name`.
    pub policy: String,
    /// Direction that it is for.
    pub direction: Direction,
    /// Index in the list for that direction.
    pub rule: usize,
}

/// Decision that one end makes about a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Decision {
    /// No policy selects this end in this direction.
    NotIsolated,
    /// Both ends are the same pod.
    SamePod,
    /// The first rule that allows the connection.
    Allowed(PolicyRuleReference),
    /// Policies that select this end; none has a rule that allows the connection.
    Denied(Vec<String>),
}

/// Address family of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum IpFamily {
    /// IPv4.
    #[serde(rename = "IPv4")]
    V4,
    /// IPv6.
    #[serde(rename = "IPv6")]
    V6,
}

/// Verdict on the connections between addresses of the two ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Whether all of them are allowed.
    pub allowed: bool,
    /// Decision about the source's egress: for the first forbidden connection, else for the first one.
    pub egress: Decision,
    /// Decision about the ingress of the destination.
    pub ingress: Decision,
    /// Connections by address. Those with the same address family and decisions are one.
    pub connections: Vec<ConnectionVerdict>,
    /// Rules with address blocks that could not be compared, because the addresses of the peer are unknown.
    pub undecided: Vec<PolicyRuleReference>,
}

/// Verdict on the connection between two addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConnectionVerdict {
    /// Address family; absent if no address is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<IpFamily>,
    /// Address of the source, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<IpAddr>,
    /// Address of the destination, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<IpAddr>,
    /// Whether the connection is allowed.
    pub allowed: bool,
    /// Decision for egress, made at the source.
    pub egress: Decision,
    /// Decision for ingress, made at the destination.
    pub ingress: Decision,
}

/// Error of a verdict.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum VerdictError {
    /// The ends have no addresses between which a connection is possible.
    #[error("the source and the destination have no addresses of the same family")]
    NoFamily,
    /// One end's policies are too large, so the pod does not start.
    #[error(transparent)]
    Size(#[from] CompileError),
}

/// Returns the verdict on a connection from one party to a port of another. `addresses` are the peer addresses by
/// policy name, as in the kernel's sets.
///
/// # Errors
/// No connection is possible, or the policies cannot be enforced.
pub fn verdict(
    policies: &[NetworkPolicy],
    addresses: &BTreeMap<String, PolicyAddresses>,
    from: &Party<'_>,
    to: &Party<'_>,
    protocol: Protocol,
    port: u16,
) -> Result<Verdict, VerdictError> {
    let is_same = match (from, to) {
        (Party::Pod(from), Party::Pod(to)) => (from.namespace, from.name) == (to.namespace, to.name),
        _ => false,
    };
    let pairs = pairs(from, to);
    if pairs.is_empty() && !is_same {
        return Err(VerdictError::NoFamily);
    }
    let source = End::new(policies, addresses, (from, to), Direction::Egress)?;
    let destination = End::new(policies, addresses, (to, from), Direction::Ingress)?;
    let mut connections: Vec<ConnectionVerdict> = Vec::new();
    let mut undecided = Vec::new();
    let pairs = if is_same { vec![(UNKNOWN, UNKNOWN)] } else { pairs };
    for (from, to) in pairs {
        let decide =
            |end: &End<'_>, peer| if is_same { Decision::SamePod } else { end.decide(peer, protocol, port) };
        let (egress, ingress) = (decide(&source, to), decide(&destination, from));
        if !is_same {
            undecided.extend(source.undecided(to, protocol, port));
            undecided.extend(destination.undecided(from, protocol, port));
        }
        let known = |address: IpAddr| Some(address).filter(|address| *address != UNKNOWN);
        let connection = ConnectionVerdict {
            family: known(from)
                .or(known(to))
                .map(|address| if address.is_ipv4() { IpFamily::V4 } else { IpFamily::V6 }),
            from: known(from),
            to: known(to),
            allowed: egress.allows() && ingress.allows(),
            egress,
            ingress,
        };
        if !connections.iter().any(|other| other.is_like(&connection)) {
            connections.push(connection);
        }
    }
    undecided.sort();
    undecided.dedup();
    let first = connections.iter().find(|one| !one.allowed).or(connections.first());
    let (egress, ingress) =
        first.map(|one| (one.egress.clone(), one.ingress.clone())).ok_or(VerdictError::NoFamily)?;
    let allowed = connections.iter().all(|one| one.allowed);
    Ok(Verdict { allowed, egress, ingress, connections, undecided })
}

/// Returns the pairs of addresses between which a connection is possible. [`UNKNOWN`] fits both families.
fn pairs(from: &Party<'_>, to: &Party<'_>) -> Vec<(IpAddr, IpAddr)> {
    let (sources, targets) = (from.addresses(), to.addresses());
    let fits =
        |one: IpAddr, other: IpAddr| one == UNKNOWN || other == UNKNOWN || one.is_ipv4() == other.is_ipv4();
    let pairs = sources.iter().flat_map(|from| targets.iter().map(|to| (*from, *to)));
    pairs.filter(|(from, to)| fits(*from, *to)).collect()
}

/// One end of the connection, and the compiled policies.
struct End<'a> {
    direction: Direction,
    compiled: AttachmentPolicy,
    /// Policies that isolate the end in the direction.
    isolating: Vec<&'a NetworkPolicy>,
}

// === impl End ===

impl<'a> End<'a> {
    fn new(
        policies: &'a [NetworkPolicy],
        addresses: &BTreeMap<String, PolicyAddresses>,
        (own, peer): (&Party<'_>, &Party<'_>),
        direction: Direction,
    ) -> Result<End<'a>, CompileError> {
        let Party::Pod(own) = own else {
            return Ok(End { direction, compiled: AttachmentPolicy::default(), isolating: Vec::new() });
        };
        let mut selecting: Vec<&NetworkPolicy> =
            policies.iter().filter(|policy| policy.selects(own)).collect();
        let own_policies: Vec<NetworkPolicy> = selecting.iter().map(|policy| (*policy).clone()).collect();
        let compiled = match peer {
            Party::Pod(peer) if peer.addresses.is_empty() => {
                compile(&own_policies, own, &with_unknown(&own_policies, addresses, peer))?
            }
            _ => compile(&own_policies, own, addresses)?,
        };
        selecting.retain(|policy| policy.rules(direction).isolates);
        Ok(End { direction, compiled, isolating: selecting })
    }

    fn decide(&self, peer: IpAddr, protocol: Protocol, port: u16) -> Decision {
        match self.compiled.decide(self.direction, peer, Some((protocol, port))) {
            _ if self.isolating.is_empty() => Decision::NotIsolated,
            Some(rule) => Decision::Allowed(self.reference(rule)),
            None => Decision::Denied(self.isolating.iter().map(ToString::to_string).collect()),
        }
    }

    /// Returns the rules before the deciding one whose blocks may have an unknown peer.
    fn undecided(&self, peer: IpAddr, protocol: Protocol, port: u16) -> Vec<PolicyRuleReference> {
        let Some(IsolatedDirection { rules }) = self.compiled.isolated(self.direction) else {
            return Vec::new();
        };
        if peer != UNKNOWN {
            return Vec::new();
        }
        let decides = self.compiled.decide(self.direction, peer, Some((protocol, port)));
        let before =
            rules.iter().take_while(|rule| decides.is_none_or(|decides| !std::ptr::eq(*rule, decides)));
        let has_block = |rule: &&CompiledRule| matches!(&rule.peers, CompiledPeers::Only { ranges, .. } if !ranges.is_empty());
        let fitting = before.filter(has_block).filter(|rule| rule.has_port(Some((protocol, port))));
        fitting.map(|rule| self.reference(rule)).collect()
    }

    fn reference(&self, rule: &CompiledRule) -> PolicyRuleReference {
        let CompiledRule { policy, rule, .. } = rule;
        PolicyRuleReference { policy: policy.clone(), direction: self.direction, rule: *rule }
    }
}

/// Returns the addresses of policies' peers with [`UNKNOWN`] in the sets that a pod without known addresses fits.
fn with_unknown(
    policies: &[NetworkPolicy],
    addresses: &BTreeMap<String, PolicyAddresses>,
    peer: &PodAttachment<'_>,
) -> BTreeMap<String, PolicyAddresses> {
    let with = |policy: &NetworkPolicy| {
        let name = policy.to_string();
        let mut with = addresses.get(&name).cloned().unwrap_or_default();
        policy.peer_sets(peer).into_iter().for_each(|set| with.insert(set, [UNKNOWN]));
        (name, with)
    };
    policies.iter().map(with).collect()
}

// === impl Party, ConnectionVerdict, Decision ===

impl Party<'_> {
    fn addresses(&self) -> Vec<IpAddr> {
        match self {
            Party::Address(address) => vec![*address],
            Party::Pod(pod) if pod.addresses.is_empty() => vec![UNKNOWN],
            Party::Pod(pod) => pod.addresses.to_vec(),
        }
    }
}

impl ConnectionVerdict {
    /// Whether the connection differs from another one only in addresses.
    fn is_like(&self, other: &ConnectionVerdict) -> bool {
        (self.family, &self.egress, &self.ingress) == (other.family, &other.egress, &other.ingress)
    }
}

impl Decision {
    /// Whether this end allows the connection.
    pub fn allows(&self) -> bool {
        !matches!(self, Decision::Denied(_))
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IpFamily::V4 => "IPv4",
            IpFamily::V6 => "IPv6",
        })
    }
}

impl fmt::Display for PolicyRuleReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PolicyRuleReference { policy, direction, rule } = self;
        write!(f, "{policy}: spec.{direction}[{rule}]")
    }
}
