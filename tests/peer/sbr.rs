//! Tests that compare `sbr` with Debian's Go plugin: both create the same rules and routes, and each removes
//! the other's.

use rig::routes;
use serde_json::json;
use testkit::{Feature, host};

const GO: &str = "/usr/lib/cni/sbr";

#[test]
fn sbr_rules_are_removed_by_either_plugin() {
    let host = host!(Feature::GoPlugins, Feature::Bridge);
    rig::install(&host);
    let pod = host.pod("a");
    let bridge = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0",
        "ipam": { "type": "static", "addresses": [
            { "address": "10.1.0.5/24", "gateway": "10.1.0.1" }, { "address": "10.2.0.5/24", "gateway": "10.2.0.1" },
        ], "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "192.0.2.0/24", "gw": "10.2.0.1" }] },
    });
    let front = host.attachment("bridge", &pod, "eth0");
    let (weft, go) = (host.attachment("sbr", &pod, "eth0"), host.attachment(GO, &pod, "eth0"));
    let mut states = Vec::new();
    for (maker, other) in [(&weft, &go), (&go, &weft)] {
        let previous = front.add(&bridge).success().json();
        let config = json!({ "cniVersion": "1.0.0", "name": "net", "type": "sbr", "prevResult": previous });
        maker.add(&config).success();
        let tables = ["100", "101", "main"].map(|table| routes(&pod, &["route", "show", "table", table]));
        let rules = pod.json(["ip", "-j", "rule"]);
        let rules = rules.as_array().unwrap().iter().map(|rule| format!("{} {}", rule["src"], rule["table"]));
        let rules: Vec<String> = rules.collect();
        assert!(rules.iter().any(|rule| rule.contains("10.2.0.5")), "{rules:?}");
        states.push((tables, rules));
        weft.check(&config).success();
        other.del(&config).success();
        assert_eq!(pod.json(["ip", "-j", "rule"]).as_array().unwrap().len(), 3, "{}", other.plugin);
        front.del(&bridge).success();
    }
    assert_eq!(states[0], states[1]);
}
