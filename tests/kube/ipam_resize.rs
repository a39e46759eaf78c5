//! Ranges that are enlarged, reduced or moved while pods hold addresses, in definitions and in IPPool objects.
//!
//! ```text
//!   kube-apiserver ◄── agents of three or six nodes ◄── weft-ipam ADD/DEL ◄── the test, as container runtime
//! ```

use std::collections::{BTreeMap, BTreeSet};

use rig::addresses::{Nodes, allocated, assert_ipam_consistent, last_byte, network, pool};
use rig::{assert_refused, nodes};
use serde_json::{Value, json};
use testkit::Pod;

/// Pods by name, with the node, the address and the definition's range.
type Pods = BTreeMap<String, (usize, String, String)>;

fn conf(node: usize, range: &str) -> Value {
    network(node, &json!({ "range": range, "quarantine": 0 }))
}

/// Creates this number of pods on the nodes in turn; fails if an address is allocated twice.
#[track_caller]
fn add(nodes: &Nodes, sandbox: &Pod, pods: &mut Pods, (prefix, range): (&str, &str), count: usize) {
    for at in 0..count {
        let (node, container) = (at % nodes.count(), format!("{prefix}{at}"));
        let ip = allocated(nodes.attachment(sandbox, &container).add(&conf(node, range)))[0].clone();
        let other = pods.iter().find(|(_, (_, held, _))| *held == ip);
        assert_eq!(other, None, "{ip} is also allocated to {container}");
        pods.insert(container, (node, ip, range.to_owned()));
    }
}

/// Deletes a pod with the definition that it was created with, and returns the address.
#[track_caller]
fn remove(nodes: &Nodes, sandbox: &Pod, pods: &mut Pods, container: &str) -> String {
    let (node, ip, range) = pods.remove(container).expect("a pod");
    nodes.attachment(sandbox, container).del(&conf(node, &range)).success();
    ip
}

#[track_caller]
fn assert_full(nodes: &Nodes, sandbox: &Pod, range: &str) {
    for node in 0..nodes.count() {
        let refused = nodes.attachment(sandbox, "full").add(&conf(node, range));
        assert_refused("full", &refused, 11, &["no address is free"]);
    }
}

#[track_caller]
fn assert_consistent(nodes: &Nodes) {
    // The test creates no pod objects.
    let blocks = nodes.blocks();
    let owners: Vec<&str> = blocks.iter().filter_map(|block| block["spec"]["owner"].as_str()).collect();
    let owners: Vec<&str> = owners.into_iter().filter(|owner| !owner.is_empty()).collect();
    assert_ipam_consistent(nodes, &owners);
}

#[test]
fn enlarged_range_keeps_its_first_addresses() {
    let nodes = nodes!(3);
    let sandbox = nodes.machine.pod("a");
    let mut pods = Pods::new();
    let [small, large, huge] = ["10.90.0.0/29", "10.90.0.0/28", "10.90.0.0/16"];
    add(&nodes, &sandbox, &mut pods, ("s", small), 6);
    let free = remove(&nodes, &sandbox, &mut pods, "s1");
    add(&nodes, &sandbox, &mut pods, ("l", large), 9);
    assert!(pods.values().any(|(_, ip, _)| *ip == free), "{free} is free: {pods:?}");
    assert_full(&nodes, &sandbox, large);
    let object = nodes.kube.json(["ippools.weft.dev", "10.90.0.0-29"]);
    assert_eq!(
        (&object["spec"]["range"], &object["status"]["layout"]["range"]),
        (&json!(large), &json!(large))
    );
    // Every node gets every address of the old range.
    for container in ["s0", "s2", "s3", "s4", "s5"] {
        let free = remove(&nodes, &sandbox, &mut pods, container);
        add(&nodes, &sandbox, &mut pods, (&format!("again-{container}"), large), 1);
        assert!(pods.values().any(|(_, ip, _)| *ip == free), "{free}: {pods:?}");
    }
    // A large range has blocks, and the single addresses before are not in them.
    add(&nodes, &sandbox, &mut pods, ("h", huge), 40);
    let object = nodes.kube.json(["ippools.weft.dev", "10.90.0.0-29"]);
    assert_eq!(object["status"]["layout"]["range"], huge);
    assert!(object["spec"]["blockBits"].as_u64().expect("a number") > 4, "{object}");
    assert!(nodes.blocks().iter().any(|block| !block["spec"]["range"].as_str().unwrap().ends_with("/32")));
    assert_consistent(&nodes);
    for container in pods.keys().cloned().collect::<Vec<_>>() {
        let _ = remove(&nodes, &sandbox, &mut pods, &container);
    }
}

