//! Any free address for any node: small windows, addresses from other nodes' blocks, returns without a CNI
//! call.
//!
//! ```text
//!   kube-apiserver ◄── agents of three or six nodes ◄── weft-ipam ADD/DEL ◄── the test, as container runtime
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rig::addresses::{Nodes, allocated, assert_ipam_consistent, last_byte, network, pool};
use rig::machine::until;
use rig::{assert_refused, nodes};
use serde_json::{Value, json};
use testkit::Pod;

/// Creates pods on the nodes in turn and returns the addresses.
#[track_caller]
fn add_in_turn(nodes: &Nodes, pod: &Pod, ipam: &Value, count: usize) -> BTreeSet<String> {
    let add = |at: usize| {
        let conf = network(at % nodes.count(), ipam);
        allocated(nodes.attachment(pod, &format!("t{at}")).add(&conf))[0].clone()
    };
    let all: BTreeSet<String> = (0..count).map(add).collect();
    assert_eq!(all.len(), count, "{all:?}");
    all
}

/// Longest and 99th percentile of some durations, for the output of the test.
fn summary(mut took: Vec<Duration>) -> String {
    took.sort();
    let at = |share: usize| took.get((took.len() * share / 100).min(took.len().saturating_sub(1)));
    format!("{} calls: median {:?}, p99 {:?}, longest {:?}", took.len(), at(50), at(99), took.last())
}

#[test]
fn window_of_few_addresses_is_shared_by_three_nodes() {
    let nodes = nodes!(3);
    let pod = nodes.machine.pod("a");
    let windows = [
        ("10.93.96.0/20", "10.93.97.12", "10.93.97.13", 2),
        ("10.94.0.0/27", "10.94.0.10", "10.94.0.14", 5),
        ("10.56.217.0/24", "10.56.217.171", "10.56.217.181", 11),
    ];
    for (range, first, last, size) in windows {
        let ipam = json!({ "range": range, "range_start": first, "range_end": last, "quarantine": 0 });
        let all = add_in_turn(&nodes, &pod, &ipam, size);
        assert!(
            all.iter().all(|ip| (last_byte(first)..=last_byte(last)).contains(&last_byte(ip))),
            "{all:?}"
        );
        let full = nodes.attachment(&pod, "full").add(&network(2, &ipam));
        assert_refused("full", &full, 11, &["no address is free"]);
        // The last free address is available on any node.
        for node in 0..3 {
            nodes.attachment(&pod, "t0").del(&network(if node == 0 { 0 } else { node - 1 }, &ipam)).success();
            let moved = allocated(nodes.attachment(&pod, "t0").add(&network(node, &ipam)));
            assert!(all.contains(&moved[0]), "{moved:?}");
        }
        for at in 0..size {
            let node = if at == 0 { 2 } else { at % 3 };
            nodes.attachment(&pod, &format!("t{at}")).del(&network(node, &ipam)).success();
        }
    }
    assert_ipam_consistent(&nodes, &[]);
}

#[test]
fn transfer_of_any_address_serves_nodes_without_a_block() {
    let nodes = nodes!(6);
    let pod = nodes.machine.pod("a");
    // Four blocks for six nodes.
    pool(&nodes, "10.80.0.0/24", 6);
    let ipam = json!({ "range": "10.80.0.0/24", "quarantine": 0 });
    let mut all = BTreeSet::new();
    let mut took = Vec::new();
    for at in 0..254 {
        let node = at % 6;
        let added = nodes.attachment(&pod, &format!("t{at}")).add(&network(node, &ipam));
        if nodes.blocks_of(node).iter().all(|block| block["spec"]["range"].as_str().unwrap().ends_with("/32"))
        {
            took.push(added.took);
        }
        let ip = allocated(added)[0].clone();
        assert!(all.insert(ip.clone()), "{ip} twice");
    }
    eprintln!("nodes without a block: {}", summary(took));
    let full = nodes.attachment(&pod, "full").add(&network(5, &ipam));
    assert_refused("full", &full, 11, &["no address is free"]);
    // One free address, on one node: each other node gets it.
    let mut took = Vec::new();
    let mut last = (0, "t0".to_owned());
    for round in 0..12 {
        let node = (round * 5 + 1) % 6;
        nodes.attachment(&pod, &last.1).del(&network(last.0, &ipam)).success();
        let name = format!("r{round}");
        let added = nodes.attachment(&pod, &name).add(&network(node, &ipam));
        took.push(added.took);
        let ip = allocated(added)[0].clone();
        assert!(all.contains(&ip), "{ip}");
        last = (node, name);
    }
    eprintln!("the last address of the cluster: {}", summary(took));
    for at in 1..254 {
        nodes.attachment(&pod, &format!("t{at}")).check(&network(at % 6, &ipam)).success();
    }
}

