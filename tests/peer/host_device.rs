//! A device that the Go plugin gave away is given back by ours, and the other way round: a node that changes over, or
//! back, keeps its pods.
//!
//! Source: containernetworking-plugins of Debian, or of `PEERS`: `host-device`.

use rig::peers::go_plugins;
use rig::{assert_nothing_left, assert_pod_unchanged, with};
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
    let theirs = host.attachment(&go_plugins().join("host-device").display().to_string(), &pod, "net1");
    let ours = host.attachment("host-device", &pod, "net1");
    let result = theirs.add(&config).success().json();
    assert_eq!(rig::link(&pod, "net1").unwrap()["ifalias"], "dev0");
    ours.check(&with(&config, &json!({ "prevResult": result }))).success();
    ours.del(&config).success();
    assert_nothing_left("theirs, then ours", &host, &before);
    assert_pod_unchanged("theirs, then ours", &pod, &inside);
    let again = ours.add(&config).success().json();
    assert_eq!(again["interfaces"], result["interfaces"]);
}

#[test]
fn what_ours_moved_theirs_brings_back_and_ours_tidies_up() {
    let host = host!(Feature::Veth, Feature::GoPlugins);
    rig::install(&host);
    // What the kernel keeps of an interface in a namespace, it begins anew in each: no link-local addresses anywhere.
    host.run(["sysctl", "-qw", "net.ipv6.conf.default.addr_gen_mode=1"]);
    let make = "link add dev0 address 02:00:00:00:0d:01 type veth peer name far0\nlink set dev0 up\n\
                link set dev0 alias uplink\n";
    host.command("ip").args(["-batch", "-"]).stdin(make).finish().success();
    let before = host.snapshot();
    let config = json!({ "cniVersion": "1.0.0", "name": "net", "type": "host-device", "device": "dev0" });
    for tidied in ["ADD", "GC", "DEL"] {
        let pod = host.pod("a");
        let inside = pod.snapshot();
        let theirs = host.attachment(&go_plugins().join("host-device").display().to_string(), &pod, "net1");
        let ours = host.attachment("host-device", &pod, "net1");
        ours.add(&config).success();
        theirs.del(&config).success();
        let home = rig::link(&host, "dev0").expect("under its name");
        assert!(home["address"] == "02:00:00:00:0d:01" && !rig::is_up(&home), "{home}");
        assert_pod_unchanged("ours, then theirs", &pod, &inside);
        match tidied {
            "ADD" => {
                let other = host.pod("b");
                let again = host.attachment("host-device", &other, "net2");
                again.add(&config).success();
                let records = host.run(["ls", "/run/cni/host-device"]);
                assert_eq!(records.trim(), format!("dev0:{}:net2.json", other.container_id()));
                again.del(&config).success();
                other.remove();
            }
            "GC" => {
                drop(rig::gc(&ours, &with(&config, &json!({ "cniVersion": "1.1.0" })), Some(&[])).success())
            }
            _ => drop(ours.del(&config).success()),
        }
        pod.remove();
        // What theirs did not keep, ours does not put back over what somebody may have set since.
        host.run(["ip", "link", "set", "dev0", "up", "alias", "uplink"]);
        assert_nothing_left(tidied, &host, &before);
    }
}
