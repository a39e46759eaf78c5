//! Whose a lease is when something was done to it that nobody should do: nodes deleted that live, pools edited, holes left.
//!
//! ```text
//!   kube-apiserver ◄── agents ◄── weft-ipam ADD/DEL ◄── the test, in the place of the runtimes
//!                  ◄── weft controller --ipam      ◄── kubectl, by somebody who is wrong
//! ```

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rig::addresses::{Nodes, assert_right, control, given, ledgers, network, pool};
use rig::machine::until;
use rig::{assert_refused, nodes};
use serde_json::{Value, json};
use testkit::Pod;

/// Every address that a node is given, until it is refused.
fn all_of(nodes: &Nodes, pod: &Pod, node: &str, conf: &Value) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for at in 0.. {
        let added = nodes.attachment(pod, &format!("{node}-{at}")).add(conf);
        if added.code != Some(0) {
            break;
        }
        assert!(all.insert(given(added)[0].clone()));
    }
    all
}

/// Everything that two nodes are given, by name of the container; nothing twice.
fn each_once(all: &mut BTreeSet<String>, more: impl IntoIterator<Item = String>) {
    for ip in more {
        assert!(all.insert(ip.clone()), "{ip} twice");
    }
}

#[test]
fn a_node_that_lives_keeps_what_it_has_and_one_that_lost_it_gives_nothing_of_it() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.70.0.0/27", 3);
    let conf = |node| network(node, &json!({ "range": "10.70.0.0/27", "quarantine": 0 }));
    let held = given(nodes.attachment(&sandbox, "held").add(&conf(0)))[0].clone();
    control(&nodes, &[("one", 9601)]);
    // Its object is deleted, and its agent is there: it says so.
    nodes.kube.kubectl(["delete", "node", "worker-0"]);
    nodes
        .machine
        .wait("agent-0", "answers", || nodes.log(0).contains("answered the liveness probe").then_some(()));
    std::thread::sleep(Duration::from_secs(6));
    assert!(!nodes.blocks_of(0).is_empty(), "{}", nodes.machine.log("one"));
    // Without an agent nobody says so: what it had is nobody's.
    nodes.stop(0, "KILL");
    until("its blocks to be nobody's", || nodes.blocks_of(0).is_empty().then_some(()));
    let theirs = all_of(&nodes, &sandbox, "theirs", &conf(1));
    assert!(theirs.len() == 30, "{theirs:?}");
    // It comes back, and its kernel has run all the time.
    nodes.make_node(0);
    nodes.start(0);
    nodes.wait(0);
    nodes.machine.wait("agent-0", "finds what it lost", || {
        nodes.log(0).contains("block lease is not in the cluster").then_some(())
    });
    let refused = nodes.attachment(&sandbox, "late").add(&conf(0));
    assert_refused("all is theirs", &refused, 11, &["pool 10.70.0.0-27", "no address is free"]);
    // What was held is known until it goes.
    nodes.attachment(&sandbox, "held").check(&conf(0)).success();
    assert!(theirs.contains(&held));
    nodes.attachment(&sandbox, "held").del(&conf(0)).success();
    for at in 0..30 {
        nodes.attachment(&sandbox, &format!("theirs-{at}")).check(&conf(1)).success();
    }
}

#[test]
fn what_a_node_lost_and_nobody_took_is_its_own_again_and_what_is_held_in_it_is_given_to_nobody() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.71.0.0/27", 3);
    let conf = |node| network(node, &json!({ "range": "10.71.0.0/27", "quarantine": 0 }));
    let mut all: BTreeSet<String> = (0..3)
        .map(|at| given(nodes.attachment(&sandbox, &format!("held-{at}")).add(&conf(0)))[0].clone())
        .collect();
    // What lies beside the ledger, copies of it that nothing can be done with, is nothing to it.
    let own = format!("{}/10.71.0.0-27", ledgers(0));
    for copy in ["Old_copy", "0-copy", "1-copy", "b-copy", "z-copy"] {
        let copy = format!("{}/{copy}", ledgers(0));
        nodes.machine.run(["mkdir", "-p", &format!("{copy}/owners")]);
        nodes.machine.run(["cp", &format!("{own}/ledger"), &format!("{copy}/ledger")]);
    }
    // And one that is as good as the ledger: who looks after addresses has it still.
    for copy in ["0.bak", "z.bak"] {
        nodes.machine.run(["cp", "-a", &own, &format!("{}/{copy}", ledgers(0))]);
    }
    nodes.lose_all();
    nodes.machine.wait("agent-0", "finds what it lost", || {
        nodes.log(0).contains("block lease is not in the cluster").then_some(())
    });
    // It need not be asked for anything.
    until("what is held in it to be its node's", || (!nodes.blocks_of(0).is_empty()).then_some(()));
    for block in nodes.blocks_of(0) {
        assert_eq!(block["spec"]["addressStore"], "10.71.0.0-27", "no copy's: {block}");
    }
    // Whoever gives the rest of the pool, all of them are others.
    for (node, name) in [(1, "theirs"), (0, "mine")] {
        each_once(&mut all, all_of(&nodes, &sandbox, name, &conf(node)));
    }
    assert_eq!(all.len(), 30);
    assert_right(&nodes, &[]);
}

