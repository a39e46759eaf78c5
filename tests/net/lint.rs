//! Tests that `weft lint` and the plugins reject the same values.

use serde_json::{Value, json};
use testkit::{Host, host};

/// Returns invalid plugin configurations, each with the field that both errors name.
fn invalid_configurations() -> Vec<(Value, &'static str)> {
    let addressed = |ipam: Value| json!({ "type": "bridge", "ipam": ipam });
    vec![
        (json!({ "type": "vlan", "master": "eth0", "vlanId": 5000 }), "vlanId"),
        (json!({ "type": "vlan", "vlanId": 5 }), "master"),
        (json!({ "type": "bridge", "mtu": "abc" }), "mtu"),
        (json!({ "type": "bridge", "mtu": 40 }), "mtu"),
        (json!({ "type": "bridge", "vlan": 9999 }), "vlan"),
        (json!({ "type": "bridge", "bridge": "a-name-of-20-letters" }), "bridge"),
        (json!({ "type": "bridge", "ipMasqBackend": "pf" }), "ipMasqBackend"),
        (json!({ "type": "bridge", "vlanTrunk": [{ "id": 5000 }] }), "vlanTrunk"),
        (json!({ "type": "ipvlan", "mode": "l9" }), "mode"),
        (json!({ "type": "macvlan", "mode": "bride" }), "mode"),
        (json!({ "type": "macvlan", "mac": "02:00" }), "mac"),
        (json!({ "type": "ptp" }), "ipam"),
        (json!({ "type": "tap", "mtu": -1 }), "mtu"),
        (json!({ "type": "vrf" }), "vrfname"),
        (json!({ "type": "firewall", "backend": "pf" }), "backend"),
        (json!({ "type": "firewall", "ingressPolicy": "closed" }), "ingressPolicy"),
        (json!({ "type": "portmap", "backend": "pf" }), "backend"),
        (json!({ "type": "portmap", "markMasqBit": 32 }), "markMasqBit"),
        (json!({ "type": "tuning", "mac": "x" }), "mac"),
        (json!({ "type": "tuning", "mtu": "x" }), "mtu"),
        (json!({ "type": "bandwidth", "ingressRate": "fast" }), "ingressRate"),
        (json!({ "type": "host-device", "hwaddr": "x" }), "hwaddr"),
        (addressed(json!({ "type": "host-local" })), "ranges"),
        (addressed(json!({ "type": "host-local", "subnet": "10.0.0.0/33" })), "subnet"),
        (
            addressed(
                json!({ "type": "host-local", "ranges": [[{ "subnet": "10.0.0.0/8", "gateway": "x" }]] }),
            ),
            "gateway",
        ),
        (
            addressed(json!({ "type": "host-local", "subnet": "10.0.0.0/8", "routes": [{ "dst": "10" }] })),
            "dst",
        ),
        (addressed(json!({ "type": "host-local", "subnet": "10.0.0.0/8", "dataDir": "x" })), "dataDir"),
        (addressed(json!({ "type": "weft-ipam" })), "range"),
        (addressed(json!({ "type": "weft-ipam", "range": "10.0.0.0/8", "exclude": ["x"] })), "exclude"),
        (addressed(json!({ "type": "weft-ipam", "range": "10.0.0.0/8", "store": "disk" })), "store"),
        (addressed(json!({ "type": "dhcp", "families": ["ipv6", "ipx"] })), "families"),
        (addressed(json!({ "type": "dhcp", "families": ["ipv6"], "prefixLengthV6": 129 })), "prefixLengthV6"),
        (addressed(json!({ "type": "dhcp", "daemonSocketPath": "here" })), "daemonSocketPath"),
        (addressed(json!({ "type": "static", "addresses": [{ "address": "10.0.0.1" }] })), "address"),
    ]
}

fn errors(host: &Host, config: &Value) -> Vec<String> {
    host.write("/run/net.conf", config.to_string());
    let weft = host.command(testkit::binary("weft")).clean_environment();
    let found = weft.args(["lint", "-o", "json", "/run/net.conf"]).finish().json();
    let errors =
        found["findings"].as_array().expect("findings").iter().filter(|found| found["severity"] == "error");
    errors.map(Value::to_string).collect()
}

/// ADD refuses the same networks: `impossible_networks`.
#[test]
fn lint_refuses_ipam_types_that_attach_interfaces() {
    let host = host!();
    for (plugin, ipam) in [
        ("bridge", "bridge"),
        ("bridge", "cnv-bridge"),
        ("ptp", "tuning"),
        ("macvlan", "portmap"),
        ("tap", "ptp"),
    ] {
        let config = json!({ "cniVersion": "1.0.0", "name": "lan", "plugins": [
            { "type": plugin, "master": "up0", "ipam": { "type": ipam } },
        ] });
        let found = errors(&host, &config);
        let names_it = |one: &String| {
            one.contains(r#""path":["plugins",0,"ipam","type"]"#) && one.contains("not an IPAM plugin")
        };
        assert!(found.iter().any(names_it), "{plugin} {ipam}: {found:?}");
    }
    for (plugin, ipam) in [("bridge", "host-local"), ("acme", "bridge"), ("bridge", "acme-ipam")] {
        let ipam = json!({ "type": ipam, "subnet": "10.1.0.0/24" });
        let config = json!({ "cniVersion": "1.0.0", "name": "lan", "type": plugin, "ipam": ipam });
        let found = errors(&host, &config);
        assert!(!found.iter().any(|one| one.contains("not an IPAM plugin")), "{config}: {found:?}");
    }
}

#[test]
fn lint_and_plugin_reject_the_same_values() {
    let host = host!();
    rig::install(&host);
    let pod = host.pod("a");
    for (keys, key) in invalid_configurations() {
        let base = json!({ "cniVersion": "1.0.0", "name": "lan" });
        let config = rig::with(&base, &keys);
        let found_errors = errors(&host, &config);
        assert!(matches!(found_errors.as_slice(), [one] if one.contains(key)), "{config}: {found_errors:?}");
        let plugin = config["type"].as_str().expect("a plugin").to_owned();
        let refused = host.attachment(&plugin, &pod, "net1").add(&config);
        assert_ne!(refused.code, Some(0), "{config}");
        assert!(refused.json()["msg"].as_str().is_some_and(|msg| msg.contains(key)), "{config}: {refused}");
    }
}
