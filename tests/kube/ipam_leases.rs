//! Leases of cluster IPAM after manual errors: Node objects deleted while the node runs, pools edited, blocks deleted.
//!
//! ```text
//!   kube-apiserver ◄── agents ◄── weft-ipam ADD/DEL ◄── the test, as container runtime
//!                  ◄── weft controller --ipam      ◄── kubectl, by mistake
//! ```

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rig::addresses::{
    Nodes, address_stores, allocated, assert_ipam_consistent, network, pool, start_controllers,
};
use rig::machine::until;
use rig::{assert_refused, nodes};
use serde_json::{Value, json};
use testkit::Pod;

/// Allocates addresses on a node until it is refused; returns them.
fn all_of(nodes: &Nodes, pod: &Pod, node: &str, conf: &Value) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for at in 0.. {
        let added = nodes.attachment(pod, &format!("{node}-{at}")).add(conf);
        if added.code != Some(0) {
            break;
        }
        assert!(all.insert(allocated(added)[0].clone()));
    }
    all
}

/// Adds addresses to `all`, and fails if one is already in it.
fn each_once(all: &mut BTreeSet<String>, more: impl IntoIterator<Item = String>) {
    for ip in more {
        assert!(all.insert(ip.clone()), "{ip} twice");
    }
}

#[test]
fn deleted_node_object_of_a_live_node_keeps_its_blocks() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.70.0.0/27", 3);
    let conf = |node| network(node, &json!({ "range": "10.70.0.0/27", "quarantine": 0 }));
    let held = allocated(nodes.attachment(&sandbox, "held").add(&conf(0)))[0].clone();
    start_controllers(&nodes, &[("one", 9601)]);
    // The Node object is deleted while its agent runs: the agent answers the liveness probe.
    nodes.kube.kubectl(["delete", "node", "worker-0"]);
    nodes
        .machine
        .wait("agent-0", "answers", || nodes.log(0).contains("answered the liveness probe").then_some(()));
    std::thread::sleep(Duration::from_secs(6));
    assert!(!nodes.blocks_of(0).is_empty(), "{}", nodes.machine.log("one"));
    // Without an agent there is no answer: the blocks of the node are released.
    nodes.stop(0, "KILL");
    until("its blocks to be released", || nodes.blocks_of(0).is_empty().then_some(()));
    let others = all_of(&nodes, &sandbox, "others", &conf(1));
    assert!(others.len() == 30, "{others:?}");
    // The agent starts again; its kernel has run all the time.
    nodes.create_node(0);
    nodes.start(0);
    nodes.wait(0);
    nodes.machine.wait("agent-0", "finds the lost lease", || {
        nodes.log(0).contains("block lease is not in the cluster").then_some(())
    });
    let refused = nodes.attachment(&sandbox, "late").add(&conf(0));
    assert_refused(
        "all are leased by the other node",
        &refused,
        11,
        &["pool 10.70.0.0-27", "no address is free"],
    );
    // A held address is known until its DEL.
    nodes.attachment(&sandbox, "held").check(&conf(0)).success();
    assert!(others.contains(&held));
    nodes.attachment(&sandbox, "held").del(&conf(0)).success();
    for at in 0..30 {
        nodes.attachment(&sandbox, &format!("others-{at}")).check(&conf(1)).success();
    }
}

#[test]
fn deleted_blocks_are_leased_again_with_their_held_addresses() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.71.0.0/27", 3);
    let conf = |node| network(node, &json!({ "range": "10.71.0.0/27", "quarantine": 0 }));
    let mut all: BTreeSet<String> = (0..3)
        .map(|at| allocated(nodes.attachment(&sandbox, &format!("held-{at}")).add(&conf(0)))[0].clone())
        .collect();
    // Invalid copies beside the address store have no effect.
    let own = format!("{}/10.71.0.0-27", address_stores(0));
    for copy in ["Old_copy", "0-copy", "1-copy", "b-copy", "z-copy"] {
        let copy = format!("{}/{copy}", address_stores(0));
        nodes.machine.run(["mkdir", "-p", &format!("{copy}/owners")]);
        nodes.machine.run(["cp", &format!("{own}/ledger"), &format!("{copy}/ledger")]);
    }
    // Neither have valid copies.
    for copy in ["0.bak", "z.bak"] {
        nodes.machine.run(["cp", "-a", &own, &format!("{}/{copy}", address_stores(0))]);
    }
    nodes.delete_all_blocks();
    nodes.machine.wait("agent-0", "finds the lost lease", || {
        nodes.log(0).contains("block lease is not in the cluster").then_some(())
    });
    // This happens without any request.
    until("the held block to be the node's", || (!nodes.blocks_of(0).is_empty()).then_some(()));
    for block in nodes.blocks_of(0) {
        assert_eq!(block["spec"]["addressStore"], "10.71.0.0-27", "not a copy: {block}");
    }
    // Both nodes allocate the rest of the pool, and no address twice.
    for (node, name) in [(1, "others"), (0, "mine")] {
        each_once(&mut all, all_of(&nodes, &sandbox, name, &conf(node)));
    }
    assert_eq!(all.len(), 30);
    assert_ipam_consistent(&nodes, &[]);
}

