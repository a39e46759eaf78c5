//! `weft test` on real nodes: it finds faults in networks and in the links between nodes, and leaves no pod.
//!
//! ```text
//!   weft test ── API server ── kubelet ── containerd ── weft ── two pods of weft's image on each network
//!
//!   node: pod ── macvlan on fabric ── fabric1 ── switch ── fabric2 ── macvlan on fabric ── pod: node-2
//! ```

use std::time::{Duration, Instant};

use rig::node::NAME;
use rig::{Node, links, traffic};
use serde_json::{Value, json};
use testkit::{Command, Feature, Finished, Host, host};

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
    let plugin = json!({ "cniVersion": "1.0.0", "type": "bridge", "bridge": format!("br-{name}") });
    define_plugin(node, name, &rig::with(&plugin, options));
}

/// Defines a network of the namespace `default`.
fn define_plugin(node: &Node, name: &str, plugin: &Value) {
    define_text(node, name, &plugin.to_string());
}

/// Defines a network of the namespace `default` with this `spec.config`.
fn define_text(node: &Node, name: &str, config: &str) {
    let definition = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": name, "namespace": "default" }, "spec": { "config": config },
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
        line("apart").contains("ERROR") && line("apart").contains("no reply from 10.22.0."),
        "{finished}"
    );
    assert!(line("bare").contains("  ok  ") && line("bare").contains("no addresses"), "{finished}");
    assert!(line("wrong").contains("ERROR") && line("wrong").contains("absent"), "{finished}");
    assert!(line("blue").contains("  ok  "), "{finished}");
    assert!(pods(&node).is_empty());
}

#[test]
fn network_test_of_a_refused_network_ends_at_the_refusal() {
    let node = node!();
    define_text(&node, "broken", r#"{"cniVersion": "1.0.0", "type": "bridge","#);
    define(&node, "wrong", &json!({ "isGateway": "yes" }));
    for (name, reason) in [("broken", "malformed-config"), ("wrong", "isGateway")] {
        let started = Instant::now();
        let finished = run(&node, &format!("--network {name} --timeout 120"));
        assert_eq!(finished.code, Some(1), "{finished}");
        assert!(started.elapsed() < Duration::from_secs(90), "{:?}: {finished}", started.elapsed());
        assert_eq!(finished.stdout.matches(reason).count(), 1, "{finished}");
        assert!(pods(&node).is_empty());
    }
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

/// Two nodes with weft, whose links `fabric` are connected by a switch, and a macvlan network on these links.
struct TwoNodes {
    first: Node,
    second: Node,
}

impl TwoNodes {
    #[track_caller]
    fn new(host: Host) -> Option<TwoNodes> {
        let first = Node::new(host)?;
        let second = first.join(Host::new())?;
        traffic::switch(first.outside(), FABRIC, &[&first, &second]);
        for node in [&first, &second] {
            node.import_weft();
            super::deployment::bring_default_network(node);
        }
        first.apply_weft();
        for node in [&first, &second] {
            node.until_weft_is_installed();
        }
        // Addresses that are unique in the cluster: host-local allocates the same ones on each node.
        let ipam = json!({ "type": "weft-ipam", "range": "10.31.0.0/24" });
        let plugin = json!({ "cniVersion": "1.0.0", "type": "macvlan", "master": FABRIC, "ipam": ipam });
        define_plugin(&first, "lan", &plugin);
        Some(TwoNodes { first, second })
    }

    /// Changes the port of the second node at the switch.
    #[track_caller]
    fn set_port(&self, words: &[&str]) {
        self.first.outside().run([&["ip", "link", "set", "fabric2"], words].concat());
    }

    /// Runs `weft test` between nodes, with this exit code, and returns the row of the only pair.
    #[track_caller]
    fn test(&self, options: &str, code: i32) -> Value {
        let finished = run(&self.first, &format!("--network lan -o json {options}"));
        assert_eq!(finished.code, Some(code), "{finished}");
        let rows = finished.json().as_array().expect("a list").clone();
        let [row]: [Value; 1] = rows.try_into().expect("one pair of nodes");
        row
    }
}

/// Name of the links between the nodes.
const FABRIC: &str = "fabric";

#[test]
fn network_test_between_nodes_names_the_pair_without_a_path() {
    let host =
        host!(Feature::Bridge, Feature::Veth, Feature::Macvlan, Feature::NftMasquerade, Feature::GoPlugins);
    let Some(nodes) = TwoNodes::new(host) else { return };
    let TwoNodes { first, second } = &nodes;
    let pair = json!([first.name(), second.name()]);

    let row = nodes.test("", 0);
    assert_eq!((&row["verdict"], &row["nodes"]), (&json!("ok"), &pair), "{row}");
    assert_eq!((&row["mtu"], &row["replies"][0]["largest"]), (&json!(1500), &json!(1500)), "{row}");
    assert_eq!(row["replies"][0]["address"], row["addresses"][0][0], "{row}");
    assert_ne!(row["addresses"][0], row["addresses"][1], "{row}");
    // Neither pods nor links remain on any node. The bridge of the default network stays.
    assert!(pods(first).is_empty());
    for node in [first, second] {
        node.until("only the links of the node remain", || {
            (links(node) == ["cni0", FABRIC, "up0"].map(str::to_owned)).then_some(())
        });
    }

    // A switch with a smaller MTU: small packets arrive.
    nodes.set_port(&["mtu", "1400"]);
    let row = nodes.test("", 1);
    assert_eq!((&row["verdict"], &row["nodes"]), (&json!("failed"), &pair), "{row}");
    assert!(row["found"].as_str().expect("text").contains("packets of 1500 bytes"), "{row}");
    assert!(row["replies"][0]["microseconds"].is_u64(), "{row}");

    // The path is cut, and no link of a node is down.
    nodes.set_port(&["mtu", "1500", "nomaster"]);
    let row = nodes.test("", 1);
    assert_eq!((&row["verdict"], &row["nodes"]), (&json!("failed"), &pair), "{row}");
    assert!(row["found"].as_str().expect("text").starts_with("no reply from 10.31.0."), "{row}");
    for node in [first, second] {
        let row = nodes.test(&format!("--nodes {}", node.name()), 0);
        assert_eq!(row["nodes"], json!([node.name(), node.name()]), "{row}");
    }
    assert!(pods(first).is_empty());
}