#[test]
fn enlarged_range_keeps_its_blocks_on_six_nodes() {
    let nodes = nodes!(6);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.91.0.64/26", 3);
    let mut pods = Pods::new();
    let [small, large] = ["10.91.0.64/26", "10.91.0.0/25"];
    add(&nodes, &sandbox, &mut pods, ("s", small), 30);
    // Both definitions are in use at the same moment, as during a rollout.
    let added: Vec<(usize, String, &str, String)> = std::thread::scope(|scope| {
        let each = (0..6).map(|node| {
            let (nodes, sandbox) = (&nodes, &sandbox);
            scope.spawn(move || {
                let add = |at: usize| {
                    let range = if at.is_multiple_of(2) { large } else { small };
                    let container = format!("n{node}-{at}");
                    let ip = allocated(nodes.attachment(sandbox, &container).add(&conf(node, range)));
                    (node, container, range, ip[0].clone())
                };
                (0..6).map(add).collect::<Vec<_>>()
            })
        });
        let each: Vec<_> = each.collect();
        each.into_iter().flat_map(|thread| thread.join().expect("the thread")).collect()
    });
    for (node, container, range, ip) in added {
        assert!(pods.values().all(|(_, held, _)| *held != ip), "{ip} twice");
        pods.insert(container, (node, ip, range.to_owned()));
    }
    add(&nodes, &sandbox, &mut pods, ("l", large), 126 - 66);
    assert_full(&nodes, &sandbox, large);
    assert_consistent(&nodes);
}

#[test]
fn shrunk_range_keeps_held_addresses_until_del() {
    let nodes = nodes!(3);
    let sandbox = nodes.machine.pod("a");
    let mut pods = Pods::new();
    let [large, small] = ["10.92.0.0/28", "10.92.0.0/29"];
    add(&nodes, &sandbox, &mut pods, ("l", large), 14);
    assert_full(&nodes, &sandbox, small);
    let is_inside = |ip: &str| last_byte(ip) < 7;
    let (inside, outside): (Vec<_>, Vec<_>) =
        pods.clone().into_iter().partition(|(_, (_, ip, _))| is_inside(ip));
    let _ = remove(&nodes, &sandbox, &mut pods, &outside[0].0);
    assert_full(&nodes, &sandbox, small);
    for (container, (node, ..)) in &outside[1..] {
        nodes.attachment(&sandbox, container).check(&conf(*node, large)).success();
    }
    let free = remove(&nodes, &sandbox, &mut pods, &inside[0].0);
    add(&nodes, &sandbox, &mut pods, ("s", small), 1);
    assert_eq!(pods["s0"].1, free);
    // A definition that has shrunk does not prevent the DEL of a pod outside of it.
    for (container, (node, ..)) in &outside[1..] {
        nodes.attachment(&sandbox, container).del(&conf(*node, small)).success();
        pods.remove(container);
    }
    assert_full(&nodes, &sandbox, small);
    add(&nodes, &sandbox, &mut pods, ("again", large), 8);
    assert_consistent(&nodes);
}

/// Changes fields of a pool's spec, as an operator does.
#[track_caller]
fn patch(nodes: &Nodes, pool: &str, spec: &Value) {
    let patch = json!({ "spec": spec }).to_string();
    nodes.kube.kubectl(["patch", "ippools.weft.dev", pool, "--type=merge", "-p", &patch]);
}

