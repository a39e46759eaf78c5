//! Tests for `vlan`, option by option.
//!
//! ```text
//!   outside ── up0 ──(VLANs 5, 6)── up0 host        a, b: vlan interfaces on up0
//!         up0.5 198.51.100.2, fd05::2
//! ```
//!
//! Source: containernetworking/plugins `plugins/main/vlan` v1.9.1.

use rig::traffic::outside;
use rig::{addresses_on, assert_nothing_left, assert_pod_unchanged, assert_refused, with};
use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, Pod, host};

fn config(keys: &Value) -> Value {
    let base = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "vlan", "master": "up0", "vlanId": 5,
        "ipam": { "type": "host-local", "ranges": [
            [{ "subnet": "198.51.100.0/24", "rangeStart": "198.51.100.10", "gateway": "198.51.100.2" }],
            [{ "subnet": "fd05::/64", "rangeStart": "fd05::10", "gateway": "fd05::2" }],
        ] },
    });
    with(&base, keys)
}

/// Installs the plugins and an outside with an interface in VLAN 5.
fn world(host: &Host) -> Pod {
    rig::install(host);
    let outside = outside(host);
    let script = "link add link up0 name up0.5 type vlan id 5\nlink set up0.5 addrgenmode none\nlink set up0.5 up\n\
                  address add 198.51.100.2/24 dev up0.5\naddress add fd05::2/64 dev up0.5 nodad\n";
    outside.command("ip").args(["-batch", "-"]).stdin(script).finish().success();
    outside
}

