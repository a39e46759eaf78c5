//! `weft test` on a real node: it finds faults of networks, and leaves no pod.
//!
//! ```text
//!   weft test ── API server ── kubelet ── containerd ── weft ── two pods of weft's image on each network
//! ```

use std::time::Duration;

use rig::Node;
use rig::node::NAME;
use serde_json::{Value, json};
use testkit::{Command, Feature, Finished, host};

const LABEL: &str = "weft.dev/test";

/// Starts a node with weft, whose default network is a bridge.
macro_rules! node {
    () => {{
        let host = host!(Feature::Bridge, Feature::Veth, Feature::NftMasquerade, Feature::GoPlugins);
        let Some(node) = Node::new(host) else { return };
        node.import_weft();
        super::deployment::install(&node);
        node
    }};
}

/// Defines a bridge network of the namespace `default`.
fn define(node: &Node, name: &str, options: &Value) {
    let mut plugin = json!({ "cniVersion": "1.0.0", "type": "bridge", "bridge": format!("br-{name}") });
    for (key, value) in options.as_object().expect("options") {
        plugin[key] = value.clone();
    }
    let definition = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": name, "namespace": "default" }, "spec": { "config": plugin.to_string() },
    });
    node.kube().apply(&definition.to_string());
}

fn command(node: &Node, line: &str) -> Command {
    let weft = testkit::binary("weft").display().to_string();
    let command = node.machine().command(&weft).env("KUBECONFIG", node.kube().admin());
    command.args(["test"]).args(line.split_whitespace()).deadline(Duration::from_secs(300))
}

fn run(node: &Node, line: &str) -> Finished {
    command(node, line).finish()
}

/// Pods of all runs.
fn pods(node: &Node) -> Vec<Value> {
    node.kube().json(["pods", "-A", "-l", LABEL])["items"].as_array().expect("a list").clone()
}

#[test]
fn network_test_finds_faults_and_leaves_nothing() {
    let node = node!();
    let ipam = |subnet: &str| json!({ "type": "host-local", "subnet": subnet });
    define(&node, "blue", &json!({ "ipam": ipam("10.21.0.0/24"), "mtu": 1400 }));
    // The first pods create the bridges, which stay.
    run(&node, "--network blue").success();
    let before = node.snapshot();
    let finished = run(&node, "--network default/blue -o json").success();
    let [row] = finished.json().as_array().expect("a list").clone().try_into().expect("one test");
    let row: Value = row;
    assert_eq!((&row["verdict"], &row["nodes"]), (&json!("ok"), &json!([NAME, NAME])), "{row}");
    assert_eq!((&row["mtu"], &row["replies"][0]["largest"]), (&json!(1400), &json!(1400)), "{row}");
    assert_eq!(row["replies"][0]["address"], row["addresses"][0][0], "{row}");
    assert!(finished.stderr.contains("ok     default/blue"), "{finished}");
    assert!(pods(&node).is_empty());
    rig::until_unchanged(&node, "tested", &before);

    // Isolated ports, no addresses, and a plugin that does not exist.
    define(&node, "apart", &json!({ "ipam": ipam("10.22.0.0/24"), "portIsolation": true }));
    define(&node, "bare", &json!({}));
    define(&node, "wrong", &json!({ "type": "absent" }));
    let finished = run(&node, "--timeout 45");
    assert_eq!(finished.code, Some(1), "{finished}");
    let line = |name: &str| {
        let start = format!("default/{name} ");
        let found = finished.stdout.lines().find(|line| line.starts_with(&start));
        found.unwrap_or_else(|| panic!("{name}: {finished}")).to_owned()
    };
    assert!(
        line("apart").contains("FAULT") && line("apart").contains("no reply from 10.22.0."),
        "{finished}"
    );
    assert!(line("bare").contains("  ok  ") && line("bare").contains("no addresses"), "{finished}");
    assert!(line("wrong").contains("FAULT") && line("wrong").contains("absent"), "{finished}");
    assert!(line("blue").contains("  ok  "), "{finished}");
    assert!(pods(&node).is_empty());
}

#[test]
fn network_test_that_ends_early_leaves_no_pod() {
    let node = node!();
    define(&node, "blue", &json!({ "ipam": { "type": "host-local", "subnet": "10.21.0.0/24" } }));
    let until_pods = || node.until("a pod of the test", || (!pods(&node).is_empty()).then_some(()));
    let weft = testkit::binary("weft").display().to_string();
    let configuration = format!("KUBECONFIG={}", node.kube().admin());
    let start = |seconds: &str| {
        node.machine().start("test", ["env", &configuration, &weft, "test", "--timeout", seconds]);
    };
    // Interrupted.
    start("30");
    until_pods();
    node.machine().stop("test", "INT");
    assert!(node.machine().log("test").contains("interrupted"), "{}", node.machine().log("test"));
    assert!(pods(&node).is_empty());
    // Killed: the kubelet ends the pods, and the next run deletes them.
    start("30");
    until_pods();
    node.machine().stop("test", "KILL");
    node.until("the pod has ended", || {
        pods(&node).iter().all(|pod| pod["status"]["phase"] == "Failed").then_some(())
    });
    let finished = run(&node, "--network blue").success();
    assert!(finished.stdout.contains("of a killed run"), "{finished}");
    assert!(pods(&node).is_empty());
    // Without waiting for that. A kubelet of 1.20 deletes a pod late that it has not started yet.
    start("60");
    node.until("a pod of the test runs", || {
        pods(&node).iter().any(|pod| pod["status"]["phase"] == "Running").then_some(())
    });
    node.machine().stop("test", "KILL");
    run(&node, "--clean").success();
    assert!(pods(&node).is_empty());
}
