//! Tests that compare `bandwidth` with Debian's Go plugin: each finds, checks and removes the other's
//! objects.

use serde_json::{Value, json};
use testkit::{Feature, host};

const GO: &str = "/usr/lib/cni/bandwidth";

/// Returns the queueing disciplines and filters of both links.
fn shown(host: &testkit::Host, end: &str, ifb: &str) -> Vec<Value> {
    let mut objects = Vec::new();
    for link in [end, ifb] {
        for what in [vec!["qdisc", "show"], vec!["filter", "show", "ingress"]] {
            let line = ["tc", "-j"]
                .into_iter()
                .chain([what[0], what[1], "dev", link])
                .chain(what[2..].iter().copied());
            objects.push(host.json(line));
        }
    }
    objects
}

#[test]
fn bandwidth_objects_are_removed_by_either_plugin() {
    let host = host!(Feature::GoPlugins, Feature::Ifb, Feature::Tbf, Feature::Mirred);
    rig::install(&host);
    let pod = host.pod("a");
    let bridge = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0",
        "ipam": { "type": "static", "addresses": [{ "address": "10.1.0.5/24" }] },
    });
    let front = host.attachment("bridge", &pod, "eth0");
    let (weft, go) = (host.attachment("bandwidth", &pod, "eth0"), host.attachment(GO, &pod, "eth0"));
    let mut states = Vec::new();
    for (maker, other) in [(&weft, &go), (&go, &weft)] {
        let previous = front.add(&bridge).success().json();
        let mut config = json!({
            "cniVersion": "1.0.0", "name": "net", "type": "bandwidth", "prevResult": previous,
            "ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 80_000_000, "egressBurst": 1_000_000,
        });
        let result = maker.add(&config).success().json();
        let name = |at: usize| result["interfaces"][at]["name"].as_str().unwrap().to_owned();
        let mut state = json!(shown(&host, &name(1), &name(3)));
        strip(&mut state);
        states.push(state.to_string());
        config["prevResult"] = result;
        if other.plugin == "bandwidth" {
            other.check(&config).success();
        }
        maker.check(&config).success();
        other.del(&config).success();
        assert!(!rig::links(&host).iter().any(|name| name.starts_with("bwp")), "{}", other.plugin);
        front.del(&bridge).success();
    }
    assert_eq!(states[0], states[1]);
}

/// Removes indexes and counters, which differ between two runs.
fn strip(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(strip),
        Value::Object(map) => {
            for volatile in
                ["ifindex", "to_dev", "index", "refcnt", "installed", "last_used", "handle_id", "burst"]
            {
                map.remove(volatile);
            }
            // The Go plugin adds the same action a second time, which is never reached.
            if let Some(actions) = map.get_mut("actions").and_then(Value::as_array_mut) {
                actions.truncate(1);
            }
            map.values_mut().for_each(strip);
        }
        _ => {}
    }
}
