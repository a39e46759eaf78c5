//! `firewall` beside firewalld itself, on a bus of its own: containers come into a zone, and out again.
//!
//! ```text
//!   outside ── up0 ── host, firewalld ── br0 ── a
//! ```
//!
//! Source: firewalld `doc/xml/firewalld.dbus.xml`; plugins `plugins/meta/firewall/firewalld.go`.

use std::time::{Duration, Instant};

use rig::traffic::{OUTSIDE, Transport, outside, reached};
use rig::{assert_refused, with};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Host, Netns, Pod, host};

/// Everybody may do everything: nobody else is on it.
const BUS: &str = r#"<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*" eavesdrop="true"/>
<allow receive_sender="*"/></policy></busconfig>"#;

/// How long firewalld may take to be there.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Starts a bus and firewalld on it, whose files are all in this world.
fn start(host: &Host) {
    host.write("/run/bus.conf", BUS);
    let script = "mkdir -p /run/dbus /run/firewalld\nfor d in /etc/firewalld /var/log; do mount -t tmpfs none $d; done\n\
                  dbus-daemon --config-file=/run/bus.conf --nofork --nopidfile >/run/bus.log 2>&1 </dev/null &\n\
                  while [ ! -S /run/dbus/system_bus_socket ]; do sleep 0.05; done\n\
                  firewalld --nofork --nopid >/run/firewalld.log 2>&1 </dev/null &";
    host.run(["sh", "-ec", script]);
    let until = Instant::now() + TIMEOUT;
    while host.attempt(["firewall-cmd", "--state"]).code != Some(0) {
        let log = host.read("/run/firewalld.log");
        assert!(Instant::now() < until, "firewalld does not come up: {log:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn bridge() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0", "isGateway": true,
        "ipam": {
            "type": "host-local", "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
            "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]],
        },
    })
}

fn sources(host: &Host, zone: &str) -> Vec<String> {
    let listed = host.run(["firewall-cmd", &format!("--zone={zone}"), "--list-sources"]);
    let mut sources: Vec<String> = listed.split_whitespace().map(str::to_owned).collect();
    sources.sort();
    sources
}

/// A pod behind a bridge, and what firewall is called with.
fn attached<'a>(host: &'a Host, name: &str) -> (Pod, Attachment<'a>, Value) {
    let pod = host.pod(name);
    let result = host.attachment("bridge", &pod, "eth0").add(&bridge()).success().json();
    let config = json!({ "cniVersion": "1.0.0", "name": "net", "type": "firewall", "prevResult": result });
    let plugin = host.attachment("firewall", &pod, "eth0");
    (pod, plugin, config)
}

fn gets_to(client: &Netns, server: &Netns, address: &str) -> bool {
    let at = if address.contains(':') { format!("[{address}]:80") } else { format!("{address}:80") };
    reached(Transport::Udp, client, &at, server, &at).is_some()
}

#[test]
fn a_container_comes_into_the_zone_and_out_again() {
    let host = host!(Feature::Firewalld, Feature::Bridge, Feature::NftInet);
    rig::install(&host);
    let outside = outside(&host);
    outside.run(["ip", "route", "add", "10.1.0.0/24", "via", "192.0.2.1"]);
    start(&host);
    let (pod, plugin, config) = attached(&host, "a");
    assert!(!gets_to(&pod, &outside, OUTSIDE[0]), "firewalld does not forward for strangers");
    // By default, too, since firewalld runs here.
    for keys in [json!({ "backend": "firewalld" }), json!({}), json!({ "firewalldZone": "internal" })] {
        let config = with(&config, &keys);
        let zone = keys["firewalldZone"].as_str().unwrap_or("trusted");
        let result = plugin.add(&config).success().json();
        assert_eq!(result, config["prevResult"]);
        assert_eq!(sources(&host, zone), ["10.1.0.2/32", "fd01::2/128"], "{keys}");
        if zone == "trusted" {
            assert!(gets_to(&pod, &outside, OUTSIDE[0]), "{keys}");
        }
        plugin.check(&config).success();
        // Once more changes nothing.
        plugin.add(&config).success();
        assert_eq!(sources(&host, zone).len(), 2, "{keys}");
        plugin.del(&config).success();
        assert!(sources(&host, zone).is_empty(), "{keys}");
        assert_refused("CHECK", &plugin.check(&config), 999, &["10.1.0.2/32", zone]);
        plugin.del(&config).success();
    }
    assert!(!gets_to(&pod, &outside, OUTSIDE[0]), "not after DEL");
}

