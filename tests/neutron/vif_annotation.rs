//! VIFs written for a pod: failed writes, annotations that the pod's author wrote, and static pods.
//!
//! Neutron runs with Neutron's mechanism drivers for tests, with a real API server and the shipped RBAC.
//!
//! Source: Kubernetes "Create static Pods".

use rig::OpenStack;
use rig::openstack::{BOUND, NAMESPACE, NETWORKS, VIF, eventually};
use serde_json::{Value, json};
use testkit::{host, workspace};

/// Sets the verb that the controller may use on the status of pods, with which it writes annotations.
fn permit(cluster: &OpenStack, verb: &str) {
    let rule = json!([
        { "op": "test", "path": "/rules/1/resources", "value": ["pods/status"] },
        { "op": "replace", "path": "/rules/1/verbs", "value": [verb] },
    ])
    .to_string();
    cluster.kube.kubectl(["patch", "clusterrole", "weft-neutron", "--type=json", "-p", &rule]);
}

/// Creates a pod with these annotations; returns the uid.
fn pod_with(cluster: &OpenStack, name: &str, annotations: &Value) -> String {
    let pod = json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": NAMESPACE, "annotations": annotations },
        "spec": { "nodeName": BOUND, "containers": [{ "name": "c", "image": "none" }] } });
    cluster.kube.attempt(["create", "-f", "-"], &pod.to_string()).success();
    cluster.kube.json(["pod", "-n", NAMESPACE, name])["metadata"]["uid"].as_str().unwrap().to_owned()
}

fn select(cluster: &OpenStack, name: &str, networks: &str) {
    let word = format!("{NETWORKS}={networks}");
    cluster.kube.kubectl(["annotate", "pod", "-n", NAMESPACE, name, "--overwrite", &word]);
}

fn kuryr_port(cluster: &OpenStack, name: &str) -> Option<Value> {
    let found = cluster.kube.attempt(["get", "kuryrport", "-n", NAMESPACE, name, "-o", "json"], "");
    (found.code == Some(0)).then(|| found.json()).filter(|port| port["status"]["vifs"]["eth1"].is_object())
}

#[test]
fn vif_annotation_is_written_later_with_the_current_selection() {
    let Some(cluster) = OpenStack::without_switch(host!()) else { return };
    let _one = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    let two = cluster.network("net-b", "10.22.0.0/24", &json!({}));
    cluster.definition("net-bad", &json!({ "subnetId": "00000000-0000-0000-0000-000000000000" }));
    cluster.start_controller("one", &json!({}), &[]);
    cluster.wait_until_leading("one");
    permit(&cluster, "get");
    for (name, networks) in [("web", "net-a"), ("turns", "net-a"), ("drops", "net-a,net-b")] {
        cluster.pod(BOUND, name, networks);
        cluster.wait_for_event(name, &["VifNotWritten"]);
    }
    for (name, networks) in [("part", "net-a,net-bad"), ("other", "net-a,net-bad")] {
        cluster.pod(BOUND, name, networks);
        cluster.wait_for_event(name, &["SubnetNotFound"]);
    }
    select(&cluster, "turns", "net-b");
    select(&cluster, "drops", "net-a");
    select(&cluster, "part", "net-a");
    select(&cluster, "other", "net-b");
    permit(&cluster, "patch");
    for (name, address) in [
        ("web", "10.21.0."),
        ("turns", "10.22.0."),
        ("drops", "10.21.0."),
        ("part", "10.21.0."),
        ("other", "10.22.0."),
    ] {
        let vifs = cluster.wait_for_vifs(name);
        assert_eq!(vifs.len(), 1, "{name}: {vifs:?}");
        assert!(vifs[0]["ips"][0].as_str().unwrap().starts_with(address), "{name}: {vifs:?}");
    }
    // Ports of networks that are no longer selected are deleted.
    eventually("each has one port", || (cluster.neutron.pod_ports().len() == 5).then_some(()));
    assert_eq!(
        cluster.neutron.ports(&format!("fixed_ips=subnet_id%3D{}&device_owner=compute:kuryr", two.id)).len(),
        2
    );
    for name in ["web", "turns", "drops", "part", "other"] {
        cluster.delete_pod(name);
    }
    cluster.assert_nothing_left("one");
}

