//! Tests for `macvlan` and `loopback`, option by option.
//!
//! ```text
//!   outside ── up0 ── up0 host        a, b: macvlan interfaces on up0
//! ```
//!
//! Source: containernetworking/plugins `plugins/main/macvlan`, `plugins/main/loopback` v1.9.1.

use rig::traffic::{OUTSIDE, outside};
use rig::{addresses_on, assert_nothing_left, assert_pod_unchanged, assert_refused, with};
use serde_json::{Value, json};
use testkit::{Feature, Host, Pod, host};

fn config(keys: &Value) -> Value {
    let base = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "macvlan", "master": "up0",
        "ipam": { "type": "host-local", "ranges": [[{ "subnet": "192.0.2.0/24", "rangeStart": "192.0.2.10", "gateway": "192.0.2.2" }]] },
    });
    with(&base, keys)
}

fn world(host: &Host) -> Pod {
    rig::install(host);
    outside(host)
}

#[test]
fn macvlan_mode_is_set_and_decides_reachability() {
    for (mode, siblings) in [("", true), ("bridge", true), ("private", false), ("vepa", false)] {
        let host = host!(Feature::Macvlan, Feature::Ping);
        let _outside = world(&host);
        let (a, b) = (host.pod("a"), host.pod("b"));
        let keys = config(&json!({ "mode": mode }));
        for pod in [&a, &b] {
            host.attachment("macvlan", pod, "eth0").add(&keys).success();
        }
        let shown = rig::link(&a, "eth0").unwrap();
        let expected = if mode.is_empty() { "bridge" } else { mode };
        assert_eq!(shown["linkinfo"]["info_data"]["mode"], expected);
        assert!(a.pings(OUTSIDE[0]), "{mode}: the outside");
        assert_eq!(a.pings("192.0.2.11"), siblings, "{mode}: a sibling");
    }
    let host = host!(Feature::Macvlan);
    let _outside = world(&host);
    let (a, b) = (host.pod("a"), host.pod("b"));
    let keys = config(&json!({ "mode": "passthru" }));
    host.attachment("macvlan", &a, "eth0").add(&keys).success();
    assert_eq!(rig::link(&a, "eth0").unwrap()["linkinfo"]["info_data"]["mode"], "passthru");
    let before = host.snapshot();
    let second = host.attachment("macvlan", &b, "eth0").add(&keys);
    assert_refused("one passthru a parent", &second, 5, &["up0"]);
    assert_nothing_left("a second passthru", &host, &before);
}

#[test]
fn macvlan_mtu_and_mac_are_set_and_bounded() {
    let host = host!(Feature::Macvlan);
    let _outside = world(&host);
    let pod = host.pod("a");
    let mut eth0 = host.attachment("macvlan", &pod, "eth0");
    let cases = [
        (json!({ "mtu": 1400 }), "", 1400, None),
        (json!({ "mac": "02:00:00:00:00:04" }), "", 1500, Some("02:00:00:00:00:04")),
        (
            json!({ "mac": "02:00:00:00:00:04", "runtimeConfig": { "mac": "02:00:00:00:00:01" } }),
            "",
            1500,
            Some("02:00:00:00:00:01"),
        ),
        (json!({ "args": { "cni": { "mac": "02:00:00:00:00:02" } } }), "", 1500, Some("02:00:00:00:00:02")),
        (json!({}), "IgnoreUnknown=1;MAC=02:00:00:00:00:03", 1500, Some("02:00:00:00:00:03")),
    ];
    for (keys, args, mtu, mac) in cases {
        eth0.args = args.to_owned();
        let result = eth0.add(&config(&keys)).success().json();
        let shown = rig::link(&pod, "eth0").unwrap();
        assert_eq!(shown["mtu"], mtu);
        assert_eq!(result["interfaces"][0]["mac"], shown["address"]);
        if let Some(mac) = mac {
            assert_eq!(shown["address"], mac);
        }
        eth0.check(&with(&config(&keys), &json!({ "prevResult": result }))).success();
        eth0.del(&config(&keys)).success();
    }
    eth0.args.clear();
    let before = host.snapshot();
    for (keys, words) in [
        (json!({ "mtu": 1501 }), ["mtu", "1501"]),
        (json!({ "mode": "brdige" }), ["mode", "brdige"]),
        (json!({ "mac": "02:00" }), ["mac", "02:00"]),
        (json!({ "master": "eth/0" }), ["master", "eth/0"]),
        (json!({ "master": "gone0" }), ["master", "gone0"]),
    ] {
        assert_refused("options", &eth0.add(&config(&keys)), 7, &words);
    }
    assert_nothing_left("bad options", &host, &before);
}

