//! Cluster IPAM: addresses that are unique in a cluster, with a real API server, agents on several nodes, and
//! the plugin.
//!
//! ```text
//!   kube-apiserver ◄── agents of four nodes ◄── weft-ipam ADD/DEL ◄── the test, as container runtime
//! ```

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rig::addresses::{
    Nodes, address_stores, allocated, assert_ipam_consistent, define_whereabouts, last_byte, network, pool,
    reconciliations, start_controllers, weft,
};
use rig::machine::until;
use rig::{assert_refused, nodes};
use serde_json::{Value, json};
use testkit::{Finished, Pod};

#[test]
fn two_nodes_lease_blocks_and_allocate_each_address_once() {
    let nodes = nodes!(2);
    let pod = nodes.machine.pod("a");
    let conf = |node| network(node, &json!({ "range": "10.9.0.0/20", "quarantine": 0 }));
    let mut seen = BTreeSet::new();
    for round in 0..20 {
        for node in 0..2 {
            let container = format!("c{node}-{round}");
            let ips = allocated(nodes.attachment(&pod, &container).add(&conf(node)));
            assert!(seen.insert(ips[0].clone()), "{ips:?} twice");
            // A repeated ADD returns the same address.
            assert_eq!(allocated(nodes.attachment(&pod, &container).add(&conf(node))), ips);
            nodes.attachment(&pod, &container).check(&conf(node)).success();
        }
    }
    let blocks = nodes.blocks();
    let owners: BTreeSet<&str> = blocks.iter().filter_map(|block| block["spec"]["node"].as_str()).collect();
    assert_eq!((blocks.len(), owners.len()), (2, 2), "{blocks:#?}");
    // The remaining pods of a node with 250 pods.
    for round in 20..250 {
        let ips = allocated(nodes.attachment(&pod, &format!("c0-{round}")).add(&conf(0)));
        assert!(seen.insert(ips[0].clone()), "{ips:?} twice");
    }
    for node in 0..2 {
        // Two requests for 250 pods: create a block, read the pool.
        let requests = nodes.metric(node, "weft_ipam_api_requests_total ");
        assert!(requests <= 2, "node {node}: {requests} requests");
    }
    let pool = nodes.kube.json(["ippools.weft.dev", "10.9.0.0-20"]);
    assert_eq!(pool["spec"], json!({ "range": "10.9.0.0/20", "blockBits": 8 }));
    // Addresses are released by DEL and by GC, to which the runtime passes the valid attachments.
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

/// Returns a time before now in milliseconds since 1970.
fn ago(past: Duration) -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from((since - past).as_millis()).unwrap()
}

#[test]
fn quarantine_object_of_a_released_address_is_removed() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    let (blocks, singles) = (pool(&nodes, "10.13.0.0/24", 4), pool(&nodes, "10.14.0.0/29", 0));
    // Allocated and released by the plugin: its object stays and contains the time of release.
    let mut conf = network(0, &json!({ "range": "10.13.0.0/24" }));
    conf["args"] = json!({ "cni": { "ips": ["10.13.0.77"] } });
    assert_eq!(allocated(nodes.attachment(&sandbox, "r1").add(&conf)), ["10.13.0.77"]);
    nodes.attachment(&sandbox, "r1").del(&conf).success();
    let name = format!("{blocks}.10.13.0.77-32");
    let object = nodes.kube.json(["ipblocks.weft.dev", &name]);
    let since = object["spec"]["releasedAt"].as_u64().unwrap();
    assert!(since > ago(HOUR) && object["spec"]["node"].is_null(), "{object}");
    // Further objects, released earlier or in use.
    let write = |pool: &str, ip: &str, spec: &Value| {
        let mut object = json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPBlock",
            "metadata": { "name": format!("{pool}.{ip}-32"), "labels": { "weft.dev/pool": pool } }, "spec": spec });
        object["spec"]["pool"] = json!(pool);
        object["spec"]["range"] = json!(format!("{ip}/32"));
        nodes.kube.apply(&object.to_string());
    };
    let old = json!({ "releasedAt": ago(2 * HOUR), "generation": 3 });
    write(&blocks, "10.13.0.78", &old);
    write(&blocks, "10.13.0.79", &json!({ "releasedAt": ago(HOUR / 2), "generation": 1 }));
    write(
        &blocks,
        "10.13.0.80",
        &json!({ "releasedAt": ago(2 * HOUR), "claim": "pod/blue/db-0/net/eth0", "generation": 1 }),
    );
    write(
        &blocks,
        "10.13.0.81",
        &json!({ "node": "worker-0", "addressStore": blocks, "owner": "u/c/i", "generation": 1 }),
    );
    // In a pool of single addresses, the release time of objects decides which address is allocated next.
    write(&singles, "10.14.0.2", &old);
    let names = || -> BTreeSet<String> {
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        nodes.blocks().iter().map(name).collect()
    };
    let before = names();
    start_controllers(&nodes, &[("one", 9601)]);
    let removed = format!("{blocks}.10.13.0.78-32");
    until("the object of an address in quarantine for two hours", || {
        (!names().contains(&removed)).then_some(())
    });
    let round = reconciliations(&nodes, 9601);
    until("two more reconciliations", || (reconciliations(&nodes, 9601) > round + 1).then_some(()));
    let gone: Vec<String> = before.difference(&names()).cloned().collect();
    assert_eq!(gone, [removed]);
    // The address is available to any pod again; one in quarantine is available to a pod that requests it.
    conf["args"] = json!({ "cni": { "ips": ["10.13.0.78"] } });
    assert_eq!(allocated(nodes.attachment(&sandbox, "r2").add(&conf)), ["10.13.0.78"]);
}

