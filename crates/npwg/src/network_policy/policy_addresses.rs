//! A policy's peer addresses, by the place in the policy where they count.
//!
//! - A peer counts with the addresses on every network that the policy names, because several definitions can describe
//!   one network.
//! - A named port of an egress rule is that of each peer: the rule has a set for each number that peers have for it.
//!   Address blocks have no named ports.
//! - Sets of rules that select the same share one list.
//! - A set depends on the attachments of peers alone, one by one, so it can be kept up to date without the others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::{AddressList, Direction, NetworkPolicy, PodAttachment, PolicyPort, PolicyRule, Ports, Protocol};

/// Place in a policy where the addresses of peers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerSet {
    /// Direction of the rule.
    pub direction: Direction,
    /// Index of the rule in the direction.
    pub rule: usize,
    /// Port, if the set is for named ports of an egress rule: the number that the peers have for one of them.
    pub port: Option<(Protocol, u16)>,
}

/// A policy's peer addresses. A set that is absent is empty, and allows nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyAddresses(BTreeMap<PeerSet, Arc<AddressList>>);

/// Returns a policy's peer addresses. `pods` are all pods' attachments, or at least those to networks that the policy
/// names.
pub fn resolve<'a>(
    policy: &NetworkPolicy,
    pods: impl IntoIterator<Item = &'a PodAttachment<'a>>,
) -> PolicyAddresses {
    let mut resolved: BTreeMap<PeerSet, Vec<IpAddr>> = BTreeMap::new();
    for pod in pods {
        for set in policy.peer_sets(pod) {
            resolved.entry(set).or_default().extend(pod.addresses);
        }
    }
    let mut addresses = PolicyAddresses::default();
    resolved.into_iter().for_each(|(set, all)| addresses.insert(set, all));
    addresses
}

/// Returns each policy's peer addresses, by policy name (`namespace/name`).
pub fn resolve_all<'a>(
    policies: impl IntoIterator<Item = &'a NetworkPolicy>,
    pods: &[PodAttachment<'_>],
) -> BTreeMap<String, PolicyAddresses> {
    policies.into_iter().map(|policy| (policy.to_string(), resolve(policy, pods))).collect()
}

// === impl NetworkPolicy ===

impl NetworkPolicy {
    /// Returns the sets that contain the addresses of an attachment.
    pub fn peer_sets(&self, pod: &PodAttachment<'_>) -> Vec<PeerSet> {
        let mut sets = Vec::new();
        if !self.networks.contains(pod.network) {
            return sets;
        }
        for direction in Direction::ALL {
            let list = self.rules(direction);
            for (rule, content) in list.rules.iter().enumerate().filter(|_| list.isolates) {
                let is_peer = content.peers.iter().any(|peer| self.peer_selects(peer, pod));
                if is_peer && content.has_plain_set(direction) {
                    sets.push(PeerSet { direction, rule, port: None });
                }
                // Without written peers, a named port is that of every pod on the policy's networks.
                if direction == Direction::Egress && (is_peer || content.peers.is_empty()) {
                    let ports: BTreeSet<(Protocol, u16)> =
                        content.ports.iter().filter_map(|port| port.number_of(pod)).collect();
                    sets.extend(ports.into_iter().map(|port| PeerSet { direction, rule, port: Some(port) }));
                }
            }
        }
        sets
    }
}

// === impl PolicyRule ===

impl PolicyRule {
    /// Whether the rule can allow traffic to ports that do not depend on the peer.
    pub(super) fn has_plain_set(&self, direction: Direction) -> bool {
        direction == Direction::Ingress
            || self.ports.is_empty()
            || self.ports.iter().any(|port| !matches!(port.ports, Ports::Named(_)))
    }
}

// === impl PolicyPort ===

impl PolicyPort {
    /// Returns the number that a pod has for the port, if the port is named.
    pub(super) fn number_of(&self, pod: &PodAttachment<'_>) -> Option<(Protocol, u16)> {
        let Ports::Named(name) = &self.ports else { return None };
        pod.ports.get(name).filter(|(protocol, _)| *protocol == self.protocol).copied()
    }
}

// === impl PolicyAddresses ===

impl PolicyAddresses {
    /// Adds addresses to a set.
    pub fn insert(&mut self, set: PeerSet, addresses: impl IntoIterator<Item = IpAddr>) {
        let known = self.0.get(&set).into_iter().flat_map(|list| list.iter());
        self.share(set, Arc::new(known.chain(addresses).collect()));
    }

    /// Sets the list of a set.
    pub fn share(&mut self, set: PeerSet, list: Arc<AddressList>) {
        if !list.is_empty() {
            self.0.insert(set, list);
        }
    }

    /// Returns the addresses of a set; none if it is empty.
    pub fn find(&self, set: &PeerSet) -> Option<&AddressList> {
        self.0.get(set).map(Arc::as_ref)
    }

    /// Returns the sets that are not empty, in order.
    pub fn sets(&self) -> impl Iterator<Item = (&PeerSet, &AddressList)> {
        self.0.iter().map(|(set, list)| (set, list.as_ref()))
    }

    /// Returns the ports for which a rule has a separate set.
    pub fn ports(&self, direction: Direction, rule: usize) -> impl Iterator<Item = (Protocol, u16)> {
        let first = PeerSet { direction, rule, port: None };
        let same = move |set: &&PeerSet| (set.direction, set.rule) == (direction, rule);
        self.0.range(first..).map(|(set, _)| set).take_while(same).filter_map(|set| set.port)
    }

    /// Returns the number of addresses in all sets.
    pub fn count(&self) -> usize {
        self.0.values().map(|list| list.len()).fold(0, usize::saturating_add)
    }
}