#[test]
fn a_late_del_leaves_the_zone_to_the_addresses_next_owner() {
    let host = host!(Feature::Firewalld, Feature::Bridge, Feature::NftInet);
    rig::install(&host);
    start(&host);
    let (_pod, plugin, config) = attached(&host, "a");
    plugin.add(&config).success();
    // The address was given to another container, whose firewall knows it now.
    let next = host.pod("b");
    let mut other = host.attachment("firewall", &next, "eth0");
    other.netns = next.path().display().to_string();
    other.add(&config).success();
    plugin.del(&config).success();
    assert_eq!(sources(&host, "trusted"), ["10.1.0.2/32", "fd01::2/128"]);
    other.check(&config).success();
    other.del(&config).success();
    assert!(sources(&host, "trusted").is_empty());
}

#[test]
fn a_failed_add_leaves_no_source_and_says_what_firewalld_said() {
    let host = host!(Feature::Firewalld, Feature::Bridge, Feature::NftInet);
    rig::install(&host);
    start(&host);
    let (_pod, plugin, config) = attached(&host, "a");
    let nowhere = with(&config, &json!({ "firewalldZone": "nowhere" }));
    assert_refused("no such zone", &plugin.add(&nowhere), 5, &["nowhere", "INVALID_ZONE"]);
    // The second address is somebody's in another zone: the first comes out again.
    host.run(["firewall-cmd", "--zone=home", "--add-source=fd01::2/128"]);
    assert_refused("conflict", &plugin.add(&config), 5, &["fd01::2/128", "ZONE_CONFLICT"]);
    assert!(sources(&host, "trusted").is_empty());
    assert_eq!(sources(&host, "home"), ["fd01::2/128"], "what was not ours stays");
    host.run(["firewall-cmd", "--zone=home", "--remove-source=fd01::2/128"]);
    // A policy is ours, in nf_tables, whoever lets through.
    let isolated = with(&config, &json!({ "ingressPolicy": "isolated" }));
    plugin.add(&isolated).success();
    plugin.check(&isolated).success();
    assert!(host.run(["nft", "list", "table", "bridge", "weft_firewall"]).contains("weft/firewall/net/"));
    plugin.del(&isolated).success();
    assert!(!host.run(["nft", "list", "table", "bridge", "weft_firewall"]).contains("weft/firewall/net/"));
}

#[test]
fn firewalld_that_is_gone_has_nothing_of_a_container() {
    let host = host!(Feature::Firewalld, Feature::Bridge, Feature::NftInet);
    rig::install(&host);
    let (_pod, plugin, config) = attached(&host, "a");
    let config = with(&config, &json!({ "backend": "firewalld" }));
    assert_refused("no bus", &plugin.add(&config), 5, &["firewalld", "/run/dbus/system_bus_socket"]);
    plugin.del(&config).success();
    let status = with(&config, &json!({ "cniVersion": "1.1.0", "prevResult": null })).to_string();
    assert_refused("no bus", &plugin.call("STATUS", status.as_str()), 50, &["firewalld"]);
    start(&host);
    assert_eq!(plugin.call("STATUS", status.as_str()).success().stdout, "");
    plugin.add(&config).success();
    assert_eq!(sources(&host, "trusted").len(), 2);
}

#[test]
fn s31_s32_del_without_prev_result_and_gc_find_the_sources() {
    let host = host!(Feature::Firewalld, Feature::Bridge, Feature::NftInet);
    rig::install(&host);
    start(&host);
    let (a, plugin, config) = attached(&host, "a");
    let (b, other, others) = attached(&host, "b");
    let unknown = with(&config, &json!({ "prevResult": null }));
    plugin.add(&config).success();
    other.add(&others).success();
    plugin.del(&unknown).success();
    assert_eq!(sources(&host, "trusted"), ["10.1.0.3/32", "fd01::3/128"]);
    plugin.add(&config).success();
    let newest = with(&unknown, &json!({ "cniVersion": "1.1.0" }));
    rig::gc(&plugin, &newest, Some(&[(&a.container_id(), "eth0")])).success();
    assert_eq!(sources(&host, "trusted"), ["10.1.0.2/32", "fd01::2/128"]);
    other.del(&others).success();
    rig::gc(&plugin, &newest, Some(&[(&b.container_id(), "eth0")])).success();
    assert!(sources(&host, "trusted").is_empty());
}
