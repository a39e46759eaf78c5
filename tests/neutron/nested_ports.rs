//! Nested ports: pods on a node that is a guest in the cloud, with macvlans on the node's own port.
//!
//! ```text
//!   pod ── macvlan ┐
//!   pod ── macvlan ┴ eth0 of vm-1 ── tap ─ br-int (node-1) ─ tap ── near, on the same network
//!                                                       └─ router ─ tap ── far, on another one
//! ```
//!
//! `vm-1` is a network namespace with one link, a Neutron port. It is also the name of a Kubernetes node.
//!
//! Source: Kuryr-Kubernetes `nested_macvlan_vif.py`, `nested_vlan_vif.py`; Networking API v2.0, "Trunk networking".

use rig::cluster::bridge;
use rig::neutron::{Mode, Neutron, Subnet};
use rig::openstack::{configuration, eventually};
use rig::traffic::source_seen;
use rig::{OpenStack, addresses_on};
use serde_json::{Value, json};
use testkit::{Pod, host};

const GUEST: &str = "vm-1";

fn text(value: &Value) -> &str {
    value.as_str().expect("a string")
}

/// Creates a router between two subnets.
fn route(neutron: &Neutron, subnets: [&Subnet; 2]) {
    let router = neutron.api("POST", "routers", Some(&json!({ "router": { "name": "r" } })));
    let path = format!("routers/{}/add_router_interface", text(&router["router"]["id"]));
    for subnet in subnets {
        let _ = neutron.api("PUT", &path, Some(&json!({ "subnet_id": subnet.id })));
    }
}

/// Creates a guest of the cloud on a port of this subnet; returns the port and the guest's namespace.
fn guest(cluster: &OpenStack, subnet: &Subnet) -> (Value, Pod) {
    let neutron = &cluster.neutron;
    let new = json!({ "port": {
        "network_id": subnet.network, "fixed_ips": [{ "subnet_id": subnet.id }], "device_owner": "compute:nova",
        "binding:host_id": "node-1" } });
    let port = neutron.api("POST", "ports", Some(&new))["port"].clone();
    let (id, mac) = (text(&port["id"]), text(&port["mac_address"]));
    let device = format!("tap{}", &id[..11]);
    let inside = cluster.machine.pod(GUEST);
    let words = ["type", "veth", "peer", "name", "eth0", "address", mac, "mtu", "1442", "netns", GUEST];
    cluster.machine.run(["ip", "link", "add", device.as_str(), "mtu", "1442", "up"].into_iter().chain(words));
    inside.run(["ip", "link", "set", "eth0", "up"]);
    let address = text(&port["fixed_ips"][0]["ip_address"]);
    inside.run(["ip", "address", "add", &format!("{address}/24"), "dev", "eth0"]);
    inside.run(["ip", "route", "add", "default", "via", "10.25.0.1"]);
    inside.run(["ethtool", "-K", "eth0", "tx", "off"]);
    let set = [&format!("external_ids:iface-id={id}"), &format!("external_ids:attached-mac={mac}")];
    neutron
        .ovs("node-1", &["add-port", "br-int", &device, "--", "set", "Interface", &device, set[0], set[1]]);
    eventually("the port of the guest is ACTIVE", || (neutron.port(id)["status"] == "ACTIVE").then_some(()));
    (port, inside)
}

/// Creates a pod on the guest and sets the node's address.
fn pod(cluster: &OpenStack, name: &str, networks: &str, host: &str) -> String {
    let uid = cluster.pod(GUEST, name, networks);
    cluster.set_host_address(name, host);
    uid
}

/// Attaches a pod, on the guest or on the first node.
fn attach(cluster: &OpenStack, node: &str, name: &str, uid: &str) -> Pod {
    let sandbox = cluster.machine.pod(name);
    let _ = cluster.wait_for_vifs(name);
    attachment(cluster, node, &sandbox, name, uid).add(&default(node)).success();
    sandbox
}

fn default(node: &str) -> Value {
    configuration(node, &bridge("home", 10))
}

fn attachment<'a>(
    cluster: &'a OpenStack,
    node: &str,
    sandbox: &Pod,
    name: &str,
    uid: &str,
) -> testkit::Attachment<'a> {
    let mut attachment = cluster.attachment("node-1", sandbox, name, uid);
    if node == GUEST {
        attachment.through = vec!["nsenter".to_owned(), format!("--net=/run/netns/{GUEST}"), "--".to_owned()];
    }
    attachment
}

fn address(pod: &Pod) -> String {
    addresses_on(pod, "net1")[0].split('/').next().unwrap().to_owned()
}

