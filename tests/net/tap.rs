//! Tests for `tap`, option by option; at the other end is a program that answers.
//!
//! ```text
//!   pod a: tap net1 ── a program that has opened it       pod a: tap net1 ── br0 ── in0 ── far
//! ```
//!
//! Source: containernetworking/plugins `plugins/main/tap` v1.9.1.

use rig::{addresses_on, assert_nothing_left, assert_pod_unchanged, assert_refused, with};
use serde_json::{Value, json};
use testkit::{Feature, Host, Pod, host};

fn config(keys: &Value) -> Value {
    let base = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "tap",
        "ipam": { "type": "static", "addresses": [{ "address": "10.3.0.1/24", "gateway": "10.3.0.2" }, { "address": "fd03::1/64", "gateway": "fd03::2" }] },
    });
    with(&base, keys)
}

fn attached(host: &Host, pod: &Pod, keys: &Value) -> (Value, Value) {
    let result = host.attachment("tap", pod, "net1").add(&config(keys)).success().json();
    let shown = rig::link(pod, "net1").expect("net1");
    assert_eq!(shown["linkinfo"]["info_kind"], "tun", "{shown}");
    assert_eq!(result["interfaces"][0]["mac"], shown["address"]);
    (result, shown["linkinfo"]["info_data"].clone())
}

#[test]
fn tap_owner_group_and_queues_are_set() {
    let host = host!(Feature::Tun);
    rig::install(&host);
    let pod = host.pod("a");
    let inside = pod.snapshot();
    let net1 = host.attachment("tap", &pod, "net1");
    for (keys, owner, group, queues) in [
        (json!({}), None, None, false),
        (json!({ "owner": 1000 }), Some(1000), None, false),
        (json!({ "group": 0 }), None, Some(0), false),
        (json!({ "owner": 0, "group": 4_294_967_294_u32 }), Some(0), Some(4_294_967_294_u64), false),
        (json!({ "multiQueue": true }), None, None, true),
        (json!({ "multiQueue": true, "owner": 65534, "group": 65534 }), Some(65534), Some(65534), true),
    ] {
        let (result, data) = attached(&host, &pod, &keys);
        assert_eq!((&data["type"], &data["persist"]), (&json!("tap"), &json!(true)), "{keys}: {data}");
        assert_eq!(data["multi_queue"], queues, "{keys}: {data}");
        assert_eq!((&data["pi"], &data["vnet_hdr"]), (&json!(false), &json!(false)), "{keys}: {data}");
        let number = |id: Option<u64>| id.map_or("-1".to_owned(), |id| id.to_string());
        // `ip` shows names if the machine has them, sysfs always numbers.
        let script = "mount -t sysfs s /sys && cat /sys/class/net/net1/owner /sys/class/net/net1/group";
        let shown = pod.run(["unshare", "-m", "sh", "-c", script]);
        assert_eq!(shown.split_whitespace().collect::<Vec<_>>(), [number(owner), number(group)], "{keys}");
        net1.check(&config(&with(&keys, &json!({ "prevResult": result })))).success();
        net1.del(&config(&keys)).success();
        assert_pod_unchanged(&keys.to_string(), &pod, &inside);
    }
}

#[test]
fn tap_mac_is_set_also_with_an_owner() {
    let host = host!(Feature::Tun);
    rig::install(&host);
    let pod = host.pod("a");
    let mut net1 = host.attachment("tap", &pod, "net1");
    let own = json!({ "mac": "02:00:00:00:00:01" });
    for (keys, args, expected) in [
        (own.clone(), "", "02:00:00:00:00:01"),
        (with(&own, &json!({ "owner": 1000, "group": 1000 })), "", "02:00:00:00:00:01"),
        (own.clone(), "IgnoreUnknown=1;MAC=02:00:00:00:00:02", "02:00:00:00:00:02"),
        (with(&own, &json!({ "args": { "cni": { "mac": "02:00:00:00:00:03" } } })), "", "02:00:00:00:00:03"),
        (
            with(&own, &json!({ "runtimeConfig": { "mac": "02:00:00:00:00:04" } })),
            "IgnoreUnknown=1;MAC=02:00:00:00:00:02",
            "02:00:00:00:00:04",
        ),
    ] {
        net1.args = args.to_owned();
        let result = net1.add(&config(&keys)).success().json();
        assert_eq!(result["interfaces"][0]["mac"], expected, "{keys}");
        assert_eq!(rig::link(&pod, "net1").unwrap()["address"], expected, "{keys}");
        net1.del(&config(&keys)).success();
    }
}

#[test]
fn tap_bad_options_are_refused_and_change_nothing() {
    let host = host!(Feature::Tun);
    rig::install(&host);
    let pod = host.pod("a");
    let (before, inside) = (host.snapshot(), pod.snapshot());
    let net1 = host.attachment("tap", &pod, "net1");
    for (keys, words) in [
        (json!({ "mtu": 65522 }), ["mtu", "65522"]),
        (json!({ "mtu": 67 }), ["mtu", "67"]),
        (json!({ "mac": "01:00:00:00:00:01" }), ["mac", "01:00:00:00:00:01"]),
        (json!({ "mac": "00:00:00:00:00:00" }), ["mac", "00:00:00:00:00:00"]),
        (json!({ "mac": "x" }), ["mac", "x"]),
        (json!({ "owner": -1 }), ["owner", "-1"]),
        (json!({ "owner": "root" }), ["owner", "root"]),
        (json!({ "group": 4_294_967_296_u64 }), ["group", "4294967296"]),
        (json!({ "group": 4_294_967_295_u64 }), ["group", "4294967295"]),
        (json!({ "multiQueue": "yes" }), ["multiQueue", "yes"]),
        (json!({ "bridge": "br0" }), ["bridge", "br0"]),
        (json!({ "bridge": "lo" }), ["bridge", "lo"]),
        (json!({ "bridge": "a/b" }), ["bridge", "a/b"]),
        (json!({ "selinuxContext": "a\nb" }), ["selinuxContext", "a\\nb"]),
    ] {
        assert_refused(&keys.to_string(), &net1.add(&config(&keys)), 7, &words);
    }
    if host.attempt(["test", "-e", "/sys/fs/selinux/enforce"]).code != Some(0) {
        let keys = json!({ "selinuxContext": "system_u:system_r:container_t:s0" });
        assert_refused("no SELinux", &net1.add(&config(&keys)), 2, &["selinuxContext", "container_t"]);
    }
    assert_nothing_left("bad options", &host, &before);
    assert_pod_unchanged("bad options", &pod, &inside);
}

