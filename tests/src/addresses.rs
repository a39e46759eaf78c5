//! Cluster with several nodes that lease addresses: one API server and an agent for each node, all on one machine.
//!
//! ```text
//!   kube-apiserver ◄── agent worker-0 ◄── /run/weft-0/agent.sock ◄── weft-ipam, address stores in /var/lib/weft/ipam-0
//!                  ◄── agent worker-1 ◄── …
//! ```

use std::sync::Arc;

use serde_json::{Value, json};
use testkit::{Attachment, Finished, Pod};

use crate::kube::{Kube, files};
use crate::machine::Machine;
use crate::parts::text;

/// Starts a cluster with this many nodes; with `own`, the test gets a separate API server, which it may stop. The test
/// ends as skipped if the lane was not prepared.
#[macro_export]
macro_rules! nodes {
    (own $count:expr) => {
        $crate::nodes!(own, $count)
    };
    ($count:expr) => {
        $crate::nodes!(new, $count)
    };
    ($which:ident, $count:expr) => {{
        let machine = $crate::Machine::new(testkit::host!(testkit::Feature::Root), "node");
        let Some(kube) = $crate::Kube::$which(machine.into()) else { return };
        $crate::addresses::Nodes::new(kube, $count)
    }};
}

/// Nodes in a cluster.
#[derive(Debug)]
pub struct Nodes {
    /// Machine on which everything runs.
    pub machine: Arc<Machine>,
    /// API server.
    pub kube: Kube,
    configuration: String,
    count: usize,
}

