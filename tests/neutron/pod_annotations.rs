//! Networks that a pod's annotations and definitions select, how they change, and objects that Kuryr left.
//!
//! Neutron runs with Neutron's mechanism drivers for tests, with a real API server and the shipped RBAC.
//!
//! Source: multi-network specification (NPWG), 4.1.2; Multus `v1.multus-cni.io/default-network`; Kuryr-Kubernetes
//! `handlers/kuryrport.py`.

use rig::OpenStack;
use rig::openstack::{BOUND, KURYR_CONFIG, NAMESPACE, NETWORKS, VIF, eventually};
use serde_json::{Value, json};
use testkit::host;

/// Creates a pod with this metadata.
fn pod_with(cluster: &OpenStack, name: &str, metadata: &Value) {
    let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": { "nodeName": BOUND, "containers": [{ "name": "c", "image": "none" }] } });
    (pod["metadata"]["name"], pod["metadata"]["namespace"]) = (json!(name), json!(NAMESPACE));
    cluster.kube.attempt(["create", "-f", "-"], &pod.to_string()).success();
}

/// Waits until a pod has these interfaces, each with an address that begins so.
fn wait_for(cluster: &OpenStack, name: &str, expected: &[(&str, &str)]) {
    eventually(&format!("{name}: {expected:?}"), || {
        let vifs = cluster.vifs(name)?;
        let fits = |(vif, (name, start)): (&Value, &(&str, &str))| {
            vif["ifname"] == *name && vif["ips"][0].as_str().is_some_and(|ip| ip.starts_with(start))
        };
        (vifs.len() == expected.len() && vifs.iter().zip(expected).all(fits)).then_some(())
    });
}

#[test]
fn pod_annotation_changes_are_followed_until_the_pod_starts() {
    let Some(cluster) = OpenStack::without_switch(host!()) else { return };
    let pods = cluster.neutron.subnet("pods", "10.20.0.0/24", &json!({}));
    let _one = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    let two = cluster.network("net-b", "10.22.0.0/24", &json!({}));
    let config = json!({ KURYR_CONFIG: json!({ "subnetId": two.id }).to_string() });
    cluster.definition_in("kube-system", "net-d", &config);
    cluster.definition_in(NAMESPACE, "late", &json!({}));
    cluster.start_controller("one", &json!({ "defaultNetwork": true, "podSubnet": pods.id }), &[]);
    cluster.wait_until_leading("one");
    let default = ("eth0", "10.20.0.");
    // A definition becomes a Neutron network.
    cluster.pod(BOUND, "later", "late");
    wait_for(&cluster, "later", &[default]);
    cluster.definition_in(NAMESPACE, "late", &config);
    wait_for(&cluster, "later", &[default, ("eth1", "10.22.0.")]);
    // A network is selected later.
    cluster.pod(BOUND, "more", "");
    wait_for(&cluster, "more", &[default]);
    cluster.kube.kubectl(["annotate", "pod", "-n", NAMESPACE, "more", &format!("{NETWORKS}=net-a")]);
    wait_for(&cluster, "more", &[default, ("eth1", "10.21.0.")]);
    // A VIF that is already written is not removed.
    cluster.kube.kubectl([
        "annotate",
        "pod",
        "-n",
        NAMESPACE,
        "more",
        "--overwrite",
        &format!("{NETWORKS}=net-b"),
    ]);
    cluster.wait_for_event("more", &["NetworkRefused", "eth1", "recreate the pod"]);
    wait_for(&cluster, "more", &[default, ("eth1", "10.21.0.")]);
    // An unreadable annotation is ignored until it is deleted.
    pod_with(&cluster, "unreadable", &json!({ "annotations": { VIF: "{" } }));
    cluster.wait_for_event("unreadable", &["VifUnreadable", VIF]);
    cluster.kube.kubectl(["annotate", "pod", "-n", NAMESPACE, "unreadable", &format!("{VIF}-")]);
    wait_for(&cluster, "unreadable", &[default]);
    // An invalid selection selects nothing, and removes nothing.
    pod_with(&cluster, "invalid", &json!({ "annotations": { NETWORKS: r#"[{"name":"net-a","mac":5}]"# } }));
    cluster.wait_for_event("invalid", &["AnnotationIgnored", "mac"]);
    wait_for(&cluster, "invalid", &[default]);
    // The annotation selects another default network.
    let annotations = json!({ "v1.multus-cni.io/default-network": "net-d", NETWORKS: "net-a" });
    pod_with(&cluster, "moved", &json!({ "annotations": annotations }));
    wait_for(&cluster, "moved", &[("eth0", "10.22.0."), ("eth1", "10.21.0.")]);
    for name in ["later", "more", "unreadable", "invalid", "moved"] {
        cluster.delete_pod(name);
    }
    cluster.assert_nothing_left("one");
}

/// Covers finalizers of Kuryr (Victoria and later) on pods and KuryrPorts.
#[test]
fn kuryr_finalizers_are_removed_once_ports_are_released() {
    let Some(cluster) = OpenStack::without_switch(host!()) else { return };
    let _net = cluster.network("net-a", "10.21.0.0/24", &json!({}));
    cluster.start_controller("one", &json!({}), &["--vif-store", "kuryrport"]);
    cluster.wait_until_leading("one");
    let held = json!(["kuryr.openstack.org/pod-finalizer"]);
    pod_with(&cluster, "web", &json!({ "finalizers": held, "annotations": { NETWORKS: "net-a" } }));
    pod_with(&cluster, "plain", &json!({ "finalizers": held }));
    let get = |kind: &str, name: &str| {
        let found = cluster.kube.attempt(["get", kind, "-n", NAMESPACE, name, "-o", "json"], "");
        (found.code == Some(0)).then(|| found.json())
    };
    eventually("a KuryrPort", || {
        get("kuryrport", "web").filter(|port| port["status"]["vifs"]["eth1"].is_object())
    });
    let hold =
        r#"{"metadata":{"finalizers":["example.com/other","kuryr.openstack.org/kuryrport-finalizer"]}}"#;
    cluster.kube.kubectl(["patch", "kuryrport", "-n", NAMESPACE, "web", "--type=merge", "-p", hold]);
    cluster.kube.kubectl(["delete", "kuryrport", "-n", NAMESPACE, "web", "--wait=false"]);
    for name in ["web", "plain"] {
        cluster.kube.kubectl([
            "delete",
            "pod",
            "-n",
            NAMESPACE,
            name,
            "--force",
            "--grace-period=0",
            "--wait=false",
        ]);
    }
    for name in ["web", "plain"] {
        eventually("the pod is deleted", || get("pod", name).is_none().then_some(()));
    }
    let port = get("kuryrport", "web").expect("another finalizer holds it");
    assert_eq!(port["metadata"]["finalizers"], json!(["example.com/other"]));
    cluster.assert_nothing_left("one");
}
