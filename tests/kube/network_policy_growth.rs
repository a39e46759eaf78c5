//! Objects and memory that the policies of one tenant cost, with a real API server and the shipped RBAC.
//!
//! ```text
//!   policies of 300 bytes × pods with 31 addresses ─► weft controller --policy ─► PolicyAddressSets, memory
//! ```
//!
//! Source: `docs/security.md`, What remains.

use std::sync::Arc;

use rig::Machine;
use rig::kube::{Kube, files, namespace};
use rig::parts::text;
use serde_json::{Value, json};
use testkit::{Feature, Host, host};

const CONTROLLER: &str = "controller";
const LISTEN: &str = "127.0.0.1:9465";
const SETS: &str = "policyaddresssets.weft.dev";
/// Addresses of each pod: as many as count on a network, besides the pod's first one.
const ADDRESSES: usize = 31;
/// Most anonymous memory of the controller in kB, of a program that was built without optimizations.
const MEMORY_MAX: u64 = 100_000;

/// Cluster with one controller, and a namespace of the tenant.
struct Cluster {
    kube: Kube,
    machine: Arc<Machine>,
}

impl Cluster {
    fn new(host: Host, pods: usize) -> Option<Cluster> {
        let kube = Kube::new(Machine::new(host, "control").into())?;
        let objects = files(&[
            "deploy/crds/ipblocks.weft.dev.yaml",
            "deploy/crds/network-attachment-definitions.k8s.cni.cncf.io.yaml",
            "deploy/policy/policyaddresssets.weft.dev.yaml",
            "deploy/policy/multi-networkpolicies.k8s.cni.cncf.io.yaml",
            "deploy/components/policy/rbac.yaml",
        ]);
        kube.apply(&(objects + &namespace("x")));
        kube.wait_until_served();
        let machine = kube.machine();
        let cluster = Cluster { kube, machine };
        cluster.create(&(0..pods).map(pod).collect::<Vec<_>>());
        let account = cluster.kube.service_account("kube-system", "weft-controller-policy");
        let program = testkit::binary("weft");
        let words = ["controller", "--policy", "--listen", LISTEN, "--kubeconfig", &account];
        cluster.machine.start(CONTROLLER, [text(&program)].into_iter().chain(words));
        cluster.machine.wait(CONTROLLER, "leads", || (cluster.metric("leader") == 1).then_some(()));
        Some(cluster)
    }

    fn create(&self, all: &[Value]) {
        for batch in all.chunks(250) {
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": batch });
            self.kube.attempt(["create", "--validate=false", "-f", "-"], &list.to_string()).success();
        }
    }

    fn metric(&self, name: &str) -> u64 {
        let page = self.machine.attempt(["curl", "-s", &format!("http://{LISTEN}/metrics")]).stdout;
        let name = format!("weft_policy_{name} ");
        let found = page.lines().find_map(|line| line.strip_prefix(&name));
        found.and_then(|text| text.trim().parse().ok()).unwrap_or_default()
    }

    /// Address sets in all namespaces, and the size as JSON.
    fn sets(&self) -> (Vec<Value>, usize) {
        let list = self.kube.json([SETS, "-A"]);
        let items = list["items"].as_array().cloned().expect("a list");
        let bytes = items.iter().map(|set| set.to_string().len()).sum();
        (items, bytes)
    }

    /// Anonymous memory of the controller in kB.
    fn memory(&self) -> u64 {
        let pid = self.machine.run(["cat", &format!("/run/services/{CONTROLLER}.pid")]);
        let status = self.machine.run(["cat", &format!("/proc/{}/status", pid.trim())]);
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a field");
        line.split_whitespace().next().and_then(|text| text.parse().ok()).expect("a number")
    }
}

