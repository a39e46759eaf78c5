//! Simulation of a cluster on the real resolver: pods, policies and networks of the sizes that the environment names.
//!
//! ```text
//!   WEFT_POLICY_PODS=10000 WEFT_POLICY_POLICIES=500 WEFT_POLICY_NETWORKS=50 WEFT_POLICY_NODES=200 \
//!     cargo test -p controllers policy_simulation -- --nocapture
//! ```
//!
//! - A pod is on one network. It has one of ten roles and one of twenty namespaces, half of which have the label `tenant`.
//! - A policy selects a role of its namespace on one network. Its peers are a role of all namespaces, or a tenant.
//! - An agent watches the sets of the policies that select a pod of its node.
//!
//! The figures are in `docs/scale.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use npwg::metadata::{Labels, Pod};
use npwg::network_policy::{NetworkPolicy, PodAttachment, resolve};
use npwg::pod_policies::PodNetworks;
use npwg::selection::Annotation;
use npwg::status::NETWORK_STATUS;
use policy_api::address_set::{AddressSetObject, spec};
use policy_api::policy_object::{PolicyObject, WatchedPolicy};
use serde_json::json;

use super::peer_index::PeerIndex;
use kube_support::resources::{Key, Reduced};

const ROLES: usize = 10;
const NAMESPACES: usize = 20;
/// Number of pods that start after the cluster is complete.
const STARTS: usize = 200;

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
    fn pod(&self, number: usize) -> (Key, Arc<PodNetworks>) {
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
        let peer = if number % 10 == 0 { of_tenant } else { of_all };
        let object = json!({
            "metadata": { "namespace": namespace, "name": name, "uid": format!("0000-{number}"), "generation": 1,
                "annotations": { "k8s.v1.cni.cncf.io/policy-for": format!("infra/net-{}", number % self.networks) } },
            "spec": { "podSelector": role(number), "policyTypes": ["Ingress", "Egress"],
                "ingress": [{ "from": [peer], "ports": [{ "port": 443 }] }],
                "egress": [{ "to": [peer] }] },
        });
        let policy = serde_json::from_value::<PolicyObject<false>>(object).unwrap().reduce();
        ((namespace, name), Arc::new(policy))
    }
}

/// Bytes of the address set of a policy.
fn bytes(index: &PeerIndex, key: &Key) -> usize {
    let policy = index.policy(key).unwrap();
    let spec = spec(policy, &index.addresses(key)).unwrap();
    serde_json::to_vec(&AddressSetObject::new(policy, &spec)).unwrap().len()
}

/// Policies that select a pod of each node.
fn watched(sizes: &Sizes, policies: &[NetworkPolicy], pods: &[Arc<PodNetworks>]) -> Vec<BTreeSet<Key>> {
    let mut watched = vec![BTreeSet::new(); sizes.nodes];
    for (number, pod) in pods.iter().enumerate() {
        for attachment in pod.attachments(None) {
            let selecting = policies.iter().filter(|policy| policy.selects(&attachment));
            watched[number % sizes.nodes]
                .extend(selecting.map(|policy| (policy.namespace.clone(), policy.name.clone())));
        }
    }
    watched
}

fn mean(numbers: impl ExactSizeIterator<Item = usize>) -> usize {
    let count = numbers.len().max(1);
    numbers.sum::<usize>() / count
}

