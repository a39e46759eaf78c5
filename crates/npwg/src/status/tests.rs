//! Tests of the network status.

use serde_json::{Value, json};

use super::*;
use crate::fixture::World;

fn outcome(text: &str) -> Outcome {
    let (version, success) = Success::read(text.as_bytes(), Version::V1_0_0).unwrap();
    Outcome { version: Some(version), result: Some(success) }
}

/// Returns `world`'s status as JSON if the networks return these results.
fn status(world: &World, results: &[&str]) -> Vec<Value> {
    let plan = world.plan();
    let outcomes: Vec<Outcome> =
        results.iter().map(|text| if text.is_empty() { Outcome::default() } else { outcome(text) }).collect();
    let attachments: Vec<Attachment<'_>> = plan
        .delegates
        .iter()
        .zip(&outcomes)
        .map(|(delegate, outcome)| Attachment {
            delegate,
            outcome,
            device_info: None,
            added_by: String::new(),
        })
        .collect();
    assert_eq!(attachments.len(), plan.delegates.len());
    let entries = entries(&plan, &attachments);
    entries.iter().map(|entry| serde_json::to_value(entry).unwrap()).collect()
}

fn one(result: &str) -> Value {
    status(&World::new(), &[result]).remove(0)
}

const BRIDGE: &str = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"br0","mac":"02:00:00:00:00:aa"},{"name":"veth1","mac":"02:00:00:00:00:bb"},{"name":"eth0","mac":"02:00:00:00:00:01","mtu":1450,"sandbox":"/n"}],"ips":[{"interface":0,"address":"10.0.0.1/24"},{"interface":2,"address":"10.0.0.5/24","gateway":"10.0.0.1"},{"interface":2,"address":"2001:db8::5/64"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0","gw":"2001:db8::1"},{"dst":"10.1.0.0/16","gw":"10.0.0.9"}],"dns":{"nameservers":["9.9.9.9"],"domain":"d","search":["s"],"options":["ndots:5"]}}"#;

// Requirements: NPWG1-5-2
#[test]
fn network_status_is_a_list_of_objects() {
    assert_eq!(NETWORK_STATUS, "k8s.v1.cni.cncf.io/network-status");
    let text = render(&[Entry { name: "n".into(), ..Entry::default() }]).unwrap();
    assert_eq!(text, "[\n    {\n        \"name\": \"n\",\n        \"default\": false\n    }\n]");
    assert_eq!(render(&[]).unwrap(), "[]");
}

// Requirements: NPWG1-5.1.1-1, NPWG1-5.3.2-1, NPWG1-5.3.2.1-1, NPWG1-5.3.4.1-1
#[test]
fn network_status_uses_the_first_interface_in_the_sandbox() {
    let entry = one(BRIDGE);
    assert_eq!((&entry["interface"], &entry["mac"]), (&json!("eth0"), &json!("02:00:00:00:00:01")));
}

// Requirements: NPWG1-5.1-1, NPWG1-5.1.1-3
#[test]
fn network_status_content_comes_from_the_result() {
    assert_eq!(
        one(BRIDGE),
        json!({
            "name": "base", "interface": "eth0", "ips": ["10.0.0.5", "2001:db8::5"], "mac": "02:00:00:00:00:01",
            "dns": {"nameservers": ["9.9.9.9"], "domain": "d", "search": ["s"]}, "default": true
        })
    );
}

// Requirements: NPWG1-5.1.1-2
#[test]
fn network_status_without_result_is_minimal() {
    let entries = status(&World::new().networks("plain"), &[BRIDGE, ""]);
    assert_eq!(entries[1], json!({"name": "home/plain", "default": false}));
}

// Requirements: NPWG1-2.3-1
#[test]
fn network_status_without_interfaces_is_valid() {
    assert_eq!(one(r#"{"cniVersion":"1.0.0"}"#), json!({"name": "base", "default": true}));
    let layer2 = one(r#"{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/n"}]}"#);
    assert_eq!(layer2, json!({"name": "base", "interface": "eth0", "default": true}));
}

// Requirements: NPWG1-5.1.1-4, NPWG1-5.3.2.1-2, NPWG1-5.3.3.1-4
#[test]
fn network_status_of_a_result_before_0_3_0() {
    let old = r#"{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.5/24"},"ip6":{"ip":"2001:db8::5/64"},"dns":{"nameservers":["9.9.9.9"]}}"#;
    assert_eq!(
        one(old),
        json!({"name": "base", "interface": "eth0", "ips": ["10.0.0.5", "2001:db8::5"], "dns": {"nameservers": ["9.9.9.9"]}, "default": true})
    );
}

// Requirements: NPWG1-5.2-1, NPWG1-5.3.5-1, NPWG1-5.3.5-2, conflict C5
#[test]
fn network_status_default_is_in_every_entry_and_true_once() {
    let two_inside = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/n"},{"name":"udn1","sandbox":"/n"}]}"#;
    let entries =
        status(&World::new().networks("plain,plain"), &[two_inside, "", r#"{"cniVersion":"1.0.0"}"#]);
    let defaults: Vec<&Value> = entries.iter().map(|entry| &entry["default"]).collect();
    assert_eq!(defaults, [&json!(true), &json!(false), &json!(false), &json!(false)]);
}

// Requirements: NPWG1-5.3.1-1, V12-5.3.1-1
#[test]
fn network_status_names_have_namespaces_except_the_default() {
    let entries = status(&World::new().networks("plain,other/plain"), &["", "", ""]);
    let names: Vec<&str> = entries.iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["base", "home/plain", "other/plain"]);
}

// Requirements: NPWG1-4.2-1
#[test]
fn network_status_has_two_entries_for_a_network_used_twice() {
    let net =
        |name: &str| format!(r#"{{"cniVersion":"1.0.0","interfaces":[{{"name":"{name}","sandbox":"/n"}}]}}"#);
    let entries = status(&World::new().networks("plain,plain"), &["", &net("net1"), &net("net2")]);
    let pairs: Vec<(&Value, &Value)> =
        entries[1..].iter().map(|entry| (&entry["name"], &entry["interface"])).collect();
    assert_eq!(pairs, [(&json!("home/plain"), &json!("net1")), (&json!("home/plain"), &json!("net2"))]);
}

// Requirements: NPWG1-5.3-1
#[test]
fn network_status_has_no_unknown_keys_without_dots() {
    let known = ["name", "interface", "ips", "mac", "default-route", "dns", "device-info", "default"];
    let world = World::new().networks(r#"[{"name":"plain","mac":"broken"}]"#);
    for entry in status(&world, &[BRIDGE]) {
        for key in entry.as_object().unwrap().keys() {
            assert!(known.contains(&key.as_str()) || key.contains('.'), "{key}");
        }
    }
}

// Requirements: NPWG1-5.3.3.1-rule1
#[test]
fn network_status_ips_of_the_interface_in_both_families() {
    assert_eq!(one(BRIDGE)["ips"], json!(["10.0.0.5", "2001:db8::5"]));
}

// Requirements: NPWG1-5.3.3.1-rule2
#[test]
fn network_status_ips_without_a_sandbox_interface() {
    let none = r#"{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.5/24"},{"address":"10.0.0.6/24"}]}"#;
    assert_eq!(one(none), json!({"name": "base", "ips": ["10.0.0.5", "10.0.0.6"], "default": true}));
    // Calico, with both families.
    let calico = r#"{"cniVersion":"0.3.1","interfaces":[{"name":"cali123"}],"ips":[{"version":"4","address":"10.1.0.4/32"},{"version":"6","address":"fd00::4/128"}]}"#;
    assert_eq!(one(calico), json!({"name": "base", "ips": ["10.1.0.4", "fd00::4"], "default": true}));
    let host_only = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"br0","mac":"02:00:00:00:00:01"}],"ips":[{"interface":0,"address":"10.0.0.1/24"},{"interface":-1,"address":"10.0.0.5/24"}]}"#;
    assert_eq!(one(host_only), json!({"name": "base", "ips": ["10.0.0.5"], "default": true}));
}

/// The primary network of OVN-Kubernetes: eth0 is the interface of the cluster's own network.
#[test]
fn network_status_default_has_the_first_gateway() {
    let result = |gateways: [&str; 2]| {
        let ip = |index: usize, address: &str, gateway: &str| json!({"interface": index, "address": address, "gateway": gateway});
        let interface = |name: &str, mac: &str| json!({"name": name, "mac": mac, "sandbox": "/n"});
        json!({"cniVersion": "1.1.0",
            "interfaces": [{"name": "host0"}, interface("eth0", "0a:58:0a:f4:00:05"),
                interface("ovn-udn1", "0a:58:0a:80:00:4d")],
            "ips": [ip(1, "10.244.0.5/24", gateways[0]), ip(2, "10.128.0.77/24", gateways[1])]})
        .to_string()
    };
    for (gateways, default) in [
        (["", "10.128.0.1"], [false, true]),
        (["10.244.0.1", "10.128.0.1"], [true, false]),
        (["", ""], [true, false]),
    ] {
        let entries = status(&World::new(), &[&result(gateways)]);
        let found: Vec<(&Value, &Value)> =
            entries.iter().map(|entry| (&entry["interface"], &entry["default"])).collect();
        assert_eq!(found, [(&json!("eth0"), &json!(default[0])), (&json!("ovn-udn1"), &json!(default[1]))]);
    }
}

// Requirements: NPWG1-5.3.3.1-rule2
#[test]
fn network_status_ips_rule_applies_from_0_3_0_on() {
    let first_with_interfaces = r#"{"cniVersion":"0.3.0","ips":[{"version":"4","address":"10.0.0.5/24"},{"version":"4","address":"10.0.0.6/24"}]}"#;
    let both = json!({"name": "base", "ips": ["10.0.0.5", "10.0.0.6"], "default": true});
    assert_eq!(one(first_with_interfaces), both);
}

// Requirements: NPWG1-5.3.3.1-rule3, M16
#[test]
fn network_status_ips_exclude_host_addresses() {
    let host = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"/n"}],"ips":[{"interface":0,"address":"10.0.0.1/24"},{"address":"10.0.0.7/24"}]}"#;
    assert_eq!(one(host), json!({"name": "base", "interface": "eth0", "default": true}));
    let only_host = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"br0"}],"ips":[{"interface":0,"address":"10.0.0.1/24"}]}"#;
    assert_eq!(one(only_host), json!({"name": "base", "default": true}));
}