/// Pod with addresses of which no two follow each other, so that each of them takes a separate element.
fn pod(number: usize) -> Value {
    let ips: Vec<String> =
        (0..ADDRESSES).map(|n| format!("10.{}.{}.{}", number / 250, number % 250, 2 * n + 1)).collect();
    let status = json!([{ "name": "x/net", "interface": "net1", "ips": ips, "dns": {} }]);
    json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": format!("pod-{number}"), "namespace": "x", "labels": { "app": "web" },
            "annotations": { "k8s.v1.cni.cncf.io/networks": "net",
                "k8s.v1.cni.cncf.io/network-status": status.to_string() } },
        "spec": { "nodeName": "worker", "containers": [{ "name": "c", "image": "none" }] } })
}

fn policy(number: usize, peer: &Value) -> Value {
    json!({ "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": "MultiNetworkPolicy",
        "metadata": { "name": format!("p-{number}"), "namespace": "x",
            "annotations": { "k8s.v1.cni.cncf.io/policy-for": "net" } },
        "spec": { "podSelector": {}, "ingress": [{ "from": [peer] }] } })
}

#[test]
fn network_policy_equal_peers_of_a_tenant_are_one_set() {
    let Some(cluster) = Cluster::new(host!(Feature::Root), 100) else { return };
    let policies: Vec<Value> = (0..100).map(|number| policy(number, &json!({ "podSelector": {} }))).collect();
    let written: usize = policies.iter().map(|policy| policy.to_string().len()).sum();
    cluster.create(&policies);
    cluster
        .machine
        .wait(CONTROLLER, "has all policies", || (cluster.metric("policies") == 100).then_some(()));
    let (sets, bytes) = cluster.machine.wait(CONTROLLER, "writes the addresses", || {
        let (sets, bytes) = cluster.sets();
        (sets.len() == 1 && sets[0]["spec"]["sets"][0]["addresses"].as_array()?.len() == 3100)
            .then_some((sets, bytes))
    });
    let sent = cluster.metric("address_set_bytes_total");
    eprintln!("{written} bytes of policies: {} set of {bytes} bytes; {sent} bytes sent", sets.len());
    assert!(bytes < 64 << 10 && sent < 128 << 10, "{bytes} bytes stored, {sent} sent");
}

#[test]
fn network_policy_memory_does_not_grow_with_policies() {
    let Some(cluster) = Cluster::new(host!(Feature::Root), 360) else { return };
    let all = json!({ "podSelector": {}, "namespaceSelector": {} });
    cluster.create(&(0..1000).map(|number| policy(number, &all)).collect::<Vec<_>>());
    cluster
        .machine
        .wait(CONTROLLER, "has all policies", || (cluster.metric("policies") == 1000).then_some(()));
    cluster.machine.wait(CONTROLLER, "writes the set", || (cluster.sets().0.len() == 1).then_some(()));
    let equal = cluster.memory();
    // Selectors that differ, but select the same pods.
    let other = |number: usize| {
        json!({ "namespaceSelector": {}, "podSelector": { "matchExpressions": [
            { "key": "app", "operator": "NotIn", "values": [format!("no-{number}")] }] } })
    };
    cluster.create(&(1000..2000).map(|number| policy(number, &other(number))).collect::<Vec<_>>());
    cluster
        .machine
        .wait(CONTROLLER, "has all policies", || (cluster.metric("policies") == 2000).then_some(()));
    // Steps, because a shared machine may take minutes for all.
    for count in (50..1000).step_by(50).chain([1001]) {
        cluster.machine.wait(CONTROLLER, &format!("writes {count} sets"), || {
            (cluster.metric("address_set_writes_total") >= count).then_some(())
        });
    }
    let (sets, bytes) = cluster.sets();
    assert_eq!(sets.len(), 1001);
    let different = cluster.memory();
    let refused = sets.iter().filter(|set| set["spec"].get("refused").is_some()).count();
    eprintln!("equal peers {equal} kB, different {different} kB; {bytes} bytes of sets, {refused} refused");
    assert!(equal < MEMORY_MAX && different < MEMORY_MAX, "{equal} kB and {different} kB");
    assert!(bytes < 12 << 20, "{bytes} bytes");
    assert_eq!(cluster.metric("refused"), refused as u64);
}
