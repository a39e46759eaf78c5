//! Tests for what a process in a pod, with `NET_ADMIN`, can make weft do by changing interfaces.
//!
//! ```text
//!   far ── far0 ── dev0 host ──ADD──► net1 in pod web ── changed by the pod ──DEL──► dev0, as before
//! ```
//!
//! The device is a veth, which the kernel deletes with the namespace. Tests with hardware are in lane `vm`.
//!
//! Source: docs/security.md, "Marks on kernel objects".

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::crash_recovery_tasks::Walk;
use rig::cluster::{bridge, configuration};
use rig::{Cluster, assert_nothing_left, link, links, with};
use serde_json::{Value, json};
use testkit::{Feature, Host, Netns, Pod, Snapshot, host};

/// Longest time that the kernel may take.
const KERNEL_TIMEOUT: Duration = Duration::from_secs(5);
/// Link group that weft used for the removal of links before the group was a random number.
const GROUP: &str = "2003134068";
const MAC: &str = "02:00:00:00:0d:00";
/// Forms of an alias that weft or the Go plugin sets.
const ALIASES: [&str; 4] = ["eth0", "weft/a/b/c/d", "weft/host-device/dev/c1/net1 docker0 up x", ""];

/// Configuration of `host-device` alone.
pub(crate) fn device() -> Value {
    json!({ "cniVersion": "1.1.0", "name": "dev", "type": "host-device", "device": "dev0" })
}

/// Creates the device, with special settings, and a namespace for the peer.
pub(crate) fn world(host: &Host) -> (Cluster<'_>, Pod) {
    let cluster = Cluster::new(host);
    let far = host.pod("far");
    host.run(["sysctl", "-qw", "net.ipv6.conf.default.addr_gen_mode=1"]);
    let script = format!(
        "link add dev0 address {MAC} mtu 1450 txqueuelen 77 type veth peer name far0 netns far\n\
         link set dev0 alias uplink group 5\nlink property add dev dev0 altname enp7s0\n\
         link set dev0 promisc on up\n"
    );
    host.command("ip").args(["-batch", "-"]).stdin(script).finish().success();
    cluster.definition("dev", &device());
    cluster.definition("red", &bridge("red", 2));
    (cluster, far)
}

/// Changes every setting of `net1` that a process in the pod can change, except name and alias.
#[track_caller]
fn spoil(pod: &Netns) {
    let script = format!(
        "link set net1 down\nlink set net1 address 02:00:00:00:66:66\nlink set net1 mtu 1300 txqueuelen 3\n\
         link set net1 promisc off\nlink set net1 allmulticast on\nlink set net1 arp off multicast off\n\
         link set net1 group {GROUP}\nlink property del dev net1 altname enp7s0\n\
         link property add dev net1 altname eth0 altname dev0\n"
    );
    pod.command("ip").args(["-batch", "-"]).stdin(script).finish().success();
}

/// Moves `net1` to the host, as the kernel does with hardware when a container ends.
#[track_caller]
pub(crate) fn abandon(host: &Host, pod: Pod, name: &str) {
    host.run(["sh", "-c", &format!("ip -n {} link set {name} netns $$", pod.name())]);
    pod.remove();
}

/// Waits until the host is as before: the kernel changes operational states later.
#[track_caller]
pub(crate) fn assert_returned(case: &str, host: &Host, before: &Snapshot) {
    let until = Instant::now() + KERNEL_TIMEOUT;
    while !rig::changes(before, &host.snapshot()).is_empty() && Instant::now() < until {
        sleep(Duration::from_millis(20));
    }
    assert_nothing_left(case, host, before);
}

/// Settings of the device that a pod can change.
#[track_caller]
fn settings(host: &Host) -> Value {
    let shown = link(host, "dev0").expect("the device is on the host");
    let keys =
        ["address", "mtu", "txqlen", "group", "ifalias", "altnames", "promiscuity", "allmulti", "flags"];
    keys.into_iter().map(|key| (key.to_owned(), shown[key].clone())).collect()
}

#[test]
fn hostile_pod_settings_of_the_device_do_not_return() {
    let host = host!(Feature::Veth);
    let (_cluster, _far) = world(&host);
    let pod = host.pod("web");
    let net1 = host.attachment("host-device", &pod, "net1");
    let (before, was) = (host.snapshot(), settings(&host));
    for alias in ALIASES {
        net1.add(&device()).success();
        spoil(&pod);
        pod.run(["ip", "link", "set", "net1", "alias", alias, "name", "own"]);
        net1.del(&device()).success();
        assert_eq!(settings(&host), was, "{alias:?}");
        assert_returned(alias, &host, &before);
    }
}

