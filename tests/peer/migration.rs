//! Tests that a node can change from the Go plugins to weft and back: each removes the other's objects, for
//! every plugin.
//!
//! ```text
//!   host ── br0, up0 ── outside, dev0        a: pod
//! ```
//!
//! Rules: the host is compared with the state after ADD and DEL by the same plugin. A row names an intended difference.
//! `PEERS` names newer plugins than Debian's; rows that need them are skipped without it.
//!
//! Source: containernetworking/plugins v1.9.1, `cmdDel` of each.

use rig::peers::{are_newest, go_plugins};
use rig::{changes, with};
use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, Pod, host};

const WEFT: &str = "/opt/cni/bin";

/// Directions that are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ways {
    /// Each plugin removes the objects of the other.
    Both,
    /// weft removes the objects of the Go plugin. The reason says why the other direction does not work.
    Forward(&'static str),
}

/// Plugin and configuration.
struct Row {
    plugin: &'static str,
    keys: &'static str,
    ways: Ways,
    /// Whether Debian's plugins do not support it.
    newer: bool,
}

const fn row(plugin: &'static str, keys: &'static str) -> Row {
    Row { plugin, keys, ways: Ways::Both, newer: false }
}

impl Row {
    const fn forward(mut self, why: &'static str) -> Row {
        self.ways = Ways::Forward(why);
        self
    }

    const fn newer(mut self) -> Row {
        self.newer = true;
        self
    }
}

const IPAM: &str = r#"{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd01::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}"#;

const OWN_TABLE: &str = "an element of a table that the Go plugin does not know; GC of weft removes it";

