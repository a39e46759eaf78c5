//! Pods with real Neutron ports: annotation, traffic, and deletion.
//!
//! Source: Kuryr-Kubernetes `multi_vif.py`, `handlers/vif.py` and the tests for it.

use rig::cluster::bridge;
use rig::neutron::Mode;
use rig::openstack::{KURYR_CONFIG, NAMESPACE, VIF, configuration, eventually};
use rig::{OpenStack, addresses_on};
use serde_json::{Value, json};
use testkit::{Pod, host};

/// Starts a cluster with a controller, and an agent on each node; the test is skipped if the lane was not prepared.
macro_rules! cluster {
    ($nodes:expr, $rules:expr) => {{
        let Some(cluster) = OpenStack::new(host!(), Mode::Open, $nodes) else { return };
        cluster.start_controller("controller", &$rules, &[]);
        for node in $nodes {
            cluster.start_agent(node, &[]);
        }
        cluster.wait_until_leading("controller");
        cluster
    }};
}

fn address(pod: &Pod, link: &str) -> String {
    addresses_on(pod, link)[0].split('/').next().unwrap().to_owned()
}

/// Waits until the annotation reports ACTIVE, and compares it with the ports and tags in Neutron.
fn assert_owned_and_active(cluster: &OpenStack, name: &str, uid: &str) {
    eventually("all are ACTIVE", || {
        let text = cluster.annotation(name, VIF)?;
        (text.matches(r#""active":true"#).count() == 2).then_some(())
    });
    assert!(cluster.vifs(name).unwrap().iter().all(|vif| vif["active"] == true));
    let ports = cluster.neutron.ports(&format!("device_id={uid}"));
    assert_eq!(ports.len(), 2);
    assert!(ports.iter().all(|port| port["status"] == "ACTIVE" && port["device_owner"] == "compute:kuryr"));
    let tags = ports.iter().map(|port| port["tags"].to_string()).collect::<String>();
    assert!(tags.contains("weft-attachment=eth1") && tags.contains("weft-cluster=kubernetes"), "{tags}");
}

/// Checks a pod whose second port cannot be attached: the ADD fails, and the first attachment leaves nothing.
fn failed_port_undoes_the_add(cluster: &OpenStack, node: &str) {
    let config = json!({ "cniVersion": "1.0.0", "name": "short", "type": "neutron", "timeout": 2 });
    let subnet = &cluster.neutron.ports("device_owner=compute:kuryr")[0]["fixed_ips"][0]["subnet_id"];
    let short = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "short", "namespace": NAMESPACE, "annotations": {
            KURYR_CONFIG: json!({ "subnetId": subnet }).to_string() } },
        "spec": { "config": config.to_string() },
    });
    cluster.kube.apply(&short.to_string());
    let uid = cluster.pod(node, "half", "net-a,short");
    let vifs = cluster.wait_for_vifs("half");
    let second = vifs[1]["id"].as_str().unwrap();
    let (status, answer) = cluster.neutron.ask("DELETE", &format!("ports/{second}"), None);
    assert_eq!(status, 204, "{answer}");
    let sandbox = cluster.machine.pod("half");
    let (plugged, before) = (cluster.neutron.plugged(node), cluster.machine.snapshot());
    let refused =
        cluster.attachment(node, &sandbox, "half", &uid).add(&configuration(node, &bridge("home", 10)));
    assert_ne!(refused.code, Some(0), "{}", refused.stdout);
    assert!(refused.stdout.contains("does not install"), "{}", refused.stdout);
    assert_eq!(sandbox.json(["ip", "-j", "link"]).as_array().unwrap().len(), 1);
    assert_eq!(cluster.neutron.plugged(node), plugged);
    let remaining = rig::changes(&before, &cluster.machine.snapshot());
    assert!(!remaining.contains("tap"), "{remaining}");
    // The pod is deleted, and its remaining port with it.
    cluster.delete_pod("half");
    eventually("its port is deleted", || {
        cluster.neutron.ports(&format!("device_id={uid}")).is_empty().then_some(())
    });
}

#[test]
fn neutron_pods_reach_each_other_across_nodes_and_leave_nothing() {
    let nodes = ["node-1", "node-2"];
    let cluster = cluster!(&nodes, json!({}));
    let route = json!({ "host_routes": [{ "destination": "203.0.113.0/24", "nexthop": "10.21.0.254" }] });
    let _a = cluster.network("net-a", "10.21.0.0/24", &route);
    let _b = cluster.network("net-b", "10.22.0.0/24", &json!({ "gateway_ip": null }));
    let pods: Vec<_> = nodes
        .iter()
        .zip(["web", "db"])
        .map(|(node, name)| {
            let uid = cluster.pod(node, name, "net-a,net-b");
            let sandbox = cluster.machine.pod(name);
            (*node, name, uid, sandbox)
        })
        .collect();
    let default = |node: &str| configuration(node, &bridge("home", 10));
    for (node, name, uid, sandbox) in &pods {
        let eth0 = cluster.attachment(node, sandbox, name, uid);
        eth0.add(&default(node)).success();
        let vifs = cluster.wait_for_vifs(name);
        let shown: Vec<(&str, &str, &Value)> = vifs
            .iter()
            .map(|vif| (vif["ifname"].as_str().unwrap(), vif["type"].as_str().unwrap(), &vif["gateway"]))
            .collect();
        let expected =
            [("eth1", "VIFOpenVSwitch", &json!("10.21.0.1")), ("eth2", "VIFOpenVSwitch", &Value::Null)];
        assert_eq!(shown, expected);
        for (link, vif) in ["net1", "net2"].iter().zip(&vifs) {
            assert_eq!(vif["ips"], json!([address(sandbox, link)]));
            let shown = &sandbox.json(["ip", "-j", "link", "show", link])[0];
            assert_eq!((&shown["address"], &shown["mtu"]), (&vif["mac"], &vif["mtu"]));
        }
        let routes = sandbox.run(["ip", "route"]);
        assert!(routes.contains("203.0.113.0/24 via 10.21.0.254 dev net1"), "{routes}");
        assert!(
            !routes.contains("default via 10.2"),
            "an additional interface has a default route: {routes}"
        );
    }
    let (web, db) = (&pods[0].3, &pods[1].3);
    for link in ["net1", "net2"] {
        for (from, to) in [(web, db), (db, web)] {
            eventually(&format!("a ping over {link} is answered"), || {
                from.pings(&address(to, link)).then_some(())
            });
        }
    }
    // The annotation reports ACTIVE, as Neutron does.
    for (_, name, uid, _) in &pods {
        assert_owned_and_active(&cluster, name, uid);
    }
    failed_port_undoes_the_add(&cluster, nodes[0]);
    for (node, name, uid, sandbox) in &pods {
        let eth0 = cluster.attachment(node, sandbox, name, uid);
        eth0.del(&default(node)).success();
        eth0.del(&default(node)).success();
        assert!(cluster.neutron.plugged(node).is_empty());
        assert_eq!(sandbox.json(["ip", "-j", "link"]).as_array().unwrap().len(), 1);
        cluster.delete_pod(name);
    }
    eventually("no port remains", || cluster.neutron.pod_ports().is_empty().then_some(()));
    assert!(cluster.machine.is_running("controller"));
}
