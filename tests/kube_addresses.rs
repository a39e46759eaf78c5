//! Addresses that are unique in a cluster: a real API server, several nodes' agents, and the plugin as runtimes call it.
//!
//! ```text
//!   kube-apiserver ◄── agents of four nodes ◄── weft-ipam ADD/DEL ◄── the test, in the place of the runtimes
//! ```

#![cfg(test)]

use std::collections::BTreeSet;

use rig::addresses::{Nodes, given, network};
use rig::{Machine, assert_refused};
use serde_json::json;
use testkit::{Feature, host};

/// A cluster of so many nodes.
macro_rules! nodes {
    ($count:expr) => {{
        let Some(nodes) = Nodes::new(Machine::new(host!(Feature::Root), "node"), $count) else { return };
        nodes
    }};
}

#[test]
fn two_nodes_lease_blocks_and_give_each_address_once() {
    let nodes = nodes!(2);
    let pod = nodes.machine.pod("a");
    let conf = |node| network(node, &json!({ "range": "10.9.0.0/20", "quarantine": 0 }));
    let mut seen = BTreeSet::new();
    for round in 0..20 {
        for node in 0..2 {
            let container = format!("c{node}-{round}");
            let ips = given(nodes.attachment(&pod, &container).add(&conf(node)));
            assert!(seen.insert(ips[0].clone()), "{ips:?} twice");
            // The same once more.
            assert_eq!(given(nodes.attachment(&pod, &container).add(&conf(node))), ips);
            nodes.attachment(&pod, &container).check(&conf(node)).success();
        }
    }
    let blocks = nodes.blocks();
    let owners: BTreeSet<&str> = blocks.iter().filter_map(|block| block["spec"]["node"].as_str()).collect();
    assert_eq!((blocks.len(), owners.len()), (2, 2), "{blocks:#?}");
    for node in 0..2 {
        // Made and looked into, and the pool: what 20 pods cost.
        let requests = nodes.figure(node, "weft_address_requests_total ");
        assert!(requests <= 2, "node {node}: {requests} requests");
    }
    let pool = nodes.kube.json(["ippools.weft.dev", "10.9.0.0-20"]);
    assert_eq!(pool["spec"], json!({ "range": "10.9.0.0/20", "blockBits": 8 }));
    // All of it goes again: some by DEL, some by GC, which the runtime calls with what is left.
    for round in 0..10 {
        nodes.attachment(&pod, &format!("c0-{round}")).del(&conf(0)).success();
    }
    for node in 0..2 {
        let mut sweep = conf(node);
        sweep["cni.dev/valid-attachments"] = json!([]);
        nodes.attachment(&pod, "none").call("GC", sweep.to_string()).success();
        let gone = nodes.attachment(&pod, &format!("c{node}-19")).check(&conf(node));
        assert_refused("after GC", &gone, 999, &["holds no address for eth0 in pool 10.9.0.0-20"]);
    }
}