#[test]
fn drained_blocks_are_returned_by_a_node_with_fewer_pods() {
    let nodes = nodes!(1);
    let pod = nodes.machine.pod("a");
    let name = pool(&nodes, "10.12.0.0/22", 4);
    let conf = network(0, &json!({ "range": "10.12.0.0/22", "quarantine": 0 }));
    let add = |container: &str| allocated(nodes.attachment(&pod, container).add(&conf))[0].clone();
    let store = || {
        let words = ["ipam", "-o", "json", "show", "--blocks", "--address-stores", "/var/lib/weft/ipam-0"];
        let shown = weft(&nodes, &words).success().json();
        shown[0]["ledger"].as_array().cloned().unwrap_or_default()
    };
    let of_state = |state: &str| store().iter().filter(|block| block["state"] == state).count();
    let kept: Vec<usize> = (0..40).step_by(5).collect();
    let before: Vec<String> = (0..40).map(|at| add(&format!("c{at}"))).collect();
    assert_eq!((store().len(), of_state("active")), (3, 3));
    for at in (0..40).filter(|at| !kept.contains(at)) {
        nodes.attachment(&pod, &format!("c{at}")).del(&conf).success();
    }
    // Remaining pods keep their addresses; new pods get none from blocks that are drained.
    assert_eq!((of_state("active"), of_state("draining")), (1, 2), "{:#?}", store());
    let table = weft(&nodes, &["ipam", "show", "--blocks", "--address-stores", "/var/lib/weft/ipam-0"])
        .success()
        .stdout;
    assert!(table.contains("ON THIS NODE") && table.contains("draining"), "{table}");
    for at in &kept {
        nodes.attachment(&pod, &format!("c{at}")).check(&conf).success();
    }
    let open: Vec<String> = store()
        .iter()
        .filter(|block| block["state"] == "active")
        .map(|block| block["range"].to_string())
        .collect();
    for at in &kept {
        nodes.attachment(&pod, &format!("c{at}")).del(&conf).success();
        let ip = add(&format!("n{at}"));
        assert!(open[0].contains(ip.rsplit_once('.').unwrap().0), "{ip} {open:?}");
    }
    let left = store();
    assert_eq!((left.len(), &left[0]["held"]), (1, &json!(8)), "{left:#?}");
    // The same in the API, except for a block that the agent may have prefetched.
    let leased = nodes.blocks().iter().filter(|block| block["spec"]["node"] == "worker-0").count();
    assert!(leased <= 2, "{leased} blocks of {name} for 8 pods that were {before:?}");
}

/// Configuration of a pool with eight addresses for two nodes, where every block is a single address.
fn tiny(node: usize) -> Value {
    network(node, &json!({ "range": "10.7.0.0/29", "quarantine": 0 }))
}

/// Allocates all addresses, on both nodes.
#[track_caller]
fn fill(nodes: &Nodes, pod: &Pod) -> BTreeSet<String> {
    let add = |at: usize| allocated(nodes.attachment(pod, &format!("c{at}")).add(&tiny(at % 2)));
    let all: BTreeSet<String> = (0..6).flat_map(add).collect();
    assert_eq!(all.len(), 6, "{all:?}");
    all
}

#[test]
fn small_pool_is_shared_and_reports_exhaustion() {
    let nodes = nodes!(2);
    let pod = nodes.machine.pod("a");
    let all = fill(&nodes, &pod);
    let words = ["pool 10.7.0.0-29", "no address is free"];
    assert_refused("full", &nodes.attachment(&pod, "c6").add(&tiny(0)), 11, &words);
    let probe = nodes.attachment(&pod, "c6").call("STATUS", tiny(0).to_string());
    assert_refused("full", &probe, 50, &words);
    // An address that is released on one node is free on the other.
    nodes.attachment(&pod, "c0").del(&tiny(0)).success();
    let moved = allocated(nodes.attachment(&pod, "c7").add(&tiny(1)));
    assert!(all.contains(&moved[0]));
    nodes.attachment(&pod, "c1").check(&tiny(1)).success();
    let found = weft(&nodes, &["ipam", "-o", "json", "who", &moved[0]]).success().json();
    assert_eq!(
        (&found[0]["pool"], &found[0]["node"]),
        (&json!("10.7.0.0-29"), &json!("worker-1")),
        "{found}"
    );
    // An unused pool has no layout yet, and an invalid pool has an unknown number of blocks.
    for (name, spec) in
        [("new", json!({ "range": "10.90.0.0/24" })), ("invalid", json!({ "range": "10.91.0.1/24" }))]
    {
        let metadata = json!({ "name": name });
        let made = json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPPool", "metadata": metadata, "spec": spec });
        nodes.kube.apply(&made.to_string());
    }
    let shown = weft(&nodes, &["ipam", "show"]).success().stdout;
    for words in [["10.7.0.0-29", " 6/8 "], ["new", " not split "], ["invalid", " 0/? "]] {
        let row = shown.lines().find(|line| line.starts_with(&format!("{} ", words[0]))).unwrap_or_default();
        assert!(row.contains(words[1]), "{words:?}: {shown}");
    }
    nodes.kube.kubectl(["delete", "ippools.weft.dev", "new", "invalid"]);
    let six = ["c1", "c2", "c3", "c4", "c5", "c7"].map(|id| format!("uid-{id}/{id}/eth0"));
    assert_ipam_consistent(&nodes, &six.each_ref().map(String::as_str));
}

