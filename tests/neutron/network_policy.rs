//! Network policies on real Neutron ports, plugged into Open vSwitch directly and through a bridge.
//!
//! ```text
//!   direct, hybrid: rules ─ net1 ─ br-int (node-1) ══ Geneve ══ br-int (node-2) ─ web, other
//! ```
//!
//! A missing answer only counts together with a proof that the same packets arrive without the rules.

use std::sync::Arc;

use rig::cluster::{MANIFESTS, NAMESPACE, bridge, configuration};
use rig::openstack::eventually;
use rig::traffic::source_seen;
use rig::{Cluster, Machine, Neutron, neutron::Mode, refusal};
use serde_json::{Value, json};
use testkit::{Feature, host};

use crate::plugin::{address, attachment, config, port};

/// Writes a pod with a label on a network, where it has an address.
fn manifest(machine: &Machine, name: &str, label: &str, network: &str, address: &str) {
    let status = json!([{ "name": format!("{NAMESPACE}/{network}"), "interface": "net1", "ips": [address] }]);
    let annotations = json!({
        "k8s.v1.cni.cncf.io/networks": network, "k8s.v1.cni.cncf.io/network-status": status.to_string(),
    });
    let metadata = json!({ "name": name, "namespace": NAMESPACE, "labels": { "app": label }, "annotations": annotations });
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata });
    machine.write(format!("{MANIFESTS}/pod-{name}.json"), pod.to_string());
}

/// Only `web` may reach the pods with the label `db`.
fn policy(machine: &Machine) {
    let selected = |label: &str| json!({ "matchLabels": { "app": label } });
    let policy = json!({
        "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": "MultiNetworkPolicy",
        "metadata": { "name": "db", "namespace": NAMESPACE,
            "annotations": { "k8s.v1.cni.cncf.io/policy-for": "direct, hybrid" } },
        "spec": { "podSelector": selected("db"), "policyTypes": ["Ingress"],
            "ingress": [{ "from": [{ "podSelector": selected("web") }] }] },
    });
    machine.write(format!("{MANIFESTS}/policy-db.json"), policy.to_string());
}

#[test]
fn network_policy_is_enforced_on_neutron_ports() {
    let machine = Arc::new(Machine::new(host!(Feature::NftInet), "node"));
    let nodes = ["node-1", "node-2"];
    let Some(neutron) = Neutron::new(Arc::clone(&machine), Mode::Open, &nodes) else { return };
    let cluster = Cluster::new(&machine);
    let subnet = neutron.subnet("pods", "10.20.0.0/24", &json!({}));
    let clients = ["web", "other"].map(|name| {
        let (pod, port) = (machine.pod(name), port(&neutron, &subnet, "node-2"));
        let config = config(&neutron, "node-2", &port, "ovs");
        attachment(&machine, "node-2", &pod).add(&config).success();
        (pod, port, config)
    });
    manifest(&machine, "web", "web", "direct", address(&clients[0].1));
    policy(&machine);
    let default = configuration(&bridge("pods", 8));
    let servers = [("direct", "ovs"), ("hybrid", "bridge")].map(|(name, kind)| {
        let (pod, port) = (machine.pod(name), port(&neutron, &subnet, "node-1"));
        cluster.definition(name, &config(&neutron, "node-1", &port, kind));
        manifest(&machine, name, "db", name, address(&port));
        cluster.attachment(&pod).add(&default).success();
        let entry = cluster.entry(&pod).expect("an entry");
        assert_eq!(entry["attachments"][1]["rules"]["place"], Value::from("pod"), "{name}: {entry}");
        (pod, port)
    });
    let [(web, ..), (other, ..)] = &clients;
    for (pod, port) in &servers {
        let (name, to) = (pod.name(), address(port));
        eventually(&format!("{name}: web is allowed"), || source_seen(web, pod, to));
        assert_eq!(source_seen(other, pod, to), None, "{name}: other is denied");
        pod.run(["nft", "flush", "ruleset"]);
        eventually(&format!("{name}: other reaches it without the rules"), || source_seen(other, pod, to));
        let (_, message) = refusal(&cluster.attachment(pod).check(&default));
        assert!(message.contains("network policy: "), "{name}: {message}");
    }
    for (pod, _) in &servers {
        cluster.attachment(pod).del(&default).success();
    }
    for (pod, _, config) in &clients {
        attachment(&machine, "node-2", pod).del(config).success();
    }
}