#[test]
fn a_single_address_that_a_node_lost_and_nobody_took_is_its_pods_again_before_anybody_asks() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.83.0.0/29", 0);
    let conf = |node| network(node, &json!({ "range": "10.83.0.0/29", "quarantine": 0 }));
    let held = given(nodes.attachment(&sandbox, "held").add(&conf(0)))[0].clone();
    nodes.lose_all();
    let own = || nodes.blocks_of(0).into_iter().find(|block| block["spec"]["range"] == format!("{held}/32"));
    let again = until("it to be its node's", own);
    assert_eq!(again["spec"]["owner"], "uid-held/held/eth0");
    let mut all = BTreeSet::from([held.clone()]);
    each_once(&mut all, all_of(&nodes, &sandbox, "theirs", &conf(1)));
    assert_eq!(all.len(), 6);
    // The ledger hears of it with its next question, and gives it back with its pod.
    let full = nodes.attachment(&sandbox, "late").add(&conf(0));
    assert_refused("all is given", &full, 11, &["no address is free"]);
    assert_eq!(given(nodes.attachment(&sandbox, "held").add(&conf(0))), std::slice::from_ref(&held));
    nodes.attachment(&sandbox, "held").del(&conf(0)).success();
    until("it to be nobody's", || own().is_none().then_some(()));
    assert_eq!(given(nodes.attachment(&sandbox, "next").add(&conf(1))), [held]);
}

#[test]
fn a_node_whose_ledgers_are_elsewhere_answers_after_its_agent_was_started_again() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.81.0.0/27", 3);
    let mut conf = network(0, &json!({ "range": "10.81.0.0/27", "quarantine": 0 }));
    conf["ipam"]["dataDir"] = json!("/var/lib/weft/elsewhere");
    let _ = given(nodes.attachment(&sandbox, "held").add(&conf));
    nodes.stop(0, "KILL");
    nodes.start(0);
    nodes.wait(0);
    control(&nodes, &[("one", 9601)]);
    nodes.kube.kubectl(["delete", "node", "worker-0"]);
    nodes
        .machine
        .wait("agent-0", "answers", || nodes.log(0).contains("answered the liveness probe").then_some(()));
    std::thread::sleep(Duration::from_secs(6));
    assert!(!nodes.blocks_of(0).is_empty(), "{}", nodes.machine.log("one"));
    // A node that has none of them follows none.
    assert!(!nodes.log(1).contains("ipblocks"), "{}", nodes.log(1));
}

#[test]
fn a_node_out_of_service_is_gone_though_its_daemons_stay_bound_and_not_while_a_pod_does() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.72.0.0/27", 3);
    let conf = network(1, &json!({ "range": "10.72.0.0/27", "quarantine": 0 }));
    let _ = given(nodes.attachment(&sandbox, "c0").add(&conf));
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
    control(&nodes, &[("one", 9601)]);
    std::thread::sleep(Duration::from_secs(7));
    assert!(!nodes.blocks_of(1).is_empty(), "a pod may run there");
    nodes.kube.kubectl(["delete", "pod", "-n", "blue", "work", "--grace-period=0", "--force"]);
    until("what it had", || nodes.blocks_of(1).is_empty().then_some(()));
}

