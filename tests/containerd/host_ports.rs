//! Tests for host ports and bandwidth that a pod requests from the runtime, in the runtime's spelling.
//!
//! ```text
//!   outside 192.0.2.2 ── up0 ── 192.0.2.1:8080 node ── br1 ── pod :80
//! ```
//!
//! Source: containerd's go-cni `namespace_opts.go`, whose `PortMapping` and `BandWidth` have no JSON tags:
//! fields begin with capitals; Multus defect M5 (requests of the runtime are for the default network only).

use rig::cluster::{bridge, configuration};
use rig::cri::PortMapping;
use rig::traffic::{OUTSIDE, Transport, UPLINK, outside, reached};
use rig::{Cluster, Containerd, assert_nothing_left};
use serde_json::{Value, json};
use testkit::{Feature, Netns, host};

/// Returns the default network with plugins for the runtime's requests.
fn network() -> Value {
    let mut network = bridge("default", 1);
    network["plugins"][0]["ipam"]["routes"] = json!([{ "dst": "0.0.0.0/0" }]);
    let chain = network["plugins"].as_array_mut().expect("plugins");
    chain.push(json!({ "type": "portmap", "capabilities": { "portMappings": true } }));
    chain.push(json!({ "type": "bandwidth", "capabilities": { "bandwidth": true } }));
    network
}

fn port(protocol: i32, host_port: i32, container_port: i32) -> PortMapping {
    PortMapping { protocol, container_port, host_port, host_ip: String::new() }
}

// Requirements: M5
#[test]
fn host_ports_and_bandwidth_apply_to_the_default_network_only() {
    let host = host!(
        Feature::Bridge,
        Feature::NftMasquerade,
        Feature::NftFib,
        Feature::Tbf,
        Feature::Ifb,
        Feature::Mirred
    );
    let world = outside(&host);
    let Some(node) = Containerd::new(host) else { return };
    let cluster = Cluster::new(&node);
    // This network has the same plugins, without requests.
    let mut red = network();
    red["name"] = "red".into();
    red["plugins"][0]["bridge"] = "br2".into();
    red["plugins"][0]["ipam"]["ranges"] = json!([[{ "subnet": "10.2.0.0/24" }]]);
    cluster.definition("red", &red);
    cluster.pod("web", "red");
    node.configure(&configuration(&network()));
    let mut pod = node
        .pod("web", &[("kubernetes.io/ingress-bandwidth", "10M"), ("kubernetes.io/egress-bandwidth", "20M")]);
    pod.port_mappings = vec![port(0, 8080, 80), port(1, 5353, 53)];
    let early = node.cri().run_pod_sandbox(&pod).expect("a pod");
    node.remove(&early);
    let before = node.snapshot();

    let web = node.cri().run_pod_sandbox(&pod).expect("a pod");
    let ip = node.sandbox(&web).addresses.concat();
    let inside = node.inside(&web);
    let source_address = |client: &Netns, transport, to: &str, port: u16| {
        let peer = reached(transport, client, to, &inside, &format!("{ip}:{port}"));
        peer.map(|peer| peer.ip().to_string())
    };
    let (tcp, udp) = (format!("{}:8080", UPLINK[0]), format!("{}:5353", UPLINK[0]));
    assert_eq!(source_address(&world, Transport::Tcp, &tcp, 80).as_deref(), Some(OUTSIDE[0]));
    assert_eq!(source_address(&world, Transport::Udp, &udp, 53).as_deref(), Some(OUTSIDE[0]));
    assert!(
        source_address(&node, Transport::Tcp, "127.0.0.1:8080", 80).is_some(),
        "the node itself reaches the port"
    );
    let rates: Vec<u64> = tbf_rates(&node);
    assert_eq!(
        rates,
        [10_000_000 / 8, 20_000_000 / 8],
        "one link for each direction, of the default network only"
    );
    let ports = node.run(["nft", "list", "map", "inet", "weft_portmap", "ports4"]);
    assert!(ports.contains("8080") && !ports.contains("10.2.0."), "{ports}");

    node.restart("KILL");
    assert_eq!(
        source_address(&world, Transport::Tcp, &tcp, 80).as_deref(),
        Some(OUTSIDE[0]),
        "the runtime was restarted"
    );
    node.remove(&web);
    assert_nothing_left("ports and rates", &node, &before);
}

/// Returns the rates of all token bucket filters in bytes per second, ascending.
fn tbf_rates(node: &Containerd) -> Vec<u64> {
    let all = node.json(["tc", "-j", "qdisc"]);
    let buckets = all.as_array().into_iter().flatten().filter(|qdisc| qdisc["kind"] == "tbf");
    let mut rates: Vec<u64> = buckets.filter_map(|qdisc| qdisc["options"]["rate"].as_u64()).collect();
    rates.sort_unstable();
    rates
}
