//! Tests of what passes under every policy: neighbour discovery and multicast reports pass, and nothing that only looks like them.
//!
//! ```text
//!   db 10.9.0.11, fd00:9::11 ── may receive nothing
//!   web …12                  ── may send nothing
//!   other …13, and fd00:77::1 on lo, which the other pods route to it
//! ```
//!
//! Source: RFC 4861 section 7.1, RFC 2710 section 3, RFC 3810 section 5.

use std::mem::MaybeUninit;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rig::Cluster;
use rig::cluster::{MANIFESTS, NAMESPACE};
use rig::traffic::outside;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto, socket_with, sockopt,
};
use serde_json::{Value, json};
use testkit::{Feature, Host, Netns, Pod, host};

use crate::network_policy::{PODS, network, pod_manifest, weft};

/// Content by which a message is recognised.
const WORD: &[u8] = b"warp and weft";
/// Time for a forbidden message.
const GRACE: Duration = Duration::from_millis(400);
/// Limit for an allowed one.
const TIMEOUT: Duration = Duration::from_secs(10);

/// ICMPv6 message: type, code, hop limit, length.
type Kind = (u8, u8, u8, usize);

/// Messages that are none of the protocols, or not for the link.
const FORGED: &[Kind] = &[
    (135, 0, 64, 1200),
    (135, 0, 255, 1200),
    (135, 1, 255, 32),
    (136, 0, 64, 32),
    (136, 0, 254, 32),
    (133, 0, 64, 32),
    (134, 0, 255, 32),
    (134, 0, 64, 1200),
    (130, 0, 64, 32),
    (131, 0, 64, 32),
    (132, 0, 1, 32),
    (143, 0, 64, 1200),
    (143, 0, 1, 1200),
    (137, 0, 255, 40),
    (128, 0, 64, 32),
];

fn raw(netns: &Netns) -> OwnedFd {
    netns
        .within(|| {
            socket_with(AddressFamily::INET6, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::ICMPV6))
        })
        .expect("a raw socket")
}

/// Sends a message; the kernel computes the checksum.
fn send(socket: &OwnedFd, (kind, code, hops, length): Kind, to: Ipv6Addr) {
    sockopt::set_ipv6_unicast_hops(socket, Some(hops)).expect("set the hop limit");
    let mut message = vec![0; length.max(4 + WORD.len())];
    (message[0], message[1]) = (kind, code);
    message[4..4 + WORD.len()].copy_from_slice(WORD);
    // Fails where the kernel drops it.
    let _ = rustix::net::sendto(socket, &message, SendFlags::empty(), &SocketAddrV6::new(to, 0, 0, 0));
}

/// Whether the message arrives at a raw socket: waits for it if it is `expected`, else for a moment.
fn arrives(from: &Netns, server: &Netns, to: &str, kind: Kind, expected: bool) -> bool {
    let (client, listener) = (raw(from), raw(server));
    let to: Ipv6Addr = to.parse().expect("an address");
    let until = Instant::now() + if expected { TIMEOUT } else { GRACE };
    while Instant::now() < until {
        send(&client, kind, to);
        std::thread::sleep(Duration::from_millis(20));
        if heard(&listener, [kind.0, kind.1]) {
            return true;
        }
    }
    false
}

/// Numbers of the extension headers for each hop and for the destination.
const EXTENSIONS: [u8; 2] = [0, 60];

/// Returns a solicitation of a neighbour, valid except for an extension header before it.
fn extended(extension: u8, from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    const ICMP6: u8 = 58;
    let mut message = vec![135, 0, 0, 0];
    message.extend(WORD);
    message.resize(32, 0);
    let mut pseudo: Vec<u8> = [from.octets(), to.octets()].concat();
    pseudo.extend([0, 0, 0, 32, 0, 0, 0, ICMP6]);
    pseudo.extend(&message);
    let mut sum: u32 = pseudo.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let sum = !u16::try_from(sum).expect("16 bits");
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut packet = vec![0x60, 0, 0, 0, 0, 40, extension, 255];
    packet.extend(from.octets());
    packet.extend(to.octets());
    // The option PadN of four bytes fills the header.
    packet.extend([ICMP6, 0, 1, 4, 0, 0, 0, 0]);
    packet.extend(message);
    packet
}

/// Whether a solicitation with an extension header arrives: waits for it if it is `expected`, else for a moment.
fn extended_arrives(from: (&Netns, &str), to: (&Netns, &str), extension: u8, expected: bool) -> bool {
    let kind = Some(ipproto::RAW);
    let client = from
        .0
        .within(|| socket_with(AddressFamily::INET6, SocketType::RAW, SocketFlags::CLOEXEC, kind))
        .expect("a raw socket");
    let listener = raw(to.0);
    let [source, target]: [Ipv6Addr; 2] = [from.1, to.1].map(|text| text.parse().expect("an address"));
    let packet = extended(extension, source, target);
    let until = Instant::now() + if expected { TIMEOUT } else { GRACE };
    while Instant::now() < until {
        let _ =
            rustix::net::sendto(&client, &packet, SendFlags::empty(), &SocketAddrV6::new(target, 0, 0, 0));
        std::thread::sleep(Duration::from_millis(20));
        if heard(&listener, [135, 0]) {
            return true;
        }
    }
    false
}

/// Whether a raw socket has received a message of this type and code.
fn heard(listener: &OwnedFd, kind: [u8; 2]) -> bool {
    let mut buffer = [MaybeUninit::uninit(); 2048];
    while let Ok(((received, _), _)) = rustix::net::recv(listener, &mut buffer[..], RecvFlags::DONTWAIT) {
        if received.starts_with(&kind) && received[4..].starts_with(WORD) {
            return true;
        }
    }
    false
}

