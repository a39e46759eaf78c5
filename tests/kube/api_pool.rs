//! A real API server that a test has used is as it was when it was new, before another test is lent it.
//!
//! Source: `tests/rig/contents.rs`.

use rig::etcd_snapshot::Contents;
use rig::kube::{files, namespace};
use rig::machine::until;
use rig::{Kube, Machine};
use serde_json::{Value, json};
use testkit::{Feature, host};

/// What is seen of it without looking into its etcd: names of all that the test below makes, changes or deletes.
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
    let (contents, before) = (Contents::of(&kube), seen(&kube));
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
        contents.put_back(&kube).expect("it is put back");
        assert_eq!(seen(&kube), before);
        assert!(!served(), "nobody knows definitions");
    }
}