#[test]
fn macvlan_without_master_uses_the_default_route_interface() {
    let host = host!(Feature::Macvlan);
    let _outside = world(&host);
    let pod = host.pod("a");
    let eth0 = host.attachment("macvlan", &pod, "eth0");
    let keys = config(&json!({ "master": "" }));
    assert_refused("no default route", &eth0.add(&keys), 7, &["master", "default route"]);
    host.run(["ip", "link", "add", "other0", "type", "veth", "peer", "name", "other1"]);
    host.run(["ip", "address", "add", "198.51.100.1/24", "dev", "other0"]);
    host.run(["ip", "link", "set", "other0", "up"]);
    host.run(["ip", "link", "set", "other1", "up"]);
    host.run(["ip", "route", "add", "default", "via", "198.51.100.2", "metric", "50"]);
    host.run(["ip", "route", "add", "default", "via", OUTSIDE[0], "metric", "10"]);
    let result = eth0.add(&keys).success().json();
    let up0 = host.json(["ip", "-j", "link", "show", "up0"])[0]["ifindex"].clone();
    assert_eq!(
        rig::link(&pod, "eth0").unwrap()["link_index"],
        up0,
        "the route with the lowest metric counts"
    );
    // DEL needs neither the route nor the master.
    host.run(["ip", "route", "flush", "default"]);
    eth0.del(&with(&keys, &json!({ "prevResult": result }))).success();
    assert!(rig::links(&pod).is_empty());
    host.run(["ip", "-6", "route", "add", "default", "via", OUTSIDE[1]]);
    eth0.add(&keys).success();
}

#[test]
fn macvlan_del_after_loss_of_master_frees_the_address() {
    let host = host!(Feature::Macvlan);
    let outside = world(&host);
    let pod = host.pod("a");
    let eth0 = host.attachment("macvlan", &pod, "eth0");
    eth0.add(&config(&json!({}))).success();
    host.run(["ip", "link", "delete", "up0"]);
    assert!(rig::links(&pod).is_empty(), "the kernel removes the child, too");
    eth0.del(&config(&json!({}))).success();
    assert_eq!(host.read("/var/lib/cni/networks/net/192.0.2.10"), None);
    drop(outside);
}

#[test]
fn macvlan_master_in_container_requires_link_in_container() {
    let host = host!(Feature::Macvlan);
    let _outside = world(&host);
    let pod = host.pod("a");
    pod.run(["ip", "link", "add", "in0", "type", "veth", "peer", "name", "in1"]);
    pod.run(["ip", "link", "set", "in0", "up"]);
    let inside = pod.snapshot();
    let net1 = host.attachment("macvlan", &pod, "net1");
    let keys = config(&json!({ "master": "in0", "linkInContainer": true }));
    assert_refused("on the host", &net1.add(&config(&json!({ "master": "in0" }))), 7, &["in0"]);
    let result = net1.add(&keys).success().json();
    let in0 = pod.json(["ip", "-j", "link", "show", "in0"])[0]["ifindex"].clone();
    assert_eq!(pod.json(["ip", "-j", "link", "show", "net1"])[0]["link"], "in0", "{in0}");
    net1.check(&with(&keys, &json!({ "prevResult": result }))).success();
    net1.del(&keys).success();
    assert_pod_unchanged("linkInContainer", &pod, &inside);
}

