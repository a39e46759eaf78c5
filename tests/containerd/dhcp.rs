//! Tests for a container runtime whose pods get addresses by DHCP: the node changes from the Go plugins to
//! weft, and the pods keep their leases.
//!
//! ```text
//!   containerd ── bridge, dhcp ── dhcp daemon        first the Go plugins, then weft's, with the same names and socket
//!   br0 10.1.0.1, dnsmasq ─┬─ eth0 of each pod
//! ```
//!
//! The daemon takes over the leases from the cache that the runtime's own libcni wrote, in whichever release.
//!
//! Source: containerd `pkg/cri/server/sandbox_run.go`; go-cni; libcni `libcni/api.go`.

use rig::Containerd;
use rig::dhcp::{self, LEASES, LOG};
use rig::machine::until;
use rig::peers::go_plugins;
use serde_json::json;
use testkit::{Feature, host};

/// Creates a bridge with a server whose leases are renewed every second.
fn serve(node: &Containerd) {
    node.run(["sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1"]);
    // A fixed hardware address: otherwise the bridge has that of a pod's port and loses it with the port.
    node.run(["ip", "link", "add", "br0", "address", "02:00:00:00:01:01", "type", "bridge"]);
    node.run(["ip", "address", "add", "10.1.0.1/24", "dev", "br0"]);
    node.run(["ip", "link", "set", "br0", "up"]);
    let words = dhcp::words(50, &dhcp::RENEW_EVERY_SECOND);
    node.start("dnsmasq", std::iter::once("dnsmasq").chain(words.iter().map(String::as_str)));
    until("the server listens", || node.run(["ss", "-lun"]).contains(":67 ").then_some(()));
}

#[track_caller]
fn start_daemon(node: &Containerd, program: &str) {
    node.start("dhcp", [program, "daemon"]);
    until("the daemon listens", || node.run(["ss", "-lx"]).contains("/run/cni/dhcp.sock").then_some(()));
}

#[test]
fn dhcp_takeover_keeps_the_leases_of_pods_on_a_running_node() {
    let host = host!(Feature::Bridge, Feature::GoPlugins, Feature::Dnsmasq);
    let Some(node) = Containerd::new(host) else { return };
    serve(&node);
    node.run(["mkdir", "-p", "/opt/cni/bin", "/run/cni"]);
    for name in ["bridge", "dhcp", "loopback"] {
        node.run(["cp", &go_plugins().join(name).display().to_string(), "/opt/cni/bin/"]);
    }
    start_daemon(&node, "/opt/cni/bin/dhcp");
    node.configure(&json!({ "type": "bridge", "bridge": "br0", "ipam": { "type": "dhcp" } }));
    let pods = ["web", "db"].map(|name| node.cri().run_pod_sandbox(&node.pod(name, &[])).expect("a pod"));
    let addresses_before = pods.each_ref().map(|id| node.sandbox(id).addresses);
    assert!(
        addresses_before.iter().all(|addresses| addresses[0].starts_with("10.1.0.")),
        "{addresses_before:?}"
    );

    let program = testkit::binary("weft-cni").display().to_string();
    node.run([&program, "install", "/opt/cni/bin", "--names", "bridge,dhcp,loopback", "--replace"]);
    node.stop("dhcp", "TERM");
    node.run(["rm", "-f", "/run/cni/dhcp.sock"]);
    let discovers = node.read(LOG).unwrap_or_default().matches("DHCPDISCOVER(").count();
    start_daemon(&node, "/opt/cni/bin/dhcp");
    let log_count = |words: &str| node.read(LOG).unwrap_or_default().matches(words).count();
    for address in addresses_before.iter().flatten() {
        let renewed = format!("DHCPACK(br0) {address} ");
        let so_far = log_count(&renewed);
        until("the lease is renewed", || (log_count(&renewed) > so_far + 3).then_some(()));
    }
    assert_eq!(log_count("DHCPDISCOVER("), discovers, "{}", node.log("dhcp"));
    for (id, addresses) in pods.iter().zip(&addresses_before) {
        assert_eq!(&node.sandbox(id).addresses, addresses);
        node.remove(id);
    }
    let left = || node.read(LEASES).unwrap_or_default().lines().any(|line| line.contains(" 10.1.0."));
    until("the server has received the releases", || (!left()).then_some(()));
}
