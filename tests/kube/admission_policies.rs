//! Admission policies of `deploy/admission` with a real API server: who may write the objects of weft.

use rig::Machine;
use rig::kube::{Kube, files, namespace};
use rig::machine::until;
use serde_json::{Value, json};
use testkit::{Feature, host};

fn address_set(name: &str) -> Value {
    json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "PolicyAddressSet",
        "metadata": { "namespace": "x", "name": name }, "spec": { "policyUid": "u", "policyGeneration": 1 } })
}

fn block(name: &str, node: &str) -> Value {
    json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPBlock", "metadata": { "name": name },
        "spec": { "pool": "p", "range": "10.0.0.0/28", "node": node } })
}

fn node_report(name: &str) -> Value {
    json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "WeftNode", "metadata": { "name": name }, "spec": {} })
}

/// Applies the policies, and gives three accounts every right on the objects by RBAC.
fn prepare(kube: &Kube) {
    let everything = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "wild" }, "rules": [{ "apiGroups": ["weft.dev"], "resources": ["*"],
            "verbs": ["get", "list", "create", "update", "patch", "delete"] }] });
    let names = ["kube-system:weft-agent", "kube-system:weft-controller-policy", "x:tenant"];
    let subjects: Vec<Value> = names
        .iter()
        .filter_map(|name| name.split_once(':'))
        .map(|(namespace, name)| json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace }))
        .collect();
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": { "name": "wild" }, "subjects": subjects,
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "wild" } });
    let definitions = [
        "deploy/crds/ipblocks.weft.dev.yaml",
        "deploy/crds/weftnodes.weft.dev.yaml",
        "deploy/policy/policyaddresssets.weft.dev.yaml",
        "deploy/admission/policies.yaml",
    ];
    kube.apply(&(files(&definitions) + &namespace("x")));
    kube.apply(&everything.to_string());
    kube.apply(&binding.to_string());
    kube.wait_until_served();
}

#[test]
fn admission_policies_let_only_weft_write_its_objects() {
    let Some(kube) = Kube::new(Machine::new(host!(Feature::Root), "control").into()) else { return };
    if kube.minor() < 30 {
        eprintln!("skipped: Kubernetes 1.{} has no ValidatingAdmissionPolicy", kube.minor());
        return;
    }
    prepare(&kube);
    let create = |user: &str, node: Option<&str>, object: &Value| {
        let user = format!("--as=system:serviceaccount:{user}");
        let extra = node.map(|node| format!("--as-user-extra=authentication.kubernetes.io/node-name={node}"));
        let words = ["create", "--dry-run=server", "-f", "-", &user].into_iter().chain(extra.as_deref());
        kube.attempt(words, &object.to_string())
    };
    let denied = |user: &str, node: Option<&str>, object: &Value, why: &str| {
        let asked = create(user, node, object);
        assert!(
            asked.code != Some(0) && asked.stderr.contains(why),
            "{user}: {}{}",
            asked.stdout,
            asked.stderr
        );
    };
    let allowed = |user: &str, node: Option<&str>, object: &Value| {
        let asked = create(user, node, object);
        assert_eq!(asked.code, Some(0), "{user}: {}", asked.stderr);
    };
    until("the policies are in force", || {
        (create("x:tenant", None, &address_set("a")).code != Some(0)).then_some(())
    });
    denied("x:tenant", None, &address_set("a"), "only the policy controller");
    denied("kube-system:weft-agent", None, &address_set("a"), "only the policy controller");
    allowed("kube-system:weft-controller-policy", None, &address_set("a"));
    until("the policy of blocks is in force", || {
        (create("x:tenant", None, &block("p-10-0-0-0-28", "n")).code != Some(0)).then_some(())
    });
    denied("x:tenant", None, &block("p-10-0-0-0-28", "n"), "only agents and the IPAM controller");
    denied("kube-system:weft-controller-policy", None, &block("p-10-0-0-0-28", "n"), "only agents");
    // An agent whose token names its node speaks for this node alone.
    let agent = "kube-system:weft-agent";
    allowed(agent, None, &block("p-10-0-0-0-28", "n"));
    allowed(agent, Some("n"), &block("p-10-0-0-0-28", "n"));
    allowed(agent, Some("n"), &block("p-10-0-0-0-28", ""));
    until("the policy of agents is in force", || {
        (create(agent, Some("m"), &block("p-10-0-0-0-28", "n")).code != Some(0)).then_some(())
    });
    denied(agent, Some("m"), &block("p-10-0-0-0-28", "n"), "leases addresses for its own node alone");
    allowed(agent, Some("n"), &node_report("n"));
    denied(agent, Some("m"), &node_report("n"), "reports about its own node alone");
    // The administrator may do everything.
    kube.apply(&address_set("a").to_string());
    kube.kubectl(["delete", "policyaddresssets.weft.dev", "-n", "x", "a"]);
}