#[test]
fn a_pool_that_is_edited_or_deleted_while_it_is_leased_gives_no_address_twice() {
    let nodes = nodes!(3);
    let sandbox = nodes.machine.pod("a");
    let name = pool(&nodes, "10.73.0.0/26", 4);
    let conf = |node| network(node, &json!({ "range": "10.73.0.0/26", "quarantine": 0 }));
    let add = |node: usize, container: &str| nodes.attachment(&sandbox, container).add(&conf(node));
    let mut all = BTreeSet::new();
    each_once(&mut all, given(add(0, "a0")));
    let bits = |bits: u8| {
        let patch = format!(r#"{{"spec":{{"blockBits":{bits}}}}}"#);
        nodes.kube.kubectl(["patch", "ippools.weft.dev", &name, "--type=merge", "-p", &patch]);
    };
    bits(3);
    let words = ["pool 10.73.0.0-26", "blockBits", "10.73.0.0/26 4", "restore them"];
    assert_refused("edited", &add(1, "b0"), 11, &words);
    bits(4);
    each_once(&mut all, given(add(1, "b0")));
    // A smaller one in it, by a hand, of the same addresses.
    let mine = json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPPool", "metadata": { "name": "mine" },
        "spec": { "range": "10.73.0.48/28" } });
    nodes.kube.apply(&mine.to_string());
    let inner = network(2, &json!({ "range": "10.73.0.48/28", "pool": "mine", "quarantine": 0 }));
    let refused = nodes.attachment(&sandbox, "m0").add(&inner);
    assert_refused("of another's addresses", &refused, 11, &["pool mine", "10.73.0.0-26", "spec.exclude"]);
    let named = network(2, &json!({ "range": "10.73.0.48/28", "pool": "mine", "network_name": "red" }));
    let refused = nodes.attachment(&sandbox, "m0").add(&named);
    assert_refused("of another space", &refused, 11, &["pool mine", "spec.networkName", "red"]);
    nodes.kube.kubectl(["delete", "ippools.weft.dev", "mine", &name]);
    // It is made anew by the first who needs it, and its blocks are what they were.
    each_once(&mut all, given(add(2, "c0")));
    let made = nodes.kube.json(["ippools.weft.dev", &name]);
    assert_eq!(made["spec"]["blockBits"], json!(4), "{made}");
    for node in 0..3 {
        each_once(&mut all, all_of(&nodes, &sandbox, &format!("rest{node}"), &conf(node)));
    }
    assert_eq!(all.len(), 62);
    assert_right(&nodes, &[]);
}