/// Number of allowed address pairs on the node's port.
fn address_pairs(neutron: &Neutron, node_port: &Value) -> usize {
    neutron.port(text(&node_port["id"]))["allowed_address_pairs"].as_array().unwrap().len()
}

/// Checks that the address pair of a pod is removed if the pod is deleted while no controller runs.
fn delete_without_controller(cluster: &OpenStack, node_port: &Value, rules: &Value) {
    let wait = |condition, count| {
        eventually(condition, || (address_pairs(&cluster.neutron, node_port) == count).then_some(()));
    };
    pod(cluster, "deleted", "nested", text(&node_port["fixed_ips"][0]["ip_address"]));
    let _ = cluster.wait_for_vifs("deleted");
    wait("only this pod has an address pair", 1);
    cluster.machine.stop("controller", "KILL");
    cluster.delete_pod("deleted");
    cluster.start_controller("next", rules, &[]);
    cluster.wait_until_leading("next");
    wait("no address pair remains", 0);
}

#[test]
fn nested_macvlan_reaches_its_network_and_the_router() {
    let Some(cluster) = OpenStack::new(host!(), Mode::Open, &["node-1"]) else { return };
    let neutron = &cluster.neutron;
    let (net, beyond) = (
        cluster.network("net-a", "10.25.0.0/24", &json!({})),
        cluster.network("net-b", "10.26.0.0/24", &json!({})),
    );
    cluster.definition("nested", &json!({ "subnetId": net.id, "driverType": "nested-macvlan" }));
    route(neutron, [&net, &beyond]);
    let (node_port, inside) = guest(&cluster, &net);
    let host = text(&node_port["fixed_ips"][0]["ip_address"]);
    let rules = json!({ "workerNodesSubnets": [net.id] });
    cluster.start_controller("controller", &rules, &[]);
    ["node-1", GUEST].into_iter().for_each(|node| cluster.start_agent(node, &[]));
    cluster.wait_until_leading("controller");
    let before = inside.snapshot();
    let requesting = r#"[{"name":"nested","mac":"02:00:00:00:00:55","ips":["10.25.0.55/24"]}]"#;
    let uids = [("first", "nested"), ("second", requesting)]
        .map(|(name, networks)| (name, pod(&cluster, name, networks, host)));
    let pods = uids.each_ref().map(|(name, uid)| attach(&cluster, GUEST, name, uid));
    let plain = [("near", "net-a"), ("far", "net-b")].map(|(name, networks)| {
        let uid = cluster.pod("node-1", name, networks);
        let sandbox = attach(&cluster, "node-1", name, &uid);
        (name, uid, sandbox)
    });
    let (near, far) = (&plain[0].2, &plain[1].2);
    far.run(["ip", "route", "add", "10.25.0.0/24", "via", "10.26.0.1"]);
    for ((name, _), sandbox) in uids.iter().zip(&pods) {
        let vif = &cluster.wait_for_vifs(name)[0];
        assert_eq!((&vif["type"], &vif["active"]), (&json!("VIFMacvlanNested"), &json!(true)));
        let link = &sandbox.json(["ip", "-j", "-d", "link", "show", "net1"])[0];
        assert_eq!((&link["linkinfo"]["info_kind"], &link["address"]), (&json!("macvlan"), &vif["mac"]));
        sandbox.run(["ip", "route", "add", "10.26.0.0/24", "via", "10.25.0.1"]);
    }
    assert_eq!(address(&pods[1]), "10.25.0.55");
    assert!(pods[0].pings(&address(&pods[1])), "within the guest");
    for sandbox in &pods {
        for other in [near, far] {
            let (one, two) = (address(sandbox), address(other));
            eventually(&format!("{} reaches {}", sandbox.name(), other.name()), || {
                sandbox.pings(&two).then_some(())
            });
            eventually(&format!("{} reaches {}", other.name(), sandbox.name()), || {
                other.pings(&one).then_some(())
            });
            eventually("TCP", || source_seen(other, sandbox, &one));
        }
    }
    for ((name, uid), sandbox) in uids.iter().zip(&pods) {
        attachment(&cluster, GUEST, sandbox, name, uid).del(&default(GUEST)).success();
        assert_eq!(sandbox.json(["ip", "-j", "link"]).as_array().unwrap().len(), 1);
        cluster.delete_pod(name);
    }
    delete_without_controller(&cluster, &node_port, &rules);
    for (name, uid, sandbox) in &plain {
        attachment(&cluster, "node-1", sandbox, name, uid).del(&default("node-1")).success();
        cluster.delete_pod(name);
    }
    cluster.assert_nothing_left("next");
    let remaining = rig::changes(&before, &inside.snapshot());
    assert!(!remaining.contains("macvlan"), "{remaining}");
}
