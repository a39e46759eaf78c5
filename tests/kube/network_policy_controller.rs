//! Policy controller with a real API server and the shipped RBAC: address sets follow policies, pods and namespaces.
//!
//! ```text
//!   the test, as users and agents ─► pods, policies ─► kube-apiserver ◄─► weft controller --policy, one or two
//! ```
//!
//! Rules with equal peers share an address set, which the controller deletes when no rule needs it.
//!
//! Source: `docs/design/policy.md`.

use std::collections::BTreeMap;
use std::sync::Arc;

use rig::Machine;
use rig::kube::{Kube, files, namespace};
use rig::machine::until;
use rig::parts::text;
use serde_json::{Value, json};
use testkit::{Feature, Host, host};

const ONE: (&str, &str) = ("one", "127.0.0.1:9465");
const TWO: (&str, &str) = ("two", "127.0.0.1:9466");
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
const POLICY_FOR: &str = "k8s.v1.cni.cncf.io/policy-for";
const POLICIES: &str = "multi-networkpolicies.k8s.cni.cncf.io";
const SETS: &str = "policyaddresssets.weft.dev";
const WRITES: &str = "weft_policy_address_set_writes_total ";

/// Cluster with namespaces `x` and `y`, definitions of all kinds, and an account for controllers.
struct Cluster {
    kube: Kube,
    machine: Arc<Machine>,
    account: String,
}

impl Cluster {
    /// Returns a cluster with one controller.
    fn new(host: Host) -> Option<Cluster> {
        let cluster = Cluster::bare(host)?;
        cluster.define(&files(&["deploy/policy/multi-networkpolicies.k8s.cni.cncf.io.yaml"]));
        cluster.start(ONE);
        cluster.wait(ONE);
        Some(cluster)
    }

    /// Returns a cluster without MultiNetworkPolicies.
    fn bare(host: Host) -> Option<Cluster> {
        let kube = Kube::new(Machine::new(host, "control").into())?;
        let objects = files(&[
            "deploy/crds/ipblocks.weft.dev.yaml",
            "deploy/crds/network-attachment-definitions.k8s.cni.cncf.io.yaml",
            "deploy/policy/policyaddresssets.weft.dev.yaml",
            "deploy/components/policy/rbac.yaml",
        ]);
        kube.apply(&(objects + &namespace("x") + &namespace("y")));
        kube.wait_until_served();
        let account = kube.service_account("kube-system", "weft-controller-policy");
        let machine = kube.machine();
        Some(Cluster { kube, machine, account })
    }

    fn define(&self, definitions: &str) {
        self.kube.apply(definitions);
        self.kube.wait_until_served();
    }

    fn start(&self, (name, listen): (&str, &str)) {
        let program = testkit::binary("weft");
        let words =
            ["controller", "--policy", "--identity", name, "--listen", listen, "--kubeconfig", &self.account];
        self.machine.start(name, [text(&program)].into_iter().chain(words));
    }

    /// Waits until a controller is ready.
    fn wait(&self, (name, listen): (&str, &str)) {
        self.machine.wait(name, "is ready", || {
            let asked = self.machine.attempt(["curl", "-sf", &format!("http://{listen}/readyz")]);
            asked.code.filter(|code| *code == 0)
        });
    }

    fn metric(&self, name: &str) -> u64 {
        let page = self.machine.attempt(["curl", "-s", &format!("http://{}/metrics", ONE.1)]).stdout;
        let found = page.lines().find_map(|line| line.strip_prefix(name));
        found.and_then(|text| text.trim().parse().ok()).expect("a metric")
    }

    /// Applies a policy in namespace `x` for `networks`.
    fn policy(&self, name: &str, networks: &str, spec: &Value) {
        let policy = json!({
            "apiVersion": "k8s.cni.cncf.io/v1beta1", "kind": "MultiNetworkPolicy",
            "metadata": { "name": name, "namespace": "x", "annotations": { POLICY_FOR: networks } },
            "spec": spec,
        });
        self.kube.apply(&policy.to_string());
    }

