//! Guides that are followed on a real node: the commands and manifests on the pages, as they are written.
//!
//! ```text
//!   docs/guides/*.md ── console and yaml blocks ──► a shell with kubectl, sudo and weft ──► API server, node
//! ```
//!
//! Differences to a reader's shell: `worker-1` is the test's node, images are never pulled, and `sudo` does
//! nothing.

use std::time::Duration;

use rig::Node;
use rig::node::NAME;
use serde_json::{Value, json};
use testkit::{Command, Feature, Finished, host, workspace};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// Directory of the reader: a checkout, and the programs of a release.
const CHECKOUT: &str = "/run/checkout";

/// Starts a node with a default network and the image of weft, and a checkout of the project.
macro_rules! node {
    () => {{
        let host = host!(Feature::Bridge, Feature::Veth, Feature::NftMasquerade, Feature::GoPlugins);
        let Some(node) = Node::new(host) else { return };
        node.import_weft();
        super::deployment::bring_default_network(&node);
        check_out(&node);
        node
    }};
}

fn check_out(node: &Node) {
    let root = workspace().display().to_string();
    let [weft, weft_cni] = ["weft", "weft-cni"].map(|name| testkit::binary(name).display().to_string());
    let script = format!(
        "mkdir -p {CHECKOUT}/bin && cd {CHECKOUT} && ln -s {weft} {weft_cni} bin/ && ln -s {root}/deploy {root}/examples .
         printf '#!/bin/sh\\nexec \"$@\"\\n' >bin/sudo && chmod +x bin/sudo"
    );
    node.run(["sh", "-c", &script]);
}

fn shell(node: &Node, script: &str) -> Command {
    let path = format!("PATH={CHECKOUT}/bin:{}:$PATH; cd {CHECKOUT}; set -ex\n", node.kube().newer_kubectl());
    let shell = node.machine().command("sh").args(["-c", &(path + script)]);
    let shell = shell.env("HOME", rig::machine::CONFIGURATIONS).env("KUBECONFIG", node.kube().admin());
    shell.deadline(Duration::from_secs(300))
}

/// Commands of a text, one in a line.
fn commands(text: &str) -> String {
    text.lines().filter_map(|line| line.strip_prefix("$ ")).collect::<Vec<_>>().join("\n")
}

/// Page of a guide.
struct Page {
    name: &'static str,
    text: String,
}

impl Page {
    fn read(name: &'static str) -> Page {
        let text = std::fs::read_to_string(workspace().join("docs/guides").join(name)).expect("a page");
        Page { name, text }
    }

    /// Blocks of a language in a section.
    fn blocks(&self, section: &str, language: &str) -> Vec<String> {
        let mut sections = self.text.split("\n## ").skip(1);
        let found = sections.find(|text| text.starts_with(section));
        let text = found.unwrap_or_else(|| panic!("{}: no section {section}", self.name));
        let fence = format!("```{language}\n");
        let after = text.split(&fence).skip(1);
        let blocks: Vec<String> =
            after.map(|block| block.split("```").next().unwrap_or_default().to_owned()).collect();
        assert!(!blocks.is_empty(), "{}: {section}: no block of {language}", self.name);
        blocks
    }

    /// Runs the commands in a section; returns the output.
    #[track_caller]
    fn run(&self, node: &Node, section: &str) -> Finished {
        let commands = commands(&self.blocks(section, "console").concat());
        shell(node, &commands.replace("worker-1", NAME)).finish().success()
    }

    /// Text above the first section.
    fn head(&self) -> &str {
        self.text.split("\n## ").next().unwrap_or_default()
    }

    /// Applies the manifests of a section. A node of the lane has no registry.
    #[track_caller]
    fn apply(&self, node: &Node, section: &str) {
        for manifest in self.blocks(section, "yaml") {
            let image = "      image: busybox\n";
            let manifest = manifest.replace(image, &format!("{image}      imagePullPolicy: IfNotPresent\n"));
            shell(node, "kubectl apply -f -").stdin(manifest).finish().success();
        }
    }
}

#[test]
fn guide_first_network_is_followed_on_a_node() {
    let node = node!();
    let page = Page::read("first-network.md");
    page.run(&node, "1. Install weft");
    node.until_weft_is_installed();
    page.apply(&node, "2. Define a network");
    page.apply(&node, "3. Select it in a pod");
    node.until_pods_ready(["-n", "default", "web"]);
    node.until("the network-status", || {
        let pod = node.kube().json(["pod", "-n", "default", "web"]);
        pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"].as_str().map(|_| ())
    });
    let checked = page.run(&node, "Check that it works");
    for expected in ["inet 10.77.0.", "\"default/blue\"", "ok     default/blue"] {
        assert!(checked.stdout.contains(expected), "{expected}: {checked}");
    }
}

/// Pod that waits, with these networks.
fn pod(name: &str, networks: &str) -> Value {
    let container = json!({
        "name": "shell", "image": "busybox", "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "trap exit TERM; while :; do sleep 1 & wait; done"],
    });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "annotations": { NETWORKS: networks } },
        "spec": { "containers": [container], "terminationGracePeriodSeconds": 1 },
    })
}

fn network(name: &str, annotations: &Value, config: &Value) -> Value {
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": name, "namespace": "default", "annotations": annotations },
        "spec": { "config": config.to_string() },
    })
}

/// Waits for an Event of the runtime about a pod that contains all words.
#[track_caller]
fn until_event(node: &Node, pod: &str, words: &[&str]) {
    node.until(&format!("an Event of {pod} with {words:?}"), || {
        let events = node.kube().json(["events", "-n", "default"]);
        let is_wanted = |event: &&Value| {
            let message = event["message"].as_str().unwrap_or_default();
            event["involvedObject"]["name"] == pod
                && event["reason"] == "FailedCreatePodSandBox"
                && words.iter().all(|word| message.contains(word))
        };
        events["items"].as_array()?.iter().find(is_wanted).map(|_| ())
    });
}

