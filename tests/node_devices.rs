//! Devices of a real kubelet: a device plugin tells it of some, a pod asks for one, and the network gets that one.
//!
//! ```text
//!   device plugin ◄── Allocate ── kubelet ── PodResources ──► agent ── plan ──► weft-cni ──► plugin (deviceID)
//! ```
//!
//! Source: kubelet device plugins v1beta1, PodResources v1; the standard's `k8s.v1.cni.cncf.io/resourceName`.

#![cfg(test)]

use rig::Node;
use rig::parts::{parts, text};
use serde_json::{Value, json};
use testkit::{Call, Feature, host, workspace};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const RESOURCE: &str = "example.com/nic";
const DEVICES: [&str; 2] = ["0000:00:1e.1", "0000:00:1e.2"];

/// A node with weft, a network whose plugin writes down what it is told, and two devices.
fn prepare(node: &Node, client: &std::path::Path) {
    node.run(["mkdir", "-p", "/opt/cni/bin"]);
    for plugin in ["bridge", "host-local", "loopback"] {
        node.run(["ln", "-s", &format!("/usr/lib/cni/{plugin}"), &format!("/opt/cni/bin/{plugin}")]);
    }
    node.write(
        "/etc/cni/net.d/10-default.conflist",
        rig::in_version(&rig::cluster::bridge("default", 1), "1.0.0").to_string(),
    );
    node.import_weft();
    node.apply_weft();
    node.until_weft_is_installed();
    node.install(&testkit::binary("weft-test-plugin"), &["one"]);
    node.write(rig::cluster::RECORD, "");
    let mut config = rig::in_version(&rig::cluster::recording("fast", "one", &json!({})), "1.0.0");
    config["plugins"][0]["capabilities"] = json!({ "deviceID": true });
    let definition = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "fast", "namespace": "default", "annotations": { "k8s.v1.cni.cncf.io/resourceName": RESOURCE } },
        "spec": { "config": config.to_string() },
    });
    node.kube().apply(&definition.to_string());
    let (interpreter, script) = (client.join("bin/python"), workspace().join("lanes/node/device-plugin"));
    let path = format!("PYTHONPATH={}", text(client));
    let line = ["env", &path, text(&interpreter), text(&script), RESOURCE].into_iter().chain(DEVICES);
    node.machine().start("device-plugin", line);
    node.until("the node has devices", || {
        let found = node.kube().json(["node", rig::node::NAME]);
        (found["status"]["allocatable"][RESOURCE] == "2").then_some(())
    });
}

/// Makes a pod that asks for so many devices.
fn pod(node: &Node, name: &str, networks: &str, devices: usize) {
    let mut container = json!({
        "name": "shell", "image": "busybox", "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "trap exit TERM; while :; do sleep 1 & wait; done"],
    });
    if devices > 0 {
        container["resources"] = json!({ "limits": { RESOURCE: devices } });
    }
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "annotations": { NETWORKS: networks } },
        "spec": { "containers": [container], "terminationGracePeriodSeconds": 1 },
    });
    node.kube().apply(&pod.to_string());
}

/// The devices that the recording plugin was given for a pod, by `verb`.
fn given(node: &Node, pod: &str, verb: &str) -> Vec<String> {
    let record = node.read(rig::cluster::RECORD).unwrap_or_default();
    let calls = record.lines().map(|line| serde_json::from_str::<Call>(line).expect("a record"));
    let of_pod = calls.filter(|call| {
        call.command == verb && call.environment("CNI_ARGS").contains(&format!("K8S_POD_NAME={pod}"))
    });
    let device =
        |call: Call| call.config()["runtimeConfig"]["deviceID"].as_str().unwrap_or_default().to_owned();
    of_pod.map(device).collect()
}

/// Waits for an event of a pod with these words.
#[track_caller]
fn until_told(node: &Node, pod: &str, words: &[&str]) {
    node.until(&format!("{pod} is refused: {words:?}"), || {
        let events = node.kube().json(["events", "-n", "default"]);
        let fits = |event: &Value| {
            let message = event["message"].as_str().unwrap_or_default();
            event["reason"] == "FailedCreatePodSandBox"
                && event["involvedObject"]["name"] == pod
                && words.iter().all(|word| message.contains(word))
        };
        events["items"].as_array()?.iter().any(fits).then_some(())
    });
}

#[test]
fn a_network_gets_the_device_that_the_kubelet_gave_to_the_pod_and_no_other() {
    let host = host!(Feature::Bridge, Feature::Veth, Feature::GoPlugins);
    let Some(client) = parts("python-client") else { return };
    let Some(node) = Node::new(host) else { return };
    prepare(&node, &client);
    pod(&node, "one", "fast", 1);
    node.until_pods_ready(["-n", "default", "one"]);
    let of_kubelet = node.exec("default", "one", ["sh", "-c", "echo $DEVICES"]).success().stdout;
    assert_eq!(given(&node, "one", "ADD"), [of_kubelet.trim()]);
    // Nobody gave it one: it is not the one that is left.
    pod(&node, "none", "fast", 0);
    until_told(&node, "none", &[RESOURCE, "default/fast"]);
    // One device, and two networks that want one each.
    pod(&node, "half", "fast,fast", 1);
    until_told(&node, "half", &[RESOURCE]);
    for name in ["none", "half"] {
        assert_eq!(given(&node, name, "ADD"), [""; 0], "{name}");
        node.kube().kubectl([
            "delete",
            "pod",
            "-n",
            "default",
            name,
            "--wait=false",
            "--grace-period=0",
            "--force",
        ]);
    }
    node.kube().kubectl(["delete", "pod", "-n", "default", "one", "--wait=false", "--grace-period=1"]);
    node.until_no_pod_runs();
    assert_eq!(given(&node, "one", "DEL"), [of_kubelet.trim()]);
    // Both of them, in the kubelet's order.
    pod(&node, "two", "fast,fast", 2);
    node.until_pods_ready(["-n", "default", "two"]);
    let mut both = given(&node, "two", "ADD");
    both.sort();
    assert_eq!(both, DEVICES);
}