    /// Address sets in namespace `x` whose first network this is.
    fn objects(&self, network: &str) -> Vec<Value> {
        let all = self.kube.json([SETS, "-n", "x"])["items"].as_array().cloned().expect("a list");
        // The selection may be cut, so it is compared as a text.
        let is_first = format!("\"networks\":[\"{network}\"");
        let is_of =
            |set: &Value| set["spec"]["selection"].as_str().is_some_and(|text| text.contains(&is_first));
        all.into_iter().filter(is_of).collect()
    }

    /// The only address set whose first network this is.
    fn object(&self, network: &str) -> Value {
        let mut all = self.objects(network);
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    /// Addresses on a network, by peers and port.
    fn sets(&self, network: &str) -> BTreeMap<String, Vec<String>> {
        let mut lines = BTreeMap::new();
        for object in self.objects(network) {
            for set in object["spec"]["sets"].as_array().into_iter().flatten() {
                let word = |key: &str| match &set[key] {
                    Value::Null => String::new(),
                    Value::String(text) => format!(" {text}"),
                    value => format!(" {value}"),
                };
                let addresses = set["addresses"].as_array().expect("a list").iter();
                let addresses = addresses.map(|address| address.as_str().expect("an address").to_owned());
                let peers = peers(&selection(&object)) + &["protocol", "port"].map(word).concat();
                lines.insert(peers, addresses.collect());
            }
        }
        lines
    }

    #[track_caller]
    fn until_sets(&self, condition: &str, network: &str, expected: &[(&str, &[&str])]) {
        let owned = |(set, addresses): &(&str, &[&str])| {
            ((*set).to_owned(), addresses.iter().map(|address| (*address).to_owned()).collect())
        };
        let expected: BTreeMap<String, Vec<String>> = expected.iter().map(owned).collect();
        self.machine.wait(ONE.0, &format!("{condition}: {expected:?}"), || {
            (self.sets(network) == expected).then_some(())
        });
    }

    fn pod(&self, namespace: &str, name: &str, role: &str, status: &[(&str, &[&str])]) {
        self.kube.apply(&pod(namespace, name, role, status).to_string());
    }

    /// Resource version of the only set on a network.
    fn version(&self, network: &str) -> Value {
        self.object(network)["metadata"]["resourceVersion"].clone()
    }

    /// Events about a policy.
    fn events(&self, policy: &str) -> Vec<String> {
        let events = self.kube.json(["events.events.k8s.io", "-n", "x"]);
        let events = events["items"].as_array().expect("a list");
        let of = events.iter().filter(|event| event["regarding"]["name"] == policy);
        of.map(|event| format!("{} {}", event["reason"].as_str().unwrap_or_default(), event["note"]))
            .collect()
    }
}

/// Selection of an address set.
fn selection(set: &Value) -> Value {
    serde_json::from_str(set["spec"]["selection"].as_str().unwrap_or_default()).unwrap_or_default()
}

/// Peers of a selection: `LABEL=VALUE`, with `namespace:` before the labels of namespaces.
fn peers(selection: &Value) -> String {
    let terms = |peer: &Value, field: &str, prefix: &str| -> String {
        let all = peer[field].as_array().into_iter().flatten();
        all.map(|one| format!("{prefix}{}={}", one["key"].as_str().unwrap_or_default(), one["in"][0]))
            .collect()
    };
    let peer = |peer: &Value| terms(peer, "namespaces", "namespace:") + &terms(peer, "pods", "");
    let peers: Vec<String> = selection["peers"].as_array().into_iter().flatten().map(peer).collect();
    peers.join(",").replace('"', "")
}

/// Pod on the networks in the status.
fn pod(namespace: &str, name: &str, role: &str, status: &[(&str, &[&str])]) -> Value {
    let networks: Vec<&str> = status.iter().map(|(network, _)| *network).collect();
    let status = status
        .iter()
        .map(|(network, ips)| json!({ "name": network, "interface": "i", "ips": ips, "dns": {} }));
    let status: Vec<Value> = status.collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": namespace, "labels": { "role": role },
            "annotations": { NETWORKS: networks.join(","), STATUS: json!(status).to_string() } },
        "spec": { "nodeName": "worker", "containers": [{ "name": "c", "image": "none",
            "ports": [{ "name": "web", "containerPort": 8080 }] }] },
    })
}

