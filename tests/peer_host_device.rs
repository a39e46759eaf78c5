//! A device that the Go plugin gave away is given back by ours: a node that changes over keeps its pods.
//!
//! Source: Debian's containernetworking-plugins, `host-device`.

#![cfg(test)]

use rig::{assert_nothing_left, assert_pod_unchanged};
use serde_json::json;
use testkit::{Feature, host};

#[test]
fn what_theirs_moved_ours_brings_back() {
    let host = host!(Feature::Veth, Feature::GoPlugins);
    rig::install(&host);
    host.run(["ip", "link", "add", "dev0", "type", "veth", "peer", "name", "far0"]);
    let pod = host.pod("a");
    let (before, inside) = (host.snapshot(), pod.snapshot());
    let config = json!({ "cniVersion": "1.0.0", "name": "net", "type": "host-device", "device": "dev0" });
    let theirs = host.attachment("/usr/lib/cni/host-device", &pod, "net1");
    let ours = host.attachment("host-device", &pod, "net1");
    let result = theirs.add(&config).success().json();
    assert_eq!(rig::link(&pod, "net1").unwrap()["ifalias"], "dev0");
    ours.check(&rig::with(&config, &json!({ "prevResult": result }))).success();
    ours.del(&config).success();
    assert_nothing_left("theirs, then ours", &host, &before);
    assert_pod_unchanged("theirs, then ours", &pod, &inside);
    let again = ours.add(&config).success().json();
    assert_eq!(again["interfaces"], result["interfaces"]);
}
