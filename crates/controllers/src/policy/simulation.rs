//! Simulation of a cluster on the real resolver: pods, policies and networks of the sizes that the environment names.
//!
//! ```text
//!   WEFT_POLICY_PODS=10000 WEFT_POLICY_POLICIES=500 WEFT_POLICY_NETWORKS=50 WEFT_POLICY_NODES=200 \
//!     cargo test -p controllers policy_simulation -- --nocapture
//! ```
//!
//! - A pod is on one network. There are ten roles and twenty namespaces; half of the namespaces have the label
//!   `tenant`.
//! - A policy selects one role in the policy's namespace on one network. Peers are a role in all namespaces, or a
//!   tenant.
//! - An agent watches the sets for policies that select a pod on the agent's node.
//!
//! The figures are in `docs/scale.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use npwg::metadata::{Labels, Pod};
use npwg::network_policy::{AddressList, PodAttachment, resolve};
use npwg::pod_policies::PodNetworks;
use npwg::selection::Annotation;
use npwg::status::NETWORK_STATUS;
use policy_api::address_set::{WrittenAddressSet, spec};
use policy_api::policy_object::{PolicyObject, WatchedPolicy};
use serde_json::json;

use super::peer_index::PeerIndex;
use kube_support::resources::{Key, Reduced};

const ROLES: usize = 10;
const NAMESPACES: usize = 20;
/// Number of pods that start after the cluster is complete.
const STARTS: usize = 200;

type IndexedPod = (Key, Arc<PodNetworks>);

/// Sizes of a cluster.
struct Sizes {
    pods: usize,
    policies: usize,
    networks: usize,
    nodes: usize,
}

impl Sizes {
    fn from_environment() -> Sizes {
        let read = |name: &str, default: usize| {
            let text = std::env::var(format!("WEFT_POLICY_{name}")).ok();
            text.map_or(default, |text| text.parse().unwrap())
        };
        Sizes {
            pods: read("PODS", 500),
            policies: read("POLICIES", 50),
            networks: read("NETWORKS", 5),
            nodes: read("NODES", 10),
        }
    }

    /// Pod with this number. Numbers are spread over roles, namespaces and networks independently of each other.
    fn pod(&self, number: usize) -> IndexedPod {
        let spread = number.wrapping_mul(0x9E37_79B9) >> 4;
        let network = format!("infra/net-{}", spread % self.networks);
        let address = format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255);
        let status = json!([{ "name": network, "interface": "net1", "ips": [address], "dns": {} }]);
        let pod = Pod {
            namespace: format!("team-{}", spread / self.networks % NAMESPACES),
            name: format!("pod-{number}"),
            labels: [("role".to_owned(), format!("role-{}", spread / 7 % ROLES))].into(),
            annotations: [
                (Annotation::Networks.key().to_owned(), network),
                (NETWORK_STATUS.to_owned(), status.to_string()),
            ]
            .into(),
            ..Pod::default()
        };
        ((pod.namespace.clone(), pod.name.clone()), Arc::new(PodNetworks::attached(&pod)))
    }

    fn policy(&self, number: usize) -> (Key, Arc<WatchedPolicy>) {
        let (namespace, name) = (format!("team-{}", number % NAMESPACES), format!("policy-{number}"));
        let role = |number: usize| json!({ "matchLabels": { "role": format!("role-{}", number % ROLES) } });
        let of_all = json!({ "namespaceSelector": {}, "podSelector": role(number + 1) });
        let of_tenant = json!({ "namespaceSelector": { "matchLabels": { "tenant": "a" } } });
        let peer = if number.is_multiple_of(10) { of_tenant } else { of_all };
        let object = json!({
            "metadata": { "namespace": namespace, "name": name, "uid": format!("0000-{number}"),
                "annotations": { "k8s.v1.cni.cncf.io/policy-for": format!("infra/net-{}", number % self.networks) } },
            "spec": { "podSelector": role(number), "policyTypes": ["Ingress", "Egress"],
                "ingress": [{ "from": [peer], "ports": [{ "port": 443 }] }],
                "egress": [{ "to": [peer] }] },
        });
        let policy = serde_json::from_value::<PolicyObject<false>>(object).unwrap().reduce();
        ((namespace, name), Arc::new(policy))
    }
}

/// Bytes of an address set.
fn bytes(index: &PeerIndex, set: &Key) -> usize {
    let (selection, addresses) = index.addresses(set).unwrap();
    let spec = spec(selection, &addresses).unwrap();
    serde_json::to_vec(&WrittenAddressSet::new(set, spec)).unwrap().len()
}

/// Address sets of the policies that select a pod of each node.
fn watched_sets(index: &PeerIndex, watched: &[BTreeSet<Key>]) -> Vec<BTreeSet<Key>> {
    watched.iter().map(|keys| keys.iter().flat_map(|key| index.sets_of(key)).collect()).collect()
}

/// Policies that select a pod of each node.
fn watched(sizes: &Sizes, policies: &[(Key, Arc<WatchedPolicy>)], pods: &[IndexedPod]) -> Vec<BTreeSet<Key>> {
    let mut watched = vec![BTreeSet::new(); sizes.nodes];
    for (number, (_, pod)) in pods.iter().enumerate() {
        for attachment in pod.attachments(None) {
            let selecting = policies.iter().filter(|(_, policy)| policy.policy.selects(&attachment));
            watched[number % sizes.nodes].extend(selecting.map(|(key, _)| key.clone()));
        }
    }
    watched
}