#[test]
fn kuryrport_write_failure_is_an_event_and_retried() {
    let Some(cluster) = OpenStack::without_switch(host!()) else { return };
    let _net = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    cluster.kube.kubectl(["delete", "crd", "kuryrports.openstack.org"]);
    cluster.start_controller("one", &json!({}), &["--vif-store", "kuryrport"]);
    cluster.wait_until_leading("one");
    cluster.pod(BOUND, "web", "net-a");
    cluster.wait_for_event("web", &["KuryrPort blue/web", "weft crds"]);
    let crd = std::fs::read_to_string(workspace().join("deploy/crds/kuryrports.openstack.org.yaml")).unwrap();
    cluster.kube.apply(&crd);
    eventually("a KuryrPort", || kuryr_port(&cluster, "web"));
    // KuryrPort of an earlier pod with the same name, as of a StatefulSet.
    let other = json!({ "apiVersion": "openstack.org/v1", "kind": "KuryrPort",
        "metadata": { "name": "set-0", "namespace": NAMESPACE },
        "spec": { "podUid": "another", "podNodeName": BOUND, "podStatic": false }, "status": { "vifs": {} } });
    cluster.kube.apply(&other.to_string());
    let uid = cluster.pod(BOUND, "set-0", "net-a");
    let port = eventually("the KuryrPort of the new pod", || kuryr_port(&cluster, "set-0"));
    assert_eq!(port["spec"]["podUid"], uid);
    cluster.delete_pod("web");
    cluster.delete_pod("set-0");
    cluster.assert_nothing_left("one");
}

#[test]
fn static_pod_has_ports_under_both_of_its_uids() {
    for (store, controller) in [("annotation", "one"), ("kuryrport", "two")] {
        let Some(cluster) = OpenStack::without_switch(host!()) else { return };
        let _net = cluster.network("net-a", "10.21.0.0/24", &json!({}));
        cluster.start_controller(controller, &json!({}), &["--vif-store", store]);
        cluster.wait_until_leading(controller);
        let own = "0123456789abcdef0123456789abcdef";
        let annotations = json!({ NETWORKS: "net-a", "kubernetes.io/config.mirror": own,
            "kubernetes.io/config.hash": own, "kubernetes.io/config.source": "file" });
        let uid = pod_with(&cluster, "static", &annotations);
        match store {
            "annotation" => assert_eq!(cluster.wait_for_vifs("static").len(), 1),
            _ => {
                let port = eventually("a KuryrPort", || kuryr_port(&cluster, "static"));
                assert_eq!(
                    (&port["spec"]["podUid"], &port["spec"]["podStatic"]),
                    (&json!(own), &json!(true))
                );
                assert_eq!(port["metadata"]["ownerReferences"][0]["uid"], uid);
            }
        }
        assert_eq!(cluster.neutron.pod_ports()[0]["device_id"], own);
        cluster.delete_pod("static");
        cluster.assert_nothing_left(controller);
    }
}

/// Attack: the author of a pod names another port in the annotation, so that it is deleted with the pod.
#[test]
fn vif_annotation_naming_a_foreign_port_does_not_delete_it() {
    let Some(cluster) = OpenStack::without_switch(host!()) else { return };
    let net = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    let neutron = &cluster.neutron;
    let made = |owner: &str| {
        let new = json!({ "port": { "network_id": net.network, "device_owner": owner, "device_id": "r" } });
        neutron.api("POST", "ports", Some(&new))["port"]["id"].as_str().unwrap().to_owned()
    };
    cluster.start_controller("one", &json!({ "pool": { "enabled": true, "min": 1, "batch": 1 } }), &[]);
    cluster.wait_until_leading("one");
    cluster.pod(BOUND, "victim", "net-a");
    let pooled = cluster.wait_for_vifs("victim")[0]["id"].as_str().unwrap().to_owned();
    cluster.pod(BOUND, "asks", r#"[{"name":"net-a","ips":["10.21.0.77"]}]"#);
    let own = cluster.wait_for_vifs("asks")[0]["id"].as_str().unwrap().to_owned();
    let free = eventually("a free port of the pool", || {
        let ids = neutron.pod_ports().into_iter().map(|port| port["id"].as_str().unwrap().to_owned());
        ids.into_iter().find(|id| *id != pooled && *id != own)
    });
    let text = cluster.annotation("victim", VIF).unwrap();
    let named = [made("compute:nova"), made("network:dhcp"), pooled.clone(), own, free];
    for (number, id) in named.iter().enumerate() {
        pod_with(&cluster, &format!("thief-{number}"), &json!({ VIF: text.replace(&pooled, id) }));
    }
    let released = || cluster.metric("one", "weft_neutron_port_operations_total{outcome=\"released\"} ");
    eventually("the controller observes the pods", || {
        (cluster.metric("one", "weft_neutron_pods ") == Some(2 + named.len() as u64)).then_some(())
    });
    for number in 0..named.len() {
        cluster.delete_pod(&format!("thief-{number}"));
    }
    eventually("the pods are released", || (released() == Some(named.len() as u64)).then_some(()));
    for id in &named {
        assert_eq!(neutron.ask("GET", &format!("ports/{id}"), None).0, 200, "{id}");
    }
    // No other pod gets such a port.
    for name in ["next-0", "next-1", "next-2"] {
        cluster.pod(BOUND, name, "net-a");
        assert_ne!(cluster.wait_for_vifs(name)[0]["id"], pooled, "{name}");
    }
}
