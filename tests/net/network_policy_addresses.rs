//! Tests of network policies with packets that arrive at another interface in the pod than the one with the address.
//!
//! ```text
//!   one 10.7.2.0/24, two 10.7.19.0/24: networks of one link         policy for `one`: s may be reached by f alone
//!   s: net1 10.7.2.11, net2 10.7.19.11      o, f: net1 10.7.2.12, .13
//! ```

use rig::Cluster;
use rig::cluster::{MANIFESTS, NAMESPACE, bridge, configuration};
use rig::traffic::{Transport, outside, reached};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Netns, Pod, host};

/// Number of connections: which of two interfaces answers an ARP request first differs from one to the next.
const TRIES: usize = 4;

fn weft() -> Value {
    configuration(&bridge("pods", 8))
}

fn definition(cluster: &Cluster<'_>, name: &str, plugin: &Value, subnets: [&str; 2]) {
    let mut first = plugin.clone();
    first["capabilities"] = json!({ "ips": true });
    let ranges = subnets.map(|subnet| json!([{ "subnet": subnet }]));
    first["ipam"] = json!({ "type": "host-local", "ranges": ranges });
    cluster.definition(name, &json!({ "cniVersion": "1.1.0", "name": name, "plugins": [first] }));
}

fn pod_manifest(host: &Host, name: &str, number: u8, networks: &[(&str, &str)]) {
    let networks: Vec<Value> = networks
        .iter()
        .map(|(network, subnet)| {
            let ips = [format!("10.7.{subnet}.{number}/24"), format!("fd00:7:{subnet}::{number}/64")];
            json!({ "name": network, "ips": ips })
        })
        .collect();
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": NAMESPACE,
        "labels": { "app": name }, "annotations": { "k8s.v1.cni.cncf.io/networks": json!(networks).to_string() } } });
    host.write(format!("{MANIFESTS}/pod-{name}.json"), pod.to_string());
}

fn policy(host: &Host) {
    let policy = json!({ "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": "MultiNetworkPolicy",
        "metadata": { "name": "s", "namespace": NAMESPACE, "annotations": { "k8s.v1.cni.cncf.io/policy-for": "one" } },
        "spec": { "podSelector": { "matchLabels": { "app": "s" } }, "policyTypes": ["Ingress"],
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "f" } } }] }] } });
    host.write(format!("{MANIFESTS}/policy-s.json"), policy.to_string());
}

fn connects(from: &Netns, s: &Netns, address: &str) -> bool {
    let at = format!("{address}:80");
    reached(Transport::Tcp, from, &at, s, &at).is_some()
}

