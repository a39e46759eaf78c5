//! Tests for `firewall` with a real firewalld on a private bus: containers are added to a zone and removed
//! from it.
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

/// Bus configuration without restrictions, because only the test uses the bus.
const BUS: &str = r#"<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*" eavesdrop="true"/>
<allow receive_sender="*"/></policy></busconfig>"#;

/// Longest time that firewalld may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts a bus and firewalld on it, with all files on this host.
fn start(host: &Host) {
    host.write("/run/bus.conf", BUS);
    let script = "mkdir -p /run/dbus /run/firewalld\nfor d in /etc/firewalld /var/log; do mount -t tmpfs none $d; done\n\
                  dbus-daemon --config-file=/run/bus.conf --nofork --nopidfile >/run/bus.log 2>&1 </dev/null &\n\
                  while [ ! -S /run/dbus/system_bus_socket ]; do sleep 0.05; done\n\
                  firewalld --nofork --nopid >/run/firewalld.log 2>&1 </dev/null &";
    host.run(["sh", "-ec", script]);
    let until = Instant::now() + START_TIMEOUT;
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

/// Returns a pod behind a bridge, and the attachment and configuration of firewall.
fn attached<'a>(host: &'a Host, name: &str) -> (Pod, Attachment<'a>, Value) {
    let pod = host.pod(name);
    let result = host.attachment("bridge", &pod, "eth0").add(&bridge()).success().json();
    let config = json!({ "cniVersion": "1.0.0", "name": "net", "type": "firewall", "prevResult": result });
    let plugin = host.attachment("firewall", &pod, "eth0");
    (pod, plugin, config)
}

fn reaches(client: &Netns, server: &Netns, address: &str) -> bool {
    let at = if address.contains(':') { format!("[{address}]:80") } else { format!("{address}:80") };
    reached(Transport::Udp, client, &at, server, &at).is_some()
}

#[test]
fn firewalld_container_is_added_to_the_zone_and_removed() {
    let host = host!(Feature::Firewalld, Feature::Bridge, Feature::NftInet);
    rig::install(&host);
    let outside = outside(&host);
    outside.run(["ip", "route", "add", "10.1.0.0/24", "via", "192.0.2.1"]);
    start(&host);
    let (pod, plugin, config) = attached(&host, "a");
    assert!(!reaches(&pod, &outside, OUTSIDE[0]), "firewalld does not forward for unknown sources");
    // firewalld is the default backend, because it runs here.
    for keys in [json!({ "backend": "firewalld" }), json!({}), json!({ "firewalldZone": "internal" })] {
        let config = with(&config, &keys);
        let zone = keys["firewalldZone"].as_str().unwrap_or("trusted");
        let result = plugin.add(&config).success().json();
        assert_eq!(result, config["prevResult"]);
        assert_eq!(sources(&host, zone), ["10.1.0.2/32", "fd01::2/128"], "{keys}");
        if zone == "trusted" {
            assert!(reaches(&pod, &outside, OUTSIDE[0]), "{keys}");
        }
        plugin.check(&config).success();
        // A repeated ADD changes nothing.
        plugin.add(&config).success();
        assert_eq!(sources(&host, zone).len(), 2, "{keys}");
        plugin.del(&config).success();
        assert!(sources(&host, zone).is_empty(), "{keys}");
        assert_refused("CHECK", &plugin.check(&config), 999, &["10.1.0.2/32", zone]);
        plugin.del(&config).success();
    }
    assert!(!reaches(&pod, &outside, OUTSIDE[0]), "no traffic passes after DEL");
}

#[test]
fn firewalld_late_del_keeps_the_sources_of_the_next_owner() {
    let host = host!(Feature::Firewalld, Feature::Bridge, Feature::NftInet);
    rig::install(&host);
    start(&host);
    let (_pod, plugin, config) = attached(&host, "a");
    plugin.add(&config).success();
    // The address is allocated to another container, whose ADD registers it.
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
fn firewalld_failed_add_leaves_no_source_and_has_its_error() {
    let host = host!(Feature::Firewalld, Feature::Bridge, Feature::NftInet);
    rig::install(&host);
    start(&host);
    let (_pod, plugin, config) = attached(&host, "a");
    let nowhere = with(&config, &json!({ "firewalldZone": "nowhere" }));
    assert_refused("no such zone", &plugin.add(&nowhere), 5, &["nowhere", "INVALID_ZONE"]);
    // The second address is a source of another zone: the first address is removed again.
    host.run(["firewall-cmd", "--zone=home", "--add-source=fd01::2/128"]);
    assert_refused("conflict", &plugin.add(&config), 5, &["fd01::2/128", "ZONE_CONFLICT"]);
    assert!(sources(&host, "trusted").is_empty());
    assert_eq!(sources(&host, "home"), ["fd01::2/128"], "the source of the other zone stays");
    host.run(["firewall-cmd", "--zone=home", "--remove-source=fd01::2/128"]);
    // weft applies a policy in nf_tables, whichever backend accepts traffic.
    let isolated = with(&config, &json!({ "ingressPolicy": "isolated" }));
    plugin.add(&isolated).success();
    plugin.check(&isolated).success();
    assert!(host.run(["nft", "list", "table", "bridge", "weft_firewall"]).contains("weft/firewall/net/"));
    plugin.del(&isolated).success();
    assert!(!host.run(["nft", "list", "table", "bridge", "weft_firewall"]).contains("weft/firewall/net/"));
}

#[test]
fn firewalld_not_running_fails_add_and_del_succeeds() {
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

// Requirements: S31, S32
#[test]
fn firewalld_del_without_prev_result_and_gc_find_the_sources() {
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