impl Nodes {
    /// Creates this many nodes in a cluster and waits until the agents are ready.
    #[must_use]
    #[track_caller]
    pub fn new(kube: Kube, count: usize) -> Nodes {
        let machine = kube.machine();
        kube.apply(&files(&[
            "deploy/crds/ipamclaims.k8s.cni.cncf.io.yaml",
            "deploy/crds/ipblocks.weft.dev.yaml",
            "deploy/crds/ippools.weft.dev.yaml",
            "deploy/crds/network-attachment-definitions.k8s.cni.cncf.io.yaml",
            "deploy/base/rbac.yaml",
        ]));
        kube.wait_until_served();
        machine.install(&testkit::binary("weft-cni"), &["weft-ipam", "whereabouts"]);
        let configuration = kube.service_account("kube-system", "weft-agent");
        let nodes = Nodes { machine, kube, configuration, count };
        for index in 0..count {
            nodes.create_node(index);
            nodes.start(index);
        }
        for index in 0..count {
            nodes.wait(index);
        }
        nodes
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Creates a node's Node object.
    #[track_caller]
    pub fn create_node(&self, index: usize) {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name(index) } });
        self.kube.apply(&node.to_string());
    }

    /// Starts a node's agent.
    #[track_caller]
    pub fn start(&self, index: usize) {
        let weft = testkit::binary("weft");
        let (node, socket, listen) = (name(index), socket(index), format!("127.0.0.1:{}", port(index)));
        let journal = format!("/var/lib/weft/node-{index}");
        self.machine.run(["mkdir", "-p", &format!("{journal}/sandboxes")]);
        let line = [
            text(&weft),
            "agent",
            "--node-name",
            &node,
            "--kubeconfig",
            &self.configuration,
            "--socket",
            &socket,
            "--journal",
            &journal,
            "--address-stores",
            &address_stores(index),
            "--listen",
            &listen,
        ];
        self.machine.start(&service(index), line);
    }

    /// Waits until a node's agent is ready.
    #[track_caller]
    pub fn wait(&self, index: usize) {
        let ready = || (self.page(index, "/readyz") == "ok\n").then_some(());
        self.machine.wait(&service(index), "is ready", ready);
    }

    /// Stops a node's agent with a signal.
    #[track_caller]
    pub fn stop(&self, index: usize, signal: &str) {
        self.machine.stop(&service(index), signal);
    }

    /// Returns a node's agent log.
    #[must_use]
    pub fn log(&self, index: usize) -> String {
        self.machine.log(&service(index))
    }

    /// Fetches an HTTP page from a node's agent.
    #[must_use]
    pub fn page(&self, index: usize, path: &str) -> String {
        self.machine.attempt(["curl", "-s", &format!("http://127.0.0.1:{}{path}", port(index))]).stdout
    }

    /// Returns a metric from a node's agent; 0 if it is absent.
    #[must_use]
    pub fn metric(&self, index: usize, line: &str) -> u64 {
        let page = self.page(index, "/metrics");
        let found = page.lines().find_map(|found| found.strip_prefix(line));
        found.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// Returns the CNI parameters that a node's runtime would use for a container; only the path of `pod` is used.
    #[must_use]
    pub fn attachment(&self, pod: &Pod, container: &str) -> Attachment<'_> {
        let mut attachment = self.machine.attachment("weft-ipam", pod, "eth0");
        attachment.container_id = container.to_owned();
        attachment.args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME={container};K8S_POD_INFRA_CONTAINER_ID={container};K8S_POD_UID=uid-{container}"
        );
        attachment
    }

    /// Lists all IPBlock objects.
    #[must_use]
    #[track_caller]
    pub fn blocks(&self) -> Vec<Value> {
        self.kube.json(["ipblocks.weft.dev"])["items"].as_array().cloned().unwrap_or_default()
    }

    /// Deletes a block or single address although it is in use, as an operator might: removes the finalizer first.
    #[track_caller]
    pub fn delete_block(&self, block: &str) {
        let patch = r#"{"metadata":{"finalizers":null}}"#;
        self.kube.kubectl(["patch", "ipblocks.weft.dev", block, "--type", "merge", "-p", patch]);
        self.kube.kubectl(["delete", "ipblocks.weft.dev", block]);
    }

    /// Deletes all IPBlock objects, like [`Nodes::delete_block`].
    #[track_caller]
    pub fn delete_all_blocks(&self) {
        for block in self.blocks() {
            self.delete_block(block["metadata"]["name"].as_str().expect("a name"));
        }
    }

    /// Deletes a pool as an operator might: without the finalizer, although it is in use.
    #[track_caller]
    pub fn delete_pool(&self, pool: &str) {
        let patch = r#"{"metadata":{"finalizers":null}}"#;
        self.kube.kubectl(["delete", "ippools.weft.dev", pool, "--wait=false"]);
        // A pool without a finalizer is gone.
        let _ = self.kube.attempt(["patch", "ippools.weft.dev", pool, "--type", "merge", "-p", patch], "");
    }

    /// Lists a node's IPBlock objects.
    #[must_use]
    #[track_caller]
    pub fn blocks_of(&self, index: usize) -> Vec<Value> {
        self.blocks().into_iter().filter(|block| block["spec"]["node"] == name(index)).collect()
    }
}

/// Returns a node's name.
#[must_use]
pub fn name(index: usize) -> String {
    format!("worker-{index}")
}

fn service(index: usize) -> String {
    format!("agent-{index}")
}

fn socket(index: usize) -> String {
    format!("/run/weft-{index}/agent.sock")
}

/// Returns the directory with a node's address stores.
#[must_use]
pub fn address_stores(index: usize) -> String {
    format!("/var/lib/weft/ipam-{index}")
}

fn port(index: usize) -> usize {
    9500 + index
}

/// Returns a network configuration for a node, with these fields in `ipam`.
#[must_use]
pub fn network(index: usize, ipam: &Value) -> Value {
    let mut ipam = ipam.clone();
    ipam["type"] = json!("weft-ipam");
    ipam["dataDir"] = json!(address_stores(index));
    ipam["agentSocket"] = json!(socket(index));
    json!({ "cniVersion": "1.1.0", "name": "net", "type": "macvlan", "ipam": ipam })
}

/// Returns the addresses in a result, without prefix length.
#[must_use]
#[track_caller]
pub fn allocated(finished: Finished) -> Vec<String> {
    let result = finished.success().json();
    let addresses = crate::addresses(&result);
    addresses.iter().map(|address| address.split('/').next().unwrap_or_default().to_owned()).collect()
}