#[test]
fn policy_simulation_of_a_cluster_writes_what_changed() {
    let sizes = Sizes::from_environment();
    let mut index = PeerIndex::default();
    for number in (0..NAMESPACES).step_by(2) {
        let labels = Labels::from([("tenant".to_owned(), "a".to_owned())]);
        index.set_namespace(&format!("team-{number}"), Some(&labels));
    }
    let pods: Vec<(Key, Arc<PodNetworks>)> = (0..sizes.pods + STARTS).map(|number| sizes.pod(number)).collect();
    let policies: Vec<(Key, Arc<WatchedPolicy>)> =
        (0..sizes.policies).map(|number| sizes.policy(number)).collect();
    let begin = Instant::now();
    let (present, starting) = pods.split_at(sizes.pods);
    present.iter().for_each(|(key, pod)| index.set_pod(key, Some(Arc::clone(pod))));
    policies.iter().for_each(|(key, policy)| index.set_policy(key, Some(Arc::clone(policy))));
    let resolved = begin.elapsed();
    index.take_changed();
    let sets: BTreeMap<Key, usize> =
        policies.iter().map(|(key, _)| (key.clone(), bytes(&index, key))).collect();
    let written = begin.elapsed().saturating_sub(resolved);

    let plain: Vec<NetworkPolicy> = policies.iter().map(|(_, policy)| policy.policy.clone()).collect();
    let all: Vec<Arc<PodNetworks>> = present.iter().map(|(_, pod)| Arc::clone(pod)).collect();
    let watched = watched(&sizes, &plain, &all);
    let listed: Vec<usize> = watched.iter().map(|keys| keys.iter().map(|key| sets[key]).sum()).collect();

    let (mut writes, mut write_bytes, mut watch_bytes, mut slowest) = (0, 0, 0, Duration::ZERO);
    for (key, pod) in starting {
        let begin = Instant::now();
        index.set_pod(key, Some(Arc::clone(pod)));
        slowest = slowest.max(begin.elapsed());
        let changed = index.take_changed();
        let network = &pod.networks[0].0;
        assert!(changed.iter().all(|key| index.policy(key).unwrap().policy.networks.contains(network)));
        writes += changed.len();
        for key in &changed {
            let size = bytes(&index, key);
            write_bytes += size;
            watch_bytes += size * watched.iter().filter(|keys| keys.contains(key)).count();
        }
    }
    // The result is that of all pods together.
    let attachments: Vec<PodAttachment<'_>> = pods
        .iter()
        .flat_map(|(_, pod)| {
            let number: usize = pod.namespace["team-".len()..].parse().unwrap();
            let labels = LABELS.get_or_init(|| Labels::from([("tenant".to_owned(), "a".to_owned())]));
            pod.attachments((number % 2 == 0).then_some(labels))
        })
        .collect();
    for (key, policy) in policies.iter().step_by(7) {
        assert_eq!(index.addresses(key), resolve(&policy.policy, &attachments), "{key:?}");
    }
    let counts = policies.iter().map(|(key, _)| index.addresses(key).count()).collect::<Vec<_>>();
    println!(
        "pods {}, policies {}, networks {}, nodes {}\n\
         resolve all: {resolved:?}; serialize all: {written:?}\n\
         addresses of a set: mean {}, largest {}; bytes: mean {}, largest {}\n\
         sets that a node watches: mean {}, most {}; bytes of their list: mean {}, largest {}\n\
         a pod starts: {:.1} writes, {} bytes written, {} bytes watched by all nodes, {:.0} by each; slowest update {slowest:?}",
        sizes.pods,
        sizes.policies,
        sizes.networks,
        sizes.nodes,
        mean(counts.iter().copied()),
        counts.iter().max().unwrap(),
        mean(sets.values().copied()),
        sets.values().max().unwrap(),
        mean(watched.iter().map(BTreeSet::len)),
        watched.iter().map(BTreeSet::len).max().unwrap(),
        mean(listed.iter().copied()),
        listed.iter().max().unwrap(),
        writes as f64 / STARTS as f64,
        write_bytes / STARTS,
        watch_bytes / STARTS,
        watch_bytes as f64 / STARTS as f64 / sizes.nodes as f64,
    );
    assert!(writes > 0 && sets.values().all(|size| *size > 0));
}

/// Labels of every second namespace.
static LABELS: std::sync::OnceLock<Labels> = std::sync::OnceLock::new();