// Requirements: NPWG1-5.3.4-1
#[test]
fn network_status_mac_requires_an_interface() {
    let nameless =
        r#"{"cniVersion":"1.0.0","interfaces":[{"name":"","mac":"02:00:00:00:00:01","sandbox":"/n"}]}"#;
    assert_eq!(one(nameless), json!({"name": "base", "default": true}));
}

// Requirements: NPWG1-5.3.3-1
#[test]
fn network_status_ips_are_bare_or_cidr_as_configured() {
    let cidr = status(&World::new().node(r#""statusAddresses":"cidr""#), &[BRIDGE]).remove(0);
    assert_eq!(cidr["ips"], json!(["10.0.0.5/24", "2001:db8::5/64"]));
}

// Requirements: NPWG1-5.3.6-1, NPWG1-5.3.6-2, NPWG1-5.3.6-3
#[test]
fn network_status_dns_is_omitted_if_empty() {
    assert_eq!(one(BRIDGE)["dns"], json!({"nameservers": ["9.9.9.9"], "domain": "d", "search": ["s"]}));
    assert!(one(r#"{"cniVersion":"0.4.0","dns":{}}"#).get("dns").is_none());
}

// Requirements: M16
#[test]
fn network_status_has_an_entry_for_each_sandbox_interface() {
    let two = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/n"},{"name":"veth"},{"name":"udn1","mac":"02:00:00:00:00:02","sandbox":"/n"}],"ips":[{"interface":2,"address":"10.9.0.1/24"},{"interface":0,"address":"10.0.0.5/24"}],"dns":{"domain":"d"}}"#;
    assert_eq!(
        status(&World::new(), &[two]),
        [
            json!({"name": "base", "interface": "eth0", "ips": ["10.0.0.5"], "mac": "02:00:00:00:00:01", "dns": {"domain": "d"}, "default": true}),
            json!({"name": "base", "interface": "udn1", "ips": ["10.9.0.1"], "mac": "02:00:00:00:00:02", "default": false}),
        ]
    );
}

#[test]
fn network_status_keys_of_multus_are_optional() {
    let entry = status(&World::new().node(r#""statusKeys":"multus""#), &[BRIDGE]).remove(0);
    assert_eq!((&entry["gateway"], &entry["mtu"]), (&json!(["10.0.0.1", "2001:db8::1"]), &json!(1450)));
    assert_eq!(entry["dns"]["options"], json!(["ndots:5"]));
    let without =
        status(&World::new().node(r#""statusKeys":"multus""#), &[r#"{"cniVersion":"1.0.0"}"#]).remove(0);
    assert_eq!(without, json!({"name": "base", "dns": {}, "default": true}));
}

#[test]
fn network_status_mtu_0_and_other_tables_are_ignored() {
    let result = r#"{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mtu":0,"sandbox":"/n"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1","table":100},{"dst":"0.0.0.0/0","gw":"10.0.0.2","table":254},{"dst":"0.0.0.0/0","gw":"10.0.0.3","table":0},{"dst":"10.0.0.0/8","gw":"10.0.0.4"}]}"#;
    let entry = status(&World::new().node(r#""statusKeys":"multus""#), &[result]).remove(0);
    assert_eq!(entry["gateway"], json!(["10.0.0.2", "10.0.0.3"]));
    assert!(entry.get("mtu").is_none());
}

// Requirements: V11-5.3.6.4-1, conflict C6
#[test]
fn network_status_default_route_if_requested() {
    let net = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"net1","sandbox":"/n"}],"ips":[{"interface":0,"address":"10.9.0.5/24","gateway":"10.9.0.1"}],"routes":[{"dst":"0.0.0.0/0"}]}"#;
    let given = World::new().networks(r#"[{"name":"plain","default-route":["10.9.0.254"]}]"#);
    let entries = status(&given, &[BRIDGE, net]);
    assert_eq!(entries[1]["default-route"], json!(["10.9.0.254"]));
    assert!(entries[0].get("default-route").is_none());
    // C12: the gateway of the plugins, because the pod names none.
    let left = World::new().networks(r#"[{"name":"plain","default-route":[]}]"#);
    assert_eq!(status(&left, &[BRIDGE, net])[1]["default-route"], json!(["10.9.0.1"]));
}

// Requirements: M16
#[test]
fn network_status_gateway_agrees_with_default_route() {
    let net = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"net1","sandbox":"/n"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.9.0.1"},{"dst":"::/0","gw":"fd00::9"}]}"#;
    let gateways = |networks: &str| -> Vec<Value> {
        let world = World::new().networks(networks).node(r#""statusKeys":"multus""#);
        status(&world, &[BRIDGE, net]).iter().map(|entry| entry["gateway"].clone()).collect()
    };
    assert_eq!(gateways("plain"), [json!(["10.0.0.1", "2001:db8::1"]), json!(["10.9.0.1", "fd00::9"])]);
    // The default network lost only IPv4; the other network has its own IPv4 gateway and keeps its IPv6 one.
    let v4 = gateways(r#"[{"name":"plain","default-route":["10.9.0.254"]}]"#);
    assert_eq!(v4, [json!(["2001:db8::1"]), json!(["10.9.0.254", "fd00::9"])]);
    let left = gateways(r#"[{"name":"plain","default-route":[]}]"#);
    assert_eq!(left, [Value::Null, json!(["10.9.0.1", "fd00::9"])]);
    // The other networks keep the families in which the holder has no default route.
    let v6 = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"net1","sandbox":"/n"}],"routes":[{"dst":"::/0","gw":"fd00::9"}]}"#;
    let world =
        World::new().networks(r#"[{"name":"plain","default-route":[]}]"#).node(r#""statusKeys":"multus""#);
    let entries = status(&world, &[BRIDGE, v6]);
    assert_eq!((&entries[0]["gateway"], &entries[1]["gateway"]), (&json!(["10.0.0.1"]), &json!(["fd00::9"])));
}

// Requirements: V12-5.3.7-1, DI-4
#[test]
fn network_status_has_device_info() {
    let plan = World::new().plan();
    let info = r#"{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:18:02.5"}}"#;
    let attachment = Attachment {
        delegate: &plan.delegates[0],
        outcome: &Outcome::default(),
        device_info: Some(DeviceInfo::read(info.as_bytes()).unwrap()),
        added_by: String::new(),
    };
    let text = serde_json::to_string(&entries(&plan, &[attachment])).unwrap();
    assert_eq!(text, format!(r#"[{{"name":"base","device-info":{info},"default":true}}]"#));
}

// Requirements: V12-5.4-1
#[test]
fn network_status_has_no_mistakes_of_the_examples() {
    let ib = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"ib0","mac":"80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22","sandbox":"/n"}]}"#;
    let entry = one(ib);
    assert_eq!(entry["mac"], json!("80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22"));
    assert!(entry.get("infiniband-guid").is_none() && entry.get("device").is_none());
}

// Requirements: V11-5.4-1
#[test]
fn network_status_default_false_is_written() {
    assert_eq!(status(&World::new().networks("plain"), &["", ""])[1]["default"], json!(false));
}

// Requirements: V13-5.1-1
#[test]
fn network_status_added_by_is_set_for_hot_plug() {
    let plan = World::new().plan();
    let outcome = outcome(
        r#"{"cniVersion":"1.0.0","interfaces":[{"name":"a","sandbox":"/n"},{"name":"b","sandbox":"/n"}]}"#,
    );
    let attachment = Attachment {
        delegate: &plan.delegates[0],
        outcome: &outcome,
        device_info: None,
        added_by: "weft executor".into(),
    };
    for entry in entries(&plan, &[attachment]) {
        assert_eq!(serde_json::to_value(entry).unwrap()["dev.weft.added-by"], json!("weft executor"));
    }
}

// Requirements: conflict C3
#[test]
fn network_status_shows_an_ignored_annotation() {
    let world = World::new().networks(r#"[{"name":"plain","ips":[]}]"#);
    let entry = status(&world, &[""]).remove(0);
    let why = entry["dev.weft.annotation-ignored"].as_str().unwrap();
    assert!(why.contains("[0].ips"), "{why}");
}

// Requirements: NPWG1-5-2
#[test]
fn network_status_keys_have_the_order_of_the_examples() {
    let net = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"net1","mac":"02:00:00:00:00:02","mtu":9000,"sandbox":"/n"}],"ips":[{"interface":0,"address":"10.9.0.5/24"}],"dns":{"domain":"d"}}"#;
    let world = World::new()
        .networks(r#"[{"name":"plain","default-route":["10.9.0.254"]}]"#)
        .node(r#""statusKeys":"multus""#);
    let entries = status(&world, &[BRIDGE, net]);
    let keys: Vec<&String> = entries[1].as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        ["name", "interface", "ips", "mac", "default-route", "dns", "default", "gateway", "mtu"]
    );
}

#[test]
fn network_status_can_be_read_back() {
    let entries: Vec<Entry> = serde_json::from_value(Value::from(status(&World::new(), &[BRIDGE]))).unwrap();
    assert_eq!(entries[0].ips, ["10.0.0.5", "2001:db8::5"]);
}
