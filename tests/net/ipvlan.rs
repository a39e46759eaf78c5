//! Tests for `ipvlan`, option by option.
//!
//! ```text
//!   outside ── up0 ── up0 host        a, b: ipvlan interfaces on up0
//! ```
//!
//! Source: containernetworking/plugins `plugins/main/ipvlan` v1.9.1.

use rig::traffic::{OUTSIDE, outside};
use rig::{addresses_on, assert_nothing_left, assert_pod_unchanged, assert_refused, with};
use serde_json::{Value, json};
use testkit::{Feature, Host, Pod, host};

fn config(keys: &Value) -> Value {
    let base = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "ipvlan", "master": "up0",
        "ipam": { "type": "host-local", "ranges": [
            [{ "subnet": "192.0.2.0/24", "rangeStart": "192.0.2.10", "gateway": "192.0.2.2" }],
            [{ "subnet": "fd00:2::/64", "rangeStart": "fd00:2::10", "gateway": "fd00:2::2" }],
        ] },
    });
    with(&base, keys)
}

fn world(host: &Host) -> Pod {
    rig::install(host);
    outside(host)
}

fn mode(pod: &Pod, name: &str) -> Value {
    rig::link(pod, name).unwrap()["linkinfo"]["info_data"]["mode"].clone()
}

#[test]
fn ipvlan_l2_siblings_and_outside_are_neighbours() {
    for word in ["", "l2"] {
        let host = host!(Feature::Ipvlan, Feature::Ping);
        let outside = world(&host);
        let (a, b) = (host.pod("a"), host.pod("b"));
        let keys = config(&json!({ "mode": word }));
        let result = host.attachment("ipvlan", &a, "eth0").add(&keys).success().json();
        host.attachment("ipvlan", &b, "eth0").add(&keys).success();
        assert_eq!(mode(&a, "eth0"), "l2");
        assert_eq!(rig::addresses(&result), ["192.0.2.10/24", "fd00:2::10/64"]);
        assert_eq!(addresses_on(&a, "eth0"), ["192.0.2.10/24", "fd00:2::10/64"]);
        let up0 = host.json(["ip", "-j", "link", "show", "up0"])[0]["address"].clone();
        assert_eq!(rig::link(&a, "eth0").unwrap()["address"], up0, "the master's hardware address");
        assert_eq!(result["interfaces"][0]["mac"], up0);
        assert!(a.pings(OUTSIDE[0]) && a.pings(OUTSIDE[1]) && outside.pings("192.0.2.10"));
        assert!(a.pings("192.0.2.11") && b.pings("fd00:2::10"), "a sibling");
    }
}

#[test]
fn ipvlan_l3_traffic_is_routed_by_the_host() {
    for word in ["l3", "l3s"] {
        let host = host!(Feature::Ipvlan, Feature::Ping);
        let outside = world(&host);
        outside.run(["ip", "route", "add", "10.7.0.0/16", "via", rig::traffic::UPLINK[0]]);
        let (a, b) = (host.pod("a"), host.pod("b"));
        for (pod, address) in [(&a, "10.7.1.2/24"), (&b, "10.7.2.2/24")] {
            let ipam = json!({ "type": "static", "addresses": [{ "address": address }], "routes": [{ "dst": "0.0.0.0/0" }] });
            host.attachment("ipvlan", pod, "eth0")
                .add(&config(&json!({ "mode": word, "ipam": ipam })))
                .success();
        }
        assert_eq!(mode(&a, "eth0"), word);
        assert!(a.pings("10.7.2.2"), "{word}: a sibling in another subnet");
        assert!(a.pings(OUTSIDE[0]) && outside.pings("10.7.2.2"), "{word}: the outside");
    }
}