/// A virtual machine moves, and somebody deletes the object of its address by hand: the one pod that the object names goes, the other
/// one, of which the object says nothing, has the address.
#[test]
fn what_pods_share_is_given_to_nobody_else_though_its_object_is_deleted_by_hand() {
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
    let kept = given(call("ADD", 0, "before"))[0].clone();
    assert_eq!(given(call("ADD", 1, "after"))[0], kept);
    nodes.machine.wait("agent-0", "sees that the object is the other node's", || {
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
    // It is said to be the one's who has it before long.
    let is_his = || of_claim().filter(|block| block["spec"]["owner"] == "uid-before/before/eth0");
    until("its object to name the pod that has it", is_his);
    let theirs = all_of(&nodes, &sandbox, "theirs", &plain(1));
    assert!(theirs.len() == 5 && !theirs.contains(&kept), "{kept}: {theirs:?}");
    call("CHECK", 0, "before").success();
    assert_eq!(given(call("ADD", 1, "again"))[0], kept, "it is the claim's still");
    // When nothing keeps it it goes, as it was told to.
    for (node, pod) in [(0, "before"), (1, "again")] {
        call("DEL", node, pod).success();
    }
    assert!(of_claim().is_some());
    control(&nodes, &[("one", 9601)]);
    nodes.kube.kubectl(["delete", "ipamclaim", "-n", "blue", "vm.net"]);
    until("its object to be gone", || of_claim().is_none().then_some(()));
    assert_eq!(given(nodes.attachment(&sandbox, "last").add(&plain(0)))[0], kept);
}

/// Covers the manual deletion of an object and the manual removal of its finalizer.
#[test]
fn finalizer_and_object_removed_manually_leave_the_address_and_its_claim_on_the_node() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.89.0.0/29", 0);
    let conf = |node| network(node, &json!({ "range": "10.89.0.0/29", "quarantine": 0, "sticky": true }));
    let held = given(nodes.attachment(&sandbox, "held").add(&conf(0)))[0].clone();
    let own = || nodes.blocks_of(0).into_iter().find(|block| block["spec"]["range"] == format!("{held}/32"));
    let before = own().expect("its object");
    let name = before["metadata"]["name"].as_str().unwrap();
    nodes.lose(name);
    let again = until("it to be its node's", own);
    assert_ne!(again["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(again["spec"]["claim"], before["spec"]["claim"]);
    assert_eq!(again["spec"]["owner"], before["spec"]["owner"]);
    let patch = r#"{"metadata":{"finalizers":null}}"#;
    nodes.kube.kubectl(["patch", "ipblock", name, "--type", "merge", "-p", patch]);
    control(&nodes, &[("one", 9601)]);
    let is_written = || own().filter(|block| block["metadata"]["finalizers"] == json!(["weft.dev/in-use"]));
    until("it to be said that it is in use", is_written);
}

#[test]
fn a_block_that_a_hand_deletes_is_its_nodes_until_nothing_in_it_is_held_whether_its_agent_is_there_or_not() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.92.0.0/28", 3);
    let conf = |node| network(node, &json!({ "range": "10.92.0.0/28", "quarantine": 0 }));
    let add = |node: usize, container: &str| {
        given(nodes.attachment(&sandbox, container).add(&conf(node)))[0].clone()
    };
    let mut all = BTreeSet::from([add(0, "held")]);
    nodes.stop(0, "KILL");
    nodes.kube.kubectl(["delete", "ipblocks.weft.dev", "--all", "--wait=false"]);
    each_once(&mut all, all_of(&nodes, &sandbox, "theirs", &conf(1)));
    // The node has it still, and gives of it.
    each_once(&mut all, [add(0, "more")]);
    nodes.start(0);
    nodes.wait(0);
    each_once(&mut all, [add(0, "last")]);
    assert_eq!(nodes.blocks_of(0).len(), 1, "{:#?}", nodes.blocks());
    for container in ["held", "more", "last"] {
        nodes.attachment(&sandbox, container).del(&conf(0)).success();
    }
    until("it to be gone", || nodes.blocks_of(0).is_empty().then_some(()));
    // It is had by who asks for it first, and not by the node that had it as long as that does.
    let rest = all_of(&nodes, &sandbox, "rest", &conf(1));
    assert_eq!(rest.len(), 7, "{rest:?} {all:?}");
    let full = nodes.attachment(&sandbox, "late").add(&conf(0));
    assert_refused("all is given", &full, 11, &["no address is free"]);
}

#[test]
fn a_pool_that_is_made_anew_is_cut_in_one_way() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    let name = pool(&nodes, "10.79.0.0/26", 4);
    let conf = |node| network(node, &json!({ "range": "10.79.0.0/26", "quarantine": 0 }));
    let _ = given(nodes.attachment(&sandbox, "c0").add(&conf(0)));
    nodes.attachment(&sandbox, "c0").del(&conf(0)).success();
    // As the refusal of an edited one advises.
    nodes.kube.kubectl(["delete", "ipblocks.weft.dev", "--all"]);
    nodes.kube.kubectl(["delete", "ippools.weft.dev", &name]);
    pool(&nodes, "10.79.0.0/26", 3);
    nodes.machine.wait("agent-0", "finds what it lost", || {
        nodes.log(0).contains("block lease is not in the cluster").then_some(())
    });
    assert_eq!(all_of(&nodes, &sandbox, "theirs", &conf(1)).len(), 62);
    let refused = nodes.attachment(&sandbox, "c1").add(&conf(0));
    assert_refused("all is theirs", &refused, 11, &["pool 10.79.0.0-26", "no address is free"]);
}

#[test]
fn what_is_leased_ahead_of_a_pool_that_was_made_anew_is_given_back() {
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    let name = pool(&nodes, "10.84.0.0/26", 4);
    let conf = network(0, &json!({ "range": "10.84.0.0/26", "quarantine": 0 }));
    let add = |container: usize| given(nodes.attachment(&sandbox, &format!("c{container}")).add(&conf));
    let _ = add(0);
    // Its agent believes for a while that the pool is as it was.
    nodes.kube.kubectl(["delete", "ippools.weft.dev", &name]);
    pool(&nodes, "10.84.0.0/26", 3);
    // What is left in its block is little, and it wants another one ahead.
    for container in 1..13 {
        let _ = add(container);
    }
    let refused = "weft_allocation_requests_total{outcome=\"refused\"}";
    until("what was leased to be refused", || (nodes.figure(0, refused) > 0).then_some(()));
    let left = nodes.blocks();
    assert_eq!(left.len(), 1, "{left:#?}");
}

#[test]
fn nodes_that_first_use_a_pool_at_one_moment_are_all_served() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    for third in 0..4 {
        let range = format!("10.80.{third}.0/26");
        pool(&nodes, &range, 3);
        let add = |node: usize| {
            let conf = network(node, &json!({ "range": range, "quarantine": 0 }));
            given(nodes.attachment(&sandbox, &format!("c{node}-{third}")).add(&conf))[0].clone()
        };
        let (one, other) = std::thread::scope(|scope| {
            let other = scope.spawn(|| add(1));
            (add(0), other.join().expect("the other"))
        });
        assert_ne!(one, other);
    }
    assert_right(&nodes, &[]);
}

