//! Complete node with `weft` as the network, as an administrator sees it with `kubectl`.
//!
//! ```text
//!   kubectl ── API server ── kubelet ── containerd ── weft ── default, net-a, net-b, net-c
//! ```
//!
//! Source: multi-network specification (NPWG), sections 1.1.5, 6.1 (the node is ready with the default network); `examples/`.

use std::collections::BTreeSet;

use rig::cluster::{MANIFESTS, bridge, configuration};
use rig::{Cluster, Node, links};
use serde_json::{Value, json};
use testkit::{Feature, host, workspace};

/// Starts a node that is not ready yet, with the CRDs of `weft crds`.
macro_rules! node {
    () => {{
        let host = host!(Feature::Bridge, Feature::Veth, Feature::NftMasquerade);
        let Some(node) = Node::new(host) else { return };
        let weft = testkit::binary("weft");
        node.kube().apply(&node.machine().run([weft.to_str().expect("a path"), "crds"]));
        node.kube().wait_until_served();
        node
    }};
}

fn example(name: &str) -> String {
    std::fs::read_to_string(workspace().join("examples").join(name)).expect("an example")
}

// Requirements: NPWG1-6-1
#[test]
fn node_becomes_ready_and_runs_the_examples() {
    let node = node!();
    rig::install(&node);
    for file in ["definitions.yaml", "pods.yaml"] {
        node.write(format!("{MANIFESTS}/{file}"), example(file));
    }
    let (ready, message) = node.condition("Ready").expect("a node");
    assert!(!ready && message.contains("cni plugin not initialized"), "{message}");
    node.kube().apply(&example("definitions.yaml"));
    node.until_service_account_exists("my-namespace");
    node.kube().apply(&example("pods.yaml"));
    let waiting = node.kube().json(["pods", "-n", "my-namespace"]);
    let phases = waiting["items"].as_array().into_iter().flatten().map(|pod| &pod["status"]["phase"]);
    assert!(phases.into_iter().all(|phase| phase == "Pending"), "{waiting}");

    node.containerd().configure(&configuration(&bridge("default", 1)));
    node.until_ready(true);
    node.until_pods_ready(["-n", "my-namespace", "--all"]);
    let addresses = node.addresses("my-namespace", "my-pod");
    let names: Vec<&str> = addresses.iter().map(|(link, _)| link.as_str()).collect();
    assert_eq!(names, ["eth0", "net1", "net2", "net3", "net4"]);
    let pod = node.kube().json(["pod", "-n", "my-namespace", "my-pod"]);
    assert_eq!(pod["status"]["podIP"], addresses[0].1.as_str());
    let partner = node.addresses("my-namespace", "my-partner");
    assert!(partner.contains(&("blue".to_owned(), "10.101.2.44".to_owned())), "{partner:?}");
    assert_eq!(partner.len(), 4, "{partner:?}");
    node.assert_pings("my-namespace", "my-pod", "my-partner");

    // The pods are deleted and created again under the same names. Before, a kubelet may keep the objects for a while.
    let delete = ["delete", "pods", "-n", "my-namespace", "--all", "--wait=false"];
    node.kube().kubectl(delete.into_iter().chain(["--grace-period=1"]));
    node.until_no_pod_runs();
    let before = node.snapshot();
    node.kube().kubectl(delete.into_iter().chain(["--grace-period=0", "--force"]));
    node.kube().apply(&example("pods.yaml"));
    node.until_pods_ready(["-n", "my-namespace", "--all"]);
    assert_eq!(node.addresses("my-namespace", "my-pod").len(), 5);
    node.kube().kubectl(delete.into_iter().chain(["--grace-period=1"]));
    rig::until_unchanged(&node, "deleted", &before);

    node.unconfigure();
    node.until_ready(false);
}

/// `count` pods with predictable names, which a directory of manifests needs.
fn replicas(count: usize) -> Value {
    let annotations = json!({ "k8s.v1.cni.cncf.io/networks": "red,wire" });
    let container = json!({
        "name": "shell", "image": "busybox", "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "trap exit TERM; while :; do sleep 1 & wait; done"],
    });
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "many", "namespace": "blue" },
        "spec": {
            "replicas": count, "podManagementPolicy": "Parallel", "serviceName": "many",
            "selector": { "matchLabels": { "app": "many" } },
            "template": {
                "metadata": { "labels": { "app": "many" }, "annotations": annotations },
                "spec": { "terminationGracePeriodSeconds": 1, "containers": [container] },
            },
        },
    })
}