#[test]
fn hostile_pod_settings_of_a_device_the_kernel_returned() {
    let host = host!(Feature::Veth);
    let (_cluster, _far) = world(&host);
    let (before, was) = (host.snapshot(), settings(&host));
    for (alias, name) in [("eth0", "net1"), ("weft/a/b/c/d", "own"), ("uplink", "dev0")] {
        for verb in ["DEL", "GC", "ADD"] {
            let pod = host.pod("web");
            let net1 = host.attachment("host-device", &pod, "net1");
            net1.add(&device()).success();
            spoil(&pod);
            pod.run(["ip", "link", "property", "del", "dev", "net1", "altname", "dev0"]);
            pod.run(["ip", "link", "set", "net1", "alias", alias, "name", name]);
            abandon(&host, pod, name);
            match verb {
                "DEL" => drop(net1.del(&device()).success()),
                "GC" => drop(rig::gc(&net1, &device(), Some(&[])).success()),
                _ => {
                    let other = host.pod("other");
                    let net1 = host.attachment("host-device", &other, "net1");
                    net1.add(&device()).success();
                    net1.del(&device()).success();
                    other.remove();
                }
            }
            assert_eq!(settings(&host), was, "{alias:?} {name} {verb}");
            assert_returned(&format!("{alias:?} {name} {verb}"), &host, &before);
        }
    }
}

#[test]
fn hostile_pod_link_group_does_not_delete_the_device() {
    let host = host!(Feature::Veth, Feature::Bridge);
    let (cluster, _far) = world(&host);
    cluster.pod("web", "dev,red,red");
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let config = configuration(&bridge("default", 1));
    weft.add(&config).success();
    weft.del(&config).success();
    let (before, was) = (host.snapshot(), settings(&host));
    for of in [&["net1"][..], &["lo"], &["net1", "lo", "eth0"]] {
        weft.add(&config).success();
        for name in of {
            pod.run(["ip", "link", "set", name, "group", GROUP]);
        }
        weft.del(&config).success();
        assert_eq!(settings(&host), was, "{of:?}");
        assert!(links(&pod).is_empty(), "{of:?}");
        assert_returned(&format!("{of:?}"), &host, &before);
    }
}

#[test]
fn hostile_pod_link_group_on_the_host_deletes_nothing() {
    let host = host!(Feature::Veth, Feature::Bridge, Feature::Ifb);
    let (cluster, _far) = world(&host);
    let mut limited = bridge("default", 1);
    let limits = json!({ "type": "bandwidth", "ingressRate": 1_000_000, "ingressBurst": 1_000_000 });
    let mut both = limits;
    both["egressRate"] = 1_000_000.into();
    both["egressBurst"] = 1_000_000.into();
    limited["plugins"].as_array_mut().expect("plugins").push(both);
    let config = configuration(&limited);
    cluster.pod("web", "");
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    // Interfaces as a container left them on the host before weft reset them.
    for name in ["dev0", "lo"] {
        host.run(["ip", "link", "set", name, "group", GROUP]);
    }
    weft.add(&config).success();
    weft.del(&config).success();
    assert!(link(&host, "dev0").is_some(), "the device of the node is not deleted");
}

/// A link of the pod with a peer in a third namespace, in place of the device.
#[test]
fn hostile_pod_link_never_moves_to_the_host() {
    let host = host!(Feature::Veth);
    let (_cluster, _far) = world(&host);
    let (pod, other) = (host.pod("web"), host.pod("other"));
    let net1 = host.attachment("host-device", &pod, "net1");
    let make = |name: &str, index: &str, alias: &str| {
        let script = format!(
            "link add {name} {index} address {MAC} type veth peer name wB netns other\nlink set {name} alias \"{alias}\"\n"
        );
        pod.command("ip").args(["-batch", "-"]).stdin(script).finish().success();
    };
    for (name, alias) in [
        ("w0", "weft/host-device/hd/c1/net1 docker0 up x"),
        ("net1", "docker0"),
        ("net1", "dev1"),
        ("net1", "weft/a/b/c/d"),
    ] {
        // A configuration whose device is no longer on the host, as after an ADD of another program.
        let mut config = device();
        config["device"] = "dev1".into();
        make(name, "", alias);
        let before = host.snapshot();
        net1.del(&config).success();
        assert_returned(alias, &host, &before);
        assert_eq!(links(&pod), [name], "{alias}: it stays in the pod");
        pod.run(["ip", "link", "delete", name]);
    }
    // In place of a device with a record, with everything that a pod can give it.
    net1.add(&device()).success();
    let index = link(&pod, "net1").unwrap()["ifindex"].to_string();
    pod.run(["ip", "link", "set", "net1", "down"]);
    pod.run(["ip", "link", "set", "net1", "netns", "other"]);
    make("net1", &format!("index {index}"), "dev0");
    net1.del(&device()).success();
    assert_eq!((links(&host), links(&pod)), (vec![], vec!["net1".to_owned()]), "it stays in the pod");
    drop(other);
}

/// Layer-2 network whose interface is in the pod only.
fn flat() -> Value {
    let range = json!({ "type": "host-local", "subnet": "10.7.0.0/24" });
    json!({ "cniVersion": "1.1.0", "name": "net-a", "type": "macvlan", "master": "up0", "ipam": range })
}