fn role(name: &str) -> Value {
    json!({ "podSelector": { "matchLabels": { "role": name } } })
}

#[test]
fn network_policy_sets_follow_pods_and_namespaces() {
    let Some(cluster) = Cluster::new(host!(Feature::Root)) else { return };
    let kube = &cluster.kube;
    let tenant = json!({ "namespaceSelector": { "matchLabels": { "tenant": "a" } } });
    let spec = json!({
        "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{ "from": [role("web"), tenant] }],
        "egress": [{ "to": [role("web")], "ports": [{ "port": "web" }] }],
    });
    cluster.pod("x", "a", "web", &[("x/net", &["10.0.0.1", "fd00::1"])]);
    cluster.policy("p", "net", &spec);
    let [ingress, egress] = ["role=web,namespace:tenant=a", "role=web TCP 8080"];
    cluster.until_sets(
        "a pod",
        "x/net",
        &[(ingress, &["10.0.0.1", "fd00::1"]), (egress, &["10.0.0.1", "fd00::1"])],
    );
    let names: Vec<Value> =
        cluster.objects("x/net").iter().map(|set| set["metadata"]["name"].clone()).collect();
    assert_eq!(names.len(), 2, "{names:?}");

    // Pods of another namespace, on another network, and of the host.
    cluster.pod("y", "b", "db", &[("x/net", &["10.0.0.2"]), ("x/other", &["10.1.0.2"])]);
    let mut on_host = pod("x", "h", "web", &[("x/net", &["10.0.0.9"])]);
    on_host["spec"]["hostNetwork"] = json!(true);
    on_host["spec"]["containers"][0].as_object_mut().expect("a container").remove("ports");
    kube.apply(&on_host.to_string());
    kube.kubectl(["label", "namespace", "y", "tenant=a"]);
    let two = ["10.0.0.1-10.0.0.2", "fd00::1"];
    cluster.until_sets(
        "a labelled namespace",
        "x/net",
        &[(ingress, &two), (egress, &["10.0.0.1", "fd00::1"])],
    );
    // Another status, another label, and the end of a pod.
    cluster.pod("x", "a", "web", &[("x/net", &["10.0.0.4"])]);
    cluster.until_sets(
        "another address",
        "x/net",
        &[(ingress, &["10.0.0.2", "10.0.0.4"]), (egress, &["10.0.0.4"])],
    );
    kube.kubectl(["label", "--overwrite", "pod", "-n", "x", "a", "role=db"]);
    cluster.until_sets("another label", "x/net", &[(ingress, &["10.0.0.2"])]);
    let path = "/api/v1/namespaces/y/pods/b/status";
    let mut ended = kube.json(["pod", "-n", "y", "b"]);
    ended["status"] = json!({ "phase": "Succeeded" });
    kube.attempt(["replace", "--raw", path, "-f", "-"], &ended.to_string()).success();
    cluster.until_sets("the pod has ended", "x/net", &[]);
    kube.kubectl(["label", "--overwrite", "pod", "-n", "x", "a", "role=web"]);
    cluster.until_sets("the first label", "x/net", &[(ingress, &["10.0.0.4"]), (egress, &["10.0.0.4"])]);
    kube.kubectl(["delete", "pod", "-n", "x", "a", "--force", "--grace-period=0"]);
    cluster.until_sets("a deleted pod", "x/net", &[]);
    assert_eq!(cluster.metric("weft_policy_address_set_write_failures_total "), 0);
}