#[test]
fn deleted_single_address_is_restored_for_its_pod() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.83.0.0/29", 0);
    let conf = |node| network(node, &json!({ "range": "10.83.0.0/29", "quarantine": 0 }));
    let held = allocated(nodes.attachment(&sandbox, "held").add(&conf(0)))[0].clone();
    nodes.delete_all_blocks();
    let own = || nodes.blocks_of(0).into_iter().find(|block| block["spec"]["range"] == format!("{held}/32"));
    let again = until("the object to name its node", own);
    assert_eq!(again["spec"]["owner"], "uid-held/held/eth0");
    let mut all = BTreeSet::from([held.clone()]);
    each_once(&mut all, all_of(&nodes, &sandbox, "others", &conf(1)));
    assert_eq!(all.len(), 6);
    // The address store learns of the address with its next request, and releases it with its pod.
    let full = nodes.attachment(&sandbox, "late").add(&conf(0));
    assert_refused("all are allocated", &full, 11, &["no address is free"]);
    assert_eq!(allocated(nodes.attachment(&sandbox, "held").add(&conf(0))), std::slice::from_ref(&held));
    nodes.attachment(&sandbox, "held").del(&conf(0)).success();
    until("the address to be released", || own().is_none().then_some(()));
    assert_eq!(allocated(nodes.attachment(&sandbox, "next").add(&conf(1))), [held]);
}

#[test]
fn restarted_agent_answers_probe_for_another_data_directory() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.81.0.0/27", 3);
    let mut conf = network(0, &json!({ "range": "10.81.0.0/27", "quarantine": 0 }));
    conf["ipam"]["dataDir"] = json!("/var/lib/weft/elsewhere");
    let _ = allocated(nodes.attachment(&sandbox, "held").add(&conf));
    nodes.stop(0, "KILL");
    nodes.start(0);
    nodes.wait(0);
    start_controllers(&nodes, &[("one", 9601)]);
    nodes.kube.kubectl(["delete", "node", "worker-0"]);
    nodes
        .machine
        .wait("agent-0", "answers", || nodes.log(0).contains("answered the liveness probe").then_some(()));
    std::thread::sleep(Duration::from_secs(6));
    assert!(!nodes.blocks_of(0).is_empty(), "{}", nodes.machine.log("one"));
    // A node that has no such blocks watches none.
    assert!(!nodes.log(1).contains("ipblocks"), "{}", nodes.log(1));
}

#[test]
fn out_of_service_node_is_released_once_no_workload_is_bound() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.72.0.0/27", 3);
    let conf = network(1, &json!({ "range": "10.72.0.0/27", "quarantine": 0 }));
    let _ = allocated(nodes.attachment(&sandbox, "c0").add(&conf));
    nodes.kube.kubectl(["create", "namespace", "blue"]);
    let bind = |name: &str, spec: Value| {
        let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "blue" },
            "spec": { "nodeName": "worker-1", "containers": [{ "name": "c", "image": "c" }] } });
        for (key, value) in spec.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        nodes.kube.apply(&pod.to_string());
    };
    bind("daemon", json!({ "tolerations": [{ "operator": "Exists" }] }));
    bind("agent", json!({ "hostNetwork": true }));
    bind("work", json!({}));
    nodes.stop(1, "KILL");
    nodes.kube.kubectl([
        "taint",
        "node",
        "worker-1",
        "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
    ]);
    start_controllers(&nodes, &[("one", 9601)]);
    std::thread::sleep(Duration::from_secs(7));
    assert!(!nodes.blocks_of(1).is_empty(), "a pod may run on the node");
    nodes.kube.kubectl(["delete", "pod", "-n", "blue", "work", "--grace-period=0", "--force"]);
    until("its blocks to be released", || nodes.blocks_of(1).is_empty().then_some(()));
}

