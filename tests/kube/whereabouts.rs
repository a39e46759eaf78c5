//! The real whereabouts and weft on one real API server: weft takes over allocated addresses, and the same
//! configuration gives a result in the same form.
//!
//! ```text
//!   whereabouts ADD ─► IPPool, OverlappingRangeIPReservation ─► weft import whereabouts ─► IPBlock ─► weft-ipam ADD
//! ```
//!
//! `PEERS` contains whereabouts. Without it, the test is skipped.
//!
//! Source: whereabouts v0.9 `doc/extended-configuration.md`, `doc/crds/`; docs/migrate-from-whereabouts.md.

use std::collections::{BTreeMap, BTreeSet};

use rig::addresses::{Nodes, allocated, define_whereabouts, name, network};
use rig::kube::files;
use rig::machine::until;
use rig::parts::text;
use rig::peers::peers;
use rig::{assert_refused, nodes};
use serde_json::{Value, json};
use testkit::{Attachment, Finished, Pod};

/// Networks by name, with `ipam` as in a definition. The range of `small` is soon exhausted.
fn networks() -> [(&'static str, Value); 8] {
    [
        (
            "plain",
            json!({ "range": "10.30.0.0/24", "gateway": "10.30.0.1", "routes": [{ "dst": "10.0.0.0/8" }] }),
        ),
        ("small", json!({ "range": "10.31.0.0/29" })),
        ("part", json!({ "range": "10.32.0.16-10.32.0.40/24", "exclude": ["10.32.0.16/31"] })),
        (
            "named",
            json!({ "range": "10.30.0.0/24", "network_name": "blue-sky", "enable_overlapping_ranges": false }),
        ),
        ("six", json!({ "range": "fd00:33::/64", "range_start": "fd00:33::10", "range_end": "fd00:33::ff" })),
        (
            "dual",
            json!({ "range": "10.34.0.0/24", "ipRanges": [{ "range": "fd00:34::/116" }], "dns": { "nameservers": ["10.34.0.9"] } }),
        ),
        ("sliced", json!({ "range": "10.35.0.0/16", "node_slice_size": "/26" })),
        ("pieces", json!({ "range": "10.36.0.0/16", "node_slice_size": "/26", "network_name": "red" })),
    ]
}

/// Creates the objects of a whereabouts installation without schemas: the flat file, the CRDs, and the slices that the
/// whereabouts controller would create for two networks.
fn prepare(nodes: &Nodes) {
    define_whereabouts(nodes);
    let flat = json!({ "datastore": "kubernetes", "kubernetes": { "kubeconfig": nodes.kube.admin() } });
    nodes.machine.write("/etc/cni/net.d/whereabouts.d/whereabouts.conf", flat.to_string());
    for (slices, range, slice) in
        [("sliced", "10.35.0.0/16", "10.35.0.64/26"), ("red", "10.36.0.0/16", "10.36.0.64/26")]
    {
        let object = json!({ "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "NodeSlicePool",
            "metadata": { "name": slices, "namespace": "kube-system" },
            "spec": { "range": range, "sliceSize": "/26" },
            "status": { "allocations": [{ "nodeName": name(0), "sliceRange": slice }] } });
        nodes.kube.apply(&object.to_string());
    }
    nodes.kube.kubectl(["create", "namespace", "blue"]);
}

/// Creates a pod on the node; returns the CNI parameters for the pod's interface.
fn call<'a>(nodes: &'a Nodes, sandbox: &Pod, pod: &str) -> Attachment<'a> {
    let object = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": pod, "namespace": "blue" },
        "spec": { "nodeName": name(0), "containers": [{ "name": "c", "image": "none" }] } });
    nodes.kube.apply(&object.to_string());
    let uid = nodes.kube.json(["pod", "-n", "blue", pod])["metadata"]["uid"].as_str().unwrap().to_owned();
    let mut call = nodes.attachment(sandbox, pod);
    call.ifname = "net1".to_owned();
    call.args = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID={pod};K8S_POD_UID={uid}"
    );
    call
}

/// Configuration for both plugins: whereabouts ignores the fields that only weft needs.
fn configuration(name: &str, ipam: &Value) -> Value {
    let mut config = network(0, ipam);
    config["name"] = name.into();
    config["cniVersion"] = "1.0.0".into();
    config["ipam"]["type"] = "whereabouts".into();
    config
}

