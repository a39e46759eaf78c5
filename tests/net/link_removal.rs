//! Tests for how links and rules are removed: without waiting for the kernel's grace period.
//!
//! Source: docs/design/journal.md, "Removal of links" and "Removal of rules".

use std::thread::sleep;
use std::time::{Duration, Instant};

use rig::cluster::bridge;
use rig::traffic::outside;
use rig::{Cluster, assert_nothing_left, assert_pod_unchanged, with};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, set_child_subreaper, waitpid};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Netns, host};

use crate::network_policy::{network, pod_manifest, policies, weft};

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

/// Makes `net1` a bridge port in the pod and takes it out again, in an endless loop. Each time, the kernel announces
/// that the port is removed in the same way as for a removed link, except for the address family.
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

/// Number of removal process names that are in use.
fn names(world: &Netns) -> usize {
    let sockets = sockets(world);
    NAMES.iter().map(|name| sockets.matches(name).count()).sum()
}

/// Configuration of the plugin `bridge`, whose DEL removes a link and has no rules to remove.
fn plain() -> Value {
    let list = bridge("red", 2);
    with(&list["plugins"][0], &json!({ "cniVersion": list["cniVersion"], "name": list["name"] }))
}

/// The same with masquerading, whose DEL also removes rules.
fn masquerading() -> Value {
    with(&plain(), &json!({ "ipMasq": true }))
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

/// Number of netfilter sockets that processes have in a network namespace.
fn filter_sockets(world: &Netns) -> usize {
    const NETLINK_NETFILTER: &str = "12";
    let sockets = world.command("cat").args(["/proc/net/netlink"]).finish().success().stdout;
    let of_process = |line: &&str| {
        let mut columns = line.split_whitespace().skip(1);
        columns.next() == Some(NETLINK_NETFILTER) && columns.next().is_some_and(|port| port != "0")
    };
    sockets.lines().filter(of_process).count()
}

/// Calls DEL; the child that closes sockets is stopped before the first instruction. Returns the child, if there is
/// one.
#[track_caller]
fn del_and_stop(attachment: &mut Attachment<'_>, config: &Value) -> Option<Pid> {
    let killer = testkit::binary("weft-test-killer").display().to_string();
    attachment.through = vec![killer, "--stop".to_owned(), "close-sockets".to_owned()];
    let deleted = attachment.del(config).success();
    attachment.through.clear();
    let mut stopped = deleted.stderr.lines().filter_map(|line| line.strip_prefix("stopped "));
    let process = stopped.next().map(|process| process.parse().expect("a process id"));
    assert_eq!(stopped.next(), None, "one child is enough");
    process.and_then(Pid::from_raw)
}

/// Waits for the end of a process that this process inherited.
#[track_caller]
fn ended(process: Pid) -> WaitStatus {
    let waited = || waitpid(Some(process), WaitOptions::NOHANG).expect("wait for the child");
    let (_, status) = rig::machine::until("the end of the child", waited);
    status
}

/// A DEL ends before the child that closes the sockets. The child holds nothing but them, so it does not matter when or
/// how it ends.
#[test]
fn removal_of_rules_ends_before_the_child_that_closes_sockets() {
    let host = host!(Feature::Veth, Feature::Macvlan, Feature::NftInet, Feature::NftMasquerade);
    let cluster = Cluster::new(&host);
    let _outside = outside(&host);
    policies(&host);
    pod_manifest(&host, 0);
    // This process inherits the child of a DEL that ended, as the container runtime or its init process does.
    set_child_subreaper(Some(rustix::process::getpid())).expect("inherit processes");
    // The masquerading of a plugin, and policies with rules on the host or in the pod.
    for plugin in ["bridge", "ptp", "macvlan"] {
        let pod = host.pod("db");
        let (mut attachment, config) = match plugin {
            "bridge" => (host.attachment("bridge", &pod, "eth0"), masquerading()),
            _ => (cluster.attachment(&pod), weft()),
        };
        cluster.definition("data", &network(plugin));
        // Creates what all pods share.
        attachment.add(&config).success();
        attachment.del(&config).success();
        wait_for(|| names(&host) == 0);
        let world: &Netns = if plugin == "macvlan" { &pod } else { &host };
        let (before, inside, sockets) = (host.snapshot(), pod.snapshot(), filter_sockets(world));
        for signal in [Signal::CONT, Signal::KILL] {
            attachment.add(&config).success();
            let added = rig::changes(&inside, &pod.snapshot());
            assert!(!added.is_empty(), "{plugin}");
            let child =
                del_and_stop(&mut attachment, &config).unwrap_or_else(|| panic!("{plugin}: no child"));
            let directory = format!("/proc/{}", child.as_raw_nonzero());
            let read =
                |file: &str| std::fs::read_to_string(format!("{directory}/{file}")).expect("a process");
            assert_eq!(read("cmdline"), "weft-cni\0close-sockets\0", "{plugin}");
            wait_for(|| read("status").contains("State:\tT (stopped)"));
            assert!(filter_sockets(world) > sockets, "{plugin}: the child has no socket");
            // The DEL has its whole effect before.
            assert_nothing_left(plugin, &host, &before);
            assert_pod_unchanged(plugin, &pod, &inside);
            kill_process(child, signal).expect("a signal");
            let status = ended(child);
            let expected = if signal == Signal::KILL { (None, Some(9)) } else { (Some(0), None) };
            assert_eq!((status.exit_status(), status.terminating_signal()), expected, "{plugin}");
            assert!(!std::path::Path::new(&directory).exists(), "{plugin}: {directory}");
            wait_for(|| names(&host) == 0);
            assert_eq!(filter_sockets(world), sockets, "{plugin}");
        }
        attachment.add(&config).success();
        attachment.del(&config).success();
        assert_nothing_left(plugin, &host, &before);
        wait_for(|| names(&host) == 0);
        pod.remove();
    }
    set_child_subreaper(None).expect("no longer inherit processes");
}

#[test]
fn removal_without_rules_starts_no_child_that_closes_sockets() {
    let host = host!(Feature::Bridge);
    rig::install(&host);
    let pod = host.pod("plain");
    let mut attachment = host.attachment("bridge", &pod, "eth0");
    attachment.add(&plain()).success();
    assert_eq!(del_and_stop(&mut attachment, &plain()), None);
}
