//! API server pool: a real API server that a test has used is restored before the next test gets it.
//!
//! Source: `tests/src/etcd_snapshot.rs`.

use rig::etcd_snapshot::EtcdSnapshot;
use rig::kube::{files, namespace};
use rig::machine::until;
use rig::{Kube, Machine};
use serde_json::{Value, json};
use testkit::{Feature, host};

/// Names and labels of all objects that the test below creates, changes or deletes, as the server lists them.
fn seen(kube: &Kube) -> Vec<Value> {
    let names = |kind: &str| {
        let list = kube.json([kind, "-A"]);
        let items = list["items"].as_array().expect("a list").iter();
        items.map(|item| json!([item["metadata"]["name"], item["metadata"]["labels"]])).collect()
    };
    ["namespaces", "serviceaccounts", "clusterroles", "crd"].map(names).to_vec()
}

#[test]
fn what_was_made_changed_or_deleted_is_as_it_was_and_nothing_else_is_touched() {
    let Some(kube) = Kube::own(Machine::new(host!(Feature::Root), "node").into()) else { return };
    let (snapshot, before) = (EtcdSnapshot::of(&kube), seen(&kube));
    for _ in 0..2 {
        let kinds = "deploy/crds/network-attachment-definitions.k8s.cni.cncf.io.yaml";
        kube.apply(&(files(&[kinds, "deploy/base/rbac.yaml"]) + &namespace("blue")));
        kube.wait_until_served();
        kube.service_account("blue", "somebody");
        kube.kubectl(["label", "namespace", "default", "changed=yes"]);
        kube.kubectl(["delete", "clusterrole", "view"]);
        let served =
            || kube.ask(&["/apis/k8s.cni.cncf.io/v1/network-attachment-definitions"]).code == Some(0);
        until("definitions are served", || served().then_some(()));
        assert_ne!(seen(&kube), before);
        snapshot.restore(&kube).expect("it is restored");
        assert_eq!(seen(&kube), before);
        assert!(!served(), "nobody knows definitions");
    }
}