#[test]
fn resized_pool_object_is_followed_or_refused() {
    let nodes = nodes!(3);
    let sandbox = nodes.machine.pod("a");
    let own = json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPPool", "metadata": { "name": "own" },
        "spec": { "range": "10.93.0.0/28", "blockBits": 2 } });
    nodes.kube.apply(&own.to_string());
    let named =
        |node: usize, range: &str| network(node, &json!({ "range": range, "pool": "own", "quarantine": 0 }));
    let add = |node: usize, container: &str, range: &str| {
        nodes.attachment(&sandbox, container).add(&named(node, range))
    };
    let mut held: BTreeSet<String> = BTreeSet::new();
    for at in 0..14 {
        assert!(held.insert(allocated(add(at % 3, &format!("c{at}"), "10.93.0.0/28"))[0].clone()));
    }
    let refused = add(0, "wide", "10.93.0.0/27");
    assert_refused("not enlarged", &refused, 11, &["pool own: spec.range: 10.93.0.0/28", "10.93.0.0/27"]);
    patch(&nodes, "own", &json!({ "range": "10.93.0.0/27" }));
    for at in 0..16 {
        let ip = allocated(add(at % 3, &format!("d{at}"), "10.93.0.0/27"))[0].clone();
        assert!(held.insert(ip.clone()), "{ip} twice");
    }
    assert_refused("full", &add(1, "full", "10.93.0.0/27"), 11, &["no address is free"]);
    // Another pool has addresses of the larger range: the range before can be used further.
    pool(&nodes, "10.93.0.32/28", 2);
    let other = network(0, &json!({ "range": "10.93.0.32/28", "quarantine": 0 }));
    let first = allocated(nodes.attachment(&sandbox, "other").add(&other))[0].clone();
    patch(&nodes, "own", &json!({ "range": "10.93.0.0/26" }));
    let wide = json!({ "range": "10.93.0.0/26", "range_start": "10.93.0.50", "pool": "own" });
    let refused = nodes.attachment(&sandbox, "wide").add(&network(0, &wide));
    assert_refused("overlaps", &refused, 11, &["pool own", "overlaps pool 10.93.0.32-28", "spec.exclude"]);
    nodes.attachment(&sandbox, "d3").del(&named(0, "10.93.0.0/27")).success();
    let again = allocated(add(1, "d3", "10.93.0.0/27"));
    assert!(held.contains(&again[0]) && !again.contains(&first), "{again:?}");
    // A range elsewhere is refused while addresses are leased.
    patch(&nodes, "own", &json!({ "range": "10.93.1.0/28" }));
    let refused = add(0, "moved", "10.93.1.0/28");
    assert_refused("moved", &refused, 11, &["pool own", "was leased from it", "restore the range"]);
    for (at, last) in (0..14).map(|at| (at, 'c')).chain((0..16).map(|at| (at, 'd'))) {
        let node = if (at, last) == (3, 'd') { 1 } else { at % 3 };
        nodes.attachment(&sandbox, &format!("{last}{at}")).del(&named(node, "10.93.0.0/27")).success();
    }
    for block in nodes.blocks() {
        let name = block["metadata"]["name"].as_str().expect("a name");
        if block["spec"]["pool"] == "own" {
            nodes.delete_block(name);
        }
    }
    assert_eq!(allocated(add(0, "moved", "10.93.1.0/28")).len(), 1);
    let object = nodes.kube.json(["ippools.weft.dev", "own"]);
    assert_eq!(object["status"]["layout"]["range"], "10.93.1.0/28");
}

#[test]
fn pools_inside_an_enlarged_range_are_left_alone() {
    let nodes = nodes!(3);
    let sandbox = nodes.machine.pod("a");
    let mut pods = Pods::new();
    add(&nodes, &sandbox, &mut pods, ("one", "10.94.0.0/29"), 6);
    add(&nodes, &sandbox, &mut pods, ("two", "10.94.0.8/29"), 6);
    // The first pool is enlarged around the second one, which keeps its addresses.
    add(&nodes, &sandbox, &mut pods, ("all", "10.94.0.0/27"), 16);
    let object = nodes.kube.json(["ippools.weft.dev", "10.94.0.0-29"]);
    assert_eq!(object["spec"]["range"], "10.94.0.0/27");
    assert_eq!(object["spec"]["exclude"], json!(["10.94.0.8/29"]));
    assert_full(&nodes, &sandbox, "10.94.0.0/27");
    let mut named = conf(0, "10.94.0.0/27");
    named["runtimeConfig"] = json!({ "ips": ["10.94.0.9/27"] });
    let refused = nodes.attachment(&sandbox, "named").add(&named);
    assert_refused("an address of the second pool", &refused, 11, &["10.94.0.9", "is excluded"]);
    let free = remove(&nodes, &sandbox, &mut pods, "two4");
    assert_full(&nodes, &sandbox, "10.94.0.0/27");
    add(&nodes, &sandbox, &mut pods, ("again", "10.94.0.8/29"), 1);
    assert_eq!(pods["again0"].1, free);
    assert_consistent(&nodes);
}