#[test]
fn edited_or_deleted_pool_allocates_no_address_twice() {
    let nodes = nodes!(3);
    let sandbox = nodes.machine.pod("a");
    let name = pool(&nodes, "10.73.0.0/26", 4);
    let conf = |node| network(node, &json!({ "range": "10.73.0.0/26", "quarantine": 0 }));
    let add = |node: usize, container: &str| nodes.attachment(&sandbox, container).add(&conf(node));
    let mut all = BTreeSet::new();
    each_once(&mut all, allocated(add(0, "a0")));
    let bits = |bits: u8| {
        let patch = format!(r#"{{"spec":{{"blockBits":{bits}}}}}"#);
        nodes.kube.kubectl(["patch", "ippools.weft.dev", &name, "--type=merge", "-p", &patch]);
    };
    bits(3);
    let words = ["pool 10.73.0.0-26", "blockBits", "10.73.0.0/26 4", "restore them"];
    assert_refused("edited", &add(1, "b0"), 11, &words);
    bits(4);
    each_once(&mut all, allocated(add(1, "b0")));
    // A smaller pool inside the range, created manually.
    let mine = json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPPool", "metadata": { "name": "mine" },
        "spec": { "range": "10.73.0.48/28" } });
    nodes.kube.apply(&mine.to_string());
    let inner = network(2, &json!({ "range": "10.73.0.48/28", "pool": "mine", "quarantine": 0 }));
    let refused = nodes.attachment(&sandbox, "m0").add(&inner);
    assert_refused("of another's addresses", &refused, 11, &["pool mine", "10.73.0.0-26", "spec.exclude"]);
    let named = network(2, &json!({ "range": "10.73.0.48/28", "pool": "mine", "network_name": "red" }));
    let refused = nodes.attachment(&sandbox, "m0").add(&named);
    assert_refused("of another space", &refused, 11, &["pool mine", "spec.networkName", "red"]);
    for pool in ["mine", &name] {
        nodes.delete_pool(pool);
    }
    // The next request creates the pool again, with the same layout.
    each_once(&mut all, allocated(add(2, "c0")));
    let made = nodes.kube.json(["ippools.weft.dev", &name]);
    assert_eq!(made["spec"]["blockBits"], json!(4), "{made}");
    for node in 0..3 {
        each_once(&mut all, all_of(&nodes, &sandbox, &format!("rest{node}"), &conf(node)));
    }
    assert_eq!(all.len(), 62);
    // Addresses that another node gave up are single ones.
    let blocks = nodes.blocks();
    let owners: Vec<&str> = blocks.iter().filter_map(|block| block["spec"]["owner"].as_str()).collect();
    assert_ipam_consistent(&nodes, &owners);
}

/// Covers a virtual machine that migrates while the address's object is deleted manually. The pod that the object names
/// is deleted; the other pod, which the object does not name, keeps the address.
#[test]
fn shared_address_survives_manual_deletion_of_its_object() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.88.0.0/29", 0);
    nodes.kube.kubectl(["create", "namespace", "blue"]);
    let claim = json!({ "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim",
        "metadata": { "name": "vm.net", "namespace": "blue" }, "spec": { "network": "net", "interface": "eth0" } });
    nodes.kube.apply(&claim.to_string());
    let plain = |node| network(node, &json!({ "range": "10.88.0.0/29", "quarantine": 0 }));
    let call = |verb: &str, node: usize, container: &str| {
        let mut conf = plain(node);
        conf["args"] = json!({ "cni": { "ipam-claim-reference": "vm.net" } });
        nodes.attachment(&sandbox, container).call(verb, conf.to_string())
    };
    let kept = allocated(call("ADD", 0, "before"))[0].clone();
    assert_eq!(allocated(call("ADD", 1, "after"))[0], kept);
    nodes.machine.wait("agent-0", "observes that the object names the other node", || {
        nodes.log(0).contains("block lease is not in the cluster").then_some(())
    });
    std::thread::sleep(Duration::from_secs(2));
    let of_claim = || {
        let blocks = nodes.blocks();
        blocks.into_iter().find(|block| block["spec"]["range"] == format!("{kept}/32"))
    };
    let name = of_claim().expect("its object")["metadata"]["name"].as_str().unwrap().to_owned();
    nodes.kube.kubectl(["delete", "ipblock", &name, "--wait=false"]);
    call("DEL", 1, "after").success();
    // The object soon names the pod that holds the address.
    let names_holder = || of_claim().filter(|block| block["spec"]["owner"] == "uid-before/before/eth0");
    until("its object to name the pod that holds it", names_holder);
    let others = all_of(&nodes, &sandbox, "others", &plain(1));
    assert!(others.len() == 5 && !others.contains(&kept), "{kept}: {others:?}");
    call("CHECK", 0, "before").success();
    assert_eq!(allocated(call("ADD", 1, "again"))[0], kept, "the claim keeps it");
    // Once no pod holds the address, the object is removed.
    for (node, pod) in [(0, "before"), (1, "again")] {
        call("DEL", node, pod).success();
    }
    assert!(of_claim().is_some());
    start_controllers(&nodes, &[("one", 9601)]);
    nodes.kube.kubectl(["delete", "ipamclaim", "-n", "blue", "vm.net"]);
    until("its object to be deleted", || of_claim().is_none().then_some(()));
    assert_eq!(allocated(nodes.attachment(&sandbox, "last").add(&plain(0)))[0], kept);
}

