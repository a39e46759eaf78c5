//! Tests of the removal of links and rules, which does not wait for the kernel's grace period.
//!
//! Source: docs/design/journal.md, "Removal of links" and "Removal of rules".

use std::thread::sleep;
use std::time::{Duration, Instant};

use rig::assert_pod_unchanged;
use rig::cluster::bridge;
use rig::traffic::outside;
use serde_json::{Value, json};
use testkit::{Feature, Netns, host};

/// Longest time for the processes of a removal to end.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Beginnings of the abstract socket name that a process of a removal has.
const NAMES: [&str; 2] = ["@weft-remove-links-", "@weft-close-sockets-"];
/// Takes all of these names, as any process of the node can.
const HOLDER: &str = "
import signal, socket
held = []
for command in 'remove-links', 'close-sockets':
    for number in range(4):
        held.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        held[-1].bind('\\0weft-%s-%d' % (command, number))
signal.pause()
";
/// Sends "link INDEX was removed" to every listener in the namespace, without end. The kernel allows it with `NET_ADMIN`.
const FORGER: &str = "
import socket, struct, sys
index = socket.if_nametoindex('net1')
message = struct.pack('=IHHII', 32, 17, 0, 0, 0) + struct.pack('=BBHiII', 0, 0, 1, index, 0, 0)
sender = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
ready.bind('\\0forger')
while True:
    try:
        sender.sendto(message, (0, 1))
    except OSError:
        pass
";

/// Makes `net1` a port of a bridge of the pod and ends that, without end. For each end the kernel announces the removal of a
/// port in the same way as that of a link, except for the address family.
const TOGGLER: &str = "
import socket, struct, time
port, bridge = socket.if_nametoindex('net1'), socket.if_nametoindex('br0')
def set_bridge(index):
    link = struct.pack('=BBHiII', 0, 0, 0, port, 0, 0) + struct.pack('=HHI', 8, 10, index)
    return struct.pack('=IHHII', 16 + len(link), 19, 1, 0, 0) + link
sender = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
messages = set_bridge(bridge) + set_bridge(0)
ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
ready.bind('\\0toggler')
while True:
    sender.sendto(messages, (0, 0))
    time.sleep(0.001)
";

/// Lists the Unix sockets of a network namespace.
fn sockets(world: &Netns) -> String {
    world.command("cat").args(["/proc/net/unix"]).finish().success().stdout
}

/// Number of names of processes of a removal that are in use.
fn names(world: &Netns) -> usize {
    let sockets = sockets(world);
    NAMES.iter().map(|name| sockets.matches(name).count()).sum()
}

/// Bridge whose DEL removes a link and rules.
fn masquerading() -> Value {
    let mut config = bridge("red", 2);
    config["plugins"][0]["ipMasq"] = json!(true);
    config
}

/// Waits until a condition holds.
#[track_caller]
fn wait_for(condition: impl Fn() -> bool) {
    let until = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < until, "not within {TIMEOUT:?}");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn link_removal_ignores_announcements_of_the_pod() {
    let host = host!(Feature::Macvlan);
    rig::install(&host);
    let _outside = outside(&host);
    let config = json!({ "cniVersion": "1.0.0", "name": "m", "type": "macvlan", "master": "up0" });
    let pod = host.pod("forger");
    let attachment = host.attachment("macvlan", &pod, "net1");
    for round in 0..10 {
        attachment.add(&config).success();
        let forger = pod.command("/usr/bin/python3").args(["-c", FORGER]).start();
        wait_for(|| sockets(&pod).contains("@forger"));
        attachment.del(&config).success();
        assert_eq!(rig::link(&pod, "net1"), None, "round {round}");
        drop(forger);
    }
}

#[test]
fn link_removal_ignores_a_port_that_leaves_a_bridge() {
    let host = host!(Feature::Macvlan, Feature::Bridge);
    rig::install(&host);
    let _outside = outside(&host);
    let config = json!({ "cniVersion": "1.0.0", "name": "m", "type": "macvlan", "master": "up0" });
    let pod = host.pod("toggler");
    pod.run(["ip", "link", "add", "br0", "type", "bridge"]);
    let attachment = host.attachment("macvlan", &pod, "net1");
    for round in 0..20 {
        attachment.add(&config).success();
        let toggler = pod.command("/usr/bin/python3").args(["-c", TOGGLER]).start();
        wait_for(|| sockets(&pod).contains("@toggler"));
        attachment.del(&config).success();
        // A request to the kernel would wait for the removal.
        let present = pod.command("cat").args(["/proc/net/dev"]).finish().success().stdout;
        assert!(!present.contains("net1"), "round {round}: {present}");
        drop(toggler);
    }
}

#[test]
fn removal_of_links_and_rules_leaves_no_process() {
    let host = host!(Feature::NftInet);
    rig::install(&host);
    let pod = host.pod("short");
    let inside = pod.snapshot();
    let attachment = host.attachment("bridge", &pod, "net1");
    for _ in 0..8 {
        attachment.add(&masquerading()).success();
        attachment.del(&masquerading()).success();
        assert_pod_unchanged("after DEL", &pod, &inside);
    }
    // Each process of a removal has one of these names.
    wait_for(|| names(&host) == 0);
}

#[test]
fn removal_of_links_and_rules_works_without_further_processes() {
    let host = host!(Feature::NftInet);
    rig::install(&host);
    let pod = host.pod("alone");
    let inside = pod.snapshot();
    let holder = host.command("/usr/bin/python3").args(["-c", HOLDER]).start();
    wait_for(|| names(&host) == 8);
    let attachment = host.attachment("bridge", &pod, "net1");
    attachment.add(&masquerading()).success();
    attachment.del(&masquerading()).success();
    assert_pod_unchanged("after DEL", &pod, &inside);
    drop(holder);
}