#[test]
fn pool_in_the_rest_of_a_reduced_range_waits_for_leases() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    let own = json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPPool", "metadata": { "name": "own" },
        "spec": { "range": "10.95.0.0/24", "blockBits": 4 } });
    nodes.kube.apply(&own.to_string());
    let conf_own = network(0, &json!({ "range": "10.95.0.0/24", "pool": "own", "quarantine": 0 }));
    let _ = allocated(nodes.attachment(&sandbox, "c0").add(&conf_own));
    let block = nodes.blocks_of(0)[0].clone();
    let (name, range) = (&block["metadata"]["name"], block["spec"]["range"].as_str().expect("a range"));
    let base = last_byte(range.split('/').next().expect("an address"));
    // The range is reduced to a part without the block; the block is still leased.
    let reduced = if base < 128 { "10.95.0.128/25" } else { "10.95.0.0/25" };
    patch(&nodes, "own", &json!({ "range": reduced }));
    // A range inside of the block, and one around it.
    let inside = format!("10.95.0.{}/30", base + 8);
    let around = format!("10.95.0.{}/26", base & 192);
    for range in [&inside, &around] {
        let refused = nodes.attachment(&sandbox, "rest").add(&conf(1, range));
        let pool = range.replace('/', "-");
        let words =
            [&*format!("pool {pool}: spec.range: {range}"), "of pool own", "which node worker-0 leases"];
        assert_refused(range, &refused, 11, &words);
        let pools = nodes.kube.json(["ippools.weft.dev"])["items"].clone();
        assert_eq!(pools.as_array().map(Vec::len), Some(1), "the refused pool is removed: {pools}");
    }
    // A pool of the operator is kept, and refused until the block is returned.
    let rest = pool(&nodes, &inside, 2);
    let refused = nodes.attachment(&sandbox, "rest").add(&conf(1, &inside));
    assert_refused("of the operator", &refused, 11, &[&*format!("pool {rest}"), "of pool own", "worker-0"]);
    nodes.attachment(&sandbox, "c0").del(&conf_own).success();
    nodes.kube.kubectl(["delete", "ipblocks.weft.dev", name.as_str().expect("a name"), "--wait=false"]);
    nodes.machine.wait("agent-0", "returns the block", || nodes.blocks_of(0).is_empty().then_some(()));
    let ip = allocated(nodes.attachment(&sandbox, "rest").add(&conf(1, &inside)))[0].clone();
    assert!((base + 8..base + 12).contains(&last_byte(&ip)), "{ip} of {inside}");
    // If the range is restored, the first pool does not use the addresses of the second one.
    let exclude = nodes.kube.json(["ippools.weft.dev", "own"])["spec"]["exclude"].clone();
    assert_eq!(exclude, json!([inside]));
}

#[test]
fn pool_around_a_reduced_pool_excludes_its_whole_layout() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    let inner = json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPPool", "metadata": { "name": "inner" },
        "spec": { "range": "10.96.0.0/28", "blockBits": 0 } });
    nodes.kube.apply(&inner.to_string());
    let conf_inner =
        |node| network(node, &json!({ "range": "10.96.0.0/28", "pool": "inner", "quarantine": 0 }));
    let mut held: BTreeSet<String> = BTreeSet::new();
    for at in 0..14 {
        let added = nodes.attachment(&sandbox, &format!("c{at}")).add(&conf_inner(at % 2));
        assert!(held.insert(allocated(added)[0].clone()));
    }
    patch(&nodes, "inner", &json!({ "range": "10.96.0.0/29" }));
    for at in 0..20 {
        let added = nodes.attachment(&sandbox, &format!("d{at}")).add(&conf(at % 2, "10.96.0.0/24"));
        let ip = allocated(added)[0].clone();
        assert!(last_byte(&ip) > 15 && held.insert(ip.clone()), "{ip} twice");
    }
    let outer = nodes.kube.json(["ippools.weft.dev", "10.96.0.0-24"]);
    assert_eq!(outer["spec"]["exclude"], json!(["10.96.0.0/28", "10.96.0.0/29"]));
}

