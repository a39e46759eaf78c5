//! Tests for `dummy`: an interface with addresses that only the container has.
//!
//! Source: containernetworking/plugins `plugins/main/dummy` v1.9.1.

use rig::{addresses_on, assert_refused, with};
use serde_json::{Value, json};
use testkit::{Feature, host};

fn config(keys: &Value) -> Value {
    let base = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "dummy",
        "ipam": { "type": "static", "addresses": [{ "address": "10.5.0.1/32" }, { "address": "fd05::1/128" }] },
    });
    with(&base, keys)
}

#[test]
fn dummy_addresses_are_reachable_in_the_container_only() {
    let host = host!(Feature::Dummy, Feature::Ping);
    rig::install(&host);
    let pod = host.pod("a");
    pod.run(["ip", "link", "set", "lo", "up"]);
    let net1 = host.attachment("dummy", &pod, "net1");
    let result = net1.add(&config(&json!({}))).success().json();
    let shown = rig::link(&pod, "net1").unwrap();
    assert_eq!(shown["linkinfo"]["info_kind"], "dummy");
    assert!(rig::is_up(&shown));
    assert_eq!(shown["ifalias"], format!("weft/dummy/net/{}/net1", pod.container_id()));
    assert_eq!(result["interfaces"][0]["mac"], shown["address"]);
    assert_eq!(addresses_on(&pod, "net1"), ["10.5.0.1/32", "fd05::1/128"]);
    assert!(pod.pings("10.5.0.1") && pod.pings("fd05::1"));
    assert!(rig::links(&host).is_empty(), "nothing on the host");
}

#[test]
fn dummy_check_finds_each_change() {
    let host = host!(Feature::Dummy);
    rig::install(&host);
    let pod = host.pod("a");
    let net1 = host.attachment("dummy", &pod, "net1");
    let result = net1.add(&config(&json!({}))).success().json();
    let known = config(&json!({ "prevResult": result }));
    net1.check(&known).success();
    pod.run(["ip", "address", "del", "10.5.0.1/32", "dev", "net1"]);
    assert_refused("a missing address", &net1.check(&known), 999, &["10.5.0.1/32"]);
    pod.run(["ip", "address", "add", "10.5.0.1/32", "dev", "net1"]);
    net1.check(&known).success();
    pod.run(["ip", "link", "set", "net1", "address", "02:00:00:00:00:07"]);
    assert_refused("another address", &net1.check(&known), 999, &["02:00:00:00:00:07"]);
}

#[test]
fn dummy_without_ipam_is_refused() {
    let host = host!(Feature::Dummy);
    rig::install(&host);
    let pod = host.pod("a");
    let net1 = host.attachment("dummy", &pod, "net1");
    for ipam in [json!({}), json!(null), json!({ "type": "" })] {
        let keys = config(&json!({ "ipam": ipam }));
        assert_refused("ADD", &net1.add(&keys), 7, &["ipam.type"]);
        assert_refused("STATUS", &net1.call("STATUS", keys.to_string()), 7, &["ipam.type"]);
        net1.del(&keys).success();
    }
    assert!(rig::links(&pod).is_empty());
}