#[test]
fn of_two_pools_that_begin_at_the_same_moment_at_most_one_is_used() {
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
    // Another one begins, and is seen: whichever name sorts first, this one waits, if at all, and gives way.
    for (own, other) in [("p-a", "p-b"), ("q-b", "q-a")] {
        let third = if own == "p-a" { 74 } else { 75 };
        let (small, large) = (format!("10.{third}.0.0/25"), format!("10.{third}.0.0/24"));
        make(own, &small);
        make(other, &large);
        record(other, json!({ "layout": { "phase": "Pending" } }));
        assert_refused(
            "both begin",
            &add(own, &small),
            11,
            &[&format!("pool {own}"), &format!("pool {other}")],
        );
        let seen = nodes.kube.json(["ippools.weft.dev", own]);
        assert!(seen["status"]["layout"].is_null(), "it has given way: {seen}");
        // The other one has given way, too.
        record(other, json!({}));
        let _ = given(add(own, &small));
        let seen = nodes.kube.json(["ippools.weft.dev", own]);
        let layout = json!({ "phase": "Fixed", "range": small, "blockBits": 4 });
        assert_eq!(seen["status"]["layout"], layout);
    }
}

#[test]
fn what_a_pool_leaves_out_of_a_block_is_not_given() {
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
fn calls_do_not_queue_behind_an_agent_that_is_silent() {
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.77.0.0/26", 4);
    let conf = network(0, &json!({ "range": "10.77.0.0/26", "quarantine": 0 }));
    for at in 0..10 {
        let _ = given(nodes.attachment(&sandbox, &format!("c{at}")).add(&conf));
    }
    // One that was asked for outside of the node's block is given back by its DEL, and the agent is to be told.
    let block = nodes.blocks()[0]["spec"]["range"].as_str().unwrap().to_owned();
    let outside = if block.starts_with("10.77.0.0/") { "10.77.0.40" } else { "10.77.0.5" };
    let mut named = conf.clone();
    named["args"] = json!({ "cni": { "ips": [outside] } });
    let _ = given(nodes.attachment(&sandbox, "named").add(&named));
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
    let _ = given(nodes.attachment(&sandbox, "new").add(&conf));
    let took = begun.elapsed();
    nodes.machine.run(["kill", "-s", "CONT", id.trim()]);
    // Each of them asks it for two seconds, at the same time; one after the other they took twenty.
    assert!(took < Duration::from_secs(10), "{took:?}");
    // It is told with a later call.
    nodes.attachment(&sandbox, "c9").del(&conf).success();
    let is_told = || {
        nodes
            .blocks()
            .iter()
            .all(|block| block["spec"]["range"] != format!("{outside}/32") || block["spec"]["node"].is_null())
    };
    until("the address that was asked for to be nobody's", || is_told().then_some(()));
}

#[test]
fn a_nodes_single_pod_does_not_take_the_blocks_of_others_and_its_last_block_goes_with_gc() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.78.0.0/29", 2);
    let conf = |node| network(node, &json!({ "range": "10.78.0.0/29", "quarantine": 0 }));
    let _ = given(nodes.attachment(&sandbox, "c0").add(&conf(0)));
    std::thread::sleep(Duration::from_secs(1));
    let _ = given(nodes.attachment(&sandbox, "c1").add(&conf(1)));
    nodes.attachment(&sandbox, "c0").del(&conf(0)).success();
    // As if it had been two hours ago: since when a block is leased, and an address free, is in the ledger.
    let ledger = format!("{}/10.78.0.0-29/ledger", ledgers(0));
    let age = format!(
        "import struct\nb=bytearray(open('{ledger}','rb').read())\ndef old(at):\n v=struct.unpack_from('<Q',b,at)[0]\n t=v&((1<<56)-1)\n \
         struct.pack_into('<Q',b,at,(v>>56<<56)|(t-7200000 if t else 0))\nold(2048+8)\n[old(12288+16*i) for i in range(4)]\n\
         open('{ledger}','r+b').write(b)"
    );
    nodes.machine.run(["/usr/bin/python3", "-c", &age]);
    let mut sweep = conf(0);
    sweep["cni.dev/valid-attachments"] = json!([]);
    nodes.attachment(&sandbox, "none").call("GC", sweep.to_string()).success();
    assert_eq!((nodes.blocks_of(0).len(), nodes.blocks_of(1).len()), (0, 1), "{:#?}", nodes.blocks());
}

