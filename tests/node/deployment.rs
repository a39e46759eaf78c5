//! `kubectl apply` for `deploy/` on a real node, and then for `examples/`.
//!
//! ```text
//!   API server ◄── agent (a pod) ◄── weft-cni ◄── containerd ◄── kubelet
//! ```
//!
//! Source: multi-network specification (NPWG), sections 1.1.5, 5, 6.1; `deploy/base`.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rig::Node;
use rig::installation::INSTALLED;
use serde_json::{Value, json};
use testkit::{Feature, host};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// Starts a node with the image of weft and without a network.
macro_rules! node {
    () => {{
        let host = host!(Feature::Bridge, Feature::Veth, Feature::NftMasquerade, Feature::GoPlugins);
        let Some(node) = Node::new(host) else { return };
        node.import_weft();
        node
    }};
}

/// Installs another project's default network: the reference plugins, and a configuration for them.
pub(super) fn bring_default_network(node: &Node) {
    node.run(["mkdir", "-p", "/opt/cni/bin"]);
    for plugin in ["bridge", "host-local", "loopback"] {
        node.run(["ln", "-s", &format!("/usr/lib/cni/{plugin}"), &format!("/opt/cni/bin/{plugin}")]);
    }
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }] });
    let plugin = json!({ "type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": ipam });
    let list = json!({ "cniVersion": "1.0.0", "name": "default", "plugins": [plugin] });
    node.write("/etc/cni/net.d/10-default.conflist", list.to_string());
}

/// Installs a default network and weft.
pub(super) fn install(node: &Node) {
    bring_default_network(node);
    node.apply_weft();
    node.until_weft_is_installed();
}

/// Waits for the network-status of a pod.
#[track_caller]
fn status(node: &Node, namespace: &str, pod: &str) -> Vec<Value> {
    node.until(&format!("network-status of {pod}"), || {
        let pod = node.kube().json(["pod", "-n", namespace, pod]);
        serde_json::from_str(pod["metadata"]["annotations"][STATUS].as_str()?).ok()
    })
}

/// Interface and first address in each network-status entry.
fn shown(status: &[Value]) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    status.iter().map(|entry| (text(&entry["interface"]), text(&entry["ips"][0]))).collect()
}

/// Path of an example.
fn example(name: &str) -> String {
    testkit::workspace().join("examples").join(name).display().to_string()
}

// Requirements: NPWG1-6.1-1, NPWG1-6.1.1-1, NPWG1-6.1.2-1
#[test]
fn installation_waits_for_the_default_network() {
    let node = node!();
    node.apply_weft();
    let phase = |wanted: &str| {
        let pods = node.kube().json(["pods", "-n", "kube-system", "-l", "app.kubernetes.io/name=weft"]);
        let init = &pods["items"][0]["status"]["initContainerStatuses"][0]["state"][wanted];
        init.is_object().then_some(())
    };
    node.until("the installation runs", || phase("running"));
    sleep(Duration::from_secs(2));
    assert_eq!(node.read(INSTALLED), None, "there is no default network");
    phase("running").expect("the installation waits");
    bring_default_network(&node);
    node.until_weft_is_installed();
    // Without its agent and without the API server, attachments can be deleted.
    let definitions = ["apply", "-f", &example("definitions.yaml")];
    node.kube().kubectl(definitions);
    node.until_service_account_exists("my-namespace");
    node.kube().kubectl(["apply", "-f", &example("pods.yaml")]);
    node.until_pods_ready(["-n", "my-namespace", "--all"]);
    node.kube().kubectl(["delete", "daemonset", "weft-agent", "-n", "kube-system"]);
    node.until("the agent has ended", || {
        let pods = node.kube().json(["pods", "-n", "kube-system"]);
        pods["items"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    assert!(node.read(INSTALLED).is_some(), "DEL of the pods needs the configuration");
    node.until_ready(true);
    // A pod without selected networks can be attached.
    let plain = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "plain", "namespace": "my-namespace" },
        "spec": { "containers": [container()], "terminationGracePeriodSeconds": 1 },
    });
    node.kube().apply(&plain.to_string());
    node.until_pods_ready(["-n", "my-namespace", "plain"]);
    node.kube().kubectl([
        "delete",
        "pods",
        "-n",
        "my-namespace",
        "--all",
        "--wait=false",
        "--grace-period=1",
    ]);
    node.until_no_pod_runs();
}