#[test]
fn transfer_of_any_address_empties_blocks_of_an_idle_node() {
    let nodes = nodes!(6);
    let pod = nodes.machine.pod("a");
    pool(&nodes, "10.81.0.0/27", 2);
    let ipam = json!({ "range": "10.81.0.0/27" });
    let conf = |node| network(node, &ipam);
    let mine: BTreeSet<String> = (0..30)
        .map(|at| allocated(nodes.attachment(&pod, &format!("c{at}")).add(&conf(0)))[0].clone())
        .collect();
    assert_eq!(mine.len(), 30);
    for at in 0..30 {
        nodes.attachment(&pod, &format!("c{at}")).del(&conf(0)).success();
    }
    // The first node makes no call any more; its agent runs.
    let add = |at: usize| {
        let node = 1 + at % 5;
        allocated(nodes.attachment(&pod, &format!("d{at}")).add(&conf(node)))[0].clone()
    };
    let others: BTreeSet<String> = (0..30).map(add).collect();
    assert_eq!(others, mine);
    // The node itself gets an address as soon as one is free.
    assert_refused("full", &nodes.attachment(&pod, "e").add(&conf(0)), 11, &["no address is free"]);
    nodes.attachment(&pod, "d7").del(&conf(1 + 7 % 5)).success();
    assert!(mine.contains(&allocated(nodes.attachment(&pod, "e").add(&conf(0)))[0]));
}

#[test]
fn transfer_of_any_address_waits_for_a_stopped_agent() {
    let nodes = nodes!(3);
    let pod = nodes.machine.pod("a");
    pool(&nodes, "10.82.0.0/28", 2);
    let ipam = json!({ "range": "10.82.0.0/28", "quarantine": 0 });
    let conf = |node| network(node, &ipam);
    for at in 0..14 {
        let _ = allocated(nodes.attachment(&pod, &format!("c{at}")).add(&conf(0)));
    }
    nodes.stop(0, "KILL");
    nodes.attachment(&pod, "c3").del(&conf(0)).success();
    assert_refused(
        "its agent is stopped",
        &nodes.attachment(&pod, "d").add(&conf(1)),
        11,
        &["no address is free"],
    );
    nodes.start(0);
    nodes.machine.wait("agent-0", "gives up an address", || {
        (nodes.attachment(&pod, "d").add(&conf(1)).code == Some(0)).then_some(())
    });
    // A block without objects of its node is in use by the others: one address has one owner.
    nodes.attachment(&pod, "d").check(&conf(1)).success();
    for at in (0..14).filter(|at| *at != 3) {
        nodes.attachment(&pod, &format!("c{at}")).check(&conf(0)).success();
    }
}