/// Labels of every second namespace.
fn tenant() -> Labels {
    Labels::from([("tenant".to_owned(), "a".to_owned())])
}

fn print(what: &str, numbers: &[usize]) {
    let mean = numbers.iter().sum::<usize>() / numbers.len().max(1);
    eprintln!("{what}: mean {mean}, largest {}", numbers.iter().max().unwrap());
}

/// Cost of starting pods.
#[derive(Default)]
struct StartCost {
    writes: usize,
    write_bytes: usize,
    watch_bytes: usize,
    slowest: Duration,
}

impl StartCost {
    fn add(&mut self, index: &mut PeerIndex, (key, pod): &IndexedPod, watched: &[BTreeSet<Key>]) {
        let begin = Instant::now();
        index.set_pod(key, Some(Arc::clone(pod)));
        self.slowest = self.slowest.max(begin.elapsed());
        let changed = index.take_changed();
        let network = &pod.networks[0].0;
        assert!(
            changed
                .sets
                .iter()
                .flat_map(|set| index.users(set))
                .all(|key| { index.policy(key).unwrap().policy.networks.contains(network) })
        );
        let changed = changed.sets;
        self.writes += changed.len();
        for key in &changed {
            let size = bytes(index, key);
            self.write_bytes += size;
            self.watch_bytes += size * watched.iter().filter(|keys| keys.contains(key)).count();
        }
    }
}

/// Compares some policies with what all pods resolve to.
fn compare(index: &PeerIndex, policies: &[(Key, Arc<WatchedPolicy>)], pods: &[IndexedPod]) {
    let tenant = tenant();
    let attachments: Vec<PodAttachment<'_>> = pods
        .iter()
        .flat_map(|(_, pod)| {
            let number: usize = pod.namespace["team-".len()..].parse().unwrap();
            pod.attachments(number.is_multiple_of(2).then_some(&tenant))
        })
        .collect();
    for (key, policy) in policies.iter().step_by(7) {
        assert_eq!(index.policy_addresses(key), resolve(&policy.policy, &attachments), "{key:?}");
    }
}

#[test]
fn policy_simulation_of_a_cluster_writes_what_changed() {
    let sizes = Sizes::from_environment();
    let mut index = PeerIndex::default();
    for number in (0..NAMESPACES).step_by(2) {
        index.set_namespace(&format!("team-{number}"), Some(&tenant()));
    }
    let pods: Vec<IndexedPod> = (0..sizes.pods + STARTS).map(|number| sizes.pod(number)).collect();
    let policies: Vec<(Key, Arc<WatchedPolicy>)> =
        (0..sizes.policies).map(|number| sizes.policy(number)).collect();
    let (present, starting) = pods.split_at(sizes.pods);
    let begin = Instant::now();
    present.iter().for_each(|(key, pod)| index.set_pod(key, Some(Arc::clone(pod))));
    policies.iter().for_each(|(key, policy)| index.set_policy(key, Some(Arc::clone(policy))));
    let resolved = begin.elapsed();
    index.take_changed();
    let all: BTreeSet<Key> = policies.iter().flat_map(|(key, _)| index.sets_of(key)).collect();
    let sets: BTreeMap<Key, usize> = all.into_iter().map(|set| (set.clone(), bytes(&index, &set))).collect();
    let serialized = begin.elapsed().saturating_sub(resolved);
    let watched = watched_sets(&index, &watched(&sizes, &policies, present));
    let mut cost = StartCost::default();
    starting.iter().for_each(|pod| cost.add(&mut index, pod, &watched));
    compare(&index, &policies, &pods);

    let Sizes { pods, policies: _, networks, nodes } = sizes;
    let StartCost { writes, write_bytes, watch_bytes, slowest } = cost;
    let counts: Vec<usize> =
        sets.keys().map(|set| index.addresses(set).unwrap().1.values().map(AddressList::len).sum()).collect();
    let lists: Vec<usize> = watched.iter().map(|keys| keys.iter().map(|key| sets[key]).sum()).collect();
    eprintln!(
        "pods {pods}, policies {}, networks {networks}, nodes {nodes}, sets {}",
        policies.len(),
        sets.len()
    );
    eprintln!("resolve all: {resolved:?}; serialize all: {serialized:?}; slowest update: {slowest:?}");
    print("addresses of a set", &counts);
    print("bytes of a set", &sets.values().copied().collect::<Vec<_>>());
    print("sets that a node watches", &watched.iter().map(BTreeSet::len).collect::<Vec<_>>());
    print("bytes of their list", &lists);
    eprintln!(
        "a pod starts: {:.1} writes, {} bytes written, {} bytes watched by all nodes, {:.0} by each",
        writes as f64 / STARTS as f64,
        write_bytes / STARTS,
        watch_bytes / STARTS,
        watch_bytes as f64 / STARTS as f64 / nodes as f64,
    );
    assert!(writes > 0 && sets.values().all(|size| *size > 0));
}