#[test]
fn dead_node_addresses_are_released_after_leader_failover() {
    let nodes = nodes!(2);
    let pod = nodes.machine.pod("a");
    let all = fill(&nodes, &pod);
    // The second node is dead: its addresses return after its object is deleted, not before.
    nodes.stop(1, "KILL");
    start_controllers(&nodes, &[("one", 9601), ("two", 9602)]);
    std::thread::sleep(Duration::from_secs(6));
    let of_dead = || nodes.blocks().iter().filter(|block| block["spec"]["node"] == "worker-1").count();
    assert_eq!(of_dead(), 3, "its Node object exists: it may be alive");
    nodes.kube.kubectl(["delete", "node", "worker-1"]);
    until("the blocks of the dead node", || (of_dead() == 0).then_some(()));
    for at in 10..13 {
        let ips = allocated(nodes.attachment(&pod, &format!("c{at}")).add(&tiny(0)));
        assert!(all.contains(&ips[0]));
    }
    // The leader is killed; the other controller continues.
    let leads = |port| reconciliations(&nodes, port) > 0;
    let (first, second) = if leads(9601) { ("one", 9602) } else { ("two", 9601) };
    nodes.machine.stop(first, "KILL");
    until("the other controller", || leads(second).then_some(()));
    let full = || {
        let pool = nodes.kube.json(["ippools.weft.dev", "10.7.0.0-29"]);
        (pool["status"]["singleAddresses"] == 6).then_some(())
    };
    until("the pool's status", full);
}

/// Containers by the address that the plugin returned.
type Returned = Mutex<BTreeMap<String, String>>;
/// Number of addresses that a worker holds at a time.
const KEPT: usize = 4;

/// Runs ADD and DEL on one node until the end, some of them killed. A worker always holds some addresses, and keeps them
/// at the end.
fn work(nodes: &Nodes, pod: &Pod, node: usize, worker: usize, end: Instant, returned: &Returned) {
    let conf = network(node, &json!({ "range": "10.16.0.0/20", "quarantine": 0 }));
    let mut kept: VecDeque<(String, String)> = VecDeque::new();
    for round in 0_u32.. {
        let container = format!("n{node}w{worker}r{round}");
        let mut attachment = nodes.attachment(pod, &container);
        if (round as usize + worker).is_multiple_of(7) {
            let delay = format!("0.{:03}", (round * 37 + 5) % 60);
            attachment.through = vec!["timeout".into(), "-s".into(), "KILL".into(), delay];
        }
        let added = attachment.add(&conf);
        if added.code == Some(0) {
            let ip = allocated(added)[0].clone();
            let before = returned.lock().unwrap().insert(ip.clone(), container.clone());
            assert_eq!(before, None, "{ip} is also allocated to {container}");
            kept.push_back((ip, container));
        } else {
            nodes.attachment(pod, &container).del(&conf).success();
        }
        if Instant::now() > end {
            return;
        }
        if kept.len() > KEPT {
            let (ip, container) = kept.pop_front().unwrap();
            // The address may be allocated again as soon as its DEL begins.
            returned.lock().unwrap().remove(&ip);
            nodes.attachment(pod, &container).del(&conf).success();
        }
    }
}

/// Releases the attachments of every node, except those in `valid`.
fn sweep(nodes: &Nodes, pod: &Pod, valid: &BTreeMap<String, String>) {
    for node in 0..nodes.count() {
        let mut conf = network(node, &json!({ "range": "10.16.0.0/20", "quarantine": 0 }));
        let entry = |container: &String| json!({ "containerID": container, "ifname": "eth0" });
        conf["cni.dev/valid-attachments"] = valid.values().map(entry).collect();
        nodes.attachment(pod, "none").call("GC", conf.to_string()).success();
    }
}

/// Ranges of a node's address store, and the number of held addresses.
fn in_address_store(nodes: &Nodes, node: usize) -> (BTreeSet<String>, u64) {
    let place = format!("/var/lib/weft/ipam-{node}");
    let shown = weft(nodes, &["ipam", "-o", "json", "show", "--address-stores", &place]).success().json();
    let blocks: Vec<Value> = shown
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|pool| pool["ledger"].as_array().cloned().unwrap_or_default())
        .collect();
    let ranges = blocks.iter().map(|block| block["range"].as_str().unwrap().to_owned()).collect();
    (ranges, blocks.iter().map(|block| block["held"].as_u64().unwrap()).sum())
}