/// Symptom: pod name, networks, cell on the page, words in the Event.
type Symptom = (&'static str, &'static str, &'static str, &'static [&'static str]);

/// Symptoms of pods that stay in `ContainerCreating`.
const SYMPTOMS: [Symptom; 6] = [
    (
        "typo",
        "[{\"nam\":\"blue\"}]",
        "annotation k8s.v1.cni.cncf.io/networks: [0]…",
        &["annotation k8s.v1.cni.cncf.io/networks: [0]"],
    ),
    (
        "unknown",
        "late",
        "there is no such NetworkAttachmentDefinition",
        &["there is no such NetworkAttachmentDefinition"],
    ),
    (
        "device",
        "card",
        "needs a device of R, and none is allocated to the pod",
        &["needs a device of example.com/vf, and none is allocated to the pod"],
    ),
    (
        "plugin",
        "absent",
        "failed to find plugin \"P\" in path […]",
        &["failed to find plugin \"absent\" in path ["],
    ),
    ("master", "wire", "master: \"eth9\": no such interface", &["master: \"eth9\": no such interface"]),
    (
        "full",
        "small",
        "no IP addresses available in range set: …",
        &["no IP addresses available in range set: "],
    ),
];

/// Runs the commands at the head of the page, while a pod is refused.
fn look_at_the_agent(node: &Node, page: &Page) {
    let pods = node.kube().json(["pods", "-n", "kube-system", "-l", "app.kubernetes.io/component=agent"]);
    let agent = pods["items"][0]["metadata"]["name"].as_str().expect("the agent's pod");
    let looked = commands(page.head()).replace("AGENT-POD", agent).replace("NODE", NAME);
    let shown = shell(node, &looked).finish().success();
    assert!(shown.stdout.contains(agent) && shown.stdout.contains("\"eth9\": no such interface"), "{shown}");
}

#[test]
fn guide_troubleshooting_has_the_text_of_each_symptom() {
    let node = node!();
    node.apply_weft();
    node.until_weft_is_installed();
    let page = Page::read("troubleshooting.md");
    let small = json!({ "type": "host-local", "subnet": "10.31.0.0/24", "rangeStart": "10.31.0.9", "rangeEnd": "10.31.0.9" });
    for definition in [
        network(
            "card",
            &json!({ "k8s.v1.cni.cncf.io/resourceName": "example.com/vf" }),
            &json!({ "cniVersion": "1.0.0", "type": "host-device" }),
        ),
        network("absent", &json!({}), &json!({ "cniVersion": "1.0.0", "type": "absent" })),
        network("wire", &json!({}), &json!({ "cniVersion": "1.0.0", "type": "macvlan", "master": "eth9" })),
        network(
            "small",
            &json!({}),
            &json!({ "cniVersion": "1.0.0", "type": "bridge", "bridge": "br-small", "ipam": small }),
        ),
    ] {
        node.kube().apply(&definition.to_string());
    }
    node.kube().apply(&pod("first", "small").to_string());
    node.until_pods_ready(["-n", "default", "first"]);
    for (name, networks, ..) in SYMPTOMS {
        node.kube().apply(&pod(name, networks).to_string());
    }
    for (name, _, cell, words) in SYMPTOMS {
        assert!(page.text.contains(&format!("| `{cell}` |")), "the page has no row {cell}");
        until_event(&node, name, words);
    }
    look_at_the_agent(&node, &page);
    // Next steps of the page.
    let typo = pod("typo", "[{\"nam\":\"blue\"}]").to_string();
    let linted = shell(&node, "weft lint -").stdin(typo).finish();
    assert!(linted.code == Some(1) && linted.stdout.contains("missing-network-name"), "{linted}");
    let bridge = json!({ "cniVersion": "1.0.0", "type": "bridge", "bridge": "br-late" });
    node.kube().apply(&network("late", &json!({}), &bridge).to_string());
    node.until_pods_ready(["-n", "default", "unknown"]);
    node.kube().kubectl(["delete", "pod", "-n", "default", "first", "--wait=false"]);
    node.until_pods_ready(["-n", "default", "full"]);

    // The agent does not run.
    node.kube().kubectl(["delete", "daemonset", "-n", "kube-system", "weft-agent"]);
    node.until("the agent has ended", || {
        let pods = node.kube().json(["pods", "-n", "kube-system"]);
        pods["items"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    let cell = "no node agent listens on /run/weft/agent.sock";
    assert!(page.text.contains(cell), "the page has no row {cell}");
    node.kube().apply(&pod("alone", "late").to_string());
    until_event(&node, "alone", &[cell]);
    node.apply_weft();
    node.until_agent_is_ready();
    node.until_pods_ready(["-n", "default", "alone"]);

    node.kube().kubectl(["delete", "pods", "-n", "default", "--all", "--wait=false", "--grace-period=1"]);
    node.until_no_pod_runs();
    node.kube().kubectl(["delete", "network-attachment-definitions", "-n", "default", "--all"]);
    // The programs of the release that is installed.
    let weft = testkit::binary("weft").display().to_string();
    let copy = format!("rm bin/weft bin/weft-cni; cp {weft} /opt/cni/bin/weft-cni bin/");
    shell(&node, &copy).finish().success();
    let checked = page.run(&node, "Check that it works");
    assert!(checked.stdout.contains("no findings"), "{checked}");
}
