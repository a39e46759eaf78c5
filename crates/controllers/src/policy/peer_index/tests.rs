//! Tests of the index: after each change, the addresses must be those to which all pods together resolve.

use npwg::metadata::Pod;
use npwg::network_policy::{PeerSet, PodAttachment, PolicyAddresses, resolve};
use npwg::selection::Annotation;
use npwg::status::NETWORK_STATUS;
use policy_api::policy_object::PolicyObject;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use kube_support::resources::Reduced;

const NAMESPACES: [&str; 2] = ["x", "y"];

fn key(namespace: &str, name: &str) -> Key {
    (namespace.to_owned(), name.to_owned())
}

/// Pod with the label `role`, a named port, and the networks `x/NETWORK` with one address each.
fn pod(namespace: &str, name: &str, role: &str, networks: &[(&str, u8)], port: u16) -> Arc<PodNetworks> {
    let names: Vec<String> = networks.iter().map(|(network, _)| format!("x/{network}")).collect();
    let status = networks.iter().map(|(network, address)| {
        json!({ "name": format!("x/{network}"), "interface": "i", "ips": [format!("10.0.0.{address}")], "dns": {} })
    });
    let status: Vec<Value> = status.collect();
    let annotations = [
        (Annotation::Networks.key().to_owned(), names.join(",")),
        (NETWORK_STATUS.to_owned(), json!(status).to_string()),
    ];
    Arc::new(PodNetworks::attached(&Pod {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        labels: [("role".to_owned(), role.to_owned())].into(),
        annotations: annotations.into(),
        named_ports: [("web".to_owned(), (npwg::network_policy::Protocol::Tcp, port))].into(),
        ..Pod::default()
    }))
}

fn policy(namespace: &str, name: &str, networks: &str, role: &str) -> Arc<WatchedPolicy> {
    let pods = json!({ "matchLabels": { "role": role } });
    let object = json!({
        "metadata": { "namespace": namespace, "name": name, "uid": "u",
            "annotations": { "k8s.v1.cni.cncf.io/policy-for": networks } },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{ "from": [{ "podSelector": pods },
                { "namespaceSelector": { "matchLabels": { "tenant": "a" } } }] }],
            "egress": [{ "ports": [{ "port": "web" }] }, { "to": [{ "podSelector": {} }], "ports": [{ "port": 1 }] }] },
    });
    Arc::new(serde_json::from_value::<PolicyObject<false>>(object).unwrap().reduce())
}

impl PeerIndex {
    /// Returns a policy's addresses, as agents find them in the address sets.
    pub(in crate::policy) fn policy_addresses(&self, key: &Key) -> PolicyAddresses {
        let mut all = PolicyAddresses::default();
        for rule in self.policies.get(key).into_iter().flat_map(|policy| &policy.selections) {
            let (_, sets) = self.addresses(&(key.0.clone(), rule.set.clone())).unwrap();
            for (port, list) in sets {
                all.insert(PeerSet { direction: rule.direction, rule: rule.rule, port }, list.iter());
            }
        }
        all
    }

    /// Compares every policy with what all pods resolve to.
    fn verify(&self) {
        for (key, policy) in &self.policies {
            let pods = self.pods.keys().filter_map(|pod| self.pods.find(pod));
            let attachments: Vec<PodAttachment<'_>> =
                pods.flat_map(|pod| pod.attachments(self.namespaces.get(&pod.namespace))).collect();
            assert_eq!(self.policy_addresses(key), resolve(&policy.policy, &attachments), "{key:?}");
        }
    }
}

#[test]
fn policy_index_change_of_a_pod_costs_policies_on_its_networks() {
    let mut index = PeerIndex::default();
    for (name, networks) in [("p", "x/one"), ("q", "x/two")] {
        index.set_policy(&key("x", name), Some(policy("x", name, networks, "web")));
    }
    let changed = index.take_changed();
    assert_eq!((changed.policies.len(), changed.sets.len()), (2, 6));
    index.set_pod(&key("x", "a"), Some(pod("x", "a", "web", &[("one", 1)], 80)));
    let changed = index.take_changed();
    assert_eq!((changed.policies.len(), changed.sets), (0, index.sets_of(&key("x", "p"))));
    index.verify();
    // The same pod again, another label that no selector names, and a pod without networks.
    index.set_pod(&key("x", "a"), Some(pod("x", "a", "web", &[("one", 1)], 80)));
    index.set_pod(&key("x", "b"), Some(pod("x", "b", "web", &[], 80)));
    assert_eq!((index.take_changed(), index.counts()), (Changed::default(), (2, 1)));
    // Another pod with the same address: the address stays when one of them ends.
    index.set_pod(&key("x", "c"), Some(pod("x", "c", "web", &[("one", 1)], 80)));
    index.set_pod(&key("x", "a"), None);
    index.verify();
    assert_eq!(index.policy_addresses(&key("x", "p")).count(), 3);
    index.set_pod(&key("x", "c"), None);
    assert!(index.pods_by_network.is_empty() && index.policy_addresses(&key("x", "p")).count() == 0);
    for name in ["p", "q"] {
        index.set_policy(&key("x", name), None);
    }
    assert!(
        index.selections_by_network.is_empty() && index.selections.is_empty() && index.policies.is_empty()
    );
}

