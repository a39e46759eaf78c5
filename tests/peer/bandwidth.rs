//! `bandwidth` beside the Go plugin of Debian: each finds, checks and removes what the other made.

use serde_json::{Value, json};
use testkit::{Feature, host};

const GO: &str = "/usr/lib/cni/bandwidth";

/// What is there, without the mark that only ours has.
fn shown(host: &testkit::Host, end: &str, ifb: &str) -> Vec<Value> {
    let mut said = Vec::new();
    for link in [end, ifb] {
        for what in [vec!["qdisc", "show"], vec!["filter", "show", "ingress"]] {
            let line = ["tc", "-j"]
                .into_iter()
                .chain([what[0], what[1], "dev", link])
                .chain(what[2..].iter().copied());
            said.push(host.json(line));
        }
    }
    said
}

#[test]
fn either_takes_over_from_the_other() {
    let host = host!(Feature::GoPlugins, Feature::Ifb, Feature::Tbf, Feature::Mirred);
    rig::install(&host);
    let pod = host.pod("a");
    let bridge = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0",
        "ipam": { "type": "static", "addresses": [{ "address": "10.1.0.5/24" }] },
    });
    let front = host.attachment("bridge", &pod, "eth0");
    let (ours, theirs) = (host.attachment("bandwidth", &pod, "eth0"), host.attachment(GO, &pod, "eth0"));
    let mut pictures = Vec::new();
    for (maker, other) in [(&ours, &theirs), (&theirs, &ours)] {
        let previous = front.add(&bridge).success().json();
        let mut config = json!({
            "cniVersion": "1.0.0", "name": "net", "type": "bandwidth", "prevResult": previous,
            "ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 80_000_000, "egressBurst": 1_000_000,
        });
        let result = maker.add(&config).success().json();
        let name = |at: usize| result["interfaces"][at]["name"].as_str().unwrap().to_owned();
        let mut picture = json!(shown(&host, &name(1), &name(3)));
        strip(&mut picture);
        pictures.push(picture.to_string());
        config["prevResult"] = result;
        if other.plugin == "bandwidth" {
            other.check(&config).success();
        }
        maker.check(&config).success();
        other.del(&config).success();
        assert!(!rig::links(&host).iter().any(|name| name.starts_with("bwp")), "{}", other.plugin);
        front.del(&bridge).success();
    }
    assert_eq!(pictures[0], pictures[1]);
}

/// Indexes and counters differ from one to the next.
fn strip(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(strip),
        Value::Object(map) => {
            for volatile in
                ["ifindex", "to_dev", "index", "refcnt", "installed", "last_used", "handle_id", "burst"]
            {
                map.remove(volatile);
            }
            // Theirs says the same action a second time, which is never reached.
            if let Some(actions) = map.get_mut("actions").and_then(Value::as_array_mut) {
                actions.truncate(1);
            }
            map.values_mut().for_each(strip);
        }
        _ => {}
    }
}
