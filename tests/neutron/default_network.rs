//! Neutron as the default network: every pod's `eth0` is a port, with additional ports beside it. KuryrPorts
//! connect controller and agents.
//!
//! ```text
//!   eth0 ── port in podSubnet, default route     net1 ── Kuryr's eth1, none      KuryrPort: status.vifs of both
//! ```
//!
//! Source: Kuryr-Kubernetes `handlers/vif.py`, `kuryrport.py`; multi-network specification (NPWG), 3.1 and 4.1.

use rig::neutron::Mode;
use rig::openstack::{NAMESPACE, VIF, configuration, eventually};
use rig::{OpenStack, addresses_on, changes};
use serde_json::{Value, json};
use testkit::{Pod, Snapshot, host};

const NODES: [&str; 2] = ["node-1", "node-2"];
const STORE: [&str; 2] = ["--vif-store", "kuryrport"];

fn default_network(node: &str) -> Value {
    configuration(node, &json!({ "cniVersion": "1.0.0", "name": "pods", "type": "neutron" }))
}

/// Returns the KuryrPort of a pod if all VIFs in it are ACTIVE.
fn active(cluster: &OpenStack, name: &str) -> Option<Value> {
    let found = cluster.kube.attempt(["get", "kuryrport", "-n", NAMESPACE, name, "-o", "json"], "");
    let port = (found.code == Some(0)).then(|| found.json())?;
    let vifs = port["status"]["vifs"].as_object()?.clone();
    let is_active = |vif: &Value| vif["vif"]["versioned_object.data"]["active"] == true;
    (!vifs.is_empty() && vifs.values().all(is_active)).then_some(port)
}

/// Deletes the pods, and fails if any object for them remains.
fn delete_and_check(cluster: &OpenStack, before: &Snapshot, attached: &[(&str, &str, &str, String, Pod)]) {
    for (node, name, _, uid, sandbox) in attached {
        cluster.attachment(node, sandbox, name, uid).del(&default_network(node)).success();
        assert_eq!(sandbox.json(["ip", "-j", "link"]).as_array().unwrap().len(), 1, "{name}");
        cluster.delete_pod(name);
    }
    NODES.iter().for_each(|node| assert_eq!(cluster.neutron.plugged(node), Vec::<String>::new()));
    let remaining = changes(before, &cluster.machine.snapshot());
    assert!(!remaining.contains("tap"), "{remaining}");
    cluster.assert_nothing_left("controller");
}

#[test]
fn default_network_of_neutron_with_additional_ports() {
    let Some(cluster) = OpenStack::new(host!(), Mode::Open, &NODES) else { return };
    let dns = json!({ "dns_nameservers": ["10.30.0.2"] });
    let pods = cluster.neutron.subnet("pods", "10.30.0.0/24", &dns);
    let _net = cluster.network("net-a", "10.31.0.0/24", &json!({}));
    let rules = json!({ "defaultNetwork": true, "podSubnet": pods.id, "additionalIfnamePrefix": "port" });
    cluster.start_controller("controller", &rules, &STORE);
    NODES.iter().for_each(|node| cluster.start_agent(node, &STORE));
    cluster.wait_until_leading("controller");
    let before = cluster.machine.snapshot();
    let attached = [("node-1", "web", "net-a"), ("node-2", "db", "net-a"), ("node-1", "plain", "")].map(
        |(node, name, networks)| {
            let uid = cluster.pod(node, name, networks);
            let sandbox = cluster.machine.pod(name);
            // Its ports may not be written yet: a runtime then repeats the ADD.
            let result = eventually(name, || {
                let done = cluster.attachment(node, &sandbox, name, &uid).add(&default_network(node));
                let wait = done.stdout.contains("has been written yet");
                assert!(wait || done.code == Some(0), "{name}: {}", done.stdout);
                (!wait).then(|| done.json())
            });
            assert_eq!(result["dns"]["nameservers"], json!(["10.30.0.2"]), "{result}");
            assert!(addresses_on(&sandbox, "eth0")[0].starts_with("10.30.0."));
            let routes = sandbox.json(["ip", "-j", "route", "show", "default"]);
            let routes: Vec<_> =
                routes.as_array().unwrap().iter().map(|one| (&one["gateway"], &one["dev"])).collect();
            assert_eq!(routes, [(&json!("10.30.0.1"), &json!("eth0"))]);
            (node, name, networks, uid, sandbox)
        },
    );
    let web = &attached[0].4;
    for (_, name, networks, uid, sandbox) in &attached {
        let additional = usize::from(!networks.is_empty());
        let port = eventually("all are ACTIVE", || active(&cluster, name));
        assert_eq!((&port["spec"]["podUid"], cluster.annotation(name, VIF)), (&json!(uid), None));
        let vifs = port["status"]["vifs"].as_object().unwrap();
        assert_eq!((vifs.len(), &vifs["eth0"]["default"]), (1 + additional, &json!(true)));
        let links = ["eth0", "net1"].iter().take(1 + additional);
        let seen = cluster.read_by_os_vif(&port.to_string());
        for (link, vif) in links.zip(&seen) {
            let has: Vec<String> = addresses_on(sandbox, link)
                .iter()
                .map(|one| one.split('/').next().unwrap().to_owned())
                .collect();
            assert_eq!(json!(has), vif["ips"], "{name} {link}");
            if name != &"web" {
                eventually(&format!("{name} answers at {link}"), || web.pings(&has[0]).then_some(()));
            }
        }
        let status = eventually("a status", || cluster.annotation(name, "k8s.v1.cni.cncf.io/network-status"));
        let status: Vec<Value> = serde_json::from_str(&status).unwrap();
        assert_eq!(
            (status.len(), &status[0]["default"], &status[0]["interface"]),
            (1 + additional, &json!(true), &json!("eth0"))
        );
    }
    assert_eq!(cluster.neutron.pod_ports().len(), 5);
    delete_and_check(&cluster, &before, &attached);
}
