//! Pool with API servers: a server that a test has used is restored before the next test gets it.
//!
//! Source: `tests/src/etcd_snapshot.rs`.

use rig::etcd_snapshot::EtcdSnapshot;
use rig::kube::{files, namespace};
use rig::machine::until;
use rig::{Kube, Machine};
use serde_json::{Value, json};
use testkit::{Feature, host};

/// Lists names and labels of all objects that the test below creates, changes or deletes.
fn seen(kube: &Kube) -> Vec<Value> {
    let names = |kind: &str| {
        let list = kube.json([kind, "-A"]);
        let items = list["items"].as_array().expect("a list").iter();
        items.map(|item| json!([item["metadata"]["name"], item["metadata"]["labels"]])).collect()
    };
    ["namespaces", "serviceaccounts", "clusterroles", "crd"].map(names).to_vec()
}

/// Sends a request to etcd's gateway.
fn etcd(kube: &Kube, call: &str, body: &Value) -> Value {
    let url = format!("http://127.0.0.1:2379/v3/kv/{call}");
    let answer = kube.machine().run(["curl", "-sf", &url, "-d", &body.to_string()]);
    serde_json::from_str(&answer).expect("JSON")
}

/// The server's compactor reads this record five minutes later, and a missing one ends the server.
#[test]
fn api_pool_keeps_the_record_of_the_compactor() {
    let Some(kube) = Kube::own(Machine::new(host!(Feature::Root), "node").into()) else { return };
    let snapshot = EtcdSnapshot::of(&kube);
    let record = "Y29tcGFjdF9yZXZfa2V5";
    etcd(&kube, "put", &json!({ "key": record, "value": "Nw==" }));
    snapshot.restore(&kube).expect("restored");
    let found = etcd(&kube, "range", &json!({ "key": record }));
    assert_eq!(found["kvs"][0]["value"], "Nw==", "{found}");
}

#[test]
fn api_pool_restores_created_changed_and_deleted_objects() {
    let Some(kube) = Kube::own(Machine::new(host!(Feature::Root), "node").into()) else { return };
    let (snapshot, before) = (EtcdSnapshot::of(&kube), seen(&kube));
    for _ in 0..2 {
        let kinds = "deploy/crds/network-attachment-definitions.k8s.cni.cncf.io.yaml";
        kube.apply(&(files(&[kinds, "deploy/base/rbac.yaml"]) + &namespace("blue")));
        kube.wait_until_served();
        kube.service_account("blue", "robot");
        kube.kubectl(["label", "namespace", "default", "changed=yes"]);
        kube.kubectl(["delete", "clusterrole", "view"]);
        let served =
            || kube.ask(&["/apis/k8s.cni.cncf.io/v1/network-attachment-definitions"]).code == Some(0);
        until("definitions are served", || served().then_some(()));
        assert_ne!(seen(&kube), before);
        snapshot.restore(&kube).expect("restored");
        assert_eq!(seen(&kube), before);
        assert!(!served(), "definitions are not served");
    }
}