#[test]
fn four_nodes_under_load_and_kills_allocate_no_address_twice() {
    let nodes = nodes!(own 4);
    let pod = nodes.machine.pod("a");
    let returned = Returned::default();
    // On an idle machine with more than two cores: WEFT_TEST_SECONDS=60 WEFT_TEST_CALLS=32.
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (seconds, calls) = (number("WEFT_TEST_SECONDS").unwrap_or(8), number("WEFT_TEST_CALLS").unwrap_or(6));
    let end = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        for node in 0..nodes.count() {
            for worker in 0..usize::try_from(calls).unwrap() {
                let (nodes, pod, returned) = (&nodes, &pod, &returned);
                scope.spawn(move || work(nodes, pod, node, worker, end, returned));
            }
        }
        // Meanwhile one agent is killed, and the API server is restarted.
        std::thread::sleep(Duration::from_secs(seconds / 4));
        nodes.stop(0, "KILL");
        nodes.kube.stop("kube-apiserver", "KILL");
        std::thread::sleep(Duration::from_secs(seconds / 4));
        nodes.kube.launch();
        nodes.start(0);
    });
    nodes.kube.wait();
    for node in 0..nodes.count() {
        nodes.wait(node);
    }
    let returned = returned.into_inner().unwrap();
    sweep(&nodes, &pod, &returned);
    // Held addresses are those that plugins returned, and leased blocks are those in the address stores.
    let address_stores: Vec<_> = (0..nodes.count()).map(|node| in_address_store(&nodes, node)).collect();
    assert_eq!(address_stores.iter().map(|(_, held)| *held).sum::<u64>(), returned.len() as u64);
    assert!(returned.len() > nodes.count(), "{returned:?}");
    for (node, (ranges, _)) in address_stores.iter().enumerate() {
        let own = nodes.blocks_of(node);
        let leased: BTreeSet<_> =
            own.iter().map(|block| block["spec"]["range"].as_str().unwrap().to_owned()).collect();
        assert!(!leased.is_empty() && leased == *ranges, "node {node}: {leased:?} {ranges:?}");
    }
    sweep(&nodes, &pod, &BTreeMap::new());
    // No address is held on any node.
    for node in 0..nodes.count() {
        let place = format!("/var/lib/weft/ipam-{node}/10.16.0.0-20/ledger");
        let slots = nodes.machine.run(["sh", "-c", &format!("od -An -v -tx1 -w16 -j12288 {place}")]);
        let held = slots.lines().filter(|line| line.split_whitespace().nth(7) == Some("01"));
        // Bytes before the slots of a second group cannot look like a held slot, because owner tags are erased, too.
        assert_eq!(held.count(), 0, "node {node}");
    }
    assert_ipam_consistent(&nodes, &[]);
}

#[test]
fn requested_and_sticky_addresses_follow_their_pods() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    nodes.kube.kubectl(["create", "namespace", "blue"]);
    let range = json!({ "range": "10.8.0.0/20", "quarantine": 0 });
    let conf = |node| network(node, &range);
    let requesting = |node: usize, container: &str, ip: &str| {
        let mut conf = conf(node);
        conf["args"] = json!({ "cni": { "ips": [ip] } });
        nodes.attachment(&sandbox, container).add(&conf)
    };
    // An address outside of any block that one node requested is not available on another.
    assert_eq!(allocated(requesting(0, "r1", "10.8.4.4")), ["10.8.4.4"]);
    assert_refused("held", &requesting(1, "r2", "10.8.4.4"), 11, &["10.8.4.4", "leased by node worker-0"]);
    nodes.attachment(&sandbox, "r1").del(&conf(0)).success();
    assert_eq!(allocated(requesting(1, "r2", "10.8.4.4")), ["10.8.4.4"]);

    // Pod of a StatefulSet: same name, another uid, another node.
    let sticky = |node: usize, uid: &str, container: &str, verb: &str| {
        let mut conf = network(node, &json!({ "range": "10.8.0.0/20", "sticky": true }));
        conf["ipam"]["quarantine"] = json!(60);
        let mut attachment = nodes.attachment(&sandbox, container);
        attachment.args =
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME=db-0;K8S_POD_UID={uid}");
        attachment.call(verb, conf.to_string())
    };
    let make = || {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "db-0", "namespace": "blue" },
            "spec": { "nodeName": "worker-0", "containers": [{ "name": "c", "image": "none" }] } });
        nodes.kube.attempt(["create", "-f", "-"], &pod.to_string()).success();
        nodes.kube.json(["pod", "-n", "blue", "db-0"])["metadata"]["uid"].as_str().unwrap().to_owned()
    };
    let first = make();
    let kept = allocated(sticky(0, &first, "s1", "ADD"));
    // The old pod exists: its address is not allocated to another.
    assert_refused("still held", &sticky(1, "other", "s2", "ADD"), 11, &["leased by node worker-0"]);
    nodes.kube.kubectl(["delete", "pod", "-n", "blue", "db-0", "--force", "--grace-period=0"]);
    let second = make();
    assert_eq!(allocated(sticky(1, &second, "s2", "ADD")), kept, "the force-deleted pod's successor");
    sticky(1, &second, "s2", "DEL").success();
    // On its own node, the sandbox of the force-deleted pod exists until it is taken down.
    let words = ["allocated to another container on this node", &kept[0]];
    assert_refused("not taken down", &sticky(0, &second, "s3", "ADD"), 11, &words);
    sticky(0, &first, "s1", "DEL").success();
    assert_eq!(allocated(sticky(0, &second, "s3", "ADD")), kept, "no quarantine for the same claim");
}