#[test]
fn tap_has_mtu_addresses_and_routes_before_it_is_opened() {
    let host = host!(Feature::Tun);
    rig::install(&host);
    let pod = host.pod("a");
    let net1 = host.attachment("tap", &pod, "net1");
    let ipam =
        with(&config(&json!({}))["ipam"], &json!({ "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }] }));
    let keys = config(&json!({ "mtu": 65521, "ipam": ipam }));
    let added = net1.add(&keys).success();
    assert!(
        added.took < std::time::Duration::from_secs(5),
        "ADD does not wait for a program at the other end: {:?}",
        added.took
    );
    let shown = rig::link(&pod, "net1").unwrap();
    assert!(rig::is_up(&shown) && shown["mtu"] == 65521, "{shown}");
    assert_eq!(shown["ifalias"], format!("weft/tap/net/{}/net1", pod.container_id()));
    assert_eq!(addresses_on(&pod, "net1"), ["10.3.0.1/24", "fd03::1/64"]);
    assert!(rig::routes(&pod, &["route"]).contains(&"default via 10.3.0.2 dev net1".to_owned()));
    net1.check(&with(&keys, &json!({ "prevResult": added.json() }))).success();
    pod.run(["ip", "link", "set", "net1", "mtu", "1400"]);
    let changed = net1.check(&with(&keys, &json!({ "prevResult": added.json() })));
    assert_refused("another mtu", &changed, 999, &["mtu", "1400", "65521"]);
}

#[test]
fn tap_route_without_gateway_leads_to_gateways_behind_it() {
    let host = host!(Feature::Tun);
    rig::install(&host);
    let pod = host.pod("a");
    let ipam = json!({
        "type": "static", "addresses": [{ "address": "10.3.0.1/24" }],
        "routes": [{ "dst": "192.0.2.0/24" }, { "dst": "198.51.100.0/24", "gw": "192.0.2.9" }],
    });
    let keys = json!({ "cniVersion": "1.1.0", "name": "net", "type": "tap", "ipam": ipam });
    host.attachment("tap", &pod, "net1").add(&keys).success();
    let direct = &pod.json(["ip", "-j", "route", "show", "192.0.2.0/24"])[0];
    assert_eq!((&direct["scope"], direct.get("gateway")), (&json!("link"), None), "{direct}");
    let behind = &pod.json(["ip", "-j", "route", "show", "198.51.100.0/24"])[0];
    assert_eq!(behind["gateway"], "192.0.2.9", "{behind}");
}

#[test]
fn tap_becomes_a_port_of_the_containers_bridge() {
    let host = host!(Feature::Tun, Feature::Bridge);
    rig::install(&host);
    let pod = host.pod("a");
    host.run(["ip", "link", "add", "br0", "type", "bridge"]);
    let keys = config(&json!({ "bridge": "br0", "ipam": {} }));
    let net1 = host.attachment("tap", &pod, "net1");
    assert_refused("a bridge of the host", &net1.add(&keys), 7, &["bridge", "br0"]);
    pod.run(["ip", "link", "add", "br0", "type", "bridge"]);
    let result = net1.add(&keys).success().json();
    let shown = rig::link(&pod, "net1").unwrap();
    assert!(shown["master"] == "br0" && rig::is_up(&shown), "{shown}");
    assert!(result.get("ips").is_none(), "{result}");
    let known = with(&keys, &json!({ "prevResult": result }));
    net1.check(&known).success();
    pod.run(["ip", "link", "set", "net1", "nomaster"]);
    assert_refused("no longer a port", &net1.check(&known), 999, &["master"]);
    net1.del(&known).success();
    assert_eq!(rig::links(&pod), ["br0"]);
}

#[test]
fn tap_needs_no_program_and_reports_a_name_in_use() {
    let host = host!(Feature::Tun);
    rig::install(&host);
    let pod = host.pod("a");
    let inside = pod.snapshot();
    let mut net1 = host.attachment("tap", &pod, "net1");
    net1.through = ["env", "PATH=/nowhere"].map(str::to_owned).to_vec();
    let result = net1.add(&config(&json!({ "owner": 1000 }))).success().json();
    assert_eq!(result["interfaces"][0]["name"], "net1", "{result}");
    net1.del(&config(&json!({}))).success();
    assert_pod_unchanged("no program", &pod, &inside);
    pod.run(["ip", "tuntap", "add", "dev", "net1", "mode", "tap"]);
    let inside = pod.snapshot();
    assert_refused("name in use", &net1.add(&config(&json!({}))), 4, &["net1"]);
    assert_pod_unchanged("name in use", &pod, &inside);
}
