//! Tests for `static` alone, as a runtime executes it, and as IPAM for a plugin that creates an interface.
//!
//! ```text
//!   Host ── p0 ──(veth)── p1
//!    └─ Pod a ── net1 (macvlan on p0, if the kernel supports it)
//! ```

use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, Pod, binary, host, require};

fn world() -> (Host, Pod) {
    let host = Host::new();
    host.install(&binary("weft-cni"), &["static", "macvlan"]);
    let pod = host.pod("a");
    (host, pod)
}

fn config(version: &str) -> Value {
    json!({
        "cniVersion": version, "name": "net", "type": "macvlan", "master": "p0",
        "ipam": {
            "type": "static",
            "addresses": [{ "address": "10.1.2.3/24", "gateway": "10.1.2.254" }, { "address": "2001:DB8::3/64" }],
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "2001:db8:9::/48", "gw": "2001:db8::1", "priority": 7 }],
            "dns": { "nameservers": ["192.0.2.1"], "search": ["example.com"] },
        },
    })
}

#[track_caller]
fn refusal(finished: &Finished) -> (u64, String) {
    assert_eq!(finished.code, Some(1), "{finished}");
    let error = finished.json();
    (error["code"].as_u64().expect("a code"), error["msg"].as_str().expect("a message").to_owned())
}

#[test]
fn static_addresses_are_added_checked_and_deleted() {
    require!(Feature::Root);
    let (host, pod) = world();
    let mut attachment = host.attachment("static", &pod, "eth0");
    let before = host.snapshot();
    let conf = config("1.1.0");
    let result = attachment.add(&conf).success().json();
    let expected = json!({
        "cniVersion": "1.1.0",
        "ips": [{ "address": "10.1.2.3/24", "gateway": "10.1.2.254" }, { "address": "2001:db8::3/64" }],
        "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "2001:db8:9::/48", "gw": "2001:db8::1", "priority": 7 }],
        "dns": { "nameservers": ["192.0.2.1"], "search": ["example.com"] },
    });
    assert_eq!(result, expected);

    let checked = |prev: Value| {
        let mut conf = conf.clone();
        conf["prevResult"] = prev;
        attachment.check(&conf)
    };
    checked(result.clone()).success();
    let mut other_gateway = result.clone();
    other_gateway["ips"][0]["gateway"] = json!("10.1.2.1");
    let (code, msg) = refusal(&checked(other_gateway));
    assert_eq!(
        (code, msg.as_str()),
        (999, "prevResult: gateway of address 10.1.2.3/24 is 10.1.2.1, not 10.1.2.254")
    );
    let mut one_less = result;
    one_less["ips"].as_array_mut().unwrap().pop();
    assert!(refusal(&checked(one_less)).1.contains("lacks address 2001:db8::3/64"));
    assert_eq!(refusal(&attachment.check(&conf)).0, 7, "prevResult is missing");

    attachment.del(&conf).success();
    attachment.del(&conf).success();
    attachment.netns.clear();
    attachment.del(&conf).success();
    host.assert_unchanged(&before);
}

#[test]
fn static_check_accepts_one_address_with_two_prefix_lengths() {
    require!(Feature::Root);
    let (host, pod) = world();
    let attachment = host.attachment("static", &pod, "eth0");
    let mut conf = config("1.1.0");
    conf["ipam"]["addresses"] =
        json!([{ "address": "10.1.2.3/32" }, { "address": "10.1.2.3/24", "gateway": "10.1.2.254" }]);
    conf["ipam"]["routes"] = json!([]);
    // `add` also calls CHECK with its result.
    let result = attachment.add(&conf).success().json();
    let mut other_gateway = conf.clone();
    other_gateway["prevResult"] = result;
    other_gateway["prevResult"]["ips"][1]["gateway"] = json!("10.1.2.1");
    assert!(refusal(&attachment.check(&other_gateway)).1.contains("gateway of address 10.1.2.3/24"));
}