/// Asserts that of two nodes that request an address at the same time, at most one gets it. Returns whether the second does.
fn assert_one_of_two_gets(ip: &str, request: &(dyn Fn(usize, &str, &str) -> Finished + Sync)) -> bool {
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| request(1, "r5", ip));
        (request(0, "r4", ip), other.join().unwrap())
    });
    assert!(one.code != Some(0) || other.code != Some(0), "{one:?} {other:?}");
    other.code == Some(0)
}

#[test]
fn transfer_of_a_free_address_from_another_nodes_block() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    let name = pool(&nodes, "10.11.0.0/22", 6);
    let conf = |node| network(node, &json!({ "range": "10.11.0.0/22", "quarantine": 0 }));
    let requesting = |node: usize, container: &str, ip: &str| {
        let mut conf = conf(node);
        conf["args"] = json!({ "cni": { "ips": [ip] } });
        nodes.attachment(&sandbox, container).add(&conf)
    };
    // A busy node transfers the address later; then the request is repeated.
    let add_until_transferred = |node: usize, container: &str, ip: &str| {
        nodes.machine.wait("agent-0", "transfers an address", || {
            let ended = requesting(node, container, ip);
            (ended.code == Some(0)).then(|| allocated(ended))
        })
    };
    let object =
        |ip: &str| nodes.kube.json(["ipblocks.weft.dev", &format!("{name}.{ip}-32")])["spec"].clone();
    let own = allocated(nodes.attachment(&sandbox, "b1").add(&conf(0)))[0].clone();
    let (net, first) = own.rsplit_once('.').unwrap();
    let first = first.parse::<u8>().unwrap() / 64 * 64;
    let at = |offset: u8| format!("{net}.{}", first + offset);
    // Free address: the node transfers it to the other node, and no other node can get it.
    assert_eq!(add_until_transferred(1, "r1", &at(20)), [at(20)]);
    let block =
        nodes.blocks().into_iter().find(|block| block["spec"]["reservedAddresses"].is_array()).unwrap();
    assert_eq!(
        (&block["spec"]["node"], &block["spec"]["reservedAddresses"]),
        (&json!("worker-0"), &json!([at(20)]))
    );
    let moved = object(&at(20));
    assert!(moved["node"] == "worker-1" && moved["transferRequestedFrom"].is_null(), "{moved}");
    assert_refused("now another's", &requesting(0, "r2", &at(20)), 11, &[&at(20), "leased by node worker-1"]);
    nodes.attachment(&sandbox, "r1").check(&conf(1)).success();
    assert_ipam_consistent(&nodes, &["uid-r1/r1/eth0"]);
    // Held address: the refusal names its pod, the address stays, and the request leaves nothing behind.
    let words = [&own, "leased by node worker-0", "pod blue/b1, eth0 of net, holds it"];
    assert_refused("held", &requesting(1, "r3", &own), 11, &words);
    nodes.attachment(&sandbox, "b1").check(&conf(0)).success();
    assert!(nodes.blocks().iter().all(|block| block["spec"]["range"] != format!("{own}/32")));
    let second_got_it = assert_one_of_two_gets(&at(30), &requesting);
    // The node's agent is stopped: the refusal names the node. After a restart the address is available.
    nodes.stop(0, "KILL");
    let words = [&at(40), "leased by node worker-0", "has not answered the transfer request yet"];
    assert_refused("away", &requesting(1, "r6", &at(40)), 11, &words);
    assert_eq!(object(&at(40))["transferRequestedFrom"], json!("worker-0"));
    nodes.start(0);
    assert_eq!(add_until_transferred(1, "r7", &at(40)), [at(40)]);
    // A released address is available to the next pod that requests it, on any node.
    let back = || {
        // If a busy agent missed the release, a later call repeats it.
        nodes.attachment(&sandbox, "r7").del(&conf(1)).success();
        object(&at(40))["node"].is_null().then_some(())
    };
    until("the address is returned", back);
    assert_eq!(add_until_transferred(0, "r8", &at(40)), [at(40)]);
    // The node allocates the rest of its block without the transferred addresses.
    let mut rest = BTreeSet::new();
    for at in 0..70 {
        let added = nodes.attachment(&sandbox, &format!("f{at}")).add(&conf(0));
        assert!(rest.insert(allocated(added)[0].clone()));
    }
    assert!([at(20), at(40)].iter().all(|gone| !rest.contains(gone)), "{rest:?}");
    nodes.attachment(&sandbox, "r1").check(&conf(1)).success();
    let alone = ["uid-r1/r1/eth0", "uid-r8/r8/eth0", "uid-r5/r5/eth0"];
    assert_ipam_consistent(&nodes, &alone[..2 + usize::from(second_got_it)]);
}

/// Creates an IPAMClaim in the namespace `blue`.
fn claim(nodes: &Nodes, name: &str, interface: &str) {
    let spec = json!({ "network": "net", "interface": interface });
    let claim = json!({ "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim",
        "metadata": { "name": name, "namespace": "blue" }, "spec": spec });
    nodes.kube.apply(&claim.to_string());
}

fn claim_status(nodes: &Nodes, name: &str) -> Value {
    nodes.kube.json(["ipamclaims.k8s.cni.cncf.io", "-n", "blue", name])["status"].clone()
}

