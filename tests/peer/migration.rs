//! A node changes over from the Go plugins to ours, or back: what either made, the other removes, for every plugin.
//!
//! ```text
//!   host ── br0, up0 ── outside, dev0        a: pod
//! ```
//!
//! Rules: the host is compared with what it was after the maker itself had taken everything down; what shows a
//! difference on purpose says so in its row. `PEERS` names newer plugins than Debian's; rows that need them are left out
//! without.
//!
//! Source: containernetworking/plugins v1.9.1, `cmdDel` of each.

use rig::peers::{are_newest, go_plugins};
use rig::{changes, with};
use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, Pod, host};

const OURS: &str = "/opt/cni/bin";

/// Which way is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ways {
    /// Either removes the other's.
    Both,
    /// Ours removes theirs; ours is what they know nothing of, and why that is.
    Forward(&'static str),
}

/// A configuration.
struct Row {
    plugin: &'static str,
    keys: &'static str,
    ways: Ways,
    /// Debian's plugins do not know it.
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

const OWN_TABLE: &str = "an element of a table that the Go plugin does not know; a GC of ours removes it";

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
    row("firewall", r#"{"backend":"iptables"}"#).forward("our rules say whose they are, and theirs looks for rules that do not"),
];

/// Where ours remembers what harms nobody.
const REMEMBERED: [&str; 2] = ["/run/weft/host-local", "/run/cni/host-device"];

/// What is no difference: our DEL leaves a device as it was before anybody's ADD.
const ALIAS_GONE: &str = "~ link dev0 ifalias: \"dev0\" → null";

/// Plugins that stand behind another one.
const CHAINED: [&str; 6] = ["bandwidth", "firewall", "portmap", "sbr", "tuning", "vrf"];

/// A world in which what all containers share is there, of both makers: bridge, tables, chains, directories.
fn world(row: &Row, theirs: &str) -> (Host, Pod, Pod) {
    let host = Host::new();
    rig::install(&host);
    let outside = rig::traffic::outside(&host);
    host.run("ip link add dev0 address 02:00:00:00:0d:01 type veth peer name peer0".split(' '));
    host.run(["ip", "link", "set", "peer0", "addrgenmode", "none"]);
    host.run(["ip", "link", "set", "dev0", "addrgenmode", "none"]);
    host.run(["mkdir", "-p", "/run/cni/tuning"]);
    let pod = host.pod("a");
    for maker in [OURS, theirs] {
        // Where iptables has no chain of its own yet, some of theirs fail after all is done.
        let _ = pass(&host, &pod, row, maker, maker);
    }
    (host, outside, pod)
}

/// ADD by one, CHECK by ours, DEL by another, with the plugin in front that a chained one needs.
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
    by(OURS).check(&config).success();
    let deleted = by(deletes).del(&config);
    if chained {
        first.del(&front).success();
    }
    deleted
}

fn hand_over(plugin: &str) {
    let theirs = go_plugins().display().to_string();
    let mut found = Vec::new();
    for row in ROWS.iter().filter(|row| row.plugin == plugin && (are_newest() || !row.newer)) {
        let (host, _outside, pod) = world(row, &theirs);
        let (before, inside) = (host.snapshot(), pod.snapshot());
        let mut ways = vec![(theirs.as_str(), OURS)];
        if row.ways == Ways::Both {
            ways.push((OURS, theirs.as_str()));
        }
        for (adds, deletes) in ways {
            let deleted = pass(&host, &pod, row, adds, deletes);
            let mut left = changes(&before, &host.snapshot()) + &changes(&inside, &pod.snapshot());
            // What ours remembers of a directory that somebody else wrote into meanwhile, and of a device that somebody
            // else brought home, until the next ADD or GC; an alias that Debian's leave behind.
            left = left
                .lines()
                .filter(|line| !REMEMBERED.iter().any(|path| line.contains(path)) && *line != ALIAS_GONE)
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

/// One test a plugin.
macro_rules! plugins {
    ($(fn $name:ident() { $plugin:literal $(needs $feature:ident)* })*) => {$(
        #[test]
        fn $name() {
            let _ = host!(Feature::GoPlugins $(, Feature::$feature)*);
            hand_over($plugin);
        }
    )*};
}

plugins! {
    fn bridge_is_taken_over() { "bridge" needs Bridge needs IptablesNft needs NftBridge needs NftMasquerade }
    fn ptp_is_taken_over() { "ptp" needs Veth needs IptablesNft needs NftMasquerade }
    fn macvlan_is_taken_over() { "macvlan" needs Macvlan }
    fn ipvlan_is_taken_over() { "ipvlan" needs Ipvlan }
    fn vlan_is_taken_over() { "vlan" needs Vlan }
    fn host_device_is_taken_over() { "host-device" needs Veth }
    fn loopback_is_taken_over() { "loopback" needs Veth }
    fn dummy_is_taken_over() { "dummy" needs NewGoPlugins needs Dummy }
    fn tap_is_taken_over() { "tap" needs NewGoPlugins needs Tun }
    fn host_local_is_taken_over() { "host-local" needs Veth }
    fn static_is_taken_over() { "static" needs Veth }
    fn tuning_is_taken_over() { "tuning" needs Bridge }
    fn sbr_is_taken_over() { "sbr" needs Bridge }
    fn bandwidth_is_taken_over() { "bandwidth" needs Bridge needs Tbf needs Ifb needs Mirred }
    fn portmap_is_taken_over() { "portmap" needs Bridge needs IptablesNft needs NftFib }
    fn firewall_is_taken_over() { "firewall" needs Bridge needs IptablesNft }
}

#[test]
fn every_plugin_that_keeps_anything_has_a_row() {
    for plugin in rig::NAMES {
        // Whose counterparts are not in the Go set, or whose daemon is not (dhcp.rs); of a VRF that the Go plugin made
        // our DEL takes the interface out and leaves the VRF, which ends with the container.
        let elsewhere = ["weft-cni", "weft", "multus", "neutron", "weft-ipam", "whereabouts", "dhcp", "vrf"];
        assert!(elsewhere.contains(plugin) || ROWS.iter().any(|row| row.plugin == *plugin), "{plugin}");
    }
    for row in ROWS {
        assert!(!matches!(row.ways, Ways::Forward("")), "{} says why", row.plugin);
    }
}
