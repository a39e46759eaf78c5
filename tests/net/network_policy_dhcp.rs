//! Tests of DHCP under a policy that allows nothing: the lease is kept, and no other host is reached by the ports of DHCP.
//!
//! ```text
//!   host: br0 10.1.0.1, dnsmasq ─┬─ net1 of db: may neither receive nor send         outside 192.0.2.2
//!                                └─ net1 of web: no policy                           routed by the host
//! ```
//!
//! Source: RFC 2131 section 4.4.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use rig::Cluster;
use rig::cluster::{MANIFESTS, NAMESPACE};
use rig::dhcp::{LOG, RENEW_EVERY_SECOND, count, create_bridge, given, serve, start_daemon_program, wait};
use rig::traffic::{OUTSIDE, outside};
use serde_json::{Value, json};
use testkit::{Feature, Host, Netns, Pod, host};

use crate::network_policy::weft;

/// Time for a forbidden datagram.
const GRACE: Duration = Duration::from_millis(400);
/// Limit for an allowed one.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns a socket at an address, which the DHCP client may use for a moment.
fn socket(netns: &Netns, at: &str) -> UdpSocket {
    let until = Instant::now() + TIMEOUT;
    loop {
        match netns.within(|| UdpSocket::bind(at)) {
            Err(error) => assert!(Instant::now() < until, "{at}: {error}"),
            Ok(socket) => {
                socket.set_nonblocking(true).expect("not to wait");
                return socket;
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether datagrams between two addresses arrive: waits for one if it is `expected`, else for a moment.
fn arrives(from: (&Netns, &str), to: (&Netns, &str), expected: bool) -> bool {
    let (client, server) = (socket(from.0, from.1), socket(to.0, to.1));
    let until = Instant::now() + if expected { TIMEOUT } else { GRACE };
    while Instant::now() < until {
        // Fails where a rule in the pod drops it.
        let _ = client.send_to(b"tunnel", to.1);
        std::thread::sleep(Duration::from_millis(20));
        let mut word = [0; 16];
        if server.recv(&mut word).is_ok_and(|length| word[..length] == *b"tunnel") {
            return true;
        }
    }
    false
}

/// Attaches a pod to the network; returns it with the address there.
fn attach(host: &Host, cluster: &Cluster<'_>, name: &str) -> (Pod, String) {
    let manifest = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": NAMESPACE,
        "labels": { "app": name }, "annotations": { "k8s.v1.cni.cncf.io/networks": "data" } } });
    host.write(format!("{MANIFESTS}/pod-{name}.json"), manifest.to_string());
    let pod = host.pod(name);
    cluster.attachment(&pod).add(&weft()).success();
    let listed = pod.run(["ip", "-o", "-4", "address", "show", "dev", "net1"]);
    let address = listed.split_whitespace().find_map(|word| word.split_once('/')).expect("an address").0;
    pod.run(["ip", "route", "replace", OUTSIDE[0], "via", "10.1.0.1", "dev", "net1"]);
    (pod, address.to_owned())
}

fn assert_lease_is_kept_and_nothing_else_passes(host: &Host, plugin: &Value) {
    let cluster = Cluster::new(host);
    create_bridge(host, &[]);
    let (outside, _server) = (outside(host), serve(host, 50, &RENEW_EVERY_SECOND));
    let _daemon = start_daemon_program(host, "/opt/cni/bin/dhcp", "-timeout 1s -resendtimeout 8s");
    host.run(["sysctl", "-qw", "net.ipv4.ip_forward=1"]);
    outside.run(["ip", "route", "add", "10.1.0.0/24", "via", "192.0.2.1"]);
    cluster.definition("data", &json!({ "cniVersion": "1.1.0", "name": "data", "plugins": [plugin] }));
    let policy = json!({ "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": "MultiNetworkPolicy",
        "metadata": { "name": "db", "namespace": NAMESPACE, "annotations": { "k8s.v1.cni.cncf.io/policy-for": "data" } },
        "spec": { "podSelector": { "matchLabels": { "app": "db" } }, "policyTypes": ["Ingress", "Egress"],
            "ingress": [], "egress": [] } });
    host.write(format!("{MANIFESTS}/policy-db.json"), policy.to_string());
    for (name, expected) in [("web", true), ("db", false)] {
        let (pod, address) = attach(host, &cluster, name);
        let (client, server) = (format!("{address}:68"), format!("{}:67", OUTSIDE[0]));
        let sent = arrives((&pod, &client), (&outside, &server), expected);
        assert_eq!(sent, expected, "{plugin}: from {name} to a routed host");
        let received = arrives((&outside, &server), (&pod, &client), expected);
        assert_eq!(received, expected, "{plugin}: from a routed host to {name}");
        let acknowledged = || count(host, LOG, &format!("DHCPACK(br0) {address}"));
        let before = acknowledged();
        wait("the lease is renewed twice", || acknowledged() >= before + 2);
        cluster.attachment(&pod).check(&weft()).success();
        cluster.attachment(&pod).del(&weft()).success();
        wait("the lease is released", || given(host).is_empty());
    }
}

#[test]
fn network_policy_dhcp_ports_are_no_tunnel_on_macvlan() {
    let host = host!(Feature::Macvlan, Feature::Bridge, Feature::Dnsmasq, Feature::NftInet);
    let plugin = json!({ "type": "macvlan", "master": "p1", "ipam": { "type": "dhcp" } });
    assert_lease_is_kept_and_nothing_else_passes(&host, &plugin);
}

#[test]
fn network_policy_dhcp_ports_are_no_tunnel_on_bridge_port() {
    let host = host!(Feature::Bridge, Feature::BridgeConntrack, Feature::Dnsmasq, Feature::NftInet);
    let plugin = json!({ "type": "bridge", "bridge": "br0", "ipam": { "type": "dhcp" } });
    assert_lease_is_kept_and_nothing_else_passes(&host, &plugin);
}