/// Writes an address into the status of a claim, as a restored backup has it.
fn restore_claim(nodes: &Nodes, name: &str, ip: &str) {
    let mut object = nodes.kube.json(["ipamclaims.k8s.cni.cncf.io", "-n", "blue", name]);
    object["status"] = json!({ "ips": [ip] });
    let path = format!("/apis/k8s.cni.cncf.io/v1alpha1/namespaces/blue/ipamclaims/{name}/status");
    nodes.kube.attempt(["replace", "--raw", &path, "-f", "-"], &object.to_string()).success();
}

// Requirements: V13-8-1, V13-8.1-1, V13-8.3-1
#[test]
fn ipamclaim_keeps_its_addresses_until_it_is_deleted() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    nodes.kube.kubectl(["create", "namespace", "blue"]);
    let claim = |name: &str, interface: &str| claim(&nodes, name, interface);
    let status = |name: &str| claim_status(&nodes, name);
    let call = |verb: &str, node: usize, container: &str, name: &str| {
        let both = json!({ "quarantine": 0, "ipRanges": [{ "range": "10.18.0.0/20" }, { "range": "fd00:18::/64" }] });
        let mut conf = network(node, &both);
        conf["args"] = json!({ "cni": { "ipam-claim-reference": name } });
        nodes.attachment(&sandbox, container).call(verb, conf.to_string())
    };
    assert_refused("none", &call("ADD", 0, "p0", "vm.net"), 11, &["ipamclaim blue/vm.net", "not found"]);
    claim("vm.net", "eth0");
    claim("other.net", "net7");
    let words = ["ipamclaim blue/other.net", "spec.interface: net7", "eth0"];
    assert_refused("another interface", &call("ADD", 0, "p0", "other.net"), 11, &words);
    // Allocated once; the status contains the addresses and the pod.
    let kept = allocated(call("ADD", 0, "p1", "vm.net"));
    let written = status("vm.net");
    assert_eq!(written["ips"], json!([format!("{}/20", kept[0]), format!("{}/64", kept[1])]));
    assert_eq!(
        (&written["ownerPod"], &written["conditions"][0]["status"]),
        (&json!({ "name": "p1" }), &json!("True"))
    );
    assert_eq!(written["conditions"][0]["type"], "IPsAllocated");
    // A migrating virtual machine has two pods; then the first one is deleted.
    assert_eq!(allocated(call("ADD", 1, "p2", "vm.net")), kept);
    assert_eq!(status("vm.net")["ownerPod"], json!({ "name": "p2" }));
    for (node, pod) in [(0, "p1"), (1, "p2")] {
        call("DEL", node, pod, "vm.net").success();
    }
    assert_eq!(allocated(call("ADD", 0, "p3", "vm.net")), kept, "kept while the claim exists");
    call("DEL", 0, "p3", "vm.net").success();
    // A restored claim gets its previous address; if it is in use, the refusal names its node.
    for name in ["back.net", "late.net"] {
        claim(name, "eth0");
        restore_claim(&nodes, name, "10.18.7.7/20");
    }
    assert_eq!(allocated(call("ADD", 1, "p4", "back.net"))[0], "10.18.7.7");
    assert_refused(
        "another's",
        &call("ADD", 0, "p5", "late.net"),
        11,
        &["10.18.7.7", "leased by node worker-1"],
    );
    assert_eq!(status("late.net")["conditions"][0]["status"], "False");
    // After the deletion of claim and pods, the address is released.
    start_controllers(&nodes, &[("one", 9601)]);
    nodes.kube.kubectl(["delete", "ipamclaim", "-n", "blue", "vm.net"]);
    let of_claim =
        || nodes.blocks().iter().filter(|block| block["spec"]["claim"] == "claim/blue/vm.net").count();
    until("the claim's addresses", || (of_claim() == 0).then_some(()));
}

#[test]
fn ipamclaim_with_an_address_outside_the_range_is_refused() {
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    nodes.kube.kubectl(["create", "namespace", "blue"]);
    claim(&nodes, "moved.net", "eth0");
    restore_claim(&nodes, "moved.net", "192.0.2.7/24");
    let mut conf = network(0, &json!({ "range": "10.18.0.0/20" }));
    conf["args"] = json!({ "cni": { "ipam-claim-reference": "moved.net" } });
    let words = ["ipamclaim blue/moved.net", "status.ips: 192.0.2.7", "does not allocate this address"];
    assert_refused("outside", &nodes.attachment(&sandbox, "p6").add(&conf), 11, &words);
    let written = claim_status(&nodes, "moved.net");
    assert_eq!(
        (&written["ips"], &written["conditions"][0]["status"]),
        (&json!(["192.0.2.7/24"]), &json!("False"))
    );
    assert!(written["conditions"][0]["message"].as_str().unwrap().contains("192.0.2.7"), "{written}");
}