#[test]
fn exclusion_that_ends_frees_its_addresses_for_other_nodes() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    // The first node leases all blocks while a half of each is excluded.
    let exclude = ["10.97.0.4/30", "10.97.0.12/30", "10.97.0.20/30", "10.97.0.28/30"];
    let own = json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPPool", "metadata": { "name": "own" },
        "spec": { "range": "10.97.0.0/27", "blockBits": 3, "exclude": exclude } });
    nodes.kube.apply(&own.to_string());
    let conf = |node| network(node, &json!({ "range": "10.97.0.0/27", "pool": "own", "quarantine": 0 }));
    let add = |container: &str, node: usize| nodes.attachment(&sandbox, container).add(&conf(node));
    let mut held: BTreeSet<String> = BTreeSet::new();
    for at in 0..15 {
        assert!(held.insert(allocated(add(&format!("c{at}"), 0))[0].clone()));
    }
    assert!(held.iter().all(|ip| last_byte(ip) & 4 == 0), "{held:?}");
    assert_refused("excluded", &add("d0", 1), 11, &["no address is free"]);
    for block in nodes.blocks_of(0) {
        let reserved = block["spec"]["reservedAddresses"].as_array().map(Vec::len);
        assert_eq!(reserved, Some(4), "the object of a block names its excluded addresses: {block}");
    }
    patch(&nodes, "own", &json!({ "exclude": null }));
    // The agent of the first node need not run.
    nodes.stop(0, "KILL");
    let ip = allocated(add("d0", 1))[0].clone();
    assert!(last_byte(&ip) & 4 == 4 && held.insert(ip.clone()), "{ip}");
    nodes.start(0);
    for at in 1..15 {
        let ip = allocated(add(&format!("d{at}"), at % 2))[0].clone();
        assert!(held.insert(ip.clone()), "{ip} twice");
    }
    assert_refused("full", &add("full", 1), 11, &["no address is free"]);
    assert_consistent(&nodes);
}

#[test]
fn restored_address_is_free_in_its_block_without_a_return() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    let own = json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPPool", "metadata": { "name": "own" },
        "spec": { "range": "10.98.0.0/28", "blockBits": 3, "exclude": ["10.98.0.4/30"] } });
    nodes.kube.apply(&own.to_string());
    let conf = |node| network(node, &json!({ "range": "10.98.0.0/28", "pool": "own", "quarantine": 0 }));
    let add = |container: &str, node: usize| nodes.attachment(&sandbox, container).add(&conf(node));
    let mut held: BTreeSet<String> = BTreeSet::new();
    for at in 0..10 {
        assert!(held.insert(allocated(add(&format!("c{at}"), 0))[0].clone()));
    }
    patch(&nodes, "own", &json!({ "exclude": null }));
    // One of the addresses is a single address of the other node before the agent looks at the block.
    nodes.stop(0, "KILL");
    let other = allocated(add("other", 1))[0].clone();
    assert!(held.insert(other.clone()), "{other} twice");
    nodes.start(0);
    let reserved = || -> Vec<String> {
        let blocks = nodes.blocks_of(0);
        let reserved = blocks.iter().filter_map(|block| block["spec"]["reservedAddresses"].as_array());
        reserved.flatten().map(|ip| ip.as_str().expect("an address").to_owned()).collect()
    };
    nodes.machine.wait("agent-0", "restores the addresses", || (reserved() == [&*other]).then_some(()));
    // They are allocated like any other of the block, without a request.
    nodes.stop(0, "KILL");
    for at in 0..3 {
        let ip = allocated(add(&format!("d{at}"), 0))[0].clone();
        assert!((4..8).contains(&last_byte(&ip)) && held.insert(ip.clone()), "{ip}");
    }
    nodes.start(0);
    assert_refused("full", &add("full", 1), 11, &["no address is free"]);
    assert_consistent(&nodes);
}