#[test]
fn macvlan_ifname_may_equal_a_name_on_the_host() {
    let host = host!(Feature::Macvlan, Feature::Ping);
    let outside = world(&host);
    host.run(["ip", "link", "set", "up0", "down"]);
    host.run(["ip", "link", "set", "up0", "name", "eth0"]);
    host.run(["ip", "link", "set", "eth0", "up"]);
    let pod = host.pod("a");
    let eth0 = host.attachment("macvlan", &pod, "eth0");
    let keys = config(&json!({ "master": "eth0" }));
    eth0.add(&keys).success();
    assert!(pod.pings(OUTSIDE[0]) && outside.pings("192.0.2.10"));
    assert_eq!(rig::links(&host), ["eth0"], "no link with a temporary name remains");
    eth0.del(&keys).success();
    assert_eq!(rig::links(&host), ["eth0"], "the host's own eth0 stays");
}

#[test]
fn macvlan_without_ipam_is_up_without_addresses() {
    let host = host!(Feature::Macvlan);
    let _outside = world(&host);
    let pod = host.pod("a");
    let eth0 = host.attachment("macvlan", &pod, "eth0");
    let keys = config(&json!({ "ipam": {}, "bcqueuelen": 2000 }));
    let result = eth0.add(&keys).success().json();
    let shown = rig::link(&pod, "eth0").unwrap();
    assert!(rig::is_up(&shown), "{shown}");
    assert_eq!(shown["linkinfo"]["info_data"]["bcqueuelen"], 2000, "{shown}");
    assert!(result.get("ips").is_none() && addresses_on(&pod, "eth0").is_empty());
    eth0.check(&with(&keys, &json!({ "prevResult": result }))).success();
}

#[test]
fn loopback_is_set_up_under_any_interface_name() {
    let host = host!();
    rig::install(&host);
    let pod = host.pod("a");
    let lo = host.attachment("loopback", &pod, "eth7");
    let config = json!({ "cniVersion": "1.0.0", "name": "lo", "type": "loopback" });
    let up = || rig::is_up(&rig::link(&pod, "lo").unwrap());
    assert_refused("CHECK while down", &lo.check(&with(&config, &json!({ "prevResult": {} }))), 999, &["lo"]);
    let result = lo.add(&config).success().json();
    assert!(up());
    assert_eq!(result["interfaces"][0]["name"], "lo");
    assert_eq!(result["interfaces"][0]["mac"], "00:00:00:00:00:00");
    assert_eq!(rig::addresses(&result), ["127.0.0.1/8", "::1/128"]);
    assert!(result["ips"].as_array().unwrap().iter().all(|ip| ip["interface"] == 0));
    lo.check(&with(&config, &json!({ "prevResult": result }))).success();
    lo.del(&config).success();
    assert!(!up());

    let previous =
        json!({ "cniVersion": "1.0.0", "interfaces": [{ "name": "x" }], "dns": { "domain": "d" } });
    let passed = lo.add(&with(&config, &json!({ "prevResult": previous }))).success().json();
    assert_eq!(passed, previous, "a chain's result passes unchanged");
    pod.run(["ip", "address", "add", "10.1.0.1/32", "dev", "lo"]);
    pod.run(["ip", "link", "set", "lo", "down"]);
    assert_refused("a foreign address", &lo.add(&config), 999, &["10.1.0.1"]);
    assert!(!up(), "a failed ADD changes nothing");
}

// Requirements: G4
#[test]
fn macvlan_dns_of_ipam_is_kept_unless_configured() {
    let host = host!(Feature::Macvlan);
    let _outside = world(&host);
    let pod = host.pod("a");
    host.write("/run/cni/resolv.conf", "nameserver 192.0.2.53\nsearch inside\n");
    let ipam = json!({ "type": "host-local", "resolvConf": "/run/cni/resolv.conf", "ranges": [[{ "subnet": "192.0.2.0/24", "rangeStart": "192.0.2.10" }]] });
    let eth0 = host.attachment("macvlan", &pod, "eth0");
    for (dns, nameserver) in
        [(json!({}), "192.0.2.53"), (json!({ "nameservers": ["192.0.2.54"] }), "192.0.2.54")]
    {
        let keys = config(&json!({ "ipam": ipam, "dns": dns }));
        let result = eth0.add(&keys).success().json();
        assert_eq!(result["dns"]["nameservers"], json!([nameserver]));
        eth0.del(&keys).success();
    }
}