#[test]
fn invalid_block_object_is_reported_and_recovers() {
    let nodes = nodes!(2);
    let pod = nodes.machine.pod("a");
    let _ = pool(&nodes, "10.15.0.0/28", 2);
    let conf = |node| network(node, &json!({ "range": "10.15.0.0/28", "quarantine": 0 }));
    let add = |node: usize, container: &str| nodes.attachment(&pod, container).add(&conf(node));
    let _ = allocated(add(0, "a1"));
    let block = nodes.blocks_of(0)[0].clone();
    let object = block["metadata"]["name"].as_str().unwrap().to_owned();
    let patch = |reserved: &Value| {
        let words = ["patch", "ipblock", &object, "--type", "merge", "-p"];
        let patch = json!({ "spec": { "reservedAddresses": reserved } }).to_string();
        nodes.kube.kubectl(words.into_iter().chain([patch.as_str()]));
    };
    patch(&json!(["x"]));
    // The node with the block keeps its addresses, and no other node allocates from the block.
    let mut others = BTreeSet::new();
    let refused = (0..20).find_map(|at| {
        let ended = add(1, &format!("b{at}"));
        if ended.code != Some(0) {
            return Some(ended);
        }
        others.insert(allocated(ended)[0].clone());
        None
    });
    let words = [&object, "spec was edited and is invalid"];
    assert_refused("invalid", &refused.expect("a full pool"), 11, &words);
    let range = block["spec"]["range"].as_str().unwrap();
    let first = last_byte(range.split_once('/').unwrap().0);
    assert!(others.iter().all(|ip| !(first..first + 4).contains(&last_byte(ip))), "{range}: {others:?}");
    nodes.attachment(&pod, "a1").check(&conf(0)).success();
    // `weft ipam check` finds the object, an Event reports it, and it cannot be removed while its node exists.
    let found = weft(&nodes, &["ipam", "check"]);
    assert!(found.code == Some(1) && found.stdout.contains("invalid"), "{}", found.stdout);
    for words in [vec!["ipam", "free", &object], vec!["ipam", "free", &object, "--force"]] {
        let refused = weft(&nodes, &words);
        assert!(refused.code == Some(1), "{refused:?}");
        for word in [&object, "node worker-0 is running and holds it", "out-of-service", "kubectl edit"] {
            assert!(refused.stderr.contains(word), "{word}: {}", refused.stderr);
        }
    }
    start_controllers(&nodes, &[("one", 9601)]);
    nodes.machine.wait("one", "sends an Event about the object", || {
        let events = nodes.kube.json(["events", "-A"])["items"].as_array().cloned().unwrap_or_default();
        let about = |event: &&Value| {
            event["reason"] == "ObjectInvalid" && event["involvedObject"]["name"] == object.as_str()
        };
        let event = events.iter().find(about)?.clone();
        assert_eq!(event["involvedObject"]["uid"], block["metadata"]["uid"], "{event}");
        assert!(event["type"] == "Warning" && event["message"].as_str()?.contains("is invalid"), "{event}");
        Some(())
    });
    patch(&json!(null));
    assert_ipam_consistent(&nodes, &[]);
    let mine = allocated(add(0, "a2"))[0].clone();
    assert!(!others.contains(&mine), "{mine} {others:?}");
    // The object of a deleted node can be removed.
    let object_of_other = nodes.blocks_of(1)[0]["metadata"]["name"].as_str().unwrap().to_owned();
    nodes.kube.kubectl(["delete", "node", "worker-1"]);
    let freed = weft(&nodes, &["ipam", "free", &object_of_other]);
    // The controller may have removed it before.
    assert!(freed.code == Some(0) || freed.stderr.contains("not there"), "{freed:?}");
}

#[test]
fn rebooted_node_confirms_its_blocks_with_the_api() {
    let nodes = nodes!(own 2);
    let pod = nodes.machine.pod("a");
    let name = pool(&nodes, "10.15.0.0/26", 3);
    let conf = |node| network(node, &json!({ "range": "10.15.0.0/26", "quarantine": 0 }));
    let add = |node: usize, container: &str| nodes.attachment(&pod, container).add(&conf(node));
    let boot = |node: usize| {
        let store = format!("{}/{name}/ledger", address_stores(node));
        let line = format!("printf another-boot | dd of={store} bs=1 seek=16 conv=notrunc status=none");
        nodes.machine.run(["sh", "-c", &line])
    };
    let before: BTreeSet<String> = (0..3).map(|at| allocated(add(0, &format!("a{at}")))[0].clone()).collect();
    let object = nodes.blocks_of(0)[0]["metadata"]["name"].as_str().unwrap().to_owned();
    // The block belongs to the node under a new lease, and no address in it is held: no pod survives a reboot.
    boot(0);
    let after = allocated(add(0, "b0"))[0].clone();
    let again = nodes.kube.json(["ipblocks.weft.dev", &object]);
    assert_eq!(again["spec"]["generation"], json!(1), "{again}");
    for at in 0..3 {
        let gone = nodes.attachment(&pod, &format!("a{at}")).check(&conf(0));
        assert_refused("before the boot", &gone, 999, &["holds no address"]);
        nodes.attachment(&pod, &format!("a{at}")).del(&conf(0)).success();
    }
    nodes.attachment(&pod, "b0").check(&conf(0)).success();
    let mut all: BTreeSet<String> =
        (1..8).map(|at| allocated(add(0, &format!("b{at}")))[0].clone()).collect();
    all.insert(after);
    assert!(all.len() == 8 && before.is_subset(&all), "{before:?} {all:?}");
    // The block is taken away while the node is down: the node allocates nothing from it.
    boot(0);
    nodes.delete_block(&object);
    let others: BTreeSet<String> =
        (0..12).map(|at| allocated(add(1, &format!("c{at}")))[0].clone()).collect();
    let mine = allocated(add(0, "d0"))[0].clone();
    assert!(others.len() == 12 && !others.contains(&mine), "{mine} {others:?}");
    // Without the API server, the node allocates from its blocks, refuses everything else, and loses nothing.
    nodes.kube.stop("kube-apiserver", "KILL");
    nodes.attachment(&pod, "c0").del(&conf(1)).success();
    assert!(nodes.attachment(&pod, "late").add(&conf(1)).code == Some(0));
    let other = network(1, &json!({ "range": "10.15.9.0/28" }));
    let refused = nodes.attachment(&pod, "c0").add(&other);
    assert_refused("no API server", &refused, 11, &["pool 10.15.9.0-28"]);
    let probe = nodes.attachment(&pod, "c0").call("STATUS", other.to_string());
    assert_refused("no API server", &probe, 50, &["pool 10.15.9.0-28"]);
    nodes.attachment(&pod, "c1").check(&conf(1)).success();
    nodes.kube.launch();
    nodes.kube.wait();
    until("an address after the API server is available", || {
        let ended = nodes.attachment(&pod, "c0").add(&other);
        (ended.code == Some(0)).then_some(())
    });
    // A range of 14 addresses has single ones, whose owners the cluster knows.
    assert_ipam_consistent(&nodes, &["uid-c0/c0/eth0"]);
}