#[test]
fn static_result_has_the_form_of_each_cni_version() {
    require!(Feature::Root);
    let (host, pod) = world();
    let attachment = host.attachment("static", &pod, "eth0");
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let mut conf = config(version);
        conf["ipam"]["routes"] = json!([{ "dst": "0.0.0.0/0" }]);
        let result = attachment.add(&conf).success().json();
        assert_eq!(result["cniVersion"], version);
        match version {
            "0.1.0" | "0.2.0" => {
                assert_eq!(
                    result["ip4"],
                    json!({ "ip": "10.1.2.3/24", "gateway": "10.1.2.254", "routes": [{ "dst": "0.0.0.0/0" }] })
                );
                assert_eq!(result["ip6"], json!({ "ip": "2001:db8::3/64" }));
            }
            "0.3.0" | "0.3.1" | "0.4.0" => {
                assert_eq!(
                    result["ips"][0],
                    json!({ "version": "4", "address": "10.1.2.3/24", "gateway": "10.1.2.254" })
                );
                assert_eq!(result["ips"][1], json!({ "version": "6", "address": "2001:db8::3/64" }));
            }
            _ => assert_eq!(result["ips"][1], json!({ "address": "2001:db8::3/64" })),
        }
        assert_eq!(result["dns"]["nameservers"], json!(["192.0.2.1"]), "{version}");
        let probed = attachment.call("STATUS", conf.to_string());
        let swept = attachment.call("GC", conf.to_string());
        let expected = Some(i32::from(version != "1.1.0"));
        assert_eq!((probed.code, swept.code), (expected, expected), "{version}");
        attachment.del(&conf).success();
    }
}

#[test]
fn static_requested_addresses_replace_the_configured_ones() {
    require!(Feature::Root);
    let (host, pod) = world();
    let ips = |args: &str, more: &[(&str, Value)]| {
        let mut attachment = host.attachment("static", &pod, "eth0");
        attachment.args = args.to_owned();
        let mut conf = config("1.0.0");
        conf["ipam"]["routes"] = json!([]);
        for (key, value) in more {
            conf[*key] = value.clone();
        }
        attachment.add(&conf).success().json()["ips"].clone()
    };
    let added = ips("IgnoreUnknown=1;IP=10.9.0.3/16, 10.8.0.3/16;GATEWAY=10.9.0.1,10.1.2.1", &[]);
    assert_eq!(
        added,
        json!([
            { "address": "10.1.2.3/24", "gateway": "10.1.2.1" }, { "address": "2001:db8::3/64" },
            { "address": "10.9.0.3/16", "gateway": "10.9.0.1" }, { "address": "10.8.0.3/16" },
        ])
    );
    let args = ("args", json!({ "cni": { "ips": ["10.7.0.3/16"] } }));
    assert_eq!(ips("IP=10.9.0.3/16", std::slice::from_ref(&args)), json!([{ "address": "10.7.0.3/16" }]));
    let runtime = ("runtimeConfig", json!({ "ips": ["10.1.2.77", "2001:db8::77"] }));
    let bare =
        json!([{ "address": "10.1.2.77/24", "gateway": "10.1.2.254" }, { "address": "2001:db8::77/64" }]);
    assert_eq!(ips("", &[args, runtime]), bare, "with the prefix length of the configured addresses");
}