#[test]
fn transfer_refused_by_full_nodes_ends_with_a_free_address() {
    let nodes = nodes!(3);
    let pod = nodes.machine.pod("a");
    pool(&nodes, "10.85.0.0/28", 3);
    let ipam = json!({ "range": "10.85.0.0/28", "quarantine": 0 });
    let conf = |node| network(node, &ipam);
    let mut held = BTreeSet::new();
    for at in 0..14 {
        held.extend(allocated(nodes.attachment(&pod, &format!("c{at}")).add(&conf(at / 7))));
    }
    assert_eq!(held.len(), 14);
    for _ in 0..2 {
        let full = nodes.attachment(&pod, "full").add(&conf(2));
        let words = ["no address is free: the range has 14", "2 other nodes have none", "worker-0, worker-1"];
        assert_refused("full", &full, 11, &words);
    }
    // The node that refused gives the address up before it is asked again.
    nodes.attachment(&pod, "c3").del(&conf(0)).success();
    until("the address is given up", || {
        let is_reserved =
            |block: &Value| block["spec"]["reservedAddresses"].as_array().is_some_and(|all| !all.is_empty());
        nodes.blocks_of(0).iter().any(is_reserved).then_some(())
    });
    let ip = allocated(nodes.attachment(&pod, "full").add(&conf(2)));
    assert!(held.contains(&ip[0]), "{ip:?}");
}

#[test]
fn released_address_is_returned_when_the_agent_starts() {
    let nodes = nodes!(2);
    let pod = nodes.machine.pod("a");
    let ipam = json!({ "range": "10.83.0.0/29", "quarantine": 0 });
    let _ = add_in_turn(&nodes, &pod, &ipam, 6);
    nodes.stop(0, "KILL");
    for at in [0, 2, 4] {
        nodes.attachment(&pod, &format!("t{at}")).del(&network(0, &ipam)).success();
    }
    assert_eq!(nodes.blocks_of(0).len(), 3, "no agent has returned them");
    nodes.start(0);
    until("the addresses are returned", || nodes.blocks_of(0).is_empty().then_some(()));
    for at in 0..3 {
        let _ = allocated(nodes.attachment(&pod, &format!("n{at}")).add(&network(1, &ipam)));
    }
}

/// Number of addresses in the range; one more pod at a time would be refused.
const ADDRESSES: usize = 30;

/// Creates and deletes pods on one node: at most a sixth of the addresses, so one is always free in the cluster.
fn fill_and_empty(
    (nodes, pod): (&Nodes, &Pod),
    (node, range): (usize, &str),
    end: Instant,
    held: &Mutex<BTreeMap<String, String>>,
) {
    let conf = network(node, &json!({ "range": range }));
    let mut kept: Vec<(String, String)> = Vec::new();
    for round in 0.. {
        let container = format!("n{node}r{round}");
        let ip = allocated(nodes.attachment(pod, &container).add(&conf))[0].clone();
        let before = held.lock().unwrap().insert(ip.clone(), container.clone());
        assert_eq!(before, None, "{ip} is also allocated to {container}");
        kept.push((ip, container));
        if kept.len() == ADDRESSES / 6 || Instant::now() > end {
            for (ip, container) in kept.drain(..) {
                held.lock().unwrap().remove(&ip);
                nodes.attachment(pod, &container).del(&conf).success();
            }
            if Instant::now() > end {
                return;
            }
        }
    }
}

/// Creates and deletes pods on six nodes at once, with at most as many pods at a time as the range has addresses.
#[track_caller]
fn fill_and_empty_on_six_nodes(nodes: &Nodes, range: &str) {
    let pod = nodes.machine.pod("a");
    let held = Mutex::default();
    let end = Instant::now() + Duration::from_secs(8);
    std::thread::scope(|scope| {
        for node in 0..6 {
            let (pod, held) = (&pod, &held);
            scope.spawn(move || fill_and_empty((nodes, pod), (node, range), end, held));
        }
    });
    assert!(held.into_inner().unwrap().is_empty());
}

#[test]
fn range_of_30_addresses_is_filled_and_emptied_by_six_nodes() {
    fill_and_empty_on_six_nodes(&nodes!(6), "10.84.0.0/27");
}

#[test]
fn range_with_blocks_is_filled_and_emptied_by_six_nodes() {
    let nodes = nodes!(6);
    // Eight blocks: two nodes have two, and every node needs an address of another one at some time.
    pool(&nodes, "10.86.0.0/27", 2);
    fill_and_empty_on_six_nodes(&nodes, "10.86.0.0/27");
}
