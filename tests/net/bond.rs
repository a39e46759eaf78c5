//! Tests for a bond as parent: an interface on it keeps working after one of the bond's links fails.
//!
//! ```text
//!   outside: br0 192.0.2.2 ═╦═ w0 ═╦═ bond0 host        a: macvlan, ipvlan or vlan on bond0
//!                           ╚═ w1 ═╝
//! ```
//!
//! Source: kernel `Documentation/networking/bonding.rst`; containernetworking/plugins v1.9.1.

use serde_json::json;
use testkit::{Feature, Host, Pod, host};

/// Creates two links to a switch outside, which has an address and another one in VLAN 5.
fn world(host: &Host) -> Pod {
    rig::install(host);
    let outside = host.pod("outside");
    let script = "link add br0 up type bridge\naddress add 192.0.2.2/24 dev br0\n\
                  link add link br0 name br0.5 type vlan id 5\nlink set br0.5 up\naddress add 198.51.100.2/24 dev br0.5\n";
    outside.command("ip").args(["-batch", "-"]).stdin(script).finish().success();
    host.run(["ip", "link", "add", "bond0", "type", "bond", "mode", "active-backup", "miimon", "10"]);
    for link in ["w0", "w1"] {
        host.run(["ip", "link", "add", link, "type", "veth", "peer", "name", link, "netns", "outside"]);
        host.run(["ip", "link", "set", link, "master", "bond0"]);
        outside.run(["ip", "link", "set", link, "master", "br0", "up"]);
    }
    host.run(["ip", "link", "set", "bond0", "up"]);
    outside
}

#[test]
fn bond_as_master_survives_the_loss_of_a_link() {
    for (plugin, keys, feature) in [
        ("macvlan", json!({}), Feature::Macvlan),
        ("ipvlan", json!({}), Feature::Ipvlan),
        ("vlan", json!({ "vlanId": 5 }), Feature::Vlan),
    ] {
        let host = host!(Feature::Bond, Feature::Ping, feature);
        let outside = world(&host);
        let pod = host.pod("a");
        let net = if plugin == "vlan" { "198.51.100" } else { "192.0.2" };
        let base = json!({
            "cniVersion": "1.1.0", "name": "net", "type": plugin, "master": "bond0",
            "ipam": { "type": "static", "addresses": [{ "address": format!("{net}.10/24") }] },
        });
        let config = rig::with(&base, &keys);
        let eth0 = host.attachment(plugin, &pod, "eth0");
        let result = eth0.add(&config).success().json();
        let gateway = format!("{net}.2");
        let reaches = || (0..10).any(|_| pod.pings(&gateway));
        assert!(reaches(), "{plugin}");
        let shown = host.json(["ip", "-d", "-j", "link", "show", "bond0"]);
        let active =
            shown[0]["linkinfo"]["info_data"]["active_slave"].as_str().expect("an active link").to_owned();
        outside.run(["ip", "link", "set", &active, "down"]);
        assert!(reaches(), "{plugin}: through the other link");
        eth0.check(&rig::with(&config, &json!({ "prevResult": result }))).success();
        eth0.del(&config).success();
        assert!(rig::links(&pod).is_empty(), "{plugin}");
    }
}