#[test]
fn policy_index_follows_labels_of_namespaces() {
    let mut index = PeerIndex::default();
    index.set_policy(&key("x", "p"), Some(policy("x", "p", "x/one", "none")));
    index.set_pod(&key("y", "a"), Some(pod("y", "a", "web", &[("one", 1)], 80)));
    index.take_changed();
    let count = |index: &PeerIndex| index.policy_addresses(&key("x", "p")).count();
    assert_eq!(count(&index), 1, "the named port alone");
    let tenant = |name: &str| Labels::from([("tenant".to_owned(), name.to_owned())]);
    index.set_namespace("y", Some(&tenant("a")));
    assert_eq!((count(&index), index.take_changed().sets.len()), (2, 1));
    index.set_namespace("y", Some(&tenant("b")));
    index.set_namespace("z", Some(&tenant("a")));
    assert_eq!((count(&index), index.take_changed().sets.len()), (1, 1));
    index.set_namespace("y", None);
    assert_eq!(index.take_changed(), Changed::default());
    index.verify();
}

/// Whether the role is `web`; whether each network is `one`, with the last byte of the address; port number.
type PodState = (bool, Vec<(bool, u8)>, u16);

#[derive(Clone, Debug)]
enum Change {
    Pod { namespace: usize, name: u8, state: Option<PodState> },
    Policy { namespace: usize, name: u8, state: Option<(u8, bool)> },
    Namespace { namespace: usize, tenant: Option<bool> },
}

fn change() -> impl Strategy<Value = Change> {
    let networks = prop::collection::vec((any::<bool>(), 1_u8..5), 0..3);
    let pod_state = prop::option::weighted(0.8, (any::<bool>(), networks, 80_u16..82));
    let policy_state = prop::option::weighted(0.8, (0_u8..3, any::<bool>()));
    prop_oneof![
        4 => (0..2_usize, 0_u8..4, pod_state)
            .prop_map(|(namespace, name, state)| Change::Pod { namespace, name, state }),
        2 => (0..2_usize, 0_u8..2, policy_state)
            .prop_map(|(namespace, name, state)| Change::Policy { namespace, name, state }),
        1 => (0..2_usize, prop::option::of(any::<bool>()))
            .prop_map(|(namespace, tenant)| Change::Namespace { namespace, tenant }),
    ]
}

fn apply(index: &mut PeerIndex, change: Change) {
    match change {
        Change::Pod { namespace, name, state } => {
            let (namespace, name) = (NAMESPACES[namespace], name.to_string());
            let pod = state.map(|(is_web, networks, port)| {
                let network = |(is_one, address)| (if is_one { "one" } else { "two" }, address);
                let networks: Vec<(&str, u8)> = networks.into_iter().map(network).collect();
                pod(namespace, &name, if is_web { "web" } else { "db" }, &networks, port)
            });
            index.set_pod(&key(namespace, &name), pod);
        }
        Change::Policy { namespace, name, state } => {
            let (namespace, name) = (NAMESPACES[namespace], name.to_string());
            let policy = state.map(|(networks, is_web)| {
                let networks = ["x/one", "x/two", "x/one,x/two"][usize::from(networks)];
                policy(namespace, &name, networks, if is_web { "web" } else { "db" })
            });
            index.set_policy(&key(namespace, &name), policy);
        }
        Change::Namespace { namespace, tenant } => {
            let label = |is_a| Labels::from([("tenant".to_owned(), if is_a { "a" } else { "b" }.to_owned())]);
            index.set_namespace(NAMESPACES[namespace], tenant.map(label).as_ref());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn policy_index_equals_the_resolution_of_all_pods(changes in prop::collection::vec(change(), 1..60)) {
        let mut index = PeerIndex::default();
        for change in changes {
            let before: BTreeMap<Key, BTreeMap<SetPort, AddressList>> = index
                .selections
                .keys()
                .filter_map(|set| Some((set.clone(), index.addresses(set)?.1)))
                .collect();
            index.take_changed();
            apply(&mut index, change);
            index.verify();
            let changed = index.take_changed();
            for set in before.keys().chain(index.selections.keys()) {
                let same = index.addresses(set).map(|(_, addresses)| addresses).as_ref() == before.get(set);
                prop_assert!(same || changed.sets.contains(set), "{:?} changed", set);
            }
        }
    }
}

#[test]
fn policy_rules_with_equal_peers_share_an_address_set() {
    let mut index = PeerIndex::default();
    index.set_pod(&key("x", "a"), Some(pod("x", "a", "web", &[("one", 1)], 80)));
    for number in 0..100 {
        let name = format!("p{number}");
        index.set_policy(&key("x", &name), Some(policy("x", &name, "x/one", "web")));
    }
    let sets = index.take_changed().sets;
    assert_eq!((sets.len(), index.selections.len()), (3, 3), "one for each kind of rule");
    let set = sets.first().unwrap();
    assert_eq!(index.users(set).count(), 100);
    // Another namespace has its own, and the last policy removes a set.
    index.set_policy(&key("y", "p"), Some(policy("y", "p", "x/one", "web")));
    assert_eq!(index.take_changed().sets.len(), 3);
    for number in 0..100 {
        assert_eq!(index.take_changed().sets, BTreeSet::new());
        index.set_policy(&key("x", &format!("p{number}")), None);
    }
    assert_eq!((index.take_changed().sets, index.has_set(set)), (sets.clone(), false));
}