// Requirements: NPWG1-1.1.6-1, NPWG1-2.1-2
#[test]
fn deployment_attaches_the_examples_and_writes_status() {
    let node = node!();
    install(&node);
    node.kube().kubectl(["apply", "-f", &example("definitions.yaml")]);
    node.until_service_account_exists("my-namespace");
    let begun = Instant::now();
    node.kube().kubectl(["apply", "-f", &example("pods.yaml")]);
    node.until_pods_ready(["-n", "my-namespace", "--all"]);
    assert!(begun.elapsed() < Duration::from_secs(60), "it took {:?}", begun.elapsed());
    for (pod, links) in [
        ("my-pod", ["eth0", "net1", "net2", "net3", "net4"].as_slice()),
        ("my-partner", &["eth0", "net1", "blue", "net3"]),
    ] {
        let status = status(&node, "my-namespace", pod);
        let (shown, inside) = (shown(&status), node.addresses("my-namespace", pod));
        assert_eq!(shown.iter().map(|(link, _)| link).collect::<Vec<_>>(), links, "{pod}");
        assert_eq!(shown, inside, "{pod}: the annotation matches its interfaces");
        let object = node.kube().json(["pod", "-n", "my-namespace", pod]);
        assert_eq!(object["status"]["podIP"], shown[0].1.as_str(), "{pod}");
    }
    node.assert_pings("my-namespace", "my-pod", "my-partner");
    let delete = ["delete", "pods", "-n", "my-namespace", "--all", "--wait=false", "--grace-period=1"];
    node.kube().kubectl(delete);
    node.until_no_pod_runs();
    let before = node.snapshot();

    // A pod with a missing network waits, with an Event; it starts once the network is created.
    let waiting = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "waiting", "namespace": "my-namespace", "annotations": { NETWORKS: "net-a,late" } },
        "spec": { "containers": [container()], "terminationGracePeriodSeconds": 1 },
    });
    node.kube().apply(&waiting.to_string());
    node.until("an Event", || {
        let events = node.kube().json(["events", "-n", "my-namespace"]);
        let of = |event: &Value| {
            event["reason"] == "NoNetworkFound" && event["involvedObject"]["name"] == "waiting"
        };
        events["items"].as_array()?.iter().any(of).then_some(())
    });
    let late = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "late", "namespace": "my-namespace" },
        "spec": { "config": json!({ "cniVersion": "1.0.0", "type": "bridge", "bridge": "weft-a" }).to_string() },
    });
    node.kube().apply(&late.to_string());
    node.until_pods_ready(["-n", "my-namespace", "waiting"]);
    node.kube().kubectl(delete);
    rig::until_unchanged(&node, "deleted", &before);
}

/// Shell that ends on SIGTERM.
fn container() -> Value {
    json!({
        "name": "shell", "image": "busybox", "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "trap exit TERM; while :; do sleep 1 & wait; done"],
    })
}

#[test]
fn static_pod_has_networks_and_network_status() {
    let node = node!();
    install(&node);
    node.kube().kubectl(["apply", "-f", &example("definitions.yaml")]);
    node.until_service_account_exists("my-namespace");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "fixed", "namespace": "my-namespace", "annotations": { NETWORKS: "net-a" } },
        "spec": { "containers": [container()], "terminationGracePeriodSeconds": 1 },
    });
    let file = format!("{}/fixed.json", rig::node::STATIC_PODS);
    node.write(&file, pod.to_string());
    let name = format!("fixed-{}", rig::node::NAME);
    node.until_pods_ready(["-n", "my-namespace", &name]);
    let object = node.kube().json(["pod", "-n", "my-namespace", &name]);
    let own = object["metadata"]["annotations"]["kubernetes.io/config.mirror"].as_str().expect("a uid");
    assert_ne!(object["metadata"]["uid"], own, "the mirror pod has another uid");
    let status = status(&node, "my-namespace", &name);
    assert_eq!(shown(&status), node.addresses("my-namespace", &name));
    assert_eq!(status.len(), 2);
    node.run(["rm", &file]);
    node.until_no_pod_runs();
}

/// Runs commands about a node as from another machine: kubectl executes them in the executor.
#[track_caller]
fn commands_run_in_the_pod_of_the_node(node: &Node) {
    let kubectl = node.kube().newer_kubectl();
    let run = |words: &str| {
        let script = format!("export KUBECONFIG=$1 PATH=$2:$PATH; cd /run; $3 {words}");
        let weft = testkit::binary("weft");
        let line = ["-c", &script, "bash", &node.kube().admin(), &kubectl, rig::parts::text(&weft)];
        node.machine().command("bash").args(line).deadline(rig::machine::TIMEOUT).finish()
    };
    let on_node = format!("--node {}", rig::node::NAME);
    let checked = run(&format!("check {on_node} -n my-namespace web -o json")).success().json();
    assert_eq!(checked["unchanged"], true, "{checked}");
    let history = run(&format!("history {on_node} my-namespace/web")).success();
    assert!(history.stdout.contains("my-namespace/web"), "{history}");
    let absent = run(&format!("check {on_node} -n my-namespace absent"));
    assert!(absent.code == Some(1) && absent.stderr.contains("no attachments"), "{absent}");
    let unknown = run("check --node none -n my-namespace web");
    assert!(unknown.stderr.starts_with("weft: weft check must run on node none"), "{unknown}");
    let bundles = run("bundle --nodes").success();
    assert!(bundles.stdout.contains(&format!("-{}.tar", rig::node::NAME)), "{bundles}");
}