/// The verdict does not depend on address sets, but a policy without one allows no peer yet, which the command shows.
#[test]
fn network_policy_explain_reads_a_connection_of_the_cluster() {
    let Some(cluster) = Cluster::bare(host!(Feature::Root)) else { return };
    cluster.define(&files(&["deploy/policy/multi-networkpolicies.k8s.cni.cncf.io.yaml"]));
    for (namespace, name, label, address) in
        [("x", "web", "web", "10.0.0.1"), ("x", "db", "db", "10.0.0.2"), ("y", "web", "web", "10.0.0.3")]
    {
        cluster.pod(namespace, name, label, &[("x/net", &[address])]);
    }
    let ingress = json!([{ "from": [role("web")], "ports": [{ "port": "web" }] }]);
    let selected = role("db")["podSelector"].clone();
    cluster.policy(
        "p",
        "net",
        &json!({ "podSelector": selected, "policyTypes": ["Ingress"], "ingress": ingress }),
    );
    let (program, admin) = (testkit::binary("weft"), cluster.kube.admin());
    let explain = |from: &str, to: &str, port: &str| {
        let words = ["--from", from, "--to", to, "--network", "x/net", "--tcp", port, "-o", "json"];
        let command = [text(&program), "explain", "--kubeconfig", &admin];
        cluster.machine.attempt(command.into_iter().chain(words)).success().json()
    };
    // The agents enforce the written addresses and not the labels.
    let early = explain("x/web", "x/db", "8080");
    assert_eq!(early["allowed"], json!(false), "no controller has written the set: {early}");
    assert_eq!(early["waiting"], json!(["x/p"]), "{early}");
    cluster.start(ONE);
    cluster.until_sets("a controller", "x/net", &[("role=web", &["10.0.0.1"])]);
    let rule = json!({ "allowed": { "policy": "x/p", "direction": "ingress", "rule": 0 } });
    for to in ["x/db", "10.0.0.2"] {
        let named = explain("x/web", to, "8080");
        assert_eq!((&named["allowed"], &named["ingress"]), (&json!(true), &rule), "{named}");
        assert_eq!(named["egress"], "notIsolated", "{named}");
        assert_eq!(named.get("waiting"), None, "{named}");
    }
    for (from, to, port) in [
        ("x/web", "x/db", "8081"),
        ("y/web", "x/db", "8080"),
        ("10.0.0.7", "x/db", "8080"),
        ("y/web", "10.0.0.2", "8080"),
    ] {
        let denied = explain(from, to, port);
        assert_eq!(
            (&denied["allowed"], &denied["ingress"]["denied"]),
            (&json!(false), &json!(["x/p"])),
            "{denied}"
        );
    }
}

#[test]
fn network_policy_sets_follow_their_policies() {
    let Some(cluster) = Cluster::new(host!(Feature::Root)) else { return };
    let kube = &cluster.kube;
    cluster.pod("x", "a", "web", &[("x/net", &["10.0.0.4"])]);
    let spec = json!({ "podSelector": {}, "ingress": [{ "from": [role("web")] }] });
    cluster.policy("p", "net", &spec);
    cluster.until_sets("a policy", "x/net", &[("role=web", &["10.0.0.4"])]);
    // The set does not depend on the index of the rule, on its ports, or on the number of policies.
    let version = cluster.version("x/net");
    let ports = json!([{}, { "from": [role("web")], "ports": [{ "port": 80 }] }]);
    cluster.policy("p", "net", &json!({ "podSelector": {}, "ingress": ports }));
    cluster.policy("q", "net", &spec);
    cluster.policy("r", "net", &json!({ "podSelector": {}, "ingress": [{ "from": [role("db")] }] }));
    cluster.machine.wait(ONE.0, "has another set", || (cluster.objects("x/net").len() == 2).then_some(()));
    kube.kubectl(["delete", POLICIES, "-n", "x", "r", "q"]);
    cluster.machine.wait(ONE.0, "deletes this set", || (cluster.objects("x/net").len() == 1).then_some(()));
    assert_eq!(cluster.version("x/net"), version);
    // Another annotation names another network.
    kube.kubectl(["annotate", "--overwrite", POLICIES, "-n", "x", "p", &format!("{POLICY_FOR}=other")]);
    cluster.machine.wait(ONE.0, "has the other network", || {
        (cluster.objects("x/other").len() == 1 && cluster.objects("x/net").is_empty()).then_some(())
    });
    kube.kubectl(["annotate", "--overwrite", POLICIES, "-n", "x", "p", &format!("{POLICY_FOR}=net")]);
    cluster.until_sets("the first network", "x/net", &[("role=web", &["10.0.0.4"])]);
    kube.kubectl(["delete", POLICIES, "-n", "x", "p"]);
    let is_empty = || kube.json([SETS, "-A"])["items"].as_array().is_some_and(Vec::is_empty).then_some(());
    cluster.machine.wait(ONE.0, "deletes all sets", is_empty);
    assert_eq!(cluster.metric("weft_policy_address_set_write_failures_total "), 0);
}

