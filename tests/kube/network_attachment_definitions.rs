//! CRD for network definitions with a real API server: accepted and refused objects, and RBAC.
//!
//! ```text
//!   weft crds | kubectl apply ── kube-apiserver (RBAC) ── etcd
//! ```
//!
//! Source: multi-network specification (NPWG), sections 3.1, 3.2 (NPWG1-3.1-1, 3.1-2, 3.2-1, 3.3-1).

use std::sync::Arc;

use rig::machine::until;
use rig::{Kube, Machine};
use serde_json::json;
use testkit::{host, workspace};

/// Starts a server with the CRDs that `weft crds` prints.
macro_rules! server {
    () => {{
        let machine = Arc::new(Machine::new(host!(), "control"));
        let Some(kube) = Kube::new(Arc::clone(&machine)) else { return };
        define(&kube, &machine);
        kube
    }};
}

fn define(kube: &Kube, machine: &Machine) {
    let weft = testkit::binary("weft");
    let definitions = machine.run([weft.to_str().expect("a path"), "crds"]);
    let applied = kube.apply(&definitions);
    assert!(applied.contains("network-attachment-definitions.k8s.cni.cncf.io created"), "{applied}");
    kube.wait_until_served();
    until("definitions are served", || {
        kube.attempt(["get", "net-attach-def", "-A"], "").code.filter(|code| *code == 0)
    });
}

fn network(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\n\
         metadata: {{name: {name}, namespace: default}}\n{spec}"
    )
}

// Requirements: NPWG1-3.1-1, NPWG1-3.1-2
#[test]
fn definition_crd_follows_the_npwg_specification() {
    let kube = server!();
    // Applying it again changes nothing.
    let again = kube.apply(
        &std::fs::read_to_string(
            workspace().join("deploy/crds/network-attachment-definitions.k8s.cni.cncf.io.yaml"),
        )
        .expect("a file"),
    );
    assert!(again.contains("unchanged"), "{again}");
    let known = kube.json(["crd", "network-attachment-definitions.k8s.cni.cncf.io"]);
    assert_eq!(known["spec"]["scope"], "Namespaced");
    assert_eq!(known["spec"]["names"]["shortNames"], json!(["net-attach-def", "nad"]));
    for condition in known["status"]["conditions"].as_array().expect("conditions") {
        let (kind, status) = (&condition["type"], &condition["status"]);
        assert!(status == "True" && kind != "NonStructuralSchema", "{condition}");
    }
    let text = r#"spec: {config: '{"cniVersion": "1.0.0", "type": "bridge"}'}"#;
    for (name, spec) in [("with-text", text), ("without-spec", ""), ("empty-spec", "spec: {}"), ("1a", text)]
    {
        kube.apply(&network(name, spec));
    }
    let refused = [
        ("as-yaml", "spec: {config: {cniVersion: 1.0.0, type: bridge}}", "spec.config"),
        ("as-number", "spec: {config: 5}", "spec.config"),
        ("Upper", text, "metadata.name"),
        ("-first", text, "metadata.name"),
    ];
    for (name, spec, word) in refused {
        let finished = kube.attempt(["create", "--validate=false", "-f", "-"], &network(name, spec));
        assert!(finished.code != Some(0) && finished.stderr.contains(word), "{name}: {finished}");
    }
    let names = kube.kubectl(["get", "net-attach-def", "-o", "name"]);
    assert_eq!(names.lines().count(), 4, "{names}");
}

#[test]
fn example_manifests_are_accepted_by_the_api() {
    let kube = server!();
    for file in ["definitions.yaml", "pods.yaml"] {
        let text = std::fs::read_to_string(workspace().join("examples").join(file)).expect("an example");
        kube.apply(&text);
    }
    let pod = kube.json(["pod", "-n", "my-namespace", "my-pod"]);
    assert_eq!(
        pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"],
        "net-a,net-b,other-ns/net-c,net-a"
    );
    let networks = kube.json(["net-attach-def", "-n", "my-namespace", "net-b"]);
    let config: serde_json::Value =
        serde_json::from_str(networks["spec"]["config"].as_str().expect("text")).expect("JSON");
    assert_eq!(config["plugins"][1]["type"], "tuning");
}

#[test]
fn rbac_denies_definitions_without_a_grant() {
    let kube = server!();
    let reader = kube.service_account("default", "reader");
    let list = ["get", "net-attach-def", "-n", "default"];
    let refused = kube.attempt_as(&reader, list, "");
    assert!(refused.stderr.contains("system:serviceaccount:default:reader"), "{refused}");
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": "reader", "namespace": "default" },
        "rules": [{ "apiGroups": ["k8s.cni.cncf.io"], "resources": ["network-attachment-definitions"], "verbs": ["get", "list"] }],
    });
    kube.apply(&role.to_string());
    kube.kubectl(["create", "rolebinding", "reader", "--role=reader", "--serviceaccount=default:reader"]);
    until("the role is effective", || kube.attempt_as(&reader, list, "").code.filter(|code| *code == 0));
    let other = kube.attempt_as(&reader, ["get", "net-attach-def", "-n", "kube-system"], "");
    assert!(other.code != Some(0) && other.stderr.contains("forbidden"), "{other}");
}
