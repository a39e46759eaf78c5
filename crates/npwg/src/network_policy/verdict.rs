//! Verdict on one connection, and the policies and rule that decide it.

use std::fmt;
use std::net::IpAddr;

use serde::Serialize;

use super::{Direction, NetworkPolicy, PodAttachment, PolicyPeer, PolicyRule, Protocol};

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub enum Party<'a> {
    /// A pod, by one attachment.
    Pod(PodAttachment<'a>),
    /// Address that belongs to no pod with policies.
    Address(IpAddr),
}

/// Where a rule is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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

/// Verdict on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Whether the connection is allowed.
    pub allowed: bool,
    /// Decision for egress, made at the source.
    pub egress: Decision,
    /// Decision for ingress, made at the destination.
    pub ingress: Decision,
    /// Rules with address blocks that could not be compared, because the peer's addresses are unknown.
    pub undecided: Vec<PolicyRuleReference>,
}

/// Returns the verdict on a connection from one party to a port on another.
pub fn verdict(
    policies: &[NetworkPolicy],
    from: &Party<'_>,
    to: &Party<'_>,
    protocol: Protocol,
    port: u16,
) -> Verdict {
    let mut undecided = Vec::new();
    let is_same = match (from, to) {
        (Party::Pod(from), Party::Pod(to)) => (from.namespace, from.name) == (to.namespace, to.name),
        _ => false,
    };
    let mut decide = |direction, own: &Party<'_>, peer: &Party<'_>| {
        if is_same {
            return Decision::SamePod;
        }
        let connection = Connection { direction, peer, to, protocol, port };
        connection.decide(policies, own, &mut undecided)
    };
    let egress = decide(Direction::Egress, from, to);
    let ingress = decide(Direction::Ingress, to, from);
    let allowed = egress.allows() && ingress.allows();
    Verdict { allowed, egress, ingress, undecided }
}

/// Connection as one end sees it.
struct Connection<'a> {
    direction: Direction,
    peer: &'a Party<'a>,
    /// Destination, whose containers name the ports.
    to: &'a Party<'a>,
    protocol: Protocol,
    port: u16,
}

/// Result when a party is compared with a rule's peers.
#[derive(PartialEq, Eq)]
enum Fit {
    Yes,
    No,
    Unknown,
}

// === impl Connection ===

impl Connection<'_> {
    fn decide(
        &self,
        policies: &[NetworkPolicy],
        own: &Party<'_>,
        undecided: &mut Vec<PolicyRuleReference>,
    ) -> Decision {
        let Party::Pod(own) = own else { return Decision::NotIsolated };
        let mut denied = Vec::new();
        let selecting = policies.iter().filter(|policy| policy.selects(own));
        for policy in selecting.filter(|policy| policy.rules(self.direction).isolates) {
            for (rule, content) in policy.rules(self.direction).rules.iter().enumerate() {
                let reference =
                    || PolicyRuleReference { policy: policy.to_string(), direction: self.direction, rule };
                match self.fits(policy, content) {
                    Fit::Yes => return Decision::Allowed(reference()),
                    Fit::Unknown => undecided.push(reference()),
                    Fit::No => {}
                }
            }
            denied.push(policy.to_string());
        }
        if denied.is_empty() { Decision::NotIsolated } else { Decision::Denied(denied) }
    }

    fn fits(&self, policy: &NetworkPolicy, rule: &PolicyRule) -> Fit {
        let PolicyRule { peers, ports } = rule;
        let none = Default::default();
        let named = match self.to {
            Party::Pod(pod) => pod.ports,
            Party::Address(_) => &none,
        };
        if !ports.is_empty() && !ports.iter().any(|one| one.fits(self.protocol, self.port, named)) {
            return Fit::No;
        }
        if peers.is_empty() {
            return Fit::Yes;
        }
        let mut fit = Fit::No;
        for peer in peers {
            match self.peer_fits(policy, peer) {
                Fit::Yes => return Fit::Yes,
                Fit::Unknown => fit = Fit::Unknown,
                Fit::No => {}
            }
        }
        fit
    }

    fn peer_fits(&self, policy: &NetworkPolicy, peer: &PolicyPeer) -> Fit {
        let fits = match (peer, self.peer) {
            (PolicyPeer::Pods { .. }, Party::Pod(pod)) => policy.peer_selects(peer, pod),
            (PolicyPeer::Pods { .. }, Party::Address(_)) => false,
            (PolicyPeer::Block(ranges), Party::Address(address)) => {
                ranges.iter().any(|range| range.contains(*address))
            }
            (PolicyPeer::Block(_), Party::Pod(pod)) if pod.addresses.is_empty() => return Fit::Unknown,
            (PolicyPeer::Block(ranges), Party::Pod(pod)) => {
                pod.addresses.iter().any(|address| ranges.iter().any(|range| range.contains(*address)))
            }
        };
        if fits { Fit::Yes } else { Fit::No }
    }
}

// === impl Decision ===

impl Decision {
    /// Whether this end allows the connection.
    pub fn allows(&self) -> bool {
        !matches!(self, Decision::Denied(_))
    }
}

impl fmt::Display for PolicyRuleReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PolicyRuleReference { policy, direction, rule } = self;
        write!(f, "{policy}: spec.{direction}[{rule}]")
    }
}