/// Covers an object that is deleted manually, and a finalizer that is removed manually.
#[test]
fn finalizer_removed_manually_keeps_the_address_and_claim() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.89.0.0/29", 0);
    let conf = |node| network(node, &json!({ "range": "10.89.0.0/29", "quarantine": 0, "sticky": true }));
    let held = allocated(nodes.attachment(&sandbox, "held").add(&conf(0)))[0].clone();
    let own = || nodes.blocks_of(0).into_iter().find(|block| block["spec"]["range"] == format!("{held}/32"));
    let before = own().expect("its object");
    let name = before["metadata"]["name"].as_str().unwrap();
    nodes.delete_block(name);
    let again = until("the object to name its node", own);
    assert_ne!(again["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(again["spec"]["claim"], before["spec"]["claim"]);
    assert_eq!(again["spec"]["owner"], before["spec"]["owner"]);
    let patch = r#"{"metadata":{"finalizers":null}}"#;
    nodes.kube.kubectl(["patch", "ipblock", name, "--type", "merge", "-p", patch]);
    start_controllers(&nodes, &[("one", 9601)]);
    let is_written = || own().filter(|block| block["metadata"]["finalizers"] == json!(["weft.dev/in-use"]));
    until("the finalizer to be written again", is_written);
}

#[test]
fn finalizer_keeps_a_deleted_block_while_addresses_are_held() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.92.0.0/28", 3);
    let conf = |node| network(node, &json!({ "range": "10.92.0.0/28", "quarantine": 0 }));
    let add = |node: usize, container: &str| {
        allocated(nodes.attachment(&sandbox, container).add(&conf(node)))[0].clone()
    };
    let mut all = BTreeSet::from([add(0, "held")]);
    nodes.stop(0, "KILL");
    nodes.kube.kubectl(["delete", "ipblocks.weft.dev", "--all", "--wait=false"]);
    each_once(&mut all, all_of(&nodes, &sandbox, "others", &conf(1)));
    // The node still has the block and allocates from it.
    each_once(&mut all, [add(0, "more")]);
    nodes.start(0);
    nodes.wait(0);
    each_once(&mut all, [add(0, "last")]);
    assert_eq!(nodes.blocks_of(0).len(), 1, "{:#?}", nodes.blocks());
    for container in ["held", "more", "last"] {
        nodes.attachment(&sandbox, container).del(&conf(0)).success();
    }
    until("the block to be deleted", || nodes.blocks_of(0).is_empty().then_some(()));
    // The block is available to the next request. While this agent runs, the previous node does not take it first.
    let rest = all_of(&nodes, &sandbox, "rest", &conf(1));
    assert_eq!(rest.len(), 7, "{rest:?} {all:?}");
    let full = nodes.attachment(&sandbox, "late").add(&conf(0));
    assert_refused("all are allocated", &full, 11, &["no address is free"]);
}