#[test]
fn hot_plug_attaches_and_detaches_a_network_on_a_node() {
    let node = node!();
    bring_default_network(&node);
    node.apply_weft_as("hot-plug");
    node.until_weft_is_installed();
    node.kube().kubectl(["apply", "-f", &example("definitions.yaml")]);
    node.until_service_account_exists("my-namespace");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "web", "namespace": "my-namespace" },
        "spec": { "containers": [container()], "terminationGracePeriodSeconds": 1 },
    });
    node.kube().apply(&pod.to_string());
    node.until_pods_ready(["-n", "my-namespace", "web"]);
    let links = || -> Vec<String> {
        node.addresses("my-namespace", "web").into_iter().map(|(link, _)| link).collect()
    };
    assert_eq!(links(), ["eth0"]);
    for (annotation, expected) in
        [(format!("{NETWORKS}=net-a"), ["eth0", "net1"].as_slice()), (format!("{NETWORKS}-"), &["eth0"])]
    {
        node.kube().kubectl(["annotate", "pod", "-n", "my-namespace", "web", "--overwrite", &annotation]);
        node.until("the status has the interfaces", || {
            let status = shown(&status(&node, "my-namespace", "web"));
            (status.iter().map(|(link, _)| link).collect::<Vec<_>>() == expected).then_some(())
        });
        assert_eq!(links(), expected);
    }
    node.kube().kubectl(["annotate", "pod", "-n", "my-namespace", "web", &format!("{NETWORKS}=net-a")]);
    node.until("the network is attached again", || (links().len() == 2).then_some(()));
    commands_run_in_the_pod_of_the_node(&node);
    // Sizes for the calculation in docs/scale.md.
    for (object, path) in [
        ("pod", "/api/v1/namespaces/my-namespace/pods/web"),
        (
            "definition",
            "/apis/k8s.cni.cncf.io/v1/namespaces/my-namespace/network-attachment-definitions/net-a",
        ),
    ] {
        eprintln!("{object}: {} bytes", node.kube().kubectl(["get", "--raw", path]).len());
    }
    node.kube().kubectl(["delete", "pod", "-n", "my-namespace", "web", "--wait=false", "--grace-period=1"]);
    node.until("the pod is deleted", || {
        let entries = node.run(["sh", "-c", "ls /var/lib/weft/sandboxes | grep -c json || true"]);
        (entries.trim() == "0").then_some(())
    });
}

#[test]
fn agent_replaced_while_twenty_pods_start_and_end() {
    const PODS: usize = 20;
    let node = node!();
    install(&node);
    node.kube().kubectl(["apply", "-f", &example("definitions.yaml")]);
    node.until_service_account_exists("my-namespace");
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "many", "namespace": "my-namespace" },
        "spec": {
            "replicas": 1, "selector": { "matchLabels": { "app": "many" } },
            "template": {
                "metadata": { "labels": { "app": "many" }, "annotations": { NETWORKS: "net-a,net-b,other-ns/net-c" } },
                "spec": { "terminationGracePeriodSeconds": 1, "containers": [container()] },
            },
        },
    });
    node.kube().apply(&deployment.to_string());
    let scale = |count: usize| {
        let replicas = format!("--replicas={count}");
        node.kube().kubectl(["scale", "deployment", "many", "-n", "my-namespace", &replicas]);
    };
    let until_ready = |count: usize| {
        node.until("all pods are ready", || {
            let deployment = node.kube().json(["deployment", "-n", "my-namespace", "many"]);
            (deployment["status"]["readyReplicas"] == count).then_some(())
        });
    };
    until_ready(1);
    scale(0);
    node.until_no_pod_runs();
    let before = node.snapshot();

    scale(PODS);
    let agent =
        ["delete", "pod", "-n", "kube-system", "-l", "app.kubernetes.io/component=agent", "--wait=false"];
    node.kube().kubectl(agent);
    until_ready(PODS);
    node.until_agent_is_ready();
    node.until("every pod has its network-status", || {
        let pods = node.kube().json(["pods", "-n", "my-namespace", "-l", "app=many"]);
        let items = pods["items"].as_array()?;
        let read = |pod: &Value| -> Option<Vec<Value>> {
            serde_json::from_str(pod["metadata"]["annotations"][STATUS].as_str()?).ok()
        };
        let running = items.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        let all: Option<Vec<Vec<Value>>> = running.map(read).collect();
        let all = all.filter(|all| all.len() == PODS && all.iter().all(|status| status.len() == 4))?;
        let allocated: BTreeSet<String> =
            all.iter().flat_map(|status| shown(status)).map(|(_, address)| address).collect();
        assert_eq!(allocated.len(), 4 * PODS, "no address is allocated twice");
        Some(())
    });
    scale(0);
    rig::until_unchanged(&node, "scaled down", &before);
}