#[test]
fn ipvlan_mtu_is_set_and_options_are_bounded() {
    let host = host!(Feature::Ipvlan);
    let _outside = world(&host);
    let pod = host.pod("a");
    let eth0 = host.attachment("ipvlan", &pod, "eth0");
    for (mtu, expected) in [(0, 1500), (1400, 1400)] {
        let keys = config(&json!({ "mtu": mtu }));
        let result = eth0.add(&keys).success().json();
        assert_eq!(rig::link(&pod, "eth0").unwrap()["mtu"], expected);
        eth0.check(&with(&keys, &json!({ "prevResult": result }))).success();
        eth0.del(&keys).success();
    }
    let (before, inside) = (host.snapshot(), pod.snapshot());
    for (keys, words) in [
        (json!({ "mode": "l4" }), ["mode", "l4"]),
        (json!({ "mode": 3 }), ["mode", "3"]),
        (json!({ "mtu": 1501 }), ["mtu", "1501"]),
        (json!({ "mtu": -1 }), ["mtu", "-1"]),
        (json!({ "master": "a b" }), ["master", "a b"]),
        (json!({ "master": "gone0" }), ["master", "gone0"]),
        (json!({ "linkInContainer": 1 }), ["linkInContainer", "1"]),
        (json!({ "linkInContainer": true }), ["master", "up0"]),
    ] {
        assert_refused(&keys.to_string(), &eth0.add(&config(&keys)), 7, &words);
    }
    assert_nothing_left("bad options", &host, &before);
    assert_pod_unchanged("bad options", &pod, &inside);
}

#[test]
fn ipvlan_master_used_by_macvlan_is_busy() {
    let host = host!(Feature::Ipvlan, Feature::Macvlan);
    let _outside = world(&host);
    host.run(["ip", "link", "add", "m0", "link", "up0", "type", "macvlan"]);
    let pod = host.pod("a");
    let before = host.snapshot();
    let eth0 = host.attachment("ipvlan", &pod, "eth0");
    assert_refused("busy", &eth0.add(&config(&json!({}))), 11, &["up0"]);
    assert_nothing_left("busy", &host, &before);
    host.run(["ip", "link", "delete", "m0"]);
    eth0.add(&config(&json!({}))).success();
}

#[test]
fn ipvlan_without_master_uses_the_default_route_interface() {
    let host = host!(Feature::Ipvlan);
    let _outside = world(&host);
    let pod = host.pod("a");
    let eth0 = host.attachment("ipvlan", &pod, "eth0");
    let keys = config(&json!({ "master": "" }));
    assert_refused("no default route", &eth0.add(&keys), 7, &["master", "default route"]);
    host.run(["ip", "route", "add", "default", "via", OUTSIDE[0]]);
    let result = eth0.add(&keys).success().json();
    let known = with(&keys, &json!({ "prevResult": result }));
    eth0.check(&known).success();
    host.run(["ip", "route", "flush", "default"]);
    eth0.del(&known).success();
    assert!(rig::links(&pod).is_empty());
    assert_eq!(host.read("/var/lib/cni/networks/net/192.0.2.10"), None);
    eth0.del(&keys).success();
}

#[test]
fn ipvlan_chained_uses_master_and_addresses_of_prev_result() {
    let host = host!(Feature::Ipvlan, Feature::Ping);
    let outside = world(&host);
    let pod = host.pod("a");
    let eth0 = host.attachment("ipvlan", &pod, "eth0");
    let previous = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": "up0", "mac": "02:00:00:00:00:01" }],
        "ips": [{ "address": "192.0.2.70/24", "gateway": "192.0.2.2", "interface": 0 }],
        "routes": [{ "dst": "0.0.0.0/0" }],
        "dns": { "domain": "before" },
    });
    let keys = config(&json!({ "master": "", "ipam": {}, "prevResult": previous }));
    let result = eth0.add(&keys).success().json();
    let interfaces = result["interfaces"].as_array().unwrap();
    assert_eq!((interfaces.len(), &interfaces[0]["name"]), (1, &json!("eth0")));
    assert_eq!(
        result["ips"],
        json!([{ "address": "192.0.2.70/24", "gateway": "192.0.2.2", "interface": 0 }])
    );
    assert_eq!(result["dns"]["domain"], "before");
    assert_eq!(addresses_on(&pod, "eth0"), ["192.0.2.70/24"]);
    assert!(rig::routes(&pod, &["route"]).contains(&"default via 192.0.2.2 dev eth0".to_owned()));
    assert!(pod.pings(OUTSIDE[0]) && outside.pings("192.0.2.70"));
    eth0.check(&with(&keys, &json!({ "prevResult": result }))).success();
    eth0.del(&with(&keys, &json!({ "prevResult": result }))).success();
    assert!(rig::links(&pod).is_empty());

    // The plugin's own IPAM and master override the previous result.
    let own = config(&json!({ "prevResult": previous }));
    assert_eq!(rig::addresses(&eth0.add(&own).success().json()), ["192.0.2.10/24", "fd00:2::10/64"]);
    eth0.del(&own).success();
    let before = host.snapshot();
    for interfaces in [json!([]), json!([{ "name": "up0" }, { "name": "lo" }]), json!([{ "name": "" }])] {
        let keys = config(
            &json!({ "master": "", "prevResult": with(&previous, &json!({ "interfaces": interfaces })) }),
        );
        assert_refused(&interfaces.to_string(), &eth0.add(&keys), 7, &["master", "prevResult"]);
    }
    let hostile = with(&previous, &json!({ "interfaces": [{ "name": "../up0" }] }));
    let keys = config(&json!({ "master": "", "prevResult": hostile }));
    assert_refused("a path instead of a name", &eth0.add(&keys), 7, &["prevResult", "../up0"]);
    assert_nothing_left("no master", &host, &before);
}