/// The control group of a machine's own in which processes are counted; none where this kernel has no such groups.
fn counted_group(nodes: &Nodes) -> Option<String> {
    nodes.machine.make_group();
    let group = nodes.machine.group();
    let places = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(|root| format!("{root}{group}"));
    places.into_iter().find(|place| nodes.machine.reach(&format!("{place}/pids.max")).exists())
}

#[test]
fn a_node_whose_agent_gets_no_thread_for_a_while_gives_nothing_of_what_it_lost_and_answers_for_the_rest() {
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
    nodes.lose(&lost);
    nodes.machine.wait("agent-0", "gets no thread", || nodes.log(0).contains("start a thread").then_some(()));
    inside("echo max >pids.max");
    // Whoever is asked whether it is there answers, and what could not be done is done.
    let probe = r#"{"status":{"nodeLivenessProbe":"2026-11-25T12:00:00Z"}}"#;
    nodes.kube.kubectl(["patch", "ipblock", &kept, "--type", "merge", "-p", probe]);
    nodes
        .machine
        .wait("agent-0", "answers", || nodes.log(0).contains("answered the liveness probe").then_some(()));
    nodes.machine.wait("agent-0", "gives nothing of what it lost", || {
        nodes.log(0).contains("block lease is not in the cluster").then_some(())
    });
}

/// What a call asks that was killed, if its ledger was free a moment before its socket was closed: it knows nothing of what the
/// next call was given, and will never hear or say anything.
#[test]
fn a_question_of_a_call_that_is_dead_takes_nothing_from_the_next_one_though_its_socket_is_open() {
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    let name = pool(&nodes, "10.84.0.0/29", 0);
    let conf = network(0, &json!({ "range": "10.84.0.0/29", "quarantine": 0 }));
    let held = given(nodes.attachment(&sandbox, "held").add(&conf))[0].clone();
    let own = || {
        let range = format!("{held}/32");
        nodes.blocks_of(0).into_iter().find(|block| block["spec"]["range"] == range)
    };
    for kind in [json!("nothing"), json!("any"), json!({ "address": held })] {
        let request = json!({ "version": 1, "request": { "allocateBlocks": {
            "pool": { "name": name, "mustExist": false, "network": "", "range": "10.84.0.0/29" },
            "filter": { "subnet": "10.84.0.0/29", "first": "10.84.0.1", "last": "10.84.0.6", "gateway": null, "exclude": [] },
            "store": name, "directory": ledgers(0), "blocks": [], "operation": { "allocate": kind },
            "pod": { "namespace": "blue", "name": "held", "uid": "uid-held" }, "owner": "uid-held/held/eth0",
            "claim": "", "sharesClaim": false, "quarantine": 0 } } });
        let ask = "import socket,struct,sys\ns=socket.socket(socket.AF_UNIX)\ns.settimeout(20)\n\
                   s.connect('/run/weft-0/agent.sock')\nb=sys.argv[1].encode()\n\
                   s.sendall(struct.pack('>I',len(b))+b)\nwhile m := s.recv(65536): print(m)";
        // The agent's watch has seen what the call was given.
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
