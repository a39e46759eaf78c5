//! Complete node whose kubelet uses the runtime through `weft cri-proxy`; pods request networks from the runtime.
//!
//! ```text
//!   kubectl ── API server ── kubelet ── weft cri-proxy ── containerd ── weft ── red, blue, _fallback
//! ```
//!
//! Source: proposal "CRI Network API"; docs/cri-networks.md.

use rig::cluster::bridge;
use rig::containerd::NETWORKS;
use rig::parts::text;
use rig::{Node, proxy};
use serde_json::{Value, json};
use testkit::{Feature, host};

/// Annotation value with which a pod requests networks, for clients that cannot set the field of the call.
const REQUESTED: &str = r#"[{"network_name":"red"},{"network_name":"blue","interface_name":"storage"}]"#;

/// Pod with a shell.
fn pod(name: &str, annotations: &Value) -> String {
    let container = json!({
        "name": "shell", "image": "busybox", "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "echo begun; trap exit TERM; while :; do sleep 1 & wait; done"],
    });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "annotations": annotations },
        "spec": { "terminationGracePeriodSeconds": 1, "containers": [container] },
    })
    .to_string()
}

/// Starts the proxy in front of the node's runtime.
#[track_caller]
fn launch(node: &Node) {
    let weft = testkit::binary("weft");
    let words = [text(&weft), "cri-proxy", "--runtime-networks", NETWORKS];
    node.machine().start("cri-proxy", words);
    let ready = ["test", "-S", proxy::SOCKET];
    node.until("the proxy listens", || node.attempt(ready).code.filter(|code| *code == 0));
}

/// Stores a network through the proxy's socket.
#[track_caller]
fn set(node: &Node, name: &str, subnet: u8) {
    let weft = testkit::binary("weft");
    node.write("/run/network.json", proxy::bridge(name, subnet).to_string());
    node.run([text(&weft), "network", "set", "-f", "/run/network.json"]);
}

fn delete_all(node: &Node) {
    node.kube().kubectl(["delete", "pods", "-n", "default", "--all", "--wait=false", "--grace-period=1"]);
    node.until_no_pod_runs();
}

#[test]
fn cri_proxy_behind_a_kubelet_attaches_requested_networks() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let Some(mut node) = Node::new(host) else { return };
    rig::install(&node);
    node.write(format!("{NETWORKS}/10-default.conflist"), bridge("default", 1).to_string());
    launch(&node);
    node.set_kubelet_runtime(proxy::SOCKET);
    node.until_ready(true);
    set(&node, "red", 2);
    set(&node, "blue", 3);
    let asking = json!({ "weft.dev/networks": REQUESTED });

    // Earlier pods create what remains on a node: bridges, directories.
    for (name, annotations) in [("early", &asking), ("early-plain", &json!({}))] {
        node.kube().apply(&pod(name, annotations));
    }
    node.until_pods_ready(["-n", "default", "--all"]);
    delete_all(&node);
    let before = node.snapshot();

    for (name, annotations) in [("web", &asking), ("db", &asking), ("plain", &json!({}))] {
        node.kube().apply(&pod(name, annotations));
    }
    node.until_pods_ready(["-n", "default", "--all"]);
    let addresses = node.addresses("default", "web");
    let shown: Vec<(&str, bool)> =
        addresses.iter().map(|(link, address)| (link.as_str(), address.starts_with("10.2.0."))).collect();
    assert_eq!(shown, [("eth0", true), ("storage", false)], "{addresses:?}");
    let plain = node.addresses("default", "plain");
    assert!(
        matches!(&plain[..], [(link, address)] if link == "eth0" && address.starts_with("10.1.0.")),
        "{plain:?}"
    );
    let object = node.kube().json(["pod", "-n", "default", "web"]);
    assert_eq!(object["status"]["podIP"], addresses[0].1.as_str(), "podIP is the address of eth0");
    node.assert_pings("default", "web", "db");
    assert_eq!(node.kube().kubectl(["logs", "-n", "default", "web"]).trim(), "begun");

    // The proxy is killed and started again while pods run and the kubelet is connected.
    node.machine().stop("cri-proxy", "KILL");
    node.run(["rm", "-f", proxy::SOCKET]);
    launch(&node);
    let answers = || node.exec("default", "web", ["true"]).code.filter(|code| *code == 0);
    node.until("a program runs in a pod", answers);
    assert_eq!(node.addresses("default", "web"), addresses, "addresses are unchanged");
    delete_all(&node);
    rig::until_unchanged(&node, "deleted", &before);
}