/// Defines the default network and two more, for pods of these names.
fn define_networks(node: &Node, pods: usize) {
    let cluster = Cluster::new(node);
    cluster.definition("red", &bridge("red", 2));
    let range = json!({ "type": "host-local", "subnet": "10.4.0.0/24" });
    cluster.definition("wire", &json!({ "cniVersion": "1.0.0", "type": "ptp", "ipam": range }));
    (0..pods).for_each(|number| cluster.pod(&format!("many-{number}"), "red,wire"));
    node.containerd().configure(&configuration(&bridge("default", 1)));
    node.until_ready(true);
    node.kube().kubectl(["create", "namespace", "blue"]);
}

#[track_caller]
fn until_all_are_ready(node: &Node, pods: usize) {
    node.until("all pods are ready", || {
        let set = node.kube().json(["statefulset", "-n", "blue", "many"]);
        (set["status"]["readyReplicas"] == pods).then_some(())
    });
}

/// Names of files in a directory on the node that begin or end with `part`.
fn names_in(directory: &str, part: &str, node: &Node) -> Vec<String> {
    let names = node.attempt(["ls", directory]).stdout;
    let wanted = names.lines().filter(|name| name.starts_with(part) || name.ends_with(part));
    wanted.map(str::to_owned).collect()
}

#[test]
fn pods_survive_restart_of_kubelet_and_runtime() {
    const PODS: usize = 12;
    let node = node!();
    define_networks(&node, PODS);
    let scale = |count: usize| node.kube().apply(&replicas(count).to_string());
    scale(1);
    node.until("one pod is ready", || {
        let pod = ["wait", "--for=condition=Ready", "--timeout=1s", "pod", "-n", "blue", "many-0"];
        node.kube().attempt(pod, "").code.filter(|code| *code == 0)
    });
    scale(0);
    node.until_no_pod_runs();
    let before = node.snapshot();

    scale(PODS);
    until_all_are_ready(&node, PODS);
    let pods = node.kube().json(["pods", "-n", "blue"]);
    let items = pods["items"].as_array().expect("pods");
    let allocated: BTreeSet<&str> = items.iter().filter_map(|pod| pod["status"]["podIP"].as_str()).collect();
    assert_eq!(allocated.len(), PODS, "{allocated:?}");
    assert_eq!(links(&node).iter().filter(|link| link.contains("veth")).count(), 3 * PODS);

    let addresses = node.addresses("blue", "many-0");
    node.containerd().restart("KILL");
    node.restart_kubelet();
    let answers = || node.exec("blue", "many-0", ["true"]).code.filter(|code| *code == 0);
    node.until("a program runs in a pod", answers);
    assert_eq!(node.addresses("blue", "many-0"), addresses, "addresses are unchanged");
    scale(0);
    rig::until_unchanged(&node, "scaled down", &before);
}

#[test]
fn reboot_attaches_every_pod_again_and_releases_addresses() {
    const PODS: usize = 8;
    let node = node!();
    define_networks(&node, PODS);
    node.kube().apply(&replicas(PODS).to_string());
    until_all_are_ready(&node, PODS);
    let journal = || names_in("/var/lib/weft/sandboxes", ".json", &node);
    let before = journal();
    assert_eq!(before.len(), PODS);

    node.reboot();
    let recreated = || {
        let sandboxes = journal();
        let all_new = sandboxes.iter().all(|name| !before.contains(name));
        (all_new && sandboxes.len() == PODS).then_some(())
    };
    node.until("every pod has a new sandbox, and the old entries are removed", recreated);
    // The API may still show the state before.
    for number in 0..PODS {
        let pod = format!("many-{number}");
        let answers = || node.exec("blue", &pod, ["true"]).code.filter(|code| *code == 0);
        node.until(&format!("a program runs in {pod}"), answers);
    }
    for network in ["default", "red", "wire"] {
        let held = names_in(&format!("/var/lib/cni/networks/{network}"), "10.", &node);
        assert_eq!(held.len(), PODS, "{network}: {held:?}");
    }
    assert_eq!(node.addresses("blue", "many-0").len(), 3);
    node.assert_pings("blue", "many-0", "many-1");
}