#[test]
fn recreated_pool_has_one_block_layout() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    let name = pool(&nodes, "10.79.0.0/26", 4);
    let conf = |node| network(node, &json!({ "range": "10.79.0.0/26", "quarantine": 0 }));
    let _ = allocated(nodes.attachment(&sandbox, "c0").add(&conf(0)));
    nodes.attachment(&sandbox, "c0").del(&conf(0)).success();
    // The refusal of an edited pool recommends these steps.
    nodes.kube.kubectl(["delete", "ipblocks.weft.dev", "--all"]);
    nodes.delete_pool(&name);
    pool(&nodes, "10.79.0.0/26", 3);
    nodes.machine.wait("agent-0", "finds the lost lease", || {
        nodes.log(0).contains("block lease is not in the cluster").then_some(())
    });
    assert_eq!(all_of(&nodes, &sandbox, "others", &conf(1)).len(), 62);
    let refused = nodes.attachment(&sandbox, "c1").add(&conf(0));
    assert_refused(
        "all are leased by the other node",
        &refused,
        11,
        &["pool 10.79.0.0-26", "no address is free"],
    );
}

#[test]
fn prefetched_block_of_a_recreated_pool_is_returned() {
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    let name = pool(&nodes, "10.84.0.0/26", 4);
    let conf = network(0, &json!({ "range": "10.84.0.0/26", "quarantine": 0 }));
    let add = |container: usize| allocated(nodes.attachment(&sandbox, &format!("c{container}")).add(&conf));
    let _ = add(0);
    // For a while, the agent's cache has the old pool.
    nodes.delete_pool(&name);
    pool(&nodes, "10.84.0.0/26", 3);
    // Few addresses remain in the block, so the node requests a further one.
    for container in 1..13 {
        let _ = add(container);
    }
    let refused = "weft_allocation_requests_total{outcome=\"refused\"}";
    until("the allocation to be refused", || (nodes.metric(0, refused) > 0).then_some(()));
    let left = nodes.blocks();
    assert_eq!(left.len(), 1, "{left:#?}");
}

#[test]
fn concurrent_first_use_of_a_pool_serves_all_nodes() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    for third in 0..4 {
        let range = format!("10.80.{third}.0/26");
        pool(&nodes, &range, 3);
        let add = |node: usize| {
            let conf = network(node, &json!({ "range": range, "quarantine": 0 }));
            allocated(nodes.attachment(&sandbox, &format!("c{node}-{third}")).add(&conf))[0].clone()
        };
        let (one, other) = std::thread::scope(|scope| {
            let other = scope.spawn(|| add(1));
            (add(0), other.join().expect("the other"))
        });
        assert_ne!(one, other);
    }
    assert_ipam_consistent(&nodes, &[]);
}

#[test]
fn concurrent_overlapping_pools_at_most_one_is_used() {
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    let make = |name: &str, range: &str| {
        let object = json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPPool",
            "metadata": { "name": name }, "spec": { "range": range, "blockBits": 4 } });
        nodes.kube.apply(&object.to_string());
    };
    let record = |name: &str, status: Value| {
        let mut object = nodes.kube.json(["ippools.weft.dev", name]);
        object["status"] = status;
        let path = format!("/apis/weft.dev/v1alpha1/ippools/{name}/status");
        nodes.kube.attempt(["replace", "--raw", &path, "-f", "-"], &object.to_string()).success();
    };
    let add = |name: &str, range: &str| {
        let conf = network(0, &json!({ "range": range, "pool": name, "quarantine": 0 }));
        nodes.attachment(&sandbox, "c0").add(&conf)
    };
    // Another pool begins and is observed: regardless of the order of names, this one waits at most, and withdraws.
    for (own, other) in [("p-a", "p-b"), ("q-b", "q-a")] {
        let third = if own == "p-a" { 74 } else { 75 };
        let (small, large) = (format!("10.{third}.0.0/25"), format!("10.{third}.0.0/24"));
        make(own, &small);
        make(other, &large);
        record(other, json!({ "layout": { "phase": "Pending" } }));
        assert_refused(
            "both pools begin",
            &add(own, &small),
            11,
            &[&format!("pool {own}"), &format!("pool {other}")],
        );
        let seen = nodes.kube.json(["ippools.weft.dev", own]);
        assert!(seen["status"]["layout"].is_null(), "it has withdrawn: {seen}");
        // The other one has withdrawn, too.
        record(other, json!({}));
        let _ = allocated(add(own, &small));
        let seen = nodes.kube.json(["ippools.weft.dev", own]);
        let layout = json!({ "phase": "Fixed", "range": small, "blockBits": 4 });
        assert_eq!(seen["status"]["layout"], layout);
    }
}

