//! Tests that compare `host-device` with the Go plugin: each returns a device that the other moved, so pods stay when a
//! node changes to weft or back.
//!
//! Source: containernetworking-plugins of Debian, or of `PEERS`: `host-device`.

use rig::peers::go_plugins;
use rig::{assert_nothing_left, assert_pod_unchanged, with};
use serde_json::json;
use testkit::{Feature, host};

#[test]
fn host_device_moved_by_the_go_plugin_is_returned_by_weft() {
    let host = host!(Feature::Veth, Feature::GoPlugins);
    rig::install(&host);
    host.run(["ip", "link", "add", "dev0", "type", "veth", "peer", "name", "far0"]);
    let pod = host.pod("a");
    let (before, inside) = (host.snapshot(), pod.snapshot());
    let config = json!({ "cniVersion": "1.0.0", "name": "net", "type": "host-device", "device": "dev0" });
    let go = host.attachment(&go_plugins().join("host-device").display().to_string(), &pod, "net1");
    let weft = host.attachment("host-device", &pod, "net1");
    let result = go.add(&config).success().json();
    assert_eq!(rig::link(&pod, "net1").unwrap()["ifalias"], "dev0");
    weft.check(&with(&config, &json!({ "prevResult": result }))).success();
    weft.del(&config).success();
    assert_nothing_left("Go plugin, then weft", &host, &before);
    assert_pod_unchanged("Go plugin, then weft", &pod, &inside);
    let again = weft.add(&config).success().json();
    assert_eq!(again["interfaces"], result["interfaces"]);
}

#[test]
fn host_device_moved_by_weft_is_returned_by_the_go_plugin() {
    let host = host!(Feature::Veth, Feature::GoPlugins);
    rig::install(&host);
    // The kernel resets the settings of an interface in each namespace: no link-local addresses anywhere.
    host.run(["sysctl", "-qw", "net.ipv6.conf.default.addr_gen_mode=1"]);
    let make = "link add dev0 address 02:00:00:00:0d:01 type veth peer name far0\nlink set dev0 up\n\
                link set dev0 alias uplink\n";
    host.command("ip").args(["-batch", "-"]).stdin(make).finish().success();
    let before = host.snapshot();
    let config = json!({ "cniVersion": "1.0.0", "name": "net", "type": "host-device", "device": "dev0" });
    for tidied in ["ADD", "GC", "DEL"] {
        let pod = host.pod("a");
        let inside = pod.snapshot();
        let go = host.attachment(&go_plugins().join("host-device").display().to_string(), &pod, "net1");
        let weft = host.attachment("host-device", &pod, "net1");
        weft.add(&config).success();
        go.del(&config).success();
        let returned = rig::link(&host, "dev0").expect("under its name");
        assert!(returned["address"] == "02:00:00:00:0d:01" && !rig::is_up(&returned), "{returned}");
        assert_pod_unchanged("weft, then Go plugin", &pod, &inside);
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
                drop(rig::gc(&weft, &with(&config, &json!({ "cniVersion": "1.1.0" })), Some(&[])).success());
            }
            _ => drop(weft.del(&config).success()),
        }
        pod.remove();
        // weft does not restore settings that the Go plugin lost, because an operator may have changed them
        // since.
        host.run(["ip", "link", "set", "dev0", "up", "alias", "uplink"]);
        assert_nothing_left(tidied, &host, &before);
    }
}
