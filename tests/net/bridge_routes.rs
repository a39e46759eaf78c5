//! Tests for routes that `bridge` adds in the pod, with all options.
//!
//! Source: containernetworking/plugins `plugins/main/bridge` v1.9.1; CNI 1.1.0, "Add Success".

use rig::{assert_refused, routes, with};
use serde_json::json;
use testkit::{Feature, host};

use crate::bridge::{add, config, dual_stack};

// Requirements: S35
#[test]
fn bridge_routes_have_metric_table_scope_mtu_and_advmss() {
    let host = host!(Feature::Bridge);
    rig::install(&host);
    let pod = host.pod("a");
    let ipam_routes = json!([
        { "dst": "10.7.0.0/16", "gw": "10.1.0.9", "priority": 50, "mtu": 1300, "advmss": 1200 },
        { "dst": "10.8.0.0/16", "table": 77 },
        { "dst": "10.9.0.0/16", "scope": 253 },
        { "dst": "10.10.0.0/16", "table": 0 },
        { "dst": "fd08::/64", "gw": "fd01::9", "table": 0 },
        { "dst": "fd07::/64", "gw": "fd01::9", "priority": 51 },
    ]);
    let keys = config(&json!({ "isGateway": true, "ipam": dual_stack(&ipam_routes) }));
    let result = add(&host, &pod, &keys);
    let seven = &pod.json(["ip", "-j", "route", "show", "10.7.0.0/16"])[0];
    assert_eq!((&seven["gateway"], &seven["metric"]), (&json!("10.1.0.9"), &json!(50)));
    let metrics = &seven["metrics"][0];
    assert_eq!((&metrics["mtu"], &metrics["advmss"]), (&json!(1300), &json!(1200)), "{seven}");
    assert_eq!(routes(&pod, &["route", "show", "table", "77"]), ["10.8.0.0/16 via 10.1.0.1 dev eth0"]);
    let nine = &pod.json(["ip", "-j", "route", "show", "10.9.0.0/16"])[0];
    assert_eq!((&nine["scope"], nine.get("gateway")), (&json!("link"), None), "{nine}");
    assert_eq!(
        routes(&pod, &["-6", "route", "show", "fd07::/64"]),
        ["fd07::/64 via fd01::9 dev eth0 metric 51"]
    );
    let eth0 = host.attachment("bridge", &pod, "eth0");
    let known = with(&keys, &json!({ "prevResult": result }));
    eth0.check(&known).success();
    pod.run(["ip", "route", "delete", "10.8.0.0/16", "table", "77"]);
    assert_refused("CHECK", &eth0.check(&known), 999, &["10.8.0.0/16"]);
}

#[test]
fn bridge_route_options_reach_the_kernel_in_every_cni_version() {
    for version in ["0.2.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let host = host!(Feature::Bridge, Feature::Ipv6);
        rig::install(&host);
        let pod = host.pod("a");
        let ipam_routes = json!([
            { "dst": "0.0.0.0/0", "priority": 500 }, { "dst": "::/0", "priority": 501 },
            { "dst": "10.7.0.0/16", "gw": "10.1.0.9", "mtu": 1300, "advmss": 1200 },
            { "dst": "10.8.0.0/16", "table": 77 }, { "dst": "10.9.0.0/16", "scope": 253 },
        ]);
        let keys = json!({ "cniVersion": version, "isGateway": true, "ipam": dual_stack(&ipam_routes) });
        add(&host, &pod, &config(&keys));
        let main = [
            "default via 10.1.0.1 dev eth0 metric 500",
            "10.7.0.0/16 via 10.1.0.9 dev eth0 mtu 1300 advmss 1200",
            "10.9.0.0/16 dev eth0 scope link",
        ];
        let present = pod.run(["ip", "route"]);
        for route in main {
            let is_it = |line: &&str| line.replace("proto 119 ", "").trim_end() == route;
            assert!(present.lines().any(|line| is_it(&line)), "{version}: {route} in {present}");
        }
        assert_eq!(
            routes(&pod, &["-6", "route", "show", "default"]),
            ["default via fd01::1 dev eth0 metric 501"],
            "{version}"
        );
        assert_eq!(routes(&pod, &["route", "show", "table", "77"]), ["10.8.0.0/16 via 10.1.0.1 dev eth0"]);
    }
}

