//! Tests for pods whose network namespace contains as many objects as a process with `NET_ADMIN` may create
//! there: CHECK, hot-unplug, GC and DEL work for the attachments beside them.
//!
//! ```text
//!   dev0 (host-device) ─┐
//!   br1 ── eth0 ────────┼─ pod web: 100,000 routes, 20,000 addresses, 5,000 rules, 1,500 links, or 64 KiB of names
//!   br2 ── a0 (sbr) ────┘   or 2,000 macvlans on the device
//! ```
//!
//! Source: docs/security.md, "Actors".

use rig::cluster::bridge;
use rig::{link, links};
use serde_json::{Value, json};
use testkit::{Feature, Netns, host};

use crate::crash_recovery_tasks::Walk;

/// Selection with the device and a network that `sbr` routes.
const NETWORKS: &str = "dev@d0,net-a@a0";

/// Network `net-a` with `sbr`, whose DEL reads the rules and addresses of the pod.
fn routed() -> Value {
    let mut list = bridge("net-a", 2);
    list["plugins"].as_array_mut().expect("plugins").push(json!({ "type": "sbr" }));
    list
}

/// Creates objects in the pod; `script` prints lines of `ip -batch`.
#[track_caller]
fn burden(pod: &Netns, script: &str) {
    let batch = format!("python3 -c '{script}' | ip -batch -");
    pod.command("sh").args(["-ec", &batch]).deadline(rig::machine::TIMEOUT).finish().success();
}

/// Runs every verb beside the objects of `script`, which a process in the pod creates.
#[track_caller]
fn assert_endured(script: &str) {
    let host = host!(Feature::Bridge, Feature::Macvlan);
    host.run(["ip", "link", "add", "dev0", "type", "veth", "peer", "name", "far0"]);
    let pod = host.pod("web");
    let walk = Walk::new(&host, &pod);
    let Walk { cluster, attachment: weft, config, .. } = &walk;
    cluster.definition("net-a", &routed());
    let device = json!({ "cniVersion": "1.1.0", "name": "dev", "type": "host-device", "device": "dev0" });
    cluster.definition("dev", &device);
    let attach = || {
        cluster.pod("web", NETWORKS);
        weft.add(config).success();
    };
    let remaining = || {
        let of_weft = |name: &String| ["eth0", "d0", "a0", "b0"].contains(&name.as_str());
        links(&pod).into_iter().filter(of_weft).collect::<Vec<_>>()
    };
    attach();
    burden(&pod, script);
    weft.check(config).success();
    walk.run_through(&[], &walk.change("net-b@b0"));
    assert_eq!(remaining(), ["b0", "eth0"], "hot-unplug");
    assert!(link(&host, "dev0").is_some(), "the device returned");
    rig::gc(weft, config, Some(&[])).success();
    assert!(remaining().is_empty() && cluster.entry(&pod).is_none(), "GC");
    attach();
    weft.del(config).success();
    assert!(remaining().is_empty() && cluster.entry(&pod).is_none(), "DEL");
    assert!(link(&host, "dev0").is_some(), "the device returned");
}

#[test]
fn large_pod_with_100000_routes_is_torn_down() {
    assert_endured(
        "print(\"link add big0 type veth peer name big1\\nlink set big0 up\")\n\
         for i in range(100000): print(f\"route add 100.{64 + (i >> 16)}.{i >> 8 & 255}.{i & 255} dev big0\")",
    );
}

#[test]
fn large_pod_with_20000_addresses_is_torn_down() {
    assert_endured("for i in range(20000): print(f\"address add 100.64.{i >> 8}.{i & 255}/32 dev lo\")");
}

/// Rules as `sbr` creates them, for absent addresses.
#[test]
fn large_pod_with_5000_rules_is_torn_down() {
    assert_endured(
        "for i in range(5000): print(f\"rule add from 100.64.{i >> 8}.{i & 255} lookup 100 protocol 119\")",
    );
}

#[test]
fn large_pod_with_1500_links_is_torn_down() {
    assert_endured("for i in range(750): print(f\"link add big{i} type veth peer name peer{i}\")");
}

/// They stay on the device when it returns, so weft removes them.
#[test]
fn large_pod_with_2000_links_on_its_device_is_torn_down() {
    assert_endured("for i in range(2000): print(f\"link add big{i} link d0 type macvlan mode private\")");
}

/// The kernel accepts at most 64 KiB of names for a link.
#[test]
fn large_pod_with_64_kib_of_names_a_link_is_torn_down() {
    assert_endured(
        "for dev in [\"eth0\", \"d0\", \"a0\", \"lo\"]:\n\
         \x20for i in range(495): print(f\"link property add dev {dev} altname {dev}{i:0>120}\")",
    );
}
