//! Cluster IPAM after objects or the database of the API server were lost under living pods: no address is given twice.
//!
//! ```text
//!   IPBlock, IPPool ◄── deleted by mistake          etcd ◄── restored from a backup
//!   agents: lease again what their pods hold, and lease nothing else until each node has done so
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rig::addresses::{Nodes, allocated, network, pool, start_controllers};
use rig::kube::Kube;
use rig::machine::until;
use rig::{Machine, assert_refused, nodes};
use serde_json::{Value, json};
use testkit::{Feature, host};

/// Adds addresses to those of living pods, and fails if a living pod has one.
fn add(living: &mut BTreeMap<String, (usize, String)>, ip: &str, node: usize, container: &str) {
    if let Some(holder) = living.insert(ip.to_owned(), (node, container.to_owned())) {
        panic!("{ip} of {holder:?} was given to {container} on node {node}");
    }
}

#[test]
fn lost_object_of_a_single_address_stays_leased_again() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.94.0.0/29", 0);
    let conf = |node| network(node, &json!({ "range": "10.94.0.0/29", "quarantine": 0 }));
    let held = allocated(nodes.attachment(&sandbox, "held").add(&conf(0)))[0].clone();
    let own = || nodes.blocks_of(0).into_iter().find(|block| block["spec"]["range"] == format!("{held}/32"));
    nodes.delete_block(own().expect("its object")["metadata"]["name"].as_str().expect("a name"));
    let again = until("the object to name its node", own);
    // The loop that returns idle leases runs every 15 s.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(33) {
        assert_eq!(own().as_ref(), Some(&again));
        std::thread::sleep(Duration::from_millis(500));
    }
    nodes.attachment(&sandbox, "held").del(&conf(0)).success();
    until("the address to be released", || own().is_none().then_some(()));
}

#[test]
fn deleted_pool_in_use_is_kept_until_its_pods_end() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    start_controllers(&nodes, &[("one", 9601)]);
    let create = |name: &str| {
        let made = json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPPool", "metadata": { "name": name },
            "spec": { "range": "10.95.0.0/28", "blockBits": 0 } });
        nodes.kube.apply(&made.to_string());
    };
    let conf = |node: usize, pool: &str, range: &str| {
        let mut ipam = json!({ "range": range, "quarantine": 0 });
        if !pool.is_empty() {
            ipam["pool"] = json!(pool);
        }
        network(node, &ipam)
    };
    let storage = |node| conf(node, "storage", "10.95.0.0/28");
    create("storage");
    for container in 0..3 {
        nodes.attachment(&sandbox, &format!("c{container}")).add(&storage(container % 2)).success();
    }
    nodes.kube.kubectl(["delete", "ippools.weft.dev", "storage", "--wait=false"]);
    // Networks use the pool as before; another pool with its addresses is refused.
    nodes.attachment(&sandbox, "c3").add(&storage(1)).success();
    create("other");
    let other = conf(0, "other", "10.95.0.0/28");
    let refused = nodes.attachment(&sandbox, "o0").add(&other);
    assert_refused("beside a deleted pool", &refused, 11, &["pool other", "overlaps pool storage"]);
    // Without its finalizer the pool is gone, and its living addresses are known by their objects.
    nodes.delete_pool("storage");
    let missing = "of pool storage, which does not exist any more";
    let refused = nodes.attachment(&sandbox, "given").add(&other);
    assert_refused("same range", &refused, 11, &["pool other", missing]);
    nodes.delete_pool("other");
    let refused = nodes.attachment(&sandbox, "enlarged").add(&conf(1, "", "10.95.0.0/27"));
    assert_refused("enlarged range", &refused, 11, &["pool 10.95.0.0-27", missing]);
    create("other");
    // An address of the missing pool is released with its pod, and the others with the pool.
    for container in 0..4 {
        nodes.attachment(&sandbox, &format!("c{container}")).del(&storage(container % 2)).success();
    }
    let is_free =
        || nodes.blocks().iter().all(|block| block["spec"]["node"].as_str().unwrap_or("").is_empty());
    until("the addresses to be free", || is_free().then_some(()));
    nodes.attachment(&sandbox, "o1").add(&other).success();
    nodes.kube.kubectl(["delete", "ippools.weft.dev", "other", "--wait=false"]);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(
        nodes.kube.json(["ippools.weft.dev", "other"])["metadata"]["finalizers"],
        json!(["weft.dev/in-use"])
    );
    nodes.attachment(&sandbox, "o1").del(&other).success();
    let pools = || nodes.kube.json(["ippools.weft.dev"])["items"].as_array().cloned().unwrap_or_default();
    let is_deleted = |pool: &Value| pool["metadata"]["name"] == "other";
    until("the pool to be deleted", || (!pools().iter().any(is_deleted)).then_some(()));
}

/// Replaces the database by an earlier copy, while the agents run.
fn restore(nodes: &Nodes, work: impl FnOnce()) {
    for program in ["kube-apiserver", "etcd"] {
        nodes.kube.stop(program, "KILL");
    }
    work();
    nodes.kube.launch();
    nodes.kube.wait();
    nodes.kube.wait_until_served();
}

#[test]
fn restored_database_gives_no_living_address_again() {
    let Some(kube) = Kube::own(Machine::new(host!(Feature::Root), "control").into()) else { return };
    let nodes = Nodes::new(kube, 3);
    let sandbox = nodes.machine.pod("a");
    // Single addresses, blocks, and a pool that is created after the backup.
    pool(&nodes, "10.96.0.0/26", 0);
    pool(&nodes, "10.97.0.0/26", 3);
    let ranges = ["10.96.0.0/26", "10.97.0.0/26", "10.98.0.0/27"];
    let conf = |node: usize, range: &str| network(node, &json!({ "range": range, "quarantine": 0 }));
    let mut living = BTreeMap::new();
    let attach = |node: usize, container: &str, range: &str| {
        nodes.attachment(&sandbox, container).add(&conf(node, range))
    };
    for (at, range) in ranges.iter().take(2).enumerate() {
        let container = format!("before{at}");
        let ip = allocated(attach(0, &container, range))[0].clone();
        add(&mut living, &ip, 0, &container);
    }
    restore(&nodes, || {
        nodes.machine.run(["cp", "-a", "/var/lib/etcd", "/var/lib/etcd-backup"]);
    });
    for at in 0..36 {
        let (node, container) = (at % 3, format!("after{at}"));
        let ip = allocated(attach(node, &container, ranges[at % 9 / 3]))[0].clone();
        add(&mut living, &ip, node, &container);
    }
    restore(&nodes, || {
        nodes.machine.run(["rm", "-r", "/var/lib/etcd"]);
        nodes.machine.run(["cp", "-a", "/var/lib/etcd-backup", "/var/lib/etcd"]);
    });
    // Runtimes try again until they succeed, and no pod gets an address that another has.
    let began = Instant::now();
    for at in 0..18 {
        let (node, container) = (at % 3, format!("new{at}"));
        loop {
            let added = attach(node, &container, ranges[at % 9 / 3]);
            if added.code == Some(0) {
                add(&mut living, &allocated(added)[0], node, &container);
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(120), "{added:?}");
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}
