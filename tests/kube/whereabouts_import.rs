//! `weft import whereabouts` with objects as whereabouts writes them, in any namespace: plan, import and comparison.
//!
//! ```text
//!   IPPool in kube-system, openshift-multus ─► weft import whereabouts ─► IPBlock, kept for pod and interface
//! ```

use rig::addresses::{Nodes, define_whereabouts, name, weft};
use rig::nodes;
use serde_json::{Value, json};

/// Group of the objects of whereabouts.
const GROUP: &str = "whereabouts.cni.cncf.io";

/// Creates the definitions of whereabouts without schemas, the namespaces, and a network with its IPAM.
fn prepare(nodes: &Nodes, range: &str) {
    define_whereabouts(nodes);
    for namespace in ["blue", "openshift-multus"] {
        nodes.kube.kubectl(["create", "namespace", namespace]);
    }
    let config = json!({ "cniVersion": "1.0.0", "name": "data", "type": "macvlan",
        "ipam": { "type": "whereabouts", "range": range } });
    let definition = json!({ "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "data", "namespace": "blue" }, "spec": { "config": config.to_string() } });
    nodes.kube.apply(&definition.to_string());
}

fn pool(nodes: &Nodes, namespace: &str, range: &str, allocations: &Value) {
    let object = json!({ "apiVersion": format!("{GROUP}/v1alpha1"), "kind": "IPPool",
        "metadata": { "name": range.replace('/', "-"), "namespace": namespace },
        "spec": { "range": range, "allocations": allocations } });
    nodes.kube.apply(&object.to_string());
}

/// Creates a pod of the first node that shows an address on `blue/data`; returns its uid.
fn pod(nodes: &Nodes, pod: &str, address: &str) -> String {
    let status = json!([{ "name": "blue/data", "interface": "net1", "ips": [address] }]).to_string();
    let object = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": pod, "namespace": "blue",
        "annotations": { "k8s.v1.cni.cncf.io/network-status": status } },
        "spec": { "nodeName": name(0), "containers": [{ "name": "c", "image": "none" }] } });
    nodes.kube.apply(&object.to_string());
    nodes.kube.json(["pod", "-n", "blue", pod])["metadata"]["uid"].as_str().expect("a uid").to_owned()
}

#[test]
fn import_whereabouts_reads_all_namespaces_and_names_conflicts() {
    let nodes = nodes!(1);
    let none = weft(&nodes, &["import", "whereabouts", "--apply"]);
    assert!(none.code == Some(1) && none.stderr.contains("no object in any namespace"), "{none}");
    prepare(&nodes, "10.71.0.0/24");
    let none = weft(&nodes, &["import", "whereabouts", "--apply"]);
    assert!(none.code == Some(1) && none.stderr.contains("no object in any namespace"), "{none}");

    let entry = |pod: &str| json!({ "id": pod, "podref": format!("blue/{pod}"), "ifname": "net1" });
    pool(
        &nodes,
        "openshift-multus",
        "10.71.0.0/24",
        &json!({ "1": entry("a"), "2": entry("b"), "9": entry("gone") }),
    );
    pool(&nodes, "kube-system", "10.71.0.0/24", &json!({ "2": entry("c"), "3": entry("c") }));
    for (name, address) in [("a", "10.71.0.1"), ("b", "10.71.0.2"), ("c", "10.71.0.3"), ("lost", "10.71.0.7")]
    {
        pod(&nodes, name, address);
    }
    let plan = weft(&nodes, &["import", "whereabouts"]);
    let line = |text: &str, address: &str| {
        text.lines().find(|line| line.starts_with(&format!("{address} "))).unwrap_or_default().to_owned()
    };
    assert_eq!(plan.code, Some(1), "{plan}");
    assert!(plan.stdout.contains("would be created"), "{plan}");
    assert!(line(&plan.stdout, "10.71.0.1").ends_with("would be kept"), "{plan}");
    assert!(line(&plan.stdout, "10.71.0.7").ends_with("would be kept"), "lost by whereabouts: {plan}");
    assert!(line(&plan.stdout, "10.71.0.9").ends_with("its pod no longer exists"), "{plan}");
    for owner in
        ["pod blue/b (net1), by ippool openshift-multus/", "pod blue/c (net1), by ippool kube-system/"]
    {
        assert!(line(&plan.stdout, "10.71.0.2").contains(owner), "{plan}");
    }
    let refused = weft(&nodes, &["import", "whereabouts", "--apply"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("nothing was changed"), "{refused}");
    assert_eq!(nodes.blocks().len(), 0, "nothing is created while two pods have an address");
    let before = weft(&nodes, &["import", "whereabouts", "--verify"]);
    assert!(line(&before.stdout, "10.71.0.1").contains("weft does not hold it"), "{before}");

    // One of the two records is corrected, as an operator does.
    pool(&nodes, "kube-system", "10.71.0.0/24", &json!({ "2": null, "3": entry("c") }));
    weft(&nodes, &["import", "whereabouts", "--apply"]).success();
    let verified = weft(&nodes, &["import", "whereabouts", "--verify"]).success().stdout;
    assert_eq!(verified.matches(" same").count(), 4, "{verified}");
    // A pod that starts with an address of another one is found.
    pod(&nodes, "late", "10.71.0.1");
    let after = weft(&nodes, &["import", "whereabouts", "--verify"]);
    assert_eq!(after.code, Some(1), "{after}");
    assert!(line(&after.stdout, "10.71.0.1").ends_with("two pods have it: blue/a, blue/late"), "{after}");
}
