//! `weft cni` with the Go reference plugins, in every CNI version that they support.
//!
//! ```text
//!   host   cni0 (bridge, 10.88.0.1/24) ── veth ── eth0  pod blue   /run/netns/blue
//!          /usr/lib/cni: bridge host-local tuning portmap loopback (Debian's containernetworking-plugins)
//! ```

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, Pod};

const GO: &str = "/usr/lib/cni";

fn conf(host: &Host, version: &str) {
    let list = json!({"cniVersion": version, "name": "net", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false,
         "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
        {"type": "tuning", "capabilities": {"mac": true}, "mtu": 1400}
    ]});
    host.write("/etc/cni/net.d/10-net.conflist", list.to_string());
}

fn weft(host: &Host, capability_args: &str, line: &str) -> Finished {
    let command = host.command(testkit::binary("weft")).clean_environment();
    let command = command.env("CNI_PATH", GO).env("CAP_ARGS", capability_args);
    command.args(["cni"]).args(line.split_whitespace()).finish()
}

fn addresses(pod: &Pod, link: &str) -> Value {
    let found = pod.json(["ip", "-j", "address", "show", "dev", link]);
    let of = |family: &str| -> Vec<Value> {
        let list = found[0]["addr_info"].as_array().cloned().unwrap_or_default();
        list.into_iter().filter(|a| a["family"] == family).map(|a| a["local"].clone()).collect()
    };
    json!(of("inet"))
}

// Requirements: L5, S8, S9, S17, S27
#[test]
fn cni_add_check_del_with_a_chain_of_go_plugins() {
    for version in ["0.3.1", "0.4.0", "1.0.0"] {
        let host = testkit::host!(Feature::GoPlugins, Feature::Bridge, Feature::Veth);
        conf(&host, version);
        let pod = host.pod("blue");
        let empty = pod.snapshot();
        let mac = r#"{"mac":"c2:11:22:33:44:55","portMappings":[]}"#;
        let result = weft(&host, mac, "add net /run/netns/blue").success().json();
        assert_eq!(result["cniVersion"], version);
        assert_eq!(result["ips"][0]["address"], "10.88.0.2/24");

        let link = pod.json(["ip", "-j", "link", "show", "dev", "eth0"]);
        assert_eq!((&link[0]["mtu"], &link[0]["address"]), (&json!(1400), &json!("c2:11:22:33:44:55")));
        assert_eq!(addresses(&pod, "eth0"), json!(["10.88.0.2"]));
        assert!(pod.pings("10.88.0.1"));

        let checked = weft(&host, mac, "check net /run/netns/blue");
        if version == "0.3.1" {
            assert!(checked.stderr.contains("does not support the CHECK command"), "{}", checked.stderr);
        } else {
            checked.success();
        }
        // CHECK must be able to fail: the plugins receive the result of the ADD.
        if version != "0.3.1" {
            pod.run(["ip", "address", "flush", "dev", "eth0"]);
            assert_eq!(weft(&host, mac, "check net /run/netns/blue").code, Some(1));
        }
        let again = weft(&host, mac, "add net /run/netns/blue");
        assert!(
            again.code == Some(1) && again.stderr.contains(r#"plugin type="bridge" failed (add)"#),
            "{}",
            again.stderr
        );

        weft(&host, mac, "del net /run/netns/blue").success();
        weft(&host, mac, "del net /run/netns/blue").success();
        assert_eq!(empty.changes(&pod.snapshot()), "", "version {version}");
        let held = host.run(["find", "/var/lib/cni", "-name", "10.88.*", "-o", "-name", "net-*"]);
        assert_eq!(held, "", "version {version}");
    }
}

// Requirements: L4
#[test]
fn cni_error_of_a_go_plugin_keeps_code_and_message() {
    let host = testkit::host!(Feature::GoPlugins);
    let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "bridge", "bridge": "cni0", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/31"}]]}}
    ]});
    host.write("/etc/cni/net.d/10-net.conflist", list.to_string());
    let _pod = host.pod("blue");
    let failed = weft(&host, "", "add net /run/netns/blue");
    assert_eq!(failed.code, Some(1));
    assert!(failed.stderr.starts_with(r#"weft: plugin type="bridge" failed (add): "#), "{}", failed.stderr);
    assert!(failed.stderr.contains("too small to allocate from"), "{}", failed.stderr);
}

// Requirements: S22
#[test]
fn cni_single_configuration_with_a_go_plugin() {
    let host = testkit::host!(Feature::GoPlugins);
    host.write("/etc/cni/net.d/99-lo.conf", r#"{"cniVersion":"0.4.0","name":"lo","type":"loopback"}"#);
    let pod = host.pod("blue");
    weft(&host, "", "add lo /run/netns/blue -i lo").success();
    assert_eq!(addresses(&pod, "lo"), json!(["127.0.0.1"]));
    weft(&host, "", "check lo /run/netns/blue -i lo").success();
    weft(&host, "", "del lo /run/netns/blue -i lo").success();
}

// Requirements: trap 8
#[test]
fn cni_add_with_a_go_plugin_in_the_host_namespace() {
    let host = testkit::host!(Feature::GoPlugins);
    host.write("/etc/cni/net.d/99-lo.conf", r#"{"cniVersion":"1.0.0","name":"lo","type":"loopback"}"#);
    // The namespace of the host: old plugins act before they refuse it, if they refuse it at all.
    let own = weft(&host, "", "add lo /proc/self/ns/net -i lo");
    match own.code {
        Some(0) => assert_eq!(own.json()["cniVersion"], "1.0.0"),
        _ => assert!(own.stderr.contains("netns") && !own.stderr.contains("diagnostic"), "{}", own.stderr),
    }
}