#[test]
fn network_policy_sets_are_kept_by_one_of_two_controllers() {
    let Some(cluster) = Cluster::new(host!(Feature::Root)) else { return };
    let kube = &cluster.kube;
    cluster.pod("x", "a", "web", &[("x/net", &["10.0.0.1"])]);
    let spec = json!({ "podSelector": {}, "ingress": [{ "from": [role("web")] }] });
    cluster.policy("p", "net", &spec);
    cluster.until_sets("a pod", "x/net", &[("role=web", &["10.0.0.1"])]);
    // Manual changes do not stay.
    let name = cluster.object("x/net")["metadata"]["name"].clone();
    let name = name.as_str().expect("a name");
    let change = json!({ "spec": { "sets": [{ "addresses": ["10.9.9.9"] }] } });
    kube.kubectl(["patch", SETS, "-n", "x", name, "--type=merge", "-p", &change.to_string()]);
    cluster.until_sets("a manual change", "x/net", &[("role=web", &["10.0.0.1"])]);
    kube.kubectl(["delete", SETS, "-n", "x", name]);
    cluster.until_sets("a manual deletion", "x/net", &[("role=web", &["10.0.0.1"])]);
    // A policy that is created again needs the same set.
    let version = cluster.version("x/net");
    kube.kubectl(["delete", POLICIES, "-n", "x", "p"]);
    cluster.policy("p", "net", &spec);
    cluster.start(TWO);
    cluster.wait(TWO);
    assert_eq!(cluster.version("x/net"), version);
    cluster.machine.stop(ONE.0, "KILL");
    // While no controller leads, a pod starts.
    cluster.pod("x", "b", "web", &[("x/net", &["10.0.0.3"])]);
    assert_eq!(cluster.version("x/net"), version);
    cluster.machine.wait(TWO.0, "leads and writes the new address", || {
        (cluster.sets("x/net").get("role=web") == Some(&vec!["10.0.0.1".to_owned(), "10.0.0.3".to_owned()]))
            .then_some(())
    });
    // A restart writes nothing.
    let version = cluster.version("x/net");
    cluster.machine.stop(TWO.0, "TERM");
    cluster.start(ONE);
    cluster.wait(ONE);
    cluster.machine.wait(ONE.0, "leads", || (cluster.metric("weft_policy_leader ") == 1).then_some(()));
    cluster.policy("q", "other", &spec);
    cluster.machine.wait(ONE.0, "writes a set", || (cluster.objects("x/other").len() == 1).then_some(()));
    assert_eq!((cluster.version("x/net"), cluster.metric(WRITES)), (version, 1));
}

