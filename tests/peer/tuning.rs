//! Tests that compare `tuning` with the Go plugin: both use the same backup file.
//!
//! ```text
//!   Host ── h0 ──(veth)── eth0 ── Pod a
//! ```

use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Pod, binary, require};

const GO: &str = "/usr/lib/cni/tuning";
const WEFT: &str = "/opt/cni/bin/tuning";

fn world() -> (Host, Pod) {
    let host = Host::new();
    host.install(&binary("weft-cni"), &["tuning"]);
    let pod = host.pod("a");
    host.run(["ip", "link", "add", "h0", "type", "veth", "peer", "name", "eth0", "netns", "a"]);
    // The kernel adds IPv6 addresses and routes a moment later, which would change the snapshots.
    host.run(["sysctl", "-qw", "net.ipv6.conf.h0.disable_ipv6=1"]);
    pod.run(["sysctl", "-qw", "net.ipv6.conf.eth0.disable_ipv6=1"]);
    pod.run(["ip", "link", "set", "eth0", "up", "mtu", "1450", "address", "02:00:00:00:00:aa"]);
    host.run(["mkdir", "-p", "/run/cni/tuning"]);
    (host, pod)
}

fn config(pod: &Pod, more: &Value) -> Value {
    let sandbox = pod.path().display().to_string();
    let mut conf = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "tuning",
        "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [{ "name": "eth0", "mac": "02:00:00:00:00:aa", "sandbox": sandbox }],
            "ips": [{ "address": "10.1.2.3/24", "interface": 0 }],
        },
    });
    for (key, value) in more.as_object().unwrap() {
        conf[key] = value.clone();
    }
    conf
}

fn attachment<'a>(host: &'a Host, pod: &Pod, plugin: &str) -> Attachment<'a> {
    host.attachment(plugin, pod, "eth0")
}

#[test]
fn tuning_changes_are_checked_and_restored_by_either_plugin() {
    require!(Feature::Root, Feature::GoPlugins);
    let (host, pod) = world();
    let before = (host.snapshot(), pod.snapshot());
    let conf =
        config(&pod, &json!({ "mac": "02:00:00:00:00:01", "mtu": 1400, "promisc": true, "allmulti": true }));
    for (adds, deletes) in [(WEFT, GO), (GO, WEFT), (WEFT, WEFT), (GO, GO)] {
        let result = attachment(&host, &pod, adds).add(&conf).success().json();
        assert_eq!(result["interfaces"][0]["mac"], "02:00:00:00:00:01");
        let link = &pod.json(["ip", "-j", "link", "show", "eth0"])[0];
        assert_eq!((&link["address"], &link["mtu"]), (&json!("02:00:00:00:00:01"), &json!(1400)));
        let mut checked = conf.clone();
        checked["prevResult"] = result;
        attachment(&host, &pod, deletes).check(&checked).success();
        attachment(&host, &pod, deletes).del(&conf).success();
        host.assert_unchanged(&before.0);
        assert_eq!(before.1.changes(&pod.snapshot()), "", "{adds} then {deletes}");
    }
}

#[test]
fn tuning_backups_of_both_plugins_are_compatible() {
    require!(Feature::Root, Feature::GoPlugins);
    let (host, pod) = world();
    let path = format!("/run/cni/tuning/{}_eth0.json", pod.container_id());
    let backup = |plugin: &str, conf: &Value| {
        attachment(&host, &pod, plugin).add(conf).success();
        let text = host.read(&path);
        attachment(&host, &pod, plugin).del(conf).success();
        text
    };
    for more in [
        json!({ "mac": "02:00:00:00:00:01", "mtu": 1400, "promisc": true, "allmulti": false }),
        json!({ "mtu": 1400 }),
        json!({ "args": { "cni": { "mac": "02:00:00:00:00:01" } } }),
    ] {
        let conf = config(&pod, &more);
        let (weft, go) = (backup(WEFT, &conf).unwrap(), backup(GO, &conf).unwrap());
        assert_eq!(weft.replace(",\n \"network\": \"net\"", ""), go, "{more}");
    }
    let only_parameters = config(&pod, &json!({ "sysctl": { "net.ipv4.conf.IFNAME.forwarding": "1" } }));
    assert!(backup(WEFT, &only_parameters).is_some() && backup(GO, &only_parameters).is_none());
}
