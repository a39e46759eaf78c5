//! Tests that tracked connections are removed, with `conntrack -L`.
//!
//! ```text
//!   Pod a ── eth0 10.1.0.5, fd00::5 ──┐ veth
//!                                     └ a0 10.1.0.1, fd00::1  Host, which tracks connections
//! ```

#![cfg(test)]

use std::net::UdpSocket;

use linux::Netns;
use linux::conntrack::{Conntrack, Flow};
use linux::nft::Protocol;
use testkit::{Feature, Host, Pod, host};

/// Returns a host that tracks connections, and a pod that can reach it at once, because duplicate address detection is
/// off.
fn tracking(host: &Host) -> Pod {
    let pod = host.pod("a");
    host.run(["nft", "add table inet t; add chain inet t c { type filter hook input priority 0; }; add rule inet t c ct state new"]);
    host.run(["ip", "link", "add", "a0", "type", "veth", "peer", "eth0", "netns", "a"]);
    for (netns, link, address, address6) in
        [(&**host, "a0", "10.1.0.1/24", "fd00::1/64"), (&*pod, "eth0", "10.1.0.5/24", "fd00::5/64")]
    {
        netns.run(["ip", "address", "add", address, "dev", link]);
        netns.run(["ip", "-6", "address", "add", address6, "dev", link, "nodad"]);
        netns.run(["ip", "link", "set", link, "up"]);
    }
    assert!(pod.pings("10.1.0.1") && pod.pings("fd00::1"), "the veth pair works");
    pod
}

fn conntrack(host: &Host) -> Conntrack {
    Netns::open(&host.handle()).expect("open the host's namespace").conntrack().expect("open a socket")
}

/// Sends one datagram. No process receives it, but the flow exists.
fn send(pod: &Pod, from: &str, to: &str) {
    let socket = pod.within(|| UdpSocket::bind(from)).expect("bind");
    socket.send_to(b"weft", to).expect("send");
}

/// Counts the UDP flows to this port.
fn flows(host: &Host, port: u16) -> usize {
    let family = |family| {
        host.run(["conntrack", "-L", "-f", family, "-p", "udp", "--orig-port-dst", &port.to_string()])
    };
    family("ipv4").lines().count() + family("ipv6").lines().count()
}

#[test]
fn conntrack_removes_flows_to_a_port_in_both_families() {
    let host = host!(Feature::Conntrack, Feature::NftInet, Feature::Ping);
    assert!(conntrack(&host).is_empty().expect("count"), "a new namespace tracks nothing");
    let pod = tracking(&host);
    for port in [53, 54, 55] {
        send(&pod, "10.1.0.5:0", &format!("10.1.0.1:{port}"));
        send(&pod, "10.1.0.5:0", &format!("10.1.0.1:{port}"));
        send(&pod, "[fd00::5]:0", &format!("[fd00::1]:{port}"));
    }
    assert_eq!([53, 54, 55].map(|port| flows(&host, port)), [3, 3, 3]);
    assert!(!conntrack(&host).is_empty().expect("count"));
    let mut conntrack = conntrack(&host);
    assert_eq!(conntrack.forget_ports(Protocol::Tcp, &[53]).expect("forget"), 0, "those are UDP");
    assert_eq!(conntrack.forget_ports(Protocol::Udp, &[]).expect("forget"), 0);
    assert_eq!(conntrack.forget_ports(Protocol::Udp, &[53]).expect("forget"), 3);
    assert_eq!([53, 54, 55].map(|port| flows(&host, port)), [0, 3, 3]);
    assert_eq!(conntrack.forget_ports(Protocol::Udp, &[54, 55, 53]).expect("forget"), 6);
    assert_eq!([53, 54, 55].map(|port| flows(&host, port)), [0, 0, 0]);
    assert_eq!(
        conntrack.forget_ports(Protocol::Udp, &[53]).expect("forget"),
        0,
        "a repeated removal is no error"
    );
}