fn policy(host: &Host, app: &str, spec: &Value) {
    let mut spec = spec.clone();
    spec["podSelector"] = json!({ "matchLabels": { "app": app } });
    let policy = json!({ "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": "MultiNetworkPolicy",
        "metadata": { "name": app, "namespace": NAMESPACE, "annotations": { "k8s.v1.cni.cncf.io/policy-for": "data" } },
        "spec": spec });
    host.write(format!("{MANIFESTS}/policy-{app}.json"), policy.to_string());
}

/// Adds routes to a network behind the third pod.
fn route_to_other(host: &Host, plugin: &str, db: &Pod, web: &Pod) {
    let routers: &[&Netns] = if plugin == "ptp" { &[host] } else { &[db, web] };
    for netns in routers {
        netns.run(["ip", "route", "add", "fd00:77::/64", "via", "fd00:9::13"]);
    }
    if plugin == "ptp" {
        let gateway = web.run(["ip", "-6", "route", "show", "default"]);
        assert!(gateway.is_empty() || gateway.contains("net1") || gateway.contains("eth0"), "{gateway}");
        let link = web.run(["sh", "-c", "ip -6 route get fd00:9::13 | grep -o 'via [^ ]*' | cut -d' ' -f2"]);
        web.run(["ip", "route", "add", "fd00:77::/64", "via", link.trim(), "dev", "net1"]);
    }
}

/// Asserts that messages pass no policy of a network with one of the plugins.
fn assert_forged_messages_are_dropped(host: &Host, plugin: &str) {
    let cluster = Cluster::new(host);
    host.run(["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]);
    cluster.definition("data", &network(plugin));
    policy(host, "db", &json!({ "policyTypes": ["Ingress"], "ingress": [] }));
    policy(host, "web", &json!({ "policyTypes": ["Egress"], "egress": [] }));
    (0..PODS.len()).for_each(|index| pod_manifest(host, index));
    let pods: Vec<Pod> = PODS.iter().map(|name| host.pod(name)).collect();
    for pod in &pods {
        cluster.attachment(pod).add(&weft()).success();
    }
    let [db, web, other] = [0, 1, 2].map(|index| &pods[index]);
    other.run(["sysctl", "-qw", "net.ipv6.conf.all.forwarding=1"]);
    other.run(["ip", "address", "add", "fd00:77::1/128", "dev", "lo"]);
    route_to_other(host, plugin, db, web);
    for kind in FORGED {
        // Without policies they arrive, from `other` at `web`, unless the host would have to route a last hop.
        let is_routed = plugin != "ptp" || kind.2 > 1;
        assert!(
            !is_routed || arrives(other, web, "fd00:9::12", *kind, true),
            "{plugin}: {kind:?} to a pod without ingress rules"
        );
        assert!(
            !arrives(other, db, "fd00:9::11", *kind, false),
            "{plugin}: {kind:?} reached an isolated pod"
        );
        assert!(!arrives(web, other, "fd00:77::1", *kind, false), "{plugin}: {kind:?} left an isolated pod");
    }
    // A message that is valid on the link must not be routed.
    for kind in [(135, 0, 255, 32), (136, 0, 255, 32), (133, 0, 255, 32)] {
        assert!(!arrives(web, other, "fd00:77::1", kind, false), "{plugin}: {kind:?} left by a route");
    }
    for extension in EXTENSIONS {
        let from = (&**other, "fd00:9::13");
        let case = format!("{plugin}: extension header {extension}");
        if plugin != "ptp" {
            assert!(
                extended_arrives(from, (&**web, "fd00:9::12"), extension, true),
                "{case}, without ingress rules"
            );
        }
        assert!(
            !extended_arrives(from, (&**db, "fd00:9::11"), extension, false),
            "{case}, to an isolated pod"
        );
        let link = ((&**web, "fd00:9::12"), (&**other, "fd00:9::13"));
        assert!(!extended_arrives(link.0, link.1, extension, false), "{case}, from an isolated pod");
    }
    // Neighbour discovery works after the neighbours were forgotten.
    for pod in &pods {
        pod.run(["ip", "-6", "neighbour", "flush", "all"]);
    }
    assert!(db.pings("fd00:9::13"), "{plugin}: db finds other");
    for pod in &pods {
        pod.run(["ip", "-6", "neighbour", "flush", "all"]);
    }
    assert!(other.pings("fd00:9::12"), "{plugin}: other finds web");
    for pod in &pods {
        cluster.attachment(pod).check(&weft()).success();
        cluster.attachment(pod).del(&weft()).success();
    }
}

#[test]
fn network_policy_forged_icmp6_is_dropped_on_bridge() {
    assert_forged_messages_are_dropped(&host!(Feature::Bridge, Feature::NftInet), "bridge");
}

#[test]
fn network_policy_forged_icmp6_is_dropped_on_bridge_port() {
    let host = host!(Feature::Bridge, Feature::BridgeConntrack, Feature::NftInet);
    assert_forged_messages_are_dropped(&host, "bridge");
}

#[test]
fn network_policy_forged_icmp6_is_dropped_on_ptp() {
    assert_forged_messages_are_dropped(&host!(Feature::Veth, Feature::NftInet), "ptp");
}

#[test]
fn network_policy_forged_icmp6_is_dropped_on_macvlan() {
    let host = host!(Feature::Macvlan, Feature::NftInet);
    let _outside = outside(&host);
    assert_forged_messages_are_dropped(&host, "macvlan");
}
