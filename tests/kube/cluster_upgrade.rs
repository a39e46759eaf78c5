//! Upgrade of a cluster from the oldest release to the one that the lane runs on, with running pods.
//!
//! ```text
//!   etcd data ── kube-apiserver of the oldest release, then that of the lane
//!                  ◄── weft agent ◄── weft-cni: pods attached before, and after
//! ```
//!
//! Only what the API server stores and the nodes' journals cross the upgrade: the agents run all the time.

use std::collections::BTreeSet;

use rig::addresses::{Nodes, allocated, assert_ipam_consistent, network, pool};
use rig::agent::node_configuration;
use rig::machine::until;
use rig::{Agent, Kube, Machine, assert_pod_unchanged};
use serde_json::{Value, json};
use testkit::{Feature, Pod, host};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

fn select(networks: &str) -> Value {
    json!({ NETWORKS: networks })
}

#[test]
fn cluster_upgrade_changes_nothing_for_running_pods() {
    let Some(kube) = Kube::oldest(Machine::new(host!(Feature::Bridge), "node").into()) else { return };
    let mut agent = Agent::beside(kube);
    agent.define(["net-a", "net-b"]);
    let attach = |agent: &Agent, name: &str, networks: &str| -> (Pod, String) {
        let uid = agent.pod(name, &select(networks));
        let pod = agent.machine.pod(name);
        agent.attachment(&pod, name, &uid).add(&node_configuration()).success();
        (pod, uid)
    };
    let pods = [("web", "net-a,net-b"), ("db", "net-a")].map(|(name, networks)| {
        let (pod, uid) = attach(&agent, name, networks);
        (name, pod, uid)
    });
    let states = |agent: &Agent| {
        pods.each_ref()
            .map(|(name, pod, _)| (pod.snapshot(), agent.annotation(name, STATUS), agent.events(name)))
    };
    until("all statuses are written", || {
        pods.iter().all(|(name, ..)| agent.annotation(name, STATUS).is_some()).then_some(())
    });
    let before = states(&agent);
    agent.kube.upgrade();
    agent.wait_until_ready();
    // The agent, too, is started again, as its DaemonSet does when a node is drained.
    agent.stop("TERM");
    agent.start(&[]);
    agent.wait_until_ready();
    let after = states(&agent);
    for ((before, after), (name, pod, uid)) in before.iter().zip(&after).zip(&pods) {
        assert_pod_unchanged("upgrade", pod, &before.0);
        assert_eq!((&before.1, &before.2), (&after.1, &after.2), "status and Events of {name}");
        agent.attachment(pod, name, uid).check(&node_configuration()).success();
    }
    // Pods come and go.
    let (late, late_uid) = attach(&agent, "late", "net-b");
    until("the status of a new pod", || agent.annotation("late", STATUS));
    agent.attachment(&late, "late", &late_uid).del(&node_configuration()).success();
    for (name, pod, uid) in &pods {
        agent.attachment(pod, name, uid).del(&node_configuration()).success();
    }
    assert_eq!(agent.machine.run(["ls", "-A", "/var/lib/weft/sandboxes"]), "", "entries of the journal");
}

#[test]
fn cluster_upgrade_keeps_leases_of_pools() {
    let Some(kube) = Kube::oldest(Machine::new(host!(Feature::Root), "node").into()) else { return };
    let mut nodes = Nodes::new(kube, 2);
    let sandbox = nodes.machine.pod("a");
    pool(&nodes, "10.90.0.0/26", 4);
    let conf = |node| network(node, &json!({ "range": "10.90.0.0/26", "quarantine": 0 }));
    let names: Vec<String> = (0..6).map(|number| format!("pod-{number}")).collect();
    let add = |nodes: &Nodes, name: &str, node| {
        allocated(nodes.attachment(&sandbox, name).add(&conf(node)))[0].clone()
    };
    let mut addresses: BTreeSet<String> =
        names.iter().zip([0, 1].into_iter().cycle()).map(|(name, node)| add(&nodes, name, node)).collect();
    let blocks =
        |nodes: &Nodes| -> Vec<Value> { nodes.blocks().iter().map(|block| block["spec"].clone()).collect() };
    let before = blocks(&nodes);
    nodes.kube.upgrade();
    for index in 0..nodes.count() {
        nodes.wait(index);
    }
    assert_eq!(blocks(&nodes), before);
    for (name, node) in names.iter().zip([0, 1].into_iter().cycle()) {
        nodes.attachment(&sandbox, name).check(&conf(node)).success();
    }
    for number in 6..12 {
        let address = add(&nodes, &format!("pod-{number}"), number % 2);
        assert!(addresses.insert(address.clone()), "{address} twice");
    }
    assert_ipam_consistent(&nodes, &[]);
}