#[test]
fn conntrack_removes_flows_of_an_address_on_any_side() {
    let host = host!(Feature::Conntrack, Feature::NftInet, Feature::Ping);
    let pod = tracking(&host);
    pod.run(["ip", "address", "add", "10.1.0.6/24", "dev", "eth0"]);
    send(&pod, "10.1.0.5:0", "10.1.0.1:53");
    send(&pod, "10.1.0.6:0", "10.1.0.1:53");
    send(&pod, "[fd00::5]:0", "[fd00::1]:53");
    let mut conntrack = conntrack(&host);
    let before = flows(&host, 53);
    conntrack.forget_address("10.1.0.5".parse().expect("an address")).expect("forget");
    assert_eq!((before, flows(&host, 53)), (3, 2));
    conntrack.forget_address("fd00::1".parse().expect("an address")).expect("forget");
    assert_eq!(flows(&host, 53), 1);
    let left = host.run(["conntrack", "-L", "-f", "ipv4"]);
    assert!(left.contains("src=10.1.0.6") && !left.contains("10.1.0.5"), "{left}");
    conntrack.forget_address("10.1.0.9".parse().expect("an address")).expect("an address without flows");
    assert_eq!(flows(&host, 53), 1);
    conntrack.forget_address("10.1.0.1".parse().expect("an address")).expect("forget");
    assert_eq!(flows(&host, 53), 0, "the destination of a flow");
}

#[test]
fn conntrack_removes_meant_flows_from_or_to_an_address() {
    let host = host!(Feature::Conntrack, Feature::NftInet, Feature::Ping);
    let pod = tracking(&host);
    pod.run(["ip", "address", "add", "10.1.0.6/24", "dev", "eth0"]);
    let port = |port: u16| move |flow: &Flow| flow.original.destination_port == port;
    let send_all = || {
        for to in [53, 54] {
            send(&pod, "10.1.0.5:7000", &format!("10.1.0.1:{to}"));
            send(&pod, "10.1.0.6:7000", &format!("10.1.0.1:{to}"));
            send(&pod, "[fd00::5]:7000", &format!("[fd00::1]:{to}"));
        }
    };
    send_all();
    let mut conntrack = conntrack(&host);
    let mut forget = |address: &str, to| {
        conntrack.forget_flows(address.parse().expect("an address"), port(to)).expect("forget")
    };
    assert_eq!((forget("10.1.0.5", 53), flows(&host, 53), flows(&host, 54)), (1, 2, 3), "from it");
    assert_eq!((forget("10.1.0.1", 54), flows(&host, 53), flows(&host, 54)), (2, 2, 1), "to it");
    assert_eq!((forget("fd00::5", 53), flows(&host, 53)), (1, 1), "from it, IPv6");
    assert_eq!((forget("fd00::1", 54), flows(&host, 54)), (1, 0), "to it, IPv6");
    assert_eq!((forget("10.1.0.9", 53), flows(&host, 53)), (0, 1), "another address");
}

#[test]
fn conntrack_removes_a_thousand_flows_at_once() {
    let host = host!(Feature::Conntrack, Feature::NftInet, Feature::Ping);
    let pod = tracking(&host);
    let socket = pod.within(|| UdpSocket::bind("10.1.0.5:0")).expect("bind");
    let ports: Vec<u16> = (20_000..21_000).collect();
    for port in &ports {
        // The "port unreachable" error is reported to the next send on the socket.
        let _ = socket
            .send_to(b"weft", ("10.1.0.1", *port))
            .or_else(|_| socket.send_to(b"weft", ("10.1.0.1", *port)));
    }
    let started = std::time::Instant::now();
    assert_eq!(conntrack(&host).forget_ports(Protocol::Udp, &ports).expect("forget"), 1000);
    eprintln!("1,000 flows: {:?}", started.elapsed());
    assert_eq!(flows(&host, 20_500), 0);
}