#[test]
fn excluded_addresses_of_a_pool_are_not_allocated() {
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    let object = json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPPool", "metadata": { "name": "p" },
        "spec": { "range": "10.76.0.0/28", "blockBits": 4, "exclude": ["10.76.0.4/30"] } });
    nodes.kube.apply(&object.to_string());
    let conf = network(0, &json!({ "range": "10.76.0.0/28", "pool": "p", "quarantine": 0 }));
    let all = all_of(&nodes, &sandbox, "c", &conf);
    assert_eq!(all.len(), 10, "{all:?}");
    assert!((4..8).all(|last| !all.contains(&format!("10.76.0.{last}"))), "{all:?}");
}

#[test]
fn stalled_agent_does_not_serialize_dels() {
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.77.0.0/26", 4);
    let conf = network(0, &json!({ "range": "10.77.0.0/26", "quarantine": 0 }));
    for at in 0..10 {
        let _ = allocated(nodes.attachment(&sandbox, &format!("c{at}")).add(&conf));
    }
    // An address requested outside of the node's block is returned by its DEL, which notifies the agent.
    let block = nodes.blocks()[0]["spec"]["range"].as_str().unwrap().to_owned();
    let outside = if block.starts_with("10.77.0.0/") { "10.77.0.40" } else { "10.77.0.5" };
    let mut named = conf.clone();
    named["args"] = json!({ "cni": { "ips": [outside] } });
    let _ = allocated(nodes.attachment(&sandbox, "named").add(&named));
    let id = nodes.machine.run(["cat", "/run/services/agent-0.pid"]);
    nodes.machine.run(["kill", "-s", "STOP", id.trim()]);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let del = |container: String| nodes.attachment(&sandbox, &container).del(&conf).success();
        scope.spawn(move || del("named".to_owned()));
        for at in 0..9 {
            scope.spawn(move || del(format!("c{at}")));
        }
    });
    let _ = allocated(nodes.attachment(&sandbox, "new").add(&conf));
    let took = begun.elapsed();
    nodes.machine.run(["kill", "-s", "CONT", id.trim()]);
    // Each DEL waits two seconds for the agent, concurrently; one after the other they would take twenty.
    assert!(took < Duration::from_secs(10), "{took:?}");
    // A later call notifies the agent.
    nodes.attachment(&sandbox, "c9").del(&conf).success();
    let is_returned = || {
        nodes
            .blocks()
            .iter()
            .all(|block| block["spec"]["range"] != format!("{outside}/32") || block["spec"]["node"].is_null())
    };
    until("the requested address to be returned", || is_returned().then_some(()));
}

#[test]
fn gc_returns_the_last_empty_block_of_a_node() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.78.0.0/29", 2);
    let conf = |node| network(node, &json!({ "range": "10.78.0.0/29", "quarantine": 0 }));
    let _ = allocated(nodes.attachment(&sandbox, "c0").add(&conf(0)));
    std::thread::sleep(Duration::from_secs(1));
    let _ = allocated(nodes.attachment(&sandbox, "c1").add(&conf(1)));
    nodes.attachment(&sandbox, "c0").del(&conf(0)).success();
    // Times of the lease and of free addresses in the address store are set back by two hours.
    let store = format!("{}/10.78.0.0-29/ledger", address_stores(0));
    let age = format!(
        "import struct\nb=bytearray(open('{store}','rb').read())\ndef old(at):\n v=struct.unpack_from('<Q',b,at)[0]\n t=v&((1<<56)-1)\n \
         struct.pack_into('<Q',b,at,(v>>56<<56)|(t-7200000 if t else 0))\nold(2048+8)\n[old(12288+16*i) for i in range(4)]\n\
         open('{store}','r+b').write(b)"
    );
    nodes.machine.run(["/usr/bin/python3", "-c", &age]);
    let mut sweep = conf(0);
    sweep["cni.dev/valid-attachments"] = json!([]);
    nodes.attachment(&sandbox, "none").call("GC", sweep.to_string()).success();
    assert_eq!((nodes.blocks_of(0).len(), nodes.blocks_of(1).len()), (0, 1), "{:#?}", nodes.blocks());
}

