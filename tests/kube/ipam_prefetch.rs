//! Prefetched blocks in cluster IPAM: blocks that a node has leased before a pod needs them.
//!
//! ```text
//!   kube-apiserver ◄── agents ◄── weft-ipam ADD/DEL ◄── the test, as container runtime
//!                  ◄── weft controller --ipam
//! ```

use std::collections::BTreeSet;

use rig::addresses::{allocated, assert_ipam_consistent, last_byte, network, pool};
use rig::{assert_refused, nodes};
use serde_json::{Value, json};

#[test]
fn prefetched_block_serves_a_requested_address_at_once() {
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    let _ = pool(&nodes, "10.18.0.0/25", 3);
    // Whole blocks without a network or broadcast address.
    let range = json!({ "range": "10.18.0.8-10.18.0.119/25", "quarantine": 0 });
    let conf = network(0, &range);
    let add = |container: &str| allocated(nodes.attachment(&sandbox, container).add(&conf))[0].clone();
    // After the seventh address, less than a quarter of the block is free: the agent prefetches another one, which is in no
    // address store yet.
    let mut seen: BTreeSet<String> = (0..7).map(|at| add(&format!("c{at}"))).collect();
    let ahead = nodes.machine.wait("agent-0", "prefetches a block", || {
        let holds = |block: &Value| {
            let first = last_byte(block["spec"]["range"].as_str().unwrap().split('/').next().unwrap());
            seen.iter().any(|ip| (first..first + 8).contains(&last_byte(ip)))
        };
        nodes.blocks().into_iter().find(|block| !holds(block))
    });
    let first = ahead["spec"]["range"].as_str().unwrap().split('/').next().unwrap().to_owned();
    let named = format!("10.18.0.{}", last_byte(&first) + 5);
    let mut requesting = conf.clone();
    requesting["args"] = json!({ "cni": { "ips": [named] } });
    assert_eq!(
        allocated(nodes.attachment(&sandbox, "r1").add(&requesting)),
        [named.as_str()],
        "at the first attempt"
    );
    seen.insert(named);
    // The rest of both blocks is allocated as usual, and the request left no object.
    for at in 7..15 {
        let ip = add(&format!("c{at}"));
        assert!(seen.insert(ip.clone()), "{ip} twice");
    }
    assert_eq!(seen.len(), 16);
    assert!(nodes.blocks().iter().all(|block| !block["spec"]["range"].as_str().unwrap().ends_with("/32")));
    assert_ipam_consistent(&nodes, &[]);
}

#[test]
fn prefetched_block_lost_to_another_node_is_not_used() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    let _ = pool(&nodes, "10.23.0.0/27", 3);
    // The range contains two whole blocks.
    let conf = |node| network(node, &json!({ "range": "10.23.0.8-10.23.0.23/27", "quarantine": 0 }));
    let add = |node: usize, at: usize| nodes.attachment(&sandbox, &format!("n{node}-{at}")).add(&conf(node));
    let mut all: BTreeSet<String> = (0..7).map(|at| allocated(add(0, at))[0].clone()).collect();
    let two = || Some(nodes.blocks_of(0)).filter(|blocks| blocks.len() == 2);
    let blocks = nodes.machine.wait("agent-0", "prefetches a block", two);
    let is_ahead = |block: &&Value| {
        let first = last_byte(block["spec"]["range"].as_str().unwrap().split('/').next().unwrap());
        !all.iter().any(|ip| (first..first + 8).contains(&last_byte(ip)))
    };
    let ahead = blocks.iter().find(is_ahead).unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
    nodes.delete_block(&ahead);
    for at in 0..8 {
        all.insert(allocated(add(1, at))[0].clone());
    }
    all.insert(allocated(add(0, 7))[0].clone());
    assert_eq!(all.len(), 16);
    assert_refused("all are allocated", &add(0, 8), 11, &["pool 10.23.0.0-27", "no address is free"]);
    assert_ipam_consistent(&nodes, &[]);
}