const ROWS: &[Row] = &[
    row("bridge", r#"{"bridge":"br0"}"#),
    row("bridge", r#"{"bridge":"br0","isDefaultGateway":true,"ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}"#),
    row("bridge", r#"{"bridge":"br0","isGateway":true,"hairpinMode":true,"ipMasq":true,"ipMasqBackend":"iptables"}"#),
    row("bridge", r#"{"bridge":"br0","isGateway":true,"ipMasq":true,"ipMasqBackend":"nftables"}"#)
        .newer()
        .forward(OWN_TABLE),
    row("bridge", r#"{"bridge":"br0","macspoofchk":true}"#).forward(OWN_TABLE),
    row("bridge", r#"{"bridge":"br0","ipam":{}}"#),
    row("ptp", "{}"),
    row("ptp", r#"{"ipMasq":true,"ipMasqBackend":"iptables"}"#),
    row("ptp", r#"{"ipMasq":true,"ipMasqBackend":"nftables"}"#).newer().forward(OWN_TABLE),
    row("macvlan", r#"{"master":"up0"}"#),
    row("ipvlan", r#"{"master":"up0"}"#),
    row("vlan", r#"{"master":"up0","vlanId":5}"#),
    row("host-device", r#"{"device":"dev0"}"#),
    row("loopback", r#"{"ipam":null}"#),
    row("dummy", "{}").newer(),
    row("tap", r#"{"mac":"02:00:00:00:00:05"}"#).newer(),
    row("host-local", "{}"),
    row("static", r#"{"ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24"}]}}"#),
    row("tuning", r#"{"mac":"02:00:00:00:00:05","mtu":1400,"promisc":true,"allmulti":true}"#),
    row("tuning", r#"{"txQLen":77,"mtu":1400}"#).newer(),
    row("sbr", "{}"),
    row("bandwidth", r#"{"ingressRate":8000000,"ingressBurst":800000,"egressRate":8000000,"egressBurst":800000}"#),
    row("portmap", r#"{"backend":"iptables","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},{"hostPort":8080,"containerPort":53,"protocol":"udp"}]}}"#),
    row("portmap", r#"{"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}}"#)
        .forward(OWN_TABLE),
    row("portmap", r#"{"backend":"nftables","runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},{"hostPort":8080,"containerPort":53,"protocol":"udp","hostIP":"192.0.2.1"}]}}"#)
        .newer()
        .forward(OWN_TABLE),
    row("firewall", r#"{"backend":"iptables"}"#).forward("rules of weft have an owner tag, and the Go plugin looks for rules without one"),
];

/// Directories with weft's caches and records, which may remain.
const MAY_REMAIN: [&str; 2] = ["/run/weft/host-local", "/run/cni/host-device"];

/// Change that is no difference: weft's DEL restores a device's alias.
const ALIAS_GONE: &str = "~ link dev0 ifalias: \"dev0\" → null";

/// Plugins that are chained after another one.
const CHAINED: [&str; 6] = ["bandwidth", "firewall", "portmap", "sbr", "tuning", "vrf"];

/// Creates a host with the shared objects of both plugins: bridge, tables, chains, directories.
fn world(row: &Row, go: &str) -> (Host, Pod, Pod) {
    let host = Host::new();
    rig::install(&host);
    let outside = rig::traffic::outside(&host);
    host.run("ip link add dev0 address 02:00:00:00:0d:01 type veth peer name peer0".split(' '));
    host.run(["ip", "link", "set", "peer0", "addrgenmode", "none"]);
    host.run(["ip", "link", "set", "dev0", "addrgenmode", "none"]);
    host.run(["mkdir", "-p", "/run/cni/tuning"]);
    let pod = host.pod("a");
    for maker in [WEFT, go] {
        // Some Go plugins fail at the end if iptables does not have their chains yet.
        let _ = pass(&host, &pod, row, maker, maker);
    }
    (host, outside, pod)
}

/// Calls ADD in one plugin, CHECK in weft and DEL in another, with the previous plugin that a chained one needs.
fn pass(host: &Host, pod: &Pod, row: &Row, adds: &str, deletes: &str) -> Finished {
    let parse = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let base = json!({ "cniVersion": "1.0.0", "name": "net" });
    let front = with(&base, &json!({ "type": "bridge", "bridge": "br0", "ipam": parse(IPAM) }));
    let chained = CHAINED.contains(&row.plugin);
    let mut config = with(&base, &json!({ "type": row.plugin }));
    let first = host.attachment("bridge", pod, "eth0");
    if chained {
        config["prevResult"] = first.add(&front).success().json();
    } else {
        config["ipam"] = parse(IPAM);
    }
    let mut config = with(&config, &parse(row.keys));
    let by = |directory: &str| {
        let mut attachment = host.attachment(&format!("{directory}/{}", row.plugin), pod, "eth0");
        attachment.path = directory.to_owned();
        attachment
    };
    config["prevResult"] = by(adds).add(&config).success().json();
    by(WEFT).check(&config).success();
    let deleted = by(deletes).del(&config);
    if chained {
        first.del(&front).success();
    }
    deleted
}

fn assert_migration(plugin: &str) {
    let go = go_plugins().display().to_string();
    let mut found = Vec::new();
    for row in ROWS.iter().filter(|row| row.plugin == plugin && (are_newest() || !row.newer)) {
        let (host, _outside, pod) = world(row, &go);
        let (before, inside) = (host.snapshot(), pod.snapshot());
        let mut ways = vec![(go.as_str(), WEFT)];
        if row.ways == Ways::Both {
            ways.push((WEFT, go.as_str()));
        }
        for (adds, deletes) in ways {
            let deleted = pass(&host, &pod, row, adds, deletes);
            let mut left = changes(&before, &host.snapshot()) + &changes(&inside, &pod.snapshot());
            // Caches of weft for a directory that another program changed, and records of a device that
            // another program returned, remain until the next ADD or GC. Debian's plugins leave an alias.
            left = left
                .lines()
                .filter(|line| !MAY_REMAIN.iter().any(|path| line.contains(path)) && *line != ALIAS_GONE)
                .collect::<Vec<_>>()
                .join("\n");
            if deleted.code != Some(0) {
                left += &deleted.to_string();
            }
            if !left.is_empty() {
                found.push(format!("{plugin} {}: {adds} adds, {deletes} deletes:\n{left}", row.keys));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n\n"));
}

/// Defines one test for each plugin.
macro_rules! plugins {
    ($(fn $name:ident() { $plugin:literal $(needs $feature:ident)* })*) => {$(
        #[test]
        fn $name() {
            let _ = host!(Feature::GoPlugins $(, Feature::$feature)*);
            assert_migration($plugin);
        }
    )*};
}

plugins! {
    fn bridge_migrates_to_and_from_the_go_plugin() { "bridge" needs Bridge needs IptablesNft needs NftBridge needs NftMasquerade }
    fn ptp_migrates_to_and_from_the_go_plugin() { "ptp" needs Veth needs IptablesNft needs NftMasquerade }
    fn macvlan_migrates_to_and_from_the_go_plugin() { "macvlan" needs Macvlan }
    fn ipvlan_migrates_to_and_from_the_go_plugin() { "ipvlan" needs Ipvlan }
    fn vlan_migrates_to_and_from_the_go_plugin() { "vlan" needs Vlan }
    fn host_device_migrates_to_and_from_the_go_plugin() { "host-device" needs Veth }
    fn loopback_migrates_to_and_from_the_go_plugin() { "loopback" needs Veth }
    fn dummy_migrates_to_and_from_the_go_plugin() { "dummy" needs NewGoPlugins needs Dummy }
    fn tap_migrates_to_and_from_the_go_plugin() { "tap" needs NewGoPlugins needs Tun }
    fn host_local_migrates_to_and_from_the_go_plugin() { "host-local" needs Veth }
    fn static_migrates_to_and_from_the_go_plugin() { "static" needs Veth }
    fn tuning_migrates_to_and_from_the_go_plugin() { "tuning" needs Bridge }
    fn sbr_migrates_to_and_from_the_go_plugin() { "sbr" needs Bridge }
    fn bandwidth_migrates_to_and_from_the_go_plugin() { "bandwidth" needs Bridge needs Tbf needs Ifb needs Mirred }
    fn portmap_migrates_to_and_from_the_go_plugin() { "portmap" needs Bridge needs IptablesNft needs NftFib }
    fn firewall_migrates_to_and_from_the_go_plugin() { "firewall" needs Bridge needs IptablesNft }
}

#[test]
fn migration_table_has_a_row_for_every_plugin_with_state() {
    for plugin in rig::NAMES {
        // These plugins have no Go counterpart in the set, or their daemon has none (dhcp.rs). For a VRF of
        // the Go plugin, DEL of weft removes the interface and leaves the VRF, which is deleted with the
        // container.
        let elsewhere = ["weft-cni", "weft", "multus", "neutron", "weft-ipam", "whereabouts", "dhcp", "vrf"];
        assert!(elsewhere.contains(plugin) || ROWS.iter().any(|row| row.plugin == *plugin), "{plugin}");
    }
    for row in ROWS {
        assert!(!matches!(row.ways, Ways::Forward("")), "{} has a reason", row.plugin);
    }
}
