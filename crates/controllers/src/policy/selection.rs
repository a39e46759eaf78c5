//! Selections: what the rules of policies select, apart from the policies that contain them.
//!
//! Two rules have one selection if they are in one namespace, and their policies' networks, their peers and their named ports
//! are equal. Whom the policy applies to and its numbered ports do not matter.

use npwg::network_policy::{
    Direction, LabelSelector, NetworkPolicy, PolicyPeer, PolicyPort, PolicyRule, Ports, Protocol, RuleList,
};
use sha2::{Digest, Sha512};

/// Identity of a selection within this process.
pub(super) type SelectionId = [u8; 32];

/// Returns the selections of a policy, with the direction and the index of each rule. A selection is a policy that has this
/// rule alone, at index 0.
pub(super) fn selections(policy: &NetworkPolicy) -> Vec<(Direction, usize, SelectionId, NetworkPolicy)> {
    let mut all = Vec::new();
    for direction in Direction::ALL {
        let list = policy.rules(direction);
        for (index, rule) in list.rules.iter().enumerate().filter(|_| list.isolates) {
            if let Some(selection) = selection(policy, direction, rule) {
                let digest = Sha512::digest(format!("{selection:?}"));
                all.extend(digest.first_chunk::<32>().map(|id| (direction, index, *id, selection)));
            }
        }
    }
    all
}

/// Returns the selection of a rule; `None` if no pod is its peer.
fn selection(policy: &NetworkPolicy, direction: Direction, rule: &PolicyRule) -> Option<NetworkPolicy> {
    let is_named = |port: &&PolicyPort| matches!(port.ports, Ports::Named(_));
    let has_pods = rule.peers.iter().any(|peer| matches!(peer, PolicyPeer::Pods { .. }));
    let named: Vec<PolicyPort> = match direction {
        Direction::Egress => rule.ports.iter().filter(is_named).cloned().collect(),
        Direction::Ingress => Vec::new(),
    };
    // Without written peers, a named port is that of every pod.
    if !has_pods && (named.is_empty() || !rule.peers.is_empty()) {
        return None;
    }
    let peers = rule.peers.iter().filter(|peer| matches!(peer, PolicyPeer::Pods { .. })).cloned().collect();
    // Without a named port both directions select the same.
    let (direction, ports) = if named.is_empty() {
        (Direction::Ingress, named)
    } else if rule.ports.iter().all(|port| is_named(&port)) {
        (Direction::Egress, named)
    } else {
        let numbered = PolicyPort { protocol: Protocol::Tcp, ports: Ports::All };
        (Direction::Egress, named.into_iter().chain([numbered]).collect())
    };
    let rules = RuleList { isolates: true, rules: vec![PolicyRule { peers, ports }] };
    let (ingress, egress) = match direction {
        Direction::Ingress => (rules, RuleList::default()),
        Direction::Egress => (RuleList::default(), rules),
    };
    Some(NetworkPolicy {
        namespace: policy.namespace.clone(),
        name: String::new(),
        networks: policy.networks.clone(),
        pods: LabelSelector::default(),
        ingress,
        egress,
        faults: Vec::new(),
    })
}
