//! Policies for one attachment as the plan contains and the kernel enforces them: addresses and ports only.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{AddressRange, Direction, Protocol};

/// Maximum number of rules that an attachment has in one direction.
pub const COMPILED_RULES_MAX: usize = 1024;
/// Maximum number of addresses in an attachment's sets.
pub const ADDRESSES_MAX: usize = 65_536;

/// Policies for one attachment.
///
/// If a direction is absent, it is not isolated: all traffic passes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AttachmentPolicy {
    /// Traffic to the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ingress: Option<IsolatedDirection>,
    /// Traffic from the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<IsolatedDirection>,
    /// Peer addresses, by set. A set changes when peers start and stop; the rules do not.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sets: BTreeMap<String, Vec<IpAddr>>,
}

/// Direction in which only traffic that a rule allows, and replies, can pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolatedDirection {
    /// Rules, each of which allows some traffic.
    pub rules: Vec<CompiledRule>,
}

/// Rule that the kernel enforces for an attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompiledRule {
    /// Policy that the rule comes from, as `namespace/name`.
    pub policy: String,
    /// Index of the rule in the policy and direction.
    pub rule: usize,
    /// Peers that may send or receive.
    pub peers: CompiledPeers,
    /// Destination ports; none means all traffic, including protocols without ports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PortRange>,
}

/// Peers that a rule allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CompiledPeers {
    /// Every address.
    Any,
    /// Only addresses in a set and in ranges.
    Only {
        /// Set name in [`AttachmentPolicy::sets`]; absent for a rule without selectors.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        set: Option<String>,
        /// Ranges that neither overlap nor touch.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        ranges: Vec<AddressRange>,
    },
}

/// Port range in one protocol, first and last port included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PortRange {
    /// Transport protocol.
    pub protocol: Protocol,
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

// === impl AttachmentPolicy ===

impl AttachmentPolicy {
    /// Whether all traffic passes.
    pub fn is_open(&self) -> bool {
        self.ingress.is_none() && self.egress.is_none()
    }

    /// Returns a direction, if it is isolated.
    pub fn isolated(&self, direction: Direction) -> Option<&IsolatedDirection> {
        match direction {
            Direction::Ingress => self.ingress.as_ref(),
            Direction::Egress => self.egress.as_ref(),
        }
    }

    /// Whether the rules allow a connection with this peer.
    pub fn allows(&self, direction: Direction, peer: IpAddr, protocol: Protocol, port: u16) -> bool {
        self.allows_flow(direction, peer, Some((protocol, port)))
    }

    /// Whether the rules allow a flow with this peer. `to` is absent for a protocol without ports.
    pub fn allows_flow(&self, direction: Direction, peer: IpAddr, to: Option<(Protocol, u16)>) -> bool {
        self.isolated(direction).is_none() || self.decide(direction, peer, to).is_some()
    }

    /// Returns the first rule that allows a flow with this peer; none if no rule does, or if the direction is not isolated. `to`
    /// is absent for a protocol without ports.
    pub fn decide(
        &self,
        direction: Direction,
        peer: IpAddr,
        to: Option<(Protocol, u16)>,
    ) -> Option<&CompiledRule> {
        let IsolatedDirection { rules } = self.isolated(direction)?;
        rules.iter().find(|rule| rule.has_port(to) && self.is_peer(&rule.peers, peer))
    }

    fn is_peer(&self, peers: &CompiledPeers, address: IpAddr) -> bool {
        match peers {
            CompiledPeers::Any => true,
            CompiledPeers::Only { set, ranges } => {
                let set = set.as_ref().and_then(|name| self.sets.get(name));
                set.is_some_and(|addresses| addresses.contains(&address))
                    || ranges.iter().any(|range| range.contains(address)) && !address.is_unspecified()
            }
        }
    }
}

// === impl CompiledRule ===

impl CompiledRule {
    /// Whether the rule is about a port of the destination. `to` is absent for a protocol without ports.
    pub(super) fn has_port(&self, to: Option<(Protocol, u16)>) -> bool {
        self.ports.is_empty()
            || to.is_some_and(|(protocol, port)| {
                let mut own = self.ports.iter().filter(|range| range.protocol == protocol);
                own.any(|range| (range.first..=range.last).contains(&port))
            })
    }
}
