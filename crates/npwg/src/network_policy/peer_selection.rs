//! Peer selections: what the rules of a policy select, apart from the policy that contains them.
//!
//! - Rules in one namespace share a selection if policy networks, peers and named ports are equal, in any order. The
//!   policy's pods and numbered ports do not matter.
//! - [`PeerSelection::text`] identifies a selection in the namespace. Controllers and agents from different releases
//!   compare it, so a change in the content needs another [`FORMAT`].

use std::collections::BTreeSet;

use serde::Serialize;

use super::{
    Direction, LabelSelector, NetworkPolicy, PeerSet, PodAttachment, PolicyPeer, PolicyPort, PolicyRule,
    Ports, Protocol, RuleList,
};

/// Version of the selection text.
const FORMAT: u32 = 1;

/// Peers, and named ports of peers, of equal rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSelection {
    /// Policy that has this rule alone, at index 0.
    policy: NetworkPolicy,
}

/// PeerSelection as it is compared.
#[derive(Serialize)]
struct PeerSelectionText<'a> {
    format: u32,
    networks: Vec<String>,
    /// Peers; empty for every pod on the networks.
    peers: BTreeSet<PeerText<'a>>,
    /// Named ports, for which each peer can have another number.
    ports: BTreeSet<(Protocol, &'a str)>,
    /// Whether the peers count apart from named ports.
    plain: bool,
}

/// Peer selectors. Without `namespaces`, the peer is in the policy's namespace.
#[derive(PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct PeerText<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    namespaces: Option<BTreeSet<super::label_selector::RequirementText<'a>>>,
    pods: BTreeSet<super::label_selector::RequirementText<'a>>,
}

// === impl NetworkPolicy ===

impl NetworkPolicy {
    /// Returns the selections of the policy's rules, with direction and index. Rules without pods as peers have none.
    pub fn selections(&self) -> Vec<(Direction, usize, PeerSelection)> {
        let mut all = Vec::new();
        for direction in Direction::ALL {
            let list = self.rules(direction);
            for (index, rule) in list.rules.iter().enumerate().filter(|_| list.isolates) {
                all.extend(self.selection(direction, rule).map(|selection| (direction, index, selection)));
            }
        }
        all
    }

    fn selection(&self, direction: Direction, rule: &PolicyRule) -> Option<PeerSelection> {
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
        let peers =
            rule.peers.iter().filter(|peer| matches!(peer, PolicyPeer::Pods { .. })).cloned().collect();
        // Without a named port both directions select the same.
        let is_plain = has_pods && rule.has_plain_set(direction);
        let numbered = PolicyPort { protocol: Protocol::Tcp, ports: Ports::All };
        let (direction, ports) = match (named.is_empty(), is_plain) {
            (true, _) => (Direction::Ingress, named),
            (false, true) => (Direction::Egress, named.into_iter().chain([numbered]).collect()),
            (false, false) => (Direction::Egress, named),
        };
        let rules = RuleList { isolates: true, rules: vec![PolicyRule { peers, ports }] };
        let (ingress, egress) = match direction {
            Direction::Ingress => (rules, RuleList::default()),
            Direction::Egress => (RuleList::default(), rules),
        };
        Some(PeerSelection {
            policy: NetworkPolicy {
                namespace: self.namespace.clone(),
                name: String::new(),
                networks: self.networks.clone(),
                pods: LabelSelector::default(),
                ingress,
                egress,
                faults: Vec::new(),
            },
        })
    }
}

// === impl PeerSelection ===

impl PeerSelection {
    /// Returns the namespace whose policies have the selection.
    pub fn namespace(&self) -> &str {
        &self.policy.namespace
    }

    /// Returns the networks on which peers count, and with whose addresses.
    pub fn networks(&self) -> impl Iterator<Item = &crate::metadata::NetworkReference> {
        self.policy.networks.iter()
    }

    /// Returns the ports of the sets in which an attachment's addresses are: `None` for the rules' numbered ports.
    pub fn sets(&self, pod: &PodAttachment<'_>) -> Vec<Option<(Protocol, u16)>> {
        self.policy.peer_sets(pod).into_iter().map(|PeerSet { port, .. }| port).collect()
    }