#[test]
fn network_policy_invalid_or_too_large_is_an_event_and_denies() {
    let Some(cluster) = Cluster::new(host!(Feature::Root)) else { return };
    let kube = &cluster.kube;
    cluster.pod("x", "a", "web", &[("x/net", &["10.0.0.1"])]);
    let from = |peer: Value| json!({ "podSelector": {}, "ingress": [{ "from": [peer] }] });
    let block = json!({ "ipBlock": { "cidr": "10.0.0.0/33" } });
    for (name, networks, peer, words) in [
        ("block", "net", block, "spec.ingress[0].from[0].ipBlock.cidr: \\\"10.0.0.0/33\\\""),
        ("empty", "net", json!({}), "spec.ingress[0].from[0]: the peer has no condition"),
        ("named", "net,X", role("web"), "network \\\"X\\\" contains"),
    ] {
        cluster.policy(name, networks, &from(peer));
        until(&format!("{name} has an Event"), || {
            let events = cluster.events(name);
            let is_it = |event: &String| event.starts_with("NetworkPolicyRefused ") && event.contains(words);
            events.iter().any(is_it).then_some(())
        });
    }
    assert_eq!(cluster.metric("weft_policy_refused "), 3);
    cluster.policy("empty", "net", &from(role("web")));
    cluster.until_sets("a repaired policy", "x/net", &[("role=web", &["10.0.0.1"])]);
    cluster.machine.wait(ONE.0, "counts", || (cluster.metric("weft_policy_refused ") == 2).then_some(()));
    // Pods with more addresses than fit into a set: 128 networks of 32 addresses each.
    let names: Vec<String> = (0..128).map(|network| format!("x/n{network}")).collect();
    cluster.policy("large", &names.join(","), &from(json!({ "podSelector": {} })));
    for number in 0..17 {
        let addresses: Vec<Vec<String>> = (0..128)
            .map(|network| (0..32).map(|n| format!("10.{}.{network}.{}", 100 + number, 2 * n)).collect())
            .collect();
        let addresses: Vec<Vec<&str>> =
            addresses.iter().map(|all| all.iter().map(String::as_str).collect()).collect();
        let status: Vec<(&str, &[&str])> =
            names.iter().map(String::as_str).zip(addresses.iter().map(Vec::as_slice)).collect();
        let pod = pod("x", &format!("large-{number}"), "db", &status);
        kube.attempt(["create", "--validate=false", "-f", "-"], &pod.to_string()).success();
    }
    until("the policy is too large", || {
        cluster
            .events("large")
            .iter()
            .any(|event| event.contains("have 69632 addresses; the maximum is 65536"))
            .then_some(())
    });
    cluster.machine.wait(ONE.0, "writes the reason", || {
        let refused = cluster.objects("x/n0").first()?["spec"]["refused"].clone();
        refused.as_str().filter(|why| why.contains("69632 addresses")).map(drop)
    });
    cluster.until_sets("a policy that is too large", "x/n0", &[]);
    kube.kubectl(["delete", "pod", "-n", "x", "large-0", "--force", "--grace-period=0"]);
    cluster.machine.wait(ONE.0, "writes addresses again", || {
        cluster.sets("x/n0").get("").filter(|all| all.len() == 65_536).map(drop)
    });
}

#[test]
fn network_policy_address_of_another_node_does_not_count() {
    let Some(cluster) = Cluster::new(host!(Feature::Root)) else { return };
    let kube = &cluster.kube;
    let config = json!({ "cniVersion": "1.0.0", "name": "net", "type": "bridge",
        "ipam": { "type": "weft-ipam", "range": "10.0.0.0/24" } });
    let definition = json!({ "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "net", "namespace": "x" }, "spec": { "config": config.to_string() } });
    let block = |name: &str, range: &str, node: &str| {
        let block = json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPBlock", "metadata": { "name": name },
            "spec": { "pool": "p", "range": range, "node": node } });
        kube.apply(&block.to_string());
    };
    kube.apply(&definition.to_string());
    block("p.10.0.0.0-28", "10.0.0.0/28", "worker");
    block("p.10.0.0.16-28", "10.0.0.16/28", "other");
    // One address of the pod's node, and two that its author made up.
    cluster.pod("x", "a", "web", &[("x/net", &["10.0.0.1", "10.0.0.17", "192.0.2.1"])]);
    cluster.policy("p", "net", &json!({ "podSelector": {}, "ingress": [{ "from": [role("web")] }] }));
    cluster.until_sets("an address of its node", "x/net", &[("role=web", &["10.0.0.1"])]);
    assert_eq!(cluster.metric("weft_policy_unverified_addresses "), 2);
    block("p.10.0.0.16-28", "10.0.0.16/28", "worker");
    cluster.until_sets("another block", "x/net", &[("role=web", &["10.0.0.1", "10.0.0.17"])]);
    kube.kubectl(["delete", "ipblocks.weft.dev", "p.10.0.0.0-28"]);
    cluster.until_sets("a deleted block", "x/net", &[("role=web", &["10.0.0.17"])]);
    // Addresses of another IPAM plugin cannot be verified.
    kube.kubectl(["delete", "network-attachment-definitions.k8s.cni.cncf.io", "-n", "x", "net"]);
    cluster.until_sets("no definition", "x/net", &[("role=web", &["10.0.0.1", "10.0.0.17", "192.0.2.1"])]);
}