/// Repeats ADD until it succeeds: the kernel frees the VLAN of a deleted container with a delay.
#[track_caller]
fn add_in_time(attempt: impl Fn() -> Finished) -> Value {
    for _ in 0..200 {
        let finished = attempt();
        if finished.code == Some(0) {
            return finished.json();
        }
        assert_refused("the VLAN is in use", &finished, 11, &["vlanId: 5"]);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("the VLAN of a deleted container stays in use");
}

#[test]
fn vlan_frames_carry_the_id_and_reach_only_the_vlan() {
    let host = host!(Feature::Vlan, Feature::Ping);
    let outside = world(&host);
    let (a, b) = (host.pod("a"), host.pod("b"));
    let result = host.attachment("vlan", &a, "eth0").add(&config(&json!({}))).success().json();
    assert_eq!(rig::addresses(&result), ["198.51.100.10/24", "fd05::10/64"]);
    assert_eq!(addresses_on(&a, "eth0"), ["198.51.100.10/24", "fd05::10/64"]);
    let shown = rig::link(&a, "eth0").unwrap();
    assert_eq!(shown["linkinfo"]["info_data"]["id"], 5, "{shown}");
    assert_eq!(shown["linkinfo"]["info_data"]["protocol"], "802.1Q", "{shown}");
    assert!(a.pings("198.51.100.2") && a.pings("fd05::2") && outside.pings("198.51.100.10"));

    host.attachment("vlan", &b, "eth0").add(&config(&json!({ "vlanId": 6 }))).success();
    assert_eq!(addresses_on(&b, "eth0"), ["198.51.100.11/24", "fd05::11/64"]);
    assert!(!b.pings("198.51.100.2"), "another VLAN");
    assert!(!b.pings("198.51.100.10"), "another VLAN of the same host");
}

#[test]
fn vlan_id_is_unique_per_master_and_free_after_del() {
    let host = host!(Feature::Vlan);
    let _outside = world(&host);
    let (a, b) = (host.pod("a"), host.pod("b"));
    let first = host.attachment("vlan", &a, "eth0");
    first.add(&config(&json!({}))).success();
    let (before, inside) = (host.snapshot(), b.snapshot());
    let second = host.attachment("vlan", &b, "eth0");
    assert_refused(
        "in use",
        &second.add(&config(&json!({}))),
        11,
        &["vlanId: 5", "up0", "another container"],
    );
    assert_nothing_left("in use", &host, &before);
    assert_pod_unchanged("in use", &b, &inside);
    first.del(&config(&json!({}))).success();
    second.add(&config(&json!({}))).success();
    second.del(&config(&json!({}))).success();
    first.add(&config(&json!({}))).success();
    a.remove();
    add_in_time(|| second.add(&config(&json!({}))));
}

#[test]
fn vlan_id_and_mtu_are_set_and_bounded() {
    let host = host!(Feature::Vlan);
    let _outside = world(&host);
    let pod = host.pod("a");
    let eth0 = host.attachment("vlan", &pod, "eth0");
    for (id, mtu, expected) in [(0, 0, 1500), (1, 1400, 1400), (4094, 1500, 1500)] {
        let keys = config(&json!({ "vlanId": id, "mtu": mtu }));
        let result = eth0.add(&keys).success().json();
        let shown = rig::link(&pod, "eth0").unwrap();
        assert_eq!((&shown["linkinfo"]["info_data"]["id"], &shown["mtu"]), (&json!(id), &json!(expected)));
        assert_eq!(result["interfaces"][0]["mac"], shown["address"]);
        eth0.check(&with(&keys, &json!({ "prevResult": result }))).success();
        eth0.del(&keys).success();
    }
    let (before, inside) = (host.snapshot(), pod.snapshot());
    for (keys, words) in [
        (json!({ "vlanId": 4095 }), ["vlanId", "4095"]),
        (json!({ "vlanId": -1 }), ["vlanId", "-1"]),
        (json!({ "vlanId": 5_000_000_000_i64 }), ["vlanId", "5000000000"]),
        (json!({ "vlanId": "5" }), ["vlanId", "5"]),
        (json!({ "vlanId": 1.5 }), ["vlanId", "1.5"]),
        (json!({ "mtu": 1501 }), ["mtu", "1501"]),
        (json!({ "mtu": 67 }), ["mtu", "67"]),
        (json!({ "mtu": -1 }), ["mtu", "-1"]),
        (json!({ "master": "" }), ["master", "missing"]),
        (json!({ "master": "a/b" }), ["master", "a/b"]),
        (json!({ "master": "sixteen-letters-" }), ["master", "sixteen-letters-"]),
        (json!({ "master": "gone0" }), ["master", "gone0"]),
        (json!({ "linkInContainer": "yes" }), ["linkInContainer", "yes"]),
        (json!({ "linkInContainer": true }), ["master", "up0"]),
    ] {
        assert_refused(&keys.to_string(), &eth0.add(&config(&keys)), 7, &words);
    }
    assert_nothing_left("bad options", &host, &before);
    assert_pod_unchanged("bad options", &pod, &inside);
}

#[test]
fn vlan_master_in_container_requires_link_in_container() {
    let host = host!(Feature::Vlan, Feature::Ping);
    let outside = world(&host);
    let pod = host.pod("a");
    // The host's end of the veth pair is moved to the pod.
    host.run(["ip", "link", "set", "up0", "netns", "a", "name", "in0"]);
    // The kernel adds IPv6 routes with a delay.
    pod.run(["sysctl", "-qw", "net.ipv6.conf.in0.disable_ipv6=1"]);
    pod.run(["ip", "link", "set", "in0", "up"]);
    let inside = pod.snapshot();
    let net1 = host.attachment("vlan", &pod, "net1");
    let keys = config(&json!({ "master": "in0", "linkInContainer": true }));
    assert_refused("on the host", &net1.add(&config(&json!({ "master": "in0" }))), 7, &["in0"]);
    let result = net1.add(&keys).success().json();
    assert_eq!(pod.json(["ip", "-j", "link", "show", "net1"])[0]["link"], "in0");
    assert!(pod.pings("198.51.100.2") && outside.pings("198.51.100.10"));
    net1.check(&with(&keys, &json!({ "prevResult": result }))).success();
    net1.del(&keys).success();
    assert_pod_unchanged("linkInContainer", &pod, &inside);
}

#[test]
fn vlan_del_needs_no_master() {
    let host = host!(Feature::Vlan);
    let outside = world(&host);
    let pod = host.pod("a");
    let eth0 = host.attachment("vlan", &pod, "eth0");
    eth0.add(&config(&json!({ "mtu": 1500 }))).success();
    host.run(["ip", "link", "set", "up0", "mtu", "1400"]);
    eth0.del(&config(&json!({ "mtu": 1500 }))).success();
    assert!(rig::links(&pod).is_empty());
    eth0.add(&config(&json!({}))).success();
    host.run(["ip", "link", "delete", "up0"]);
    assert!(rig::links(&pod).is_empty(), "the kernel removes the child, too");
    eth0.del(&config(&json!({}))).success();
    assert_eq!(host.read("/var/lib/cni/networks/net/198.51.100.10"), None);
    drop(outside);
}

#[test]
fn vlan_check_finds_each_change() {
    let host = host!(Feature::Vlan);
    let _outside = world(&host);
    let pod = host.pod("a");
    let eth0 = host.attachment("vlan", &pod, "eth0");
    let keys = config(&json!({ "mtu": 1400 }));
    let result = eth0.add(&keys).success().json();
    let check =
        |keys: Value| eth0.check(&with(&config(&json!({ "mtu": 1400, "prevResult": result })), &keys));
    check(json!({})).success();
    assert_refused("another id", &check(json!({ "vlanId": 6 })), 999, &["vlan id", "5", "6"]);
    assert_refused("another mtu", &check(json!({ "mtu": 1300 })), 999, &["mtu", "1400", "1300"]);
    host.run(["ip", "link", "add", "other0", "type", "veth", "peer", "name", "other1"]);
    assert_refused("another master", &check(json!({ "master": "other0" })), 999, &["parent"]);
    pod.run(["ip", "address", "del", "198.51.100.10/24", "dev", "eth0"]);
    assert_refused("a missing address", &check(json!({})), 999, &["198.51.100.10/24"]);
    pod.run(["ip", "link", "delete", "eth0"]);
    pod.run(["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"]);
    assert_ne!(check(json!({})).code, Some(0), "another kind of link");
}

#[test]
fn vlan_without_ipam_is_up_without_addresses() {
    let host = host!(Feature::Vlan);
    let _outside = world(&host);
    let pod = host.pod("a");
    let eth0 = host.attachment("vlan", &pod, "eth0");
    let keys = config(&json!({ "ipam": {}, "dns": { "nameservers": ["198.51.100.53"] } }));
    let result = eth0.add(&keys).success().json();
    assert!(rig::is_up(&rig::link(&pod, "eth0").unwrap()));
    assert!(result.get("ips").is_none() && addresses_on(&pod, "eth0").is_empty(), "{result}");
    assert_eq!(result["dns"]["nameservers"], json!(["198.51.100.53"]));
    eth0.check(&with(&keys, &json!({ "prevResult": result }))).success();
    eth0.call("STATUS", keys.to_string()).success();
}

// Requirements: G4
#[test]
fn vlan_dns_of_ipam_is_kept_unless_configured() {
    let host = host!(Feature::Vlan);
    let _outside = world(&host);
    let pod = host.pod("a");
    let eth0 = host.attachment("vlan", &pod, "eth0");
    let ipam = json!({ "type": "static", "addresses": [{ "address": "198.51.100.77/24" }], "dns": { "domain": "of.ipam" } });
    let keys = config(&json!({ "ipam": ipam }));
    assert_eq!(eth0.add(&keys).success().json()["dns"]["domain"], "of.ipam");
    eth0.del(&keys).success();
    let keys = with(&keys, &json!({ "dns": { "domain": "own" } }));
    assert_eq!(eth0.add(&keys).success().json()["dns"]["domain"], "own");
}