#[test]
fn whereabouts_import_keeps_addresses_of_existing_pods() {
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    define_whereabouts(&nodes);
    nodes.kube.kubectl(["create", "namespace", "blue"]);
    let pod = |name: &str| {
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "blue" },
            "spec": { "nodeName": "worker-0", "containers": [{ "name": "c", "image": "none" }] } });
        nodes.kube.apply(&pod.to_string());
    };
    pod("old-a");
    pod("old-b");
    let old = json!({ "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
        "metadata": { "name": "10.6.0.0-29", "namespace": "kube-system" },
        "spec": { "range": "10.6.0.0/29", "allocations": {
            "1": { "id": "a", "podref": "blue/old-a", "ifname": "net1" },
            "2": { "id": "b", "podref": "blue/old-b", "ifname": "net1" },
            "5": { "id": "b", "podref": "blue/old-b", "ifname": "net2" },
            "3": { "id": "c", "podref": "blue/long-gone" } } } });
    nodes.kube.apply(&old.to_string());
    let dry = weft(&nodes, &["import", "whereabouts"]).success().stdout;
    assert!(dry.contains("10.6.0.2") && dry.contains("nothing was changed"), "{dry}");
    let would_be =
        |ip: &str| dry.lines().find(|line| line.starts_with(&format!("{ip} "))).unwrap_or_default();
    assert!(would_be("10.6.0.1").contains("would be kept"), "{dry}");
    assert!(would_be("10.6.0.3").contains("not kept: its pod no longer exists"), "{dry}");
    assert_eq!(nodes.blocks().len(), 0);
    let mut conf = network(0, &json!({ "range": "10.6.0.0/29", "quarantine": 0 }));
    conf["ipam"]["type"] = json!("whereabouts");
    let mut early = nodes.attachment(&sandbox, "early");
    early.args = format!("{};IP=10.6.0.5", early.args);
    assert_eq!(allocated(early.add(&conf)), ["10.6.0.5"]);
    for _ in 0..2 {
        let imported = weft(&nodes, &["import", "whereabouts", "--apply"]);
        assert_eq!(imported.code, Some(1), "one address belongs to another pod: {}", imported.stdout);
        assert!(imported.stderr.contains("1 of 4 addresses were not kept"), "{}", imported.stderr);
        assert!(
            imported.stdout.contains("not kept: it is allocated by node worker-0"),
            "{}",
            imported.stdout
        );
    }
    let imported = weft(&nodes, &["import", "whereabouts", "--apply", "-o", "json"]).json();
    let kept = |row: &Value| (row["address"].clone(), row["kept"].clone());
    let kept: Vec<_> = imported.as_array().unwrap().iter().map(kept).collect();
    let expected = [("10.6.0.1", true), ("10.6.0.2", true), ("10.6.0.3", false), ("10.6.0.5", false)];
    assert_eq!(kept, expected.map(|(address, kept)| (json!(address), json!(kept))));
    // The address is kept for the recreated pod.
    nodes.kube.kubectl(["delete", "pod", "-n", "blue", "old-a", "--force", "--grace-period=0"]);
    pod("old-a");
    assert_eq!(weft(&nodes, &["import", "whereabouts", "--apply"]).code, Some(1));
    let uid = nodes.kube.json(["pod", "-n", "blue", "old-a"])["metadata"]["uid"].clone();
    let blocks = nodes.blocks();
    let object = blocks.iter().find(|block| block["spec"]["range"] == "10.6.0.1/32").expect("its address");
    assert!(object["spec"]["owner"].as_str().unwrap().starts_with(uid.as_str().unwrap()), "{object} {uid}");
    let mut taken = BTreeSet::new();
    for at in 0..3 {
        taken.extend(allocated(nodes.attachment(&sandbox, &format!("n{at}")).add(&conf)));
    }
    let expected = ["10.6.0.3", "10.6.0.4", "10.6.0.6"];
    assert_eq!(taken.into_iter().collect::<Vec<_>>(), expected, "all except those of existing pods");
    assert_refused("full", &nodes.attachment(&sandbox, "n9").add(&conf), 11, &["no address is free"]);
}
