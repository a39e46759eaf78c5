//! Containers that start before or again in a pod: sidecar containers, and restarts of one or all containers in place.
//! The sandbox stays, and so do the networks.
//!
//! Source: Kubernetes, "Sidecar Containers" (1.29 and later), "Pod Lifecycle", sections "Individual container restart policy
//! and rules" (1.35 and later) and "Restart All Containers" (1.36 and later).

use rig::Node;
use serde_json::{Value, json};
use testkit::{Feature, host};

use crate::deployment::install;

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// Networks of `examples/definitions.yaml` that the pod selects.
const SELECTED: &str = "net-a,net-a";
/// First Kubernetes that restarts all containers of a pod by default.
const MINOR: u32 = 36;

/// Container that fails unless it has `net1` when it starts, and ends with the code that is written to the file `end`.
fn container(name: &str) -> Value {
    let script = "ip -o -4 address show net1 | grep -q net1 || exit 3
        trap 'exit 0' TERM
        until [ -s /tmp/end ]; do sleep 0.2; done; exit $(cat /tmp/end)";
    json!({
        "name": name, "image": "busybox", "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script],
    })
}

/// Starts a node with weft and creates a pod in `my-namespace` that selects networks; `None`, and the test is skipped, if
/// Kubernetes is too old.
#[track_caller]
fn with_pod(host: testkit::Host, spec: &Value) -> Option<Node> {
    let node = Node::new(host)?;
    if node.kube().minor() < MINOR {
        let why = format!("needs Kubernetes 1.{MINOR} or newer: KUBEBUILDER_ASSETS");
        testkit::record_skip(&testkit::test_name(), &why);
        return None;
    }
    node.import_weft();
    install(&node);
    let definitions = testkit::workspace().join("examples/definitions.yaml");
    node.kube().kubectl(["apply", "-f", definitions.to_str()?]);
    node.until_service_account_exists("my-namespace");
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "web", "namespace": "my-namespace", "annotations": { NETWORKS: SELECTED } },
        "spec": spec,
    });
    pod["spec"]["terminationGracePeriodSeconds"] = 1.into();
    node.kube().apply(&pod.to_string());
    node.until_pods_ready(["-n", "my-namespace", "web"]);
    Some(node)
}

/// The pod's addresses, the journal entry's checksum and the network-status. A restart changes none of them.
#[track_caller]
fn attached(node: &Node) -> (Vec<(String, String)>, String, Value) {
    let status = node.until("the pod has a network-status", || {
        let pod = node.kube().json(["pod", "-n", "my-namespace", "web"]);
        Some(pod["metadata"]["annotations"][STATUS].clone()).filter(Value::is_string)
    });
    let journal = node.run(["sh", "-c", "sha256sum /var/lib/weft/sandboxes/*.json"]);
    (node.addresses("my-namespace", "web"), journal, status)
}

/// Restarts of the containers with these names; a sidecar is an init container.
fn restarts(node: &Node) -> Vec<(String, u64)> {
    let pod = node.kube().json(["pod", "-n", "my-namespace", "web"]);
    let of = |kind: &str| pod["status"][kind].as_array().cloned().unwrap_or_default();
    let all = [of("initContainerStatuses"), of("containerStatuses")].concat();
    all.iter()
        .map(|one| (one["name"].to_string(), one["restartCount"].as_u64().unwrap_or_default()))
        .collect()
}

/// Ends a container with this exit code, and waits until those at the positions in `restarted` run again.
#[track_caller]
fn end_container(node: &Node, name: &str, code: &str, restarted: &[usize]) {
    let before = restarts(node);
    let script = format!("echo {code} >/tmp/end");
    let words = ["exec", "-n", "my-namespace", "web", "-c", name, "--", "sh", "-c", &script];
    node.kube().attempt(words, "").success();
    node.until("the containers run again", || {
        let now = restarts(node);
        restarted.iter().all(|position| now[*position].1 > before[*position].1).then_some(())
    });
    node.until_pods_ready(["-n", "my-namespace", "web"]);
}

#[test]
fn sidecar_container_has_the_networks_of_its_pod() {
    let mut sidecar = container("sidecar");
    sidecar["restartPolicy"] = "Always".into();
    let spec =
        json!({ "initContainers": [sidecar], "containers": [container("main")], "restartPolicy": "Never" });
    let host = host!(Feature::Bridge, Feature::Veth, Feature::NftMasquerade, Feature::GoPlugins);
    let Some(node) = with_pod(host, &spec) else { return };
    let before = attached(&node);
    assert_eq!(before.0.iter().map(|(link, _)| link.as_str()).collect::<Vec<_>>(), ["eth0", "net1", "net2"]);
    end_container(&node, "sidecar", "1", &[0]);
    assert_eq!(attached(&node), before);
    // A sidecar ends after the containers of its pod, whose networks are then removed.
    node.kube().kubectl(["delete", "pod", "-n", "my-namespace", "web", "--wait=false"]);
    node.until_no_pod_runs();
}

#[test]
fn restart_in_place_keeps_the_networks_of_the_pod() {
    let rule = |action: &str, code: u32| json!({ "action": action, "exitCodes": { "operator": "In", "values": [code] } });
    let mut main = container("main");
    main["restartPolicy"] = "Never".into();
    main["restartPolicyRules"] = json!([rule("Restart", 41), rule("RestartAllContainers", 42)]);
    let spec = json!({ "containers": [main, container("other")], "restartPolicy": "Never" });
    let host = host!(Feature::Bridge, Feature::Veth, Feature::NftMasquerade, Feature::GoPlugins);
    let Some(node) = with_pod(host, &spec) else { return };
    let before = attached(&node);
    end_container(&node, "main", "41", &[0]);
    assert_eq!(attached(&node), before);
    end_container(&node, "main", "42", &[0, 1]);
    assert_eq!(attached(&node), before);
    node.kube().kubectl(["delete", "pod", "-n", "my-namespace", "web", "--wait=false"]);
    node.until_no_pod_runs();
}