#[test]
fn bridge_routes_of_one_destination_are_one_multipath_route() {
    let host = host!(Feature::Bridge, Feature::Ipv6);
    rig::install(&host);
    let pod = host.pod("a");
    let seven = json!({ "dst": "10.7.0.0/16", "gw": "10.1.0.9" });
    let ipam_routes = json!([
        seven, with(&seven, &json!({ "gw": "10.1.0.8" })), seven,
        { "dst": "fd07::/64", "gw": "fd01::9" }, { "dst": "fd07::/64", "gw": "fd01::8" }, { "dst": "fd07::/64", "gw": "fd01::9" },
        { "dst": "10.8.0.0/16" }, { "dst": "10.8.0.0/16" }, { "dst": "10.9.0.0/16", "gw": "0.0.0.0" },
    ]);
    let keys = json!({ "isGateway": true, "ipam": dual_stack(&ipam_routes) });
    let result = add(&host, &pod, &config(&keys));
    for (dst, gateways) in [("10.7.0.0/16", ["10.1.0.9", "10.1.0.8"]), ("fd07::/64", ["fd01::9", "fd01::8"])]
    {
        let family = if dst.contains(':') { "-6" } else { "-4" };
        let shown = pod.json(["ip", family, "-j", "route", "show", dst]);
        assert_eq!(shown.as_array().map(Vec::len), Some(1), "{shown}");
        let hops: Vec<&str> = shown[0]["nexthops"]
            .as_array()
            .expect("hops")
            .iter()
            .filter_map(|hop| hop["gateway"].as_str())
            .collect();
        assert_eq!(hops, gateways);
    }
    assert_eq!(routes(&pod, &["route", "show", "10.8.0.0/16"]), ["10.8.0.0/16 via 10.1.0.1 dev eth0"]);
    assert_eq!(routes(&pod, &["route", "show", "10.9.0.0/16"]), ["10.9.0.0/16 dev eth0"]);
    let known = with(&config(&keys), &json!({ "prevResult": result }));
    host.attachment("bridge", &pod, "eth0").check(&known).success();
    // A chained plugin moves the routes with all next hops.
    let sbr = json!({ "cniVersion": "1.1.0", "name": "net", "type": "sbr", "prevResult": result });
    let chained = host.attachment("sbr", &pod, "eth0");
    chained.add(&sbr).success();
    let moved = pod.json(["ip", "-j", "route", "show", "table", "100", "10.7.0.0/16"]);
    assert_eq!(moved[0]["nexthops"].as_array().map(Vec::len), Some(2), "{moved}");
    chained.check(&sbr).success();
    chained.del(&sbr).success();
}

#[test]
fn bridge_route_destination_with_host_bits_is_its_network() {
    let host = host!(Feature::Bridge, Feature::Ipv6);
    rig::install(&host);
    let pod = host.pod("a");
    let ipam_routes = json!([{ "dst": "10.9.1.1/16" }, { "dst": "fd09::1/64", "gw": "fd01::9" }]);
    add(&host, &pod, &config(&json!({ "isGateway": true, "ipam": dual_stack(&ipam_routes) })));
    assert_eq!(routes(&pod, &["route", "show", "10.9.0.0/16"]), ["10.9.0.0/16 via 10.1.0.1 dev eth0"]);
    let six = routes(&pod, &["-6", "route", "show", "fd09::/64"]);
    assert!(six[0].starts_with("fd09::/64 via fd01::9 dev eth0"), "{six:?}");
}