/// Control group of the machine that counts processes; `None` if this kernel has no such groups.
fn counted_group(nodes: &Nodes) -> Option<String> {
    nodes.machine.make_group();
    let group = nodes.machine.group();
    let places = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(|root| format!("{root}{group}"));
    places.into_iter().find(|place| nodes.machine.reach(&format!("{place}/pids.max")).exists())
}

#[test]
fn agent_without_threads_drops_lost_blocks_and_answers_probes() {
    let nodes = nodes!(1);
    let Some(group) = counted_group(&nodes) else {
        return testkit::record_skip(nodes.machine.test(), "no control groups that count processes");
    };
    let sandbox = nodes.machine.pod("a");
    let conf = |range: &str| network(0, &json!({ "range": range, "quarantine": 0 }));
    for (container, range) in [("c1", "10.71.0.0/24"), ("c2", "10.72.0.0/24")] {
        nodes.attachment(&sandbox, container).add(&conf(range)).success();
    }
    let name = |range: &str| {
        let of_pool = nodes.blocks().into_iter().find(|block| block["spec"]["pool"] == range);
        of_pool.expect("a block")["metadata"]["name"].as_str().expect("a name").to_owned()
    };
    let (lost, kept) = (name("10.71.0.0-24"), name("10.72.0.0-24"));
    let inside = |script: &str| nodes.machine.run(["sh", "-e", "-c", &format!("cd {group}; {script}")]);
    inside("cat /run/services/agent-0.pid >cgroup.procs; cat pids.current >pids.max");
    nodes.delete_block(&lost);
    nodes
        .machine
        .wait("agent-0", "cannot start a thread", || nodes.log(0).contains("start a thread").then_some(()));
    inside("echo max >pids.max");
    // The agent answers the liveness probe, and does the postponed work.
    let probe = r#"{"status":{"nodeLivenessProbe":"2026-11-25T12:00:00Z"}}"#;
    nodes.kube.kubectl(["patch", "ipblock", &kept, "--type", "merge", "-p", probe]);
    nodes
        .machine
        .wait("agent-0", "answers", || nodes.log(0).contains("answered the liveness probe").then_some(()));
    nodes.machine.wait("agent-0", "drops the lost lease", || {
        nodes.log(0).contains("block lease is not in the cluster").then_some(())
    });
}

/// Covers a killed call's request, when the address store was unlocked a moment before the socket was closed. The call
/// knows nothing of allocations to the next call, and never sends or receives anything again.
#[test]
fn stale_request_cannot_release_its_successors_lease() {
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    let name = pool(&nodes, "10.84.0.0/29", 0);
    let conf = network(0, &json!({ "range": "10.84.0.0/29", "quarantine": 0 }));
    let held = allocated(nodes.attachment(&sandbox, "held").add(&conf))[0].clone();
    let own = || {
        let range = format!("{held}/32");
        nodes.blocks_of(0).into_iter().find(|block| block["spec"]["range"] == range)
    };
    for kind in [json!("nothing"), json!("any"), json!({ "address": held })] {
        let request = json!({ "version": 1, "request": { "allocateBlocks": {
            "pool": { "name": name, "mustExist": false, "network": "", "range": "10.84.0.0/29" },
            "filter": { "subnet": "10.84.0.0/29", "first": "10.84.0.1", "last": "10.84.0.6", "gateway": null, "exclude": [] },
            "store": name, "directory": address_stores(0), "blocks": [], "operation": { "allocate": kind },
            "pod": { "namespace": "blue", "name": "held", "uid": "uid-held" }, "owner": "uid-held/held/eth0",
            "claim": "", "sharesClaim": false, "quarantine": 0 } } });
        let ask = "import socket,struct,sys\ns=socket.socket(socket.AF_UNIX)\ns.settimeout(20)\n\
                   s.connect('/run/weft-0/agent.sock')\nb=sys.argv[1].encode()\n\
                   s.sendall(struct.pack('>I',len(b))+b)\nwhile m := s.recv(65536): print(m)";
        // The agent's watch has observed the allocation of the call.
        std::thread::sleep(Duration::from_secs(1));
        let before = own();
        let received = nodes.machine.run(["/usr/bin/python3", "-c", ask, &request.to_string()]);
        assert!(
            received.contains("probeClient") && received.contains("did not confirm"),
            "{kind}: {received}"
        );
        assert!(before.is_some() && own() == before, "{kind}: {before:?}, {:?}", own());
    }
    nodes.attachment(&sandbox, "held").check(&conf).success();
}
