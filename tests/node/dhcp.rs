//! Leases for the pods on a node, from the lease daemon in `deploy/dhcp`.
//!
//! ```text
//!   kubelet ── containerd ── weft ── bridge, dhcp ──► /run/cni/dhcp.sock ◄── weft-dhcp (DaemonSet)
//!   br0 10.1.0.1, dnsmasq ── net1 of the pod
//! ```
//!
//! The plugin directory has another project's program `dhcp`, which the DaemonSet replaces.

use rig::Node;
use rig::dhcp::{LEASES, LOG, RENEW_EVERY_SECOND, words};
use rig::node::NAME;
use serde_json::json;
use testkit::{Feature, host, workspace};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// Creates a bridge with a server whose leases are renewed every second.
fn serve(node: &Node) {
    node.run(["ip", "link", "add", "br0", "address", "02:00:00:00:01:01", "type", "bridge"]);
    node.run(["ip", "address", "add", "10.1.0.1/24", "dev", "br0"]);
    node.run(["ip", "link", "set", "br0", "up"]);
    let words = words(50, &RENEW_EVERY_SECOND);
    node.machine().start("dnsmasq", std::iter::once("dnsmasq").chain(words.iter().map(String::as_str)));
    node.until("the server listens", || node.run(["ss", "-lun"]).contains(":67 ").then_some(()));
}

/// Writes a default network, beside a plugin `dhcp` of another project.
fn configure(node: &Node) {
    node.run(["mkdir", "-p", "/opt/cni/bin"]);
    for plugin in ["bridge", "host-local", "loopback", "dhcp"] {
        node.run(["cp", &format!("/usr/lib/cni/{plugin}"), "/opt/cni/bin/"]);
    }
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.9.0.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }] });
    let plugin = json!({ "type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": ipam });
    let list = json!({ "cniVersion": "1.0.0", "name": "default", "plugins": [plugin] });
    node.write("/etc/cni/net.d/10-default.conflist", list.to_string());
}

/// Creates the network `lan` and a pod that selects it.
fn create_pod(node: &Node) {
    let config = json!({ "cniVersion": "1.0.0", "name": "lan", "type": "bridge", "bridge": "br0", "ipam": { "type": "dhcp" } });
    let definition = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "lan", "namespace": "default" }, "spec": { "config": config.to_string() },
    });
    node.kube().apply(&definition.to_string());
    let container = json!({
        "name": "shell", "image": "busybox", "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "trap exit TERM; while :; do sleep 1 & wait; done"],
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "web", "namespace": "default", "annotations": { NETWORKS: "lan" } },
        "spec": { "containers": [container], "terminationGracePeriodSeconds": 1 },
    });
    node.kube().apply(&pod.to_string());
    node.until_pods_ready(["-n", "default", "web"]);
}

/// Waits until the DaemonSet's daemon listens; returns the pod name.
#[track_caller]
fn until_daemon_listens(node: &Node, earlier: &str) -> String {
    node.until("the lease daemon listens", || {
        let label = "app.kubernetes.io/component=dhcp";
        let pods = node.kube().json(["pods", "-n", "kube-system", "-l", label]);
        let name = pods["items"][0]["metadata"]["name"].as_str().filter(|name| *name != earlier)?;
        let listens = node.run(["ss", "-lx"]).contains("/run/cni/dhcp.sock");
        (listens && pods["items"][0]["status"]["phase"] == "Running").then(|| name.to_owned())
    })
}

#[test]
fn dhcp_daemonset_keeps_leases_of_pods_over_its_replacement() {
    let host = host!(Feature::Bridge, Feature::Veth, Feature::GoPlugins, Feature::Dnsmasq);
    let Some(node) = Node::new(host) else { return };
    node.import_weft();
    serve(&node);
    configure(&node);
    node.apply_weft();
    node.until_weft_is_installed();
    node.kube().kubectl(["apply", "-k", &workspace().join("deploy/dhcp").display().to_string()]);
    let first = until_daemon_listens(&node, "");
    create_pod(&node);
    let addresses = node.addresses("default", "web");
    assert_eq!(addresses.iter().map(|(link, _)| link.as_str()).collect::<Vec<_>>(), ["eth0", "net1"]);
    let leased = &addresses[1].1;
    assert!(leased.starts_with("10.1.0."), "{addresses:?}");

    let acknowledged =
        || node.read(LOG).unwrap_or_default().matches(&format!("DHCPACK(br0) {leased} ")).count();
    let until_renewed = || {
        let before = acknowledged();
        node.until("the lease is renewed", || (acknowledged() > before + 2).then_some(()));
    };
    until_renewed();
    node.kube().kubectl(["delete", "pod", "-n", "kube-system", &first, "--grace-period=1"]);
    until_daemon_listens(&node, &first);
    until_renewed();
    assert_eq!(node.addresses("default", "web"), addresses, "the address is the same on {NAME}");

    node.kube().kubectl(["delete", "pod", "-n", "default", "web", "--wait=false", "--grace-period=1"]);
    node.until("the server has received the release", || {
        (!node.read(LEASES).unwrap_or_default().contains(leased.as_str())).then_some(())
    });
    node.until_no_pod_runs();
}