/// Reservations of `net-a`.
fn reservations(host: &Host) -> String {
    host.run(["sh", "-c", "ls /var/lib/cni/networks/net-a | grep '^10' || true"]).trim().to_owned()
}

#[test]
fn hostile_pod_hot_plug_removes_the_renamed_interface() {
    let host = host!(Feature::Bridge, Feature::Macvlan);
    host.run(["ip", "link", "add", "up0", "type", "veth", "peer", "name", "up1"]);
    let pod = host.pod("web");
    let walk = Walk::new(&host, &pod);
    walk.cluster.definition("net-a", &flat());
    for script in
        ["link set a0 name own", "link set a0 alias weft/a/b/c/d", "link set a0 alias weft/a/b/c/d name own"]
    {
        walk.attach();
        assert_ne!(reservations(&host), "");
        pod.run(["sh", "-c", &format!("ip link set a0 down && ip {script}")]);
        walk.run_through(&[], &walk.change("net-b@b0"));
        assert_eq!(
            (links(&pod), reservations(&host).as_str()),
            (vec!["b0".into(), "eth0".into()], ""),
            "{script}"
        );
        walk.attachment.del(&walk.config).success();
    }
}

#[test]
fn hostile_pod_hot_plug_keeps_addresses_of_moved_interfaces() {
    let host = host!(Feature::Bridge, Feature::Macvlan);
    host.run(["ip", "link", "add", "up0", "type", "veth", "peer", "name", "up1"]);
    let (pod, other) = (host.pod("web"), host.pod("other"));
    let walk = Walk::new(&host, &pod);
    walk.cluster.definition("net-a", &flat());
    walk.attach();
    let held = reservations(&host);
    pod.run(["ip", "link", "set", "a0", "netns", "other"]);
    for replaced in [false, true] {
        if replaced {
            pod.run(["ip", "link", "add", "a0", "type", "veth", "peer", "name", "a1"]);
        }
        walk.run_through(&[], &walk.change("net-b@b0"));
        assert_eq!(reservations(&host), held, "replaced: {replaced}");
        let entry = walk.cluster.entry(&pod).expect("an entry");
        let failures = entry["attachments"].as_array().expect("attachments").iter();
        let failures: Vec<&Value> = failures.filter_map(|one| one.get("failure")).collect();
        assert!(failures.len() == 1 && failures[0]["msg"].as_str().unwrap().contains("a0"), "{entry}");
        assert_eq!(links(&pod).contains(&"a0".to_owned()), replaced, "another interface stays");
    }
    assert!(link(&other, "a0").is_some());
    walk.attachment.del(&walk.config).success();
    assert_eq!(reservations(&host), "", "the sandbox's DEL releases the address");
}

#[test]
fn hostile_pod_device_named_as_another_network_is_not_deleted() {
    let host = host!(Feature::Bridge, Feature::Macvlan);
    host.run(["ip", "link", "add", "up0", "type", "veth", "peer", "name", "up1"]);
    host.run(["ip", "link", "add", "dev0", "type", "veth", "peer", "name", "dev1"]);
    let pod = host.pod("web");
    rig::install(&host);
    let (net1, net2) =
        (host.attachment("host-device", &pod, "net1"), host.attachment("macvlan", &pod, "net2"));
    let macvlan = with(&flat(), &json!({ "name": "net-a" }));
    net1.add(&device()).success();
    net2.add(&macvlan).success();
    pod.run(["ip", "link", "delete", "net2"]);
    pod.run(["sh", "-c", "ip link set net1 down && ip link set net1 name net2"]);
    net2.del(&macvlan).success();
    assert!(link(&pod, "net2").is_some(), "the device of the node is not deleted");
    net1.del(&device()).success();
    assert!(link(&host, "dev0").is_some());
}

/// A later namespace at the same path has the inode number of the deleted one.
#[test]
fn hostile_pod_netns_with_reused_inode_is_not_entered() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    cluster.definition("red", &bridge("red", 2));
    cluster.pod("web", "red");
    let config = configuration(&bridge("default", 1));
    for _ in 0..3 {
        let pod = host.pod("web");
        let mut weft = cluster.attachment(&pod);
        weft.add(&config).success();
        let inode = || host.run(["stat", "-Lc", "%i", "/run/netns/web"]);
        let was = inode();
        pod.remove();
        // The kernel deletes a namespace with a delay.
        let until = Instant::now() + KERNEL_TIMEOUT;
        host.run(["ip", "netns", "add", "web"]);
        while inode() != was && Instant::now() < until {
            host.run(["sh", "-c", "ip netns delete web && ip netns add web"]);
        }
        let inside = |words: &str| host.run(["nsenter", "--net=/run/netns/web", "sh", "-c", words]);
        for name in ["eth0", "net1"] {
            inside(&format!("ip link add {name} type veth peer name of-{name}"));
        }
        weft.netns.clear();
        weft.del(&config).success();
        for name in ["eth0", "net1"] {
            inside(&format!("ip link show {name}"));
        }
        host.run(["ip", "netns", "delete", "web"]);
    }
}