/// Runs `weft` with cluster administrator rights.
#[must_use]
#[track_caller]
pub fn weft(nodes: &Nodes, words: &[&str]) -> Finished {
    let weft = testkit::binary("weft");
    let command = nodes.machine.command(text(&weft)).env("KUBECONFIG", nodes.kube.admin());
    command.args(words.iter().copied()).finish()
}

/// Fails unless `weft ipam check` finds nothing, except addresses that these owners (pod uid, container and interface)
/// have leaked. Most tests create no pod objects, so the single addresses count as leaked.
#[track_caller]
pub fn assert_ipam_consistent(nodes: &Nodes, without_pod: &[&str]) {
    let found = weft(nodes, &["ipam", "-o", "json", "check"]);
    let mut left = found.json().as_array().cloned().expect("a list");
    // Warnings about small windows do not count.
    left.retain(|finding| !["few", "nearly-full", "uneven"].iter().any(|what| finding["what"] == *what));
    let mut owners: Vec<&str> = left
        .iter()
        .filter(|finding| finding["what"] == "leaked")
        .filter_map(|finding| {
            finding["why"].as_str()?.split("for container ").nth(1)?.split(", whose").next()
        })
        .collect();
    let mut expected = without_pod.to_vec();
    owners.sort_unstable();
    expected.sort_unstable();
    assert_eq!((left.len(), owners), (expected.len(), expected), "{left:#?}");
    assert_eq!(found.code, Some(i32::from(!left.is_empty())));
}

/// Creates the whereabouts CRDs, without schemas, and waits until they are served.
#[track_caller]
pub fn define_whereabouts(nodes: &Nodes) {
    for (plural, kind) in [
        ("ippools", "IPPool"),
        ("overlappingrangeipreservations", "OverlappingRangeIPReservation"),
        ("nodeslicepools", "NodeSlicePool"),
    ] {
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.whereabouts.cni.cncf.io") },
            "spec": { "group": "whereabouts.cni.cncf.io", "scope": "Namespaced",
                "names": { "plural": plural, "singular": kind.to_lowercase(), "kind": kind },
                "versions": [{ "name": "v1alpha1", "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }] },
        });
        nodes.kube.apply(&definition.to_string());
    }
    nodes.kube.wait_until_served();
}

/// Starts IPAM controllers with these names and metrics ports, and with the shipped RBAC.
#[track_caller]
pub fn start_controllers(nodes: &Nodes, replicas: &[(&str, u16)]) {
    nodes.kube.apply(&files(&["deploy/ipam/rbac.yaml"]));
    let account = nodes.kube.service_account("kube-system", "weft-controller-ipam");
    let program = testkit::binary("weft");
    let fixed = [text(&program), "controller", "--ipam", "--node-grace", "2", "--ipam-interval", "1"];
    for (name, port) in replicas {
        let listen = format!("127.0.0.1:{port}");
        let own = ["--identity", name, "--kubeconfig", &account, "--listen", &listen];
        nodes.machine.start(name, fixed.into_iter().chain(own));
    }
}

/// Returns how many reconciliations a controller has made.
#[must_use]
pub fn reconciliations(nodes: &Nodes, port: u16) -> u64 {
    let page = nodes.machine.attempt(["curl", "-s", &format!("http://127.0.0.1:{port}/metrics")]).stdout;
    let found = page.lines().find_map(|line| line.strip_prefix("weft_ipam_reconciliations_total "));
    found.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Creates a pool whose blocks have `2^bits` addresses; returns the name.
#[track_caller]
pub fn pool(nodes: &Nodes, range: &str, bits: u8) -> String {
    let name = range.replace([':', '/'], "-");
    let pool = json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPPool", "metadata": { "name": name },
        "spec": { "range": range, "blockBits": bits } });
    nodes.kube.apply(&pool.to_string());
    name
}

/// Returns the last byte of an IPv4 address.
#[must_use]
#[track_caller]
pub fn last_byte(ip: &str) -> u8 {
    ip.rsplit_once('.').and_then(|(_, last)| last.parse().ok()).expect("an IPv4 address")
}
