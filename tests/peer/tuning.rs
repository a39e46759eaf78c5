//! `tuning` beside the Go plugin: one backup file for both.
//!
//! ```text
//!   Host ── h0 ──(veth)── eth0 ── Pod a
//! ```

use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Pod, binary, require};

const GO: &str = "/usr/lib/cni/tuning";
const OURS: &str = "/opt/cni/bin/tuning";

fn world() -> (Host, Pod) {
    let host = Host::new();
    host.install(&binary("weft-cni"), &["tuning"]);
    let pod = host.pod("a");
    host.run(["ip", "link", "add", "h0", "type", "veth", "peer", "name", "eth0", "netns", "a"]);
    // Without the addresses and routes that come by themselves a moment later.
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
fn what_one_changes_the_other_checks_and_restores() {
    require!(Feature::Root, Feature::GoPlugins);
    let (host, pod) = world();
    let before = (host.snapshot(), pod.snapshot());
    let conf =
        config(&pod, &json!({ "mac": "02:00:00:00:00:01", "mtu": 1400, "promisc": true, "allmulti": true }));
    for (adds, deletes) in [(OURS, GO), (GO, OURS), (OURS, OURS), (GO, GO)] {
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
fn the_backups_say_the_same_and_ours_a_little_more() {
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
        let (ours, go) = (backup(OURS, &conf).unwrap(), backup(GO, &conf).unwrap());
        assert_eq!(ours.replace(",\n \"network\": \"net\"", ""), go, "{more}");
    }
    let only_parameters = config(&pod, &json!({ "sysctl": { "net.ipv4.conf.IFNAME.forwarding": "1" } }));
    assert!(backup(OURS, &only_parameters).is_some() && backup(GO, &only_parameters).is_none());
}