    /// Returns the selection as JSON. Equal selections of a namespace have equal texts.
    pub fn text(&self) -> String {
        let rules = self.policy.ingress.rules.iter().chain(&self.policy.egress.rules);
        let (mut peers, mut ports, mut plain) = (BTreeSet::new(), BTreeSet::new(), false);
        for rule in rules {
            plain = rule.ports.len()
                != rule.ports.iter().filter(|port| matches!(port.ports, Ports::Named(_))).count()
                || rule.ports.is_empty();
            for port in &rule.ports {
                if let Ports::Named(name) = &port.ports {
                    ports.insert((port.protocol, name.as_str()));
                }
            }
            for peer in &rule.peers {
                if let PolicyPeer::Pods { namespaces, pods } = peer {
                    peers.insert(PeerText {
                        namespaces: namespaces.as_ref().map(LabelSelector::text),
                        pods: pods.as_ref().map(LabelSelector::text).unwrap_or_default(),
                    });
                }
            }
        }
        let networks = self.policy.networks.iter().map(ToString::to_string).collect();
        // Maps with keys that are no strings are absent.
        serde_json::to_string(&PeerSelectionText { format: FORMAT, networks, peers, ports, plain })
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{POLICY_FOR, VERSIONS, read};
    use super::*;

    fn texts(networks: &str, ingress: &Value, egress: &Value) -> Vec<String> {
        let policy = read(&json!({ "apiVersion": VERSIONS[1], "kind": "MultiNetworkPolicy",
            "metadata": { "namespace": "x", "name": "p", "annotations": { POLICY_FOR: networks } },
            "spec": { "podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": ingress,
                "egress": egress } }));
        assert_eq!(policy.faults, []);
        policy.selections().iter().map(|(_, _, selection)| selection.text()).collect()
    }

    #[test]
    fn peer_selection_of_equal_rules_is_the_same_in_any_order() {
        let web = json!({ "podSelector": { "matchLabels": { "role": "web" } } });
        let same = json!({ "podSelector": { "matchExpressions": [
            { "key": "role", "operator": "In", "values": ["web", "web"] }] } });
        let all = json!({ "podSelector": {}, "namespaceSelector": {} });
        let block = json!({ "ipBlock": { "cidr": "10.0.0.0/8" } });
        let first = texts("a,b", &json!([{ "from": [web, all] }]), &json!([]));
        for (networks, ingress, egress) in [
            ("b,a", json!([{ "from": [all, same] }]), json!([])),
            ("a,b", json!([{ "from": [web, all, web], "ports": [{ "port": 80 }] }]), json!([])),
            ("a,b", json!([{ "from": [web, all, block], "ports": [{ "port": "http" }] }]), json!([])),
            ("a,b", json!([]), json!([{ "to": [web, all], "ports": [{ "port": 80 }] }])),
        ] {
            assert_eq!(texts(networks, &ingress, &egress), first, "{networks} {ingress} {egress}");
        }
        assert_eq!(
            first,
            [
                r#"{"format":1,"networks":["x/a","x/b"],"peers":[{"pods":[{"key":"role","in":["web"]}]},{"namespaces":[],"pods":[]}],"ports":[],"plain":true}"#
            ]
        );
    }

    #[test]
    fn peer_selection_of_other_rules_is_another() {
        let peer = |selector: Value| json!([{ "to": [selector] }]);
        let selector = |operator: &str, values: &[&str]| {
            peer(json!({ "podSelector": { "matchExpressions": [{ "key": "a", "operator": operator,
                "values": values }] } }))
        };
        let port = |to: Value, ports: Value| json!([{ "to": to, "ports": ports }]);
        let all = json!([{ "podSelector": {} }]);
        let named = json!([{ "port": "http" }]);
        let mixed = json!([{ "port": "http" }, { "port": 80 }]);
        let other = json!([{ "port": "http", "protocol": "UDP" }]);
        let mut seen = BTreeSet::new();
        for (networks, egress) in [
            ("a", peer(json!({ "podSelector": {} }))),
            ("b", peer(json!({ "podSelector": {} }))),
            ("a", peer(json!({ "namespaceSelector": {} }))),
            ("a", selector("In", &["b"])),
            ("a", selector("In", &["b", "c"])),
            ("a", selector("NotIn", &["b"])),
            (
                "a",
                peer(
                    json!({ "podSelector": { "matchExpressions": [{ "key": "a", "operator": "Exists" }] } }),
                ),
            ),
            (
                "a",
                peer(
                    json!({ "podSelector": { "matchExpressions": [{ "key": "a", "operator": "DoesNotExist" }] } }),
                ),
            ),
            ("a", port(all.clone(), named.clone())),
            ("a", port(all.clone(), mixed)),
            ("a", port(all, other)),
            ("a", json!([{ "ports": named }])),
        ] {
            let texts = texts(networks, &json!([]), &egress);
            assert!(texts.len() == 1 && seen.insert(texts[0].clone()), "{networks} {egress}: {texts:?}");
        }
        assert_eq!(
            texts("a", &json!([{}]), &json!([{ "to": [{ "ipBlock": { "cidr": "10.0.0.0/8" } }] }])),
            [""; 0]
        );
    }
}