#[test]
fn network_policy_set_of_a_thousand_pods_has_few_writes() {
    let Some(cluster) = Cluster::new(host!(Feature::Root)) else { return };
    let kube = &cluster.kube;
    cluster.policy("p", "net", &json!({ "podSelector": {}, "ingress": [{ "from": [role("web")] }] }));
    cluster.policy("q", "other", &json!({ "podSelector": {}, "ingress": [{ "from": [role("web")] }] }));
    cluster.until_sets("no pods", "x/net", &[]);
    cluster.until_sets("no pods", "x/other", &[]);
    let pods: Vec<Value> = (0..1000)
        .map(|number| {
            let address = format!("10.0.{}.{}", number / 250, number % 250 + 1);
            pod("x", &format!("web-{number}"), "web", &[("x/net", &[&address])])
        })
        .collect();
    let all = json!({ "apiVersion": "v1", "kind": "List", "items": pods });
    kube.attempt(["create", "--validate=false", "-f", "-"], &all.to_string()).success();
    let ranges: Vec<String> = (0..4).map(|n| format!("10.0.{n}.1-10.0.{n}.250")).collect();
    let ranges: Vec<&str> = ranges.iter().map(String::as_str).collect();
    cluster.until_sets("all pods", "x/net", &[("role=web", &ranges)]);
    let writes = cluster.metric(WRITES);
    assert!(writes <= 500, "{writes} writes");
    eprintln!("{writes} writes for 1,000 pods");
    // Pods on another network cause no write.
    let version = cluster.version("x/net");
    cluster.pod("x", "other", "web", &[("x/other", &["10.1.0.1"])]);
    cluster.until_sets("a pod on the other network", "x/other", &[("role=web", &["10.1.0.1"])]);
    assert_eq!(cluster.version("x/net"), version);
    // Pods that start one after the other, for the histogram of delays.
    for number in 0..30 {
        cluster.pod("x", &format!("single-{number}"), "web", &[("x/net", &[&format!("10.2.{number}.1")])]);
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    cluster.machine.wait(ONE.0, "has all", || (cluster.sets("x/net")["role=web"].len() == 34).then_some(()));
    let page = cluster.machine.attempt(["curl", "-s", &format!("http://{}/metrics", ONE.1)]).stdout;
    let delays = page.lines().filter(|line| line.starts_with("weft_policy_address_set_delay_seconds"));
    eprintln!("{}", delays.collect::<Vec<_>>().join("\n"));
}

#[test]
fn network_policy_of_another_project_in_v1beta1_is_followed() {
    let Some(cluster) = Cluster::bare(host!(Feature::Root)) else { return };
    cluster.start(ONE);
    let waiting = || {
        let asked = cluster.machine.attempt(["curl", "-s", &format!("http://{}/readyz", ONE.1)]).stdout;
        asked.contains("multi-networkpolicies").then_some(())
    };
    cluster.machine.wait(ONE.0, "waits for the definition", waiting);
    let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": { "name": POLICIES },
        "spec": {
            "group": "k8s.cni.cncf.io", "scope": "Namespaced",
            "names": { "plural": "multi-networkpolicies", "singular": "multi-networkpolicy",
                "kind": "MultiNetworkPolicy" },
            "versions": [{ "name": "v1beta1", "served": true, "storage": true, "schema": { "openAPIV3Schema": any } }],
        },
    });
    cluster.define(&definition.to_string());
    cluster.wait(ONE);
    cluster.pod("x", "a", "web", &[("x/net", &["10.0.0.1"])]);
    cluster.policy("p", "net", &json!({ "podSelector": {}, "ingress": [{ "from": [role("web")] }] }));
    cluster.until_sets("a pod", "x/net", &[("role=web", &["10.0.0.1"])]);
    // Without a schema, an unknown field reaches the controller.
    cluster.policy(
        "p",
        "net",
        &json!({ "podSelector": {}, "ingress": [{ "from": [role("web")] }], "action": "Allow" }),
    );
    cluster.until_sets("an unknown field", "x/net", &[]);
}
