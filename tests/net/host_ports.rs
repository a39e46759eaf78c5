//! Tests for a pod's host ports and firewall through the meta-plugin: the runtime's `portMappings` reach the
//! default network's plugins, and no other network.
//!
//! ```text
//!   outside ── up0 ── host ── br1 ── web eth0      default: bridge, portmap, firewall
//!                          └─ br2 ── web net1      extra: bridge, portmap
//! ```
//!
//! Source: NPWG v1.1, 7.5; containerd `pkg/cri` (how host ports become part of a CNI configuration).

use rig::cluster::{bridge, configuration};
use rig::traffic::{Transport, UPLINK, outside, reached};
use rig::{Cluster, assert_nothing_left, with};
use serde_json::{Value, json};
use testkit::{Feature, Host, host};

/// Returns a bridge network with port mappings.
fn forwarding(name: &str, subnet: u8, more: &[Value]) -> Value {
    let mut network = bridge(name, subnet);
    network["plugins"][0]["isDefaultGateway"] = (subnet == 1).into();
    let plugins = network["plugins"].as_array_mut().expect("plugins");
    plugins.push(json!({ "type": "portmap", "capabilities": { "portMappings": true } }));
    plugins.extend(more.iter().cloned());
    network
}

/// Returns the meta-plugin's configuration with port mappings, as a runtime passes it.
fn config_with_ports(host_port: u16) -> Value {
    let default = forwarding("default", 1, &[json!({ "type": "firewall", "ingressPolicy": "same-bridge" })]);
    with(
        &configuration(&default),
        &json!({ "capabilities": { "portMappings": true }, "runtimeConfig": { "portMappings": [
            { "hostPort": host_port, "containerPort": 80, "protocol": "tcp" },
            { "hostPort": host_port, "containerPort": 53, "protocol": "udp" },
        ] } }),
    )
}

fn entries(host: &Host, what: &str) -> usize {
    host.run(["nft", "list", "ruleset"]).matches(what).count()
}

// Requirements: V11-7.5-1
#[test]
fn host_ports_apply_to_the_default_network_until_del() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::NftInet);
    let cluster = Cluster::new(&host);
    let outside = outside(&host);
    cluster.definition("extra", &forwarding("extra", 2, &[]));
    cluster.pod("web", "extra");
    let pod = host.pod("web");
    let attachment = cluster.attachment(&pod);
    let first = config_with_ports(8080);
    attachment.add(&first).success();
    attachment.del(&first).success();
    let before = host.snapshot();
    // The host drops what it forwards: without the firewall plugin, nothing would be answered.
    host.run(["nft", "table inet foreign { chain c { type filter hook forward priority 0; policy drop; ct status dnat accept; }; }"]);
    let result = attachment.add(&config_with_ports(8080)).success().json();
    let address = rig::addresses(&result)[0].split('/').next().unwrap().to_owned();
    for (transport, port) in [(Transport::Tcp, 80), (Transport::Udp, 53)] {
        let seen =
            reached(transport, &outside, &format!("{}:8080", UPLINK[0]), &pod, &format!("{address}:{port}"));
        assert!(seen.is_some(), "{transport:?}");
    }
    assert_eq!(entries(&host, "weft/portmap/default/"), 3, "two ports and their address");
    assert_eq!(entries(&host, "weft/portmap/extra/"), 0, "the other network's plugin has no port mappings");
    assert_eq!(entries(&host, "weft/firewall/default/"), 3, "one rule for the address, two for the bridge");
    attachment.check(&with(&config_with_ports(8080), &json!({ "prevResult": result }))).success();
    // DEL as some runtimes call it: without the ports, and after the namespace is deleted.
    let mut last = config_with_ports(8080);
    last.as_object_mut().unwrap().remove("runtimeConfig");
    attachment.del(&last).success();
    host.run(["nft", "delete", "table", "inet", "foreign"]);
    assert_nothing_left("DEL", &host, &before);
}