fn weft(nodes: &Nodes, words: &[&str]) -> Finished {
    let command = nodes.machine.command(text(&testkit::binary("weft"))).env("KUBECONFIG", nodes.kube.admin());
    command.args(words.iter().copied()).finish()
}

/// Returns a result without the addresses' host parts.
fn form(result: &Value) -> Value {
    let mut result = result.clone();
    for ip in result["ips"].as_array_mut().into_iter().flatten() {
        let (_, length) =
            ip["address"].as_str().and_then(|address| address.split_once('/')).expect("an address");
        ip["address"] = format!("…/{length}").into();
    }
    result
}

#[test]
fn whereabouts_addresses_stay_and_new_pods_continue() {
    let Some(programs) = peers(&["whereabouts"]) else { return };
    let nodes = nodes!(1);
    prepare(&nodes);
    let sandbox = nodes.machine.pod("a");
    let mut before: BTreeMap<&str, (BTreeSet<String>, Value)> = BTreeMap::new();
    for (network, ipam) in networks() {
        let config = configuration(network, &ipam);
        for number in 0..3 {
            let mut call = call(&nodes, &sandbox, &format!("{network}-old-{number}"));
            call.plugin = text(&programs.join("whereabouts")).to_owned();
            call.through = vec!["env".to_owned(), format!("NODENAME={}", name(0))];
            let done = call.add(&config);
            let result = done.clone().success().json();
            let held = before.entry(network).or_insert_with(|| (BTreeSet::new(), form(&result)));
            held.0.extend(allocated(done));
        }
    }

    let dry = weft(&nodes, &["import", "whereabouts"]).success().stdout;
    for (network, (addresses, _)) in &before {
        for address in addresses {
            assert!(dry.contains(&format!("{address} ")), "{network}: {address} is missing:\n{dry}");
        }
    }
    let done = weft(&nodes, &["import", "whereabouts", "--apply"]).success().stdout;
    let all: usize = before.values().map(|(addresses, _)| addresses.len()).sum();
    assert_eq!(done.matches("kept in pool").count(), all, "{done}");
    for (network, ipam) in networks() {
        let (held, expected) = &before[network];
        let config = configuration(network, &ipam);
        let mut ours = BTreeSet::new();
        for number in 0..3 {
            let mut call = call(&nodes, &sandbox, &format!("{network}-new-{number}"));
            call.plugin = "whereabouts".to_owned();
            let done = call.add(&config);
            assert_eq!(form(&done.clone().success().json()), *expected, "{network}: form of the result");
            ours.extend(allocated(done));
        }
        assert!(ours.is_disjoint(held), "{network}: allocated twice: {held:?}, {ours:?}");
        for address in held {
            let holder = weft(&nodes, &["ipam", "who", address]).success().stdout;
            assert!(holder.contains(&format!("{network}-old-")), "{network}, {address}: {holder}");
        }
    }
    delete_an_old_pod(&nodes, &sandbox, &before["small"].0);
}

/// Checks the exhausted range of `small`: a pod with an address of whereabouts is deleted, and the address is free
/// again.
fn delete_an_old_pod(nodes: &Nodes, sandbox: &Pod, held: &BTreeSet<String>) {
    let (network, ipam) = networks().into_iter().find(|(network, _)| *network == "small").unwrap();
    let mut config = configuration(network, &ipam);
    config["ipam"]["quarantine"] = 0.into();
    let mut late = call(nodes, sandbox, "small-late");
    late.plugin = "whereabouts".to_owned();
    assert_refused("full", &late.add(&config), 11, &["no address is free"]);
    let mut old = call(nodes, sandbox, "small-old-1");
    old.plugin = "whereabouts".to_owned();
    old.del(&config).success();
    nodes.kube.kubectl(["delete", "pod", "-n", "blue", "small-old-1", "--force", "--grace-period=0"]);
    nodes.kube.apply(&files(&["deploy/ipam/rbac.yaml"]));
    let account = nodes.kube.service_account("kube-system", "weft-controller-ipam");
    let controller = testkit::binary("weft");
    let words =
        ["controller", "--ipam", "--node-grace", "2", "--ipam-interval", "1", "--kubeconfig", &account];
    nodes.machine.start("controller", [text(&controller)].into_iter().chain(words));
    let address = until("the address of a deleted pod", || {
        let done = late.add(&config);
        (done.code == Some(0)).then(|| allocated(done))
    });
    assert!(held.contains(&address[0]), "{address:?} of {held:?}");
}
