//! Tests for a container runtime that calls `weft`: what a kubelet observes while a pod lives.
//!
//! ```text
//!   kubelet (the test) ── CRI ── containerd ── CNI ── weft ── default, red, blue, wire
//! ```
//!
//! Source: CRI `runtime.v1`; containerd 1.6 `pkg/cri/server/sandbox_{run,stop,remove}.go`.

use std::collections::BTreeSet;

use rig::cluster::{bridge, configuration, recording};
use rig::containerd::NETWORKS;
use rig::machine::until;
use rig::{Cluster, Containerd, assert_nothing_left, links, with};
use serde_json::{Value, json};
use testkit::{Feature, host};

const LINKS: [&str; 4] = ["eth0", "net1", "net2", "net3"];

/// Returns a runtime with four networks, on which these pods can run.
macro_rules! node {
    ($($name:expr),*) => {{
        let host = host!(Feature::Bridge, Feature::Veth, Feature::NftMasquerade);
        let Some(node) = Containerd::with_networks(host, &[$($name),*]) else { return };
        node
    }};
}

/// Returns the addresses of a sandbox's interfaces, without prefix length.
#[track_caller]
fn addresses(node: &Containerd, id: &str) -> Vec<String> {
    let inside = node.inside(id);
    let address = |link: &str| rig::addresses_on(&inside, link).concat();
    LINKS.iter().map(|link| address(link).split('/').next().unwrap_or_default().to_owned()).collect()
}

// Requirements: NPWG1-1.1.4-1
#[test]
fn pod_has_its_networks_until_it_is_removed() {
    let node = node!("web", "db");
    let before = node.snapshot();
    let [web, db] =
        ["web", "db"].map(|name| node.cri().run_pod_sandbox(&node.pod(name, &[])).expect("a pod"));
    let inside = node.inside(&web);
    assert_eq!(links(&inside), LINKS);
    let seen = node.sandbox(&web);
    assert!(seen.ready);
    assert_eq!(seen.addresses, addresses(&node, &web)[..1], "the pod's address is eth0's");
    for (link, address) in LINKS.iter().zip(addresses(&node, &db)) {
        assert!(inside.pings(&address), "web does not reach db over {link}");
    }
    for id in [&web, &db] {
        node.cri().stop_pod_sandbox(id).expect("stop");
        assert!(!node.sandbox(id).ready);
        node.cri().remove_pod_sandbox(id).expect("remove");
    }
    assert_eq!(node.cri().list_pod_sandbox().expect("a list"), []);
    assert_nothing_left("two pods", &node, &before);
}

#[test]
fn pods_survive_a_runtime_restart_and_are_removed_by_the_next() {
    let node = node!("web", "db");
    let before = node.snapshot();
    let [web, db] =
        ["web", "db"].map(|name| node.cri().run_pod_sandbox(&node.pod(name, &[])).expect("a pod"));
    let addresses_before = addresses(&node, &web);
    node.restart("KILL");
    assert!(node.sandbox(&web).ready, "the sandbox still exists");
    assert_eq!(addresses(&node, &web), addresses_before);
    assert!(node.inside(&web).pings(&addresses(&node, &db)[1]));
    node.remove(&web);
    node.restart("TERM");
    node.remove(&db);
    assert_nothing_left("a restart in between", &node, &before);
}

#[test]
fn pods_started_concurrently_have_distinct_addresses() {
    const PODS: usize = 16;
    let names: Vec<String> = (0..PODS).map(|number| format!("many-{number}")).collect();
    let host = host!(Feature::Bridge, Feature::Veth, Feature::NftMasquerade);
    let borrowed: Vec<&str> = names.iter().map(String::as_str).collect();
    let Some(node) = Containerd::with_networks(host, &borrowed) else { return };
    let before = node.snapshot();
    let each = |work: &(dyn Fn(&str) -> String + Sync), of: &[String]| -> Vec<String> {
        std::thread::scope(|scope| {
            let started: Vec<_> = of.iter().map(|item| scope.spawn(move || work(item))).collect();
            started.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    };
    let run = |name: &str| node.cri().run_pod_sandbox(&node.pod(name, &[])).expect("a pod");
    let ids = each(&run, &names);
    for (place, link) in LINKS.iter().enumerate() {
        let allocated: BTreeSet<String> = ids.iter().map(|id| addresses(&node, id)[place].clone()).collect();
        assert_eq!(allocated.len(), PODS, "{link}: {allocated:?}");
    }
    let remove = |id: &str| {
        node.remove(id);
        String::new()
    };
    each(&remove, &ids);
    assert_nothing_left("many pods", &node, &before);
}

// Requirements: M11
#[test]
fn pod_is_detached_by_its_own_configuration_after_a_change() {
    // Without weft, containerd would call DEL of the current network for an attachment of the previous one.
    let node = node!("web");
    let before = node.snapshot();
    let web = node.cri().run_pod_sandbox(&node.pod("web", &[])).expect("a pod");
    let cluster = Cluster::on(&node);
    node.configure(&configuration(&recording("default", "one", &json!({}))));
    node.remove(&web);
    assert!(cluster.calls().is_empty(), "the current network got no call");
    node.configure(&configuration(&bridge("default", 1)));
    assert_nothing_left("another configuration", &node, &before);
}

#[test]
fn network_ready_follows_the_configuration_directory() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let Some(node) = Containerd::new(host) else { return };
    let cluster = Cluster::new(&node);
    cluster.pod("web", "");
    let message = node.network_ready().expect_err("nothing is configured");
    assert!(message.contains("cni plugin not initialized"), "{message}");
    let error = node.cri().run_pod_sandbox(&node.pod("web", &[])).expect_err("no network");
    assert!(error.contains("cni plugin not initialized"), "{error}");
    let half: Vec<_> = node.cri().list_pod_sandbox().expect("a list");
    node.configure(&configuration(&bridge("default", 1)));
    node.network_ready().expect("it is configured");
    // Without a network the sandbox cannot be detached either: its name is in use until it is removed.
    for (id, _) in half {
        node.remove(&id);
    }
    let web = node.cri().run_pod_sandbox(&node.pod("web", &[])).expect("a pod");
    node.run(["rm", &format!("{NETWORKS}/00-weft.conflist")]);
    until("the runtime notices the removed configuration", || node.network_ready().err());
    node.configure(&configuration(&bridge("default", 1)));
    node.network_ready().expect("it is configured again");
    node.remove(&web);
}

// Requirements: S33
#[test]
fn network_ready_reports_status_of_each_default_network() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let Some(node) = Containerd::newest(host, NETWORKS) else { return };
    let cluster = Cluster::new(&node);
    cluster.pod("web", "");
    let configure = |default: &Value, second: &Value| {
        let delegates = [recording("default", "one", default), recording("second", "two", second)];
        let plugin = with(&configuration(&json!({})), &json!({ "delegates": delegates }));
        let list = json!({ "cniVersion": "1.1.0", "name": "weft-net", "plugins": [plugin] });
        node.write(format!("{NETWORKS}/00-weft.conflist"), list.to_string());
    };
    let fails = json!({ "STATUS": [{ "do": "fail", "code": 50, "message": "it is not ready" }] });
    let succeeds = json!({});
    configure(&succeeds, &succeeds);
    until("both are ready", || node.network_ready().ok());
    for (default, second, words) in
        [(&fails, &succeeds, "it is not ready"), (&succeeds, &fails, "network second of every pod")]
    {
        configure(default, second);
        until(words, || node.network_ready().err().filter(|why| why.contains(words)));
        configure(&succeeds, &succeeds);
        until("both are ready again", || node.network_ready().ok());
    }
}