/// Attaches the pods to two networks with these plugins.
fn attach<'a>(host: &'a Host, cluster: &Cluster<'a>, plugins: [&Value; 2]) -> Vec<(Pod, Attachment<'a>)> {
    host.run(["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]);
    definition(cluster, "one", plugins[0], ["10.7.2.0/24", "fd00:7:2::/64"]);
    definition(cluster, "two", plugins[1], ["10.7.19.0/24", "fd00:7:19::/64"]);
    policy(host);
    pod_manifest(host, "s", 11, &[("one", "2"), ("two", "19")]);
    pod_manifest(host, "o", 12, &[("one", "2")]);
    pod_manifest(host, "f", 13, &[("one", "2")]);
    let attach = |name: &str| {
        let pod = host.pod(name);
        let attachment = cluster.attachment(&pod);
        attachment.add(&weft()).success();
        (pod, attachment)
    };
    ["s", "o", "f"].map(attach).into()
}

/// Asserts that the policy decides about packets for the address of `one`, at any interface of `s`.
fn assert_address_is_bound(case: &str, host: &Host, pods: &[(Pod, Attachment<'_>)]) {
    let [s, o, f] = [0, 1, 2].map(|index| &pods[index].0);
    for address in ["10.7.2.11", "[fd00:7:2::11]"] {
        for turn in 0..TRIES {
            for pod in [o, f] {
                pod.run(["ip", "neighbour", "flush", "all"]);
            }
            assert!(connects(f, s, address), "{case}: an allowed peer, {address}, {turn}");
            assert!(!connects(o, s, address), "{case}: a forbidden peer, {address}, {turn}");
        }
    }
    // The pod reaches itself.
    s.run(["ip", "link", "set", "lo", "up"]);
    assert!(connects(s, s, "10.7.2.11"), "{case}: the pod itself");
    // By a route over eth0.
    let listed = s.run(["ip", "-o", "-4", "address", "show", "dev", "eth0"]);
    let eth0 = listed.split_whitespace().find_map(|word| word.split_once('/')).expect("an address").0;
    // In a table of its own: the route of `ptp` stays.
    host.run(["ip", "route", "add", "10.7.2.11/32", "via", eth0, "table", "77"]);
    host.run(["ip", "rule", "add", "to", "10.7.2.11", "lookup", "77"]);
    s.run(["sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.eth0.rp_filter=0"]);
    assert!(!connects(host, s, "10.7.2.11"), "{case}: by a route over eth0");
    assert!(connects(host, s, eth0), "{case}: eth0 itself");
    host.run(["ip", "rule", "del", "to", "10.7.2.11", "lookup", "77"]);
    host.run(["ip", "route", "flush", "table", "77"]);
}

fn assert_bound_until_detached(case: &str, host: &Host, plugins: [&Value; 2]) {
    let cluster = Cluster::new(host);
    let pods = attach(host, &cluster, plugins);
    assert_address_is_bound(case, host, &pods);
    let (s, attachment) = &pods[0];
    attachment.check(&weft()).success();
    // A process of the pod removes the rules: CHECK finds it, and the verification writes them again.
    s.run(["nft", "flush", "ruleset"]);
    let (_, why) = rig::refusal(&attachment.check(&weft()));
    assert!(why.contains("network policy"), "{case}: {why}");
    crate::network_policy_update::verify(host, s);
    attachment.check(&weft()).success();
    for (_, attachment) in &pods {
        attachment.del(&weft()).success();
    }
    assert_eq!(s.run(["nft", "list", "ruleset"]), "", "{case}: rules are left in the pod");
    for (_, attachment) in &pods {
        attachment.add(&weft()).success();
        attachment.del(&weft()).success();
    }
}

#[test]
fn network_policy_binds_the_address_on_one_bridge() {
    let host = host!(Feature::Bridge, Feature::NftInet);
    let plugin = json!({ "type": "bridge", "bridge": "br9" });
    assert_bound_until_detached("bridge", &host, [&plugin, &plugin]);
}

#[test]
fn network_policy_binds_the_address_on_one_bridge_port() {
    let host = host!(Feature::Bridge, Feature::BridgeConntrack, Feature::NftInet);
    let plugin = json!({ "type": "bridge", "bridge": "br9" });
    assert_bound_until_detached("bridge port", &host, [&plugin, &plugin]);
}

#[test]
fn network_policy_binds_the_address_on_one_macvlan_master() {
    let host = host!(Feature::Macvlan, Feature::NftInet);
    let _outside = outside(&host);
    let plugin = json!({ "type": "macvlan", "master": "up0" });
    assert_bound_until_detached("macvlan", &host, [&plugin, &plugin]);
}

#[test]
fn network_policy_binds_the_address_on_ptp() {
    let host = host!(Feature::Veth, Feature::NftInet);
    let plugin = json!({ "type": "ptp" });
    assert_bound_until_detached("ptp", &host, [&plugin, &plugin]);
}

#[test]
fn network_policy_binds_the_address_on_ipvlan_and_bridge() {
    let host = host!(Feature::Ipvlan, Feature::Bridge, Feature::NftInet);
    let _outside = outside(&host);
    let plugins =
        [json!({ "type": "ipvlan", "master": "up0" }), json!({ "type": "bridge", "bridge": "br9" })];
    assert_bound_until_detached("ipvlan", &host, [&plugins[0], &plugins[1]]);
}