#[test]
fn ipvlan_master_in_container_requires_link_in_container() {
    let host = host!(Feature::Ipvlan, Feature::Ping);
    let outside = world(&host);
    let pod = host.pod("a");
    host.run(["ip", "link", "set", "up0", "netns", "a", "name", "in0"]);
    // The kernel adds IPv6 routes with a delay.
    pod.run(["sysctl", "-qw", "net.ipv6.conf.in0.disable_ipv6=1"]);
    pod.run(["ip", "link", "set", "in0", "up"]);
    let inside = pod.snapshot();
    let net1 = host.attachment("ipvlan", &pod, "net1");
    let keys = config(&json!({ "master": "in0", "linkInContainer": true }));
    assert_refused("on the host", &net1.add(&config(&json!({ "master": "in0" }))), 7, &["in0"]);
    let result = net1.add(&keys).success().json();
    assert_eq!(pod.json(["ip", "-j", "link", "show", "net1"])[0]["link"], "in0");
    assert!(pod.pings(OUTSIDE[0]) && outside.pings("192.0.2.10"));
    net1.check(&with(&keys, &json!({ "prevResult": result }))).success();
    net1.del(&keys).success();
    assert_pod_unchanged("linkInContainer", &pod, &inside);
}

#[test]
fn ipvlan_check_finds_each_change() {
    let host = host!(Feature::Ipvlan);
    let _outside = world(&host);
    let pod = host.pod("a");
    let eth0 = host.attachment("ipvlan", &pod, "eth0");
    let result = eth0.add(&config(&json!({}))).success().json();
    let check = |keys: Value| eth0.check(&with(&config(&json!({ "prevResult": result })), &keys));
    check(json!({})).success();
    assert_refused("another mode", &check(json!({ "mode": "l3" })), 999, &["mode"]);
    host.run(["ip", "link", "add", "other0", "type", "veth", "peer", "name", "other1"]);
    assert_refused("another master", &check(json!({ "master": "other0" })), 999, &["parent"]);
    pod.run(["ip", "address", "del", "192.0.2.10/24", "dev", "eth0"]);
    assert_refused("a missing address", &check(json!({})), 999, &["192.0.2.10/24"]);
}

#[test]
fn ipvlan_without_ipam_is_up_without_addresses() {
    let host = host!(Feature::Ipvlan);
    let _outside = world(&host);
    let pod = host.pod("a");
    let eth0 = host.attachment("ipvlan", &pod, "eth0");
    let keys = config(&json!({ "ipam": {} }));
    let result = eth0.add(&keys).success().json();
    assert!(rig::is_up(&rig::link(&pod, "eth0").unwrap()));
    assert!(result.get("ips").is_none() && addresses_on(&pod, "eth0").is_empty(), "{result}");
    eth0.check(&with(&keys, &json!({ "prevResult": result }))).success();
}