#[test]
fn static_bad_options_are_refused_by_key_and_value() {
    require!(Feature::Root);
    let (host, pod) = world();
    let attachment = host.attachment("static", &pod, "eth0");
    let before = host.snapshot();
    let with = |path: &str, value: Value| {
        let mut conf = config("1.1.0");
        *conf.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value;
        conf
    };
    let mut beyond = config("1.1.0");
    beyond["runtimeConfig"] = json!({ "ips": ["10.55.0.1"] });
    let cases = [
        (with("/ipam", json!(7)), "ipam: 7"),
        (with("/ipam/addresses", json!("10.1.2.3/24")), "ipam.addresses: \"10.1.2.3/24\""),
        (with("/ipam/addresses/0/address", json!("10.1.2.3")), "ipam.addresses[0].address: \"10.1.2.3\""),
        (
            with("/ipam/addresses/0/address", json!("10.1.2.3/64")),
            "ipam.addresses[0].address: \"10.1.2.3/64\"",
        ),
        (with("/ipam/addresses/1/address", json!("../../x/64")), "ipam.addresses[1].address: \"../../x/64\""),
        (with("/ipam/addresses/0/gateway", json!("2001:db8::1")), "ipam.addresses[0].gateway: 2001:db8::1"),
        (with("/ipam/routes/0/dst", json!("everywhere")), "ipam.routes[0].dst: \"everywhere\""),
        (with("/ipam/routes/1/priority", json!(-1)), "ipam.routes[1].priority: -1"),
        (with("/ipam/dns/search", json!({})), "ipam.dns.search: {}"),
        (beyond, "runtimeConfig.ips[0]: 10.55.0.1: it needs a prefix length"),
    ];
    for (conf, expected) in cases {
        for verb in ["ADD", "STATUS"] {
            let (code, msg) = refusal(&attachment.call(verb, conf.to_string()));
            assert!(code == 7 && msg.contains(expected), "{verb} {conf}: {code} {msg}");
        }
        attachment.del(&conf).success();
    }
    assert_eq!(refusal(&attachment.add(&with("/name", json!("a/b")))).0, 7);
    let mut two = config("0.2.0");
    two["ipam"]["addresses"] = json!([{ "address": "10.1.2.3/24" }, { "address": "10.1.2.4/24" }]);
    assert!(refusal(&attachment.add(&two)).1.starts_with("ipam.addresses: 2 addresses: "));
    host.assert_unchanged(&before);
}

#[test]
fn static_addresses_and_routes_are_set_on_the_interface() {
    let host = host!(Feature::Macvlan);
    host.install(&binary("weft-cni"), &["static", "macvlan"]);
    let pod = host.pod("a");
    host.run(["ip", "link", "add", "p0", "type", "veth", "peer", "p1"]);
    for link in ["p0", "p1"] {
        // The kernel adds IPv6 addresses and routes a moment later, which would change the snapshots.
        host.run(["sysctl", "-qw", &format!("net.ipv6.conf.{link}.disable_ipv6=1")]);
        host.run(["ip", "link", "set", link, "up"]);
    }
    let before = (host.snapshot(), pod.snapshot());
    let attachment = host.attachment("macvlan", &pod, "net1");
    let conf = config("1.1.0");
    let result = attachment.add(&conf).success().json();
    let shown = pod.json(["ip", "-j", "address", "show", "net1"]);
    let has = |ip: &str, length: u64| {
        let list = shown[0]["addr_info"].as_array().unwrap();
        list.iter().any(|address| address["local"] == ip && address["prefixlen"] == length)
    };
    assert!(has("10.1.2.3", 24) && has("2001:db8::3", 64), "{shown}");
    let default = pod.json(["ip", "-j", "route", "show", "default"]);
    assert_eq!((&default[0]["gateway"], &default[0]["dev"]), (&json!("10.1.2.254"), &json!("net1")));
    let route = pod.json(["ip", "-6", "-j", "route", "show", "2001:db8:9::/48"]);
    assert_eq!((&route[0]["gateway"], &route[0]["metric"]), (&json!("2001:db8::1"), &json!(7)));
    let mut checked = conf.clone();
    checked["prevResult"] = result;
    attachment.check(&checked).success();
    attachment.del(&conf).success();
    host.assert_unchanged(&before.0);
    assert_eq!(before.1.changes(&pod.snapshot()), "");
}

#[test]
fn static_hundreds_of_addresses_and_routes_are_set() {
    let host = host!(Feature::Bridge, Feature::Ipv6);
    rig::install(&host);
    let pod = host.pod("a");
    let addresses: Vec<Value> = (0..600)
        .map(|number| json!({ "address": format!("10.{}.{}.5/24", number / 200, number % 200) }))
        .collect();
    let routes: Vec<Value> = (0..600)
        .map(|number| json!({ "dst": format!("10.77.{}.{}/32", number / 200, number % 200) }))
        .collect();
    let ipam = json!({ "type": "static", "addresses": addresses, "routes": routes });
    let config =
        json!({ "cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br0", "ipam": ipam });
    host.attachment("bridge", &pod, "eth0").add(&config).success();
    assert_eq!(rig::addresses_on(&pod, "eth0").len(), 600);
    assert_eq!(pod.run(["ip", "route"]).matches("10.77.").count(), 600);
}
