//! Admission policies of `deploy/admission` with a real API server: who may write the objects of weft.

use rig::Machine;
use rig::kube::{Kube, files, namespace};
use rig::machine::until;
use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, host};

fn address_set(name: &str) -> Value {
    json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "PolicyAddressSet",
        "metadata": { "namespace": "x", "name": name }, "spec": { "selection": "{}" } })
}

fn block(name: &str, node: &str) -> Value {
    json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPBlock", "metadata": { "name": name },
        "spec": { "pool": "p", "range": "10.0.0.0/28", "node": node } })
}

fn node_report(name: &str) -> Value {
    json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "WeftNode", "metadata": { "name": name }, "spec": {} })
}

const AGENT: &str = "kube-system:weft-agent";

fn pool(name: &str) -> Value {
    json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPPool", "metadata": { "name": name },
        "spec": { "range": "10.60.0.0/16" } })
}

/// Applies the policies and the roles of weft, and gives a tenant every right on the objects by RBAC, but for the verbs of the
/// policies.
fn prepare(kube: &Kube) {
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": { "name": "wild" }, "rules": [{ "apiGroups": ["weft.dev"], "resources": ["*"],
            "verbs": ["get", "list", "create", "update", "patch", "delete"] }] });
    let binding = |role: &str, account: &str| {
        let (namespace, name) = account.split_once(':').expect("an account");
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": format!("{role}-{name}") },
            "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": namespace }],
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role } })
    };
    let definitions = [
        "deploy/crds/ippools.weft.dev.yaml",
        "deploy/crds/ipblocks.weft.dev.yaml",
        "deploy/crds/weftnodes.weft.dev.yaml",
        "deploy/policy/policyaddresssets.weft.dev.yaml",
    ];
    let objects = [
        "deploy/base/rbac.yaml",
        "deploy/ipam/rbac.yaml",
        "deploy/components/policy/rbac.yaml",
        "deploy/admission/policies.yaml",
    ];
    kube.apply(&(files(&definitions) + &namespace("x") + &namespace("weft-system")));
    kube.wait_until_served();
    kube.apply(&files(&objects));
    kube.apply(&role.to_string());
    for account in ["x:tenant", AGENT, "kube-system:weft-controller-policy"] {
        kube.apply(&binding("wild", account).to_string());
    }
    kube.apply(&binding("weft-ipam-admin", "x:network-admin").to_string());
    kube.apply(&binding("cluster-admin", "x:root").to_string());
    // weft in a namespace of its own.
    kube.apply(&binding("weft-agent", "weft-system:other-agent").to_string());
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
    // Pools: a tenant with a wildcard, agents, the controller, and administrators of two kinds.
    denied("x:tenant", None, &pool("q"), "administrators need the ClusterRole weft-ipam-admin");
    for user in
        [AGENT, "weft-system:other-agent", "kube-system:weft-controller-ipam", "x:network-admin", "x:root"]
    {
        allowed(user, None, &pool("q"));
    }
    allowed("x:root", Some("m"), &block("p-10-0-0-0-28", "n"));
    denied("x:network-admin", None, &address_set("a"), "");
    // An agent whose token names its node speaks for this node alone.
    allowed(AGENT, None, &block("p-10-0-0-0-28", "n"));
    allowed(AGENT, Some("n"), &block("p-10-0-0-0-28", "n"));
    allowed(AGENT, Some("n"), &block("p-10-0-0-0-28", ""));
    until("the policy of agents is in force", || {
        (create(AGENT, Some("m"), &block("p-10-0-0-0-28", "n")).code != Some(0)).then_some(())
    });
    for agent in [AGENT, "weft-system:other-agent"] {
        denied(agent, Some("m"), &block("p-10-0-0-0-28", "n"), "leases addresses for its own node alone");
    }
    allowed(AGENT, Some("n"), &node_report("n"));
    denied(AGENT, Some("m"), &node_report("n"), "reports about its own node alone");
    // The administrator may do everything.
    kube.apply(&address_set("a").to_string());
    kube.kubectl(["delete", "policyaddresssets.weft.dev", "-n", "x", "a"]);
}

/// Blocks of node `n`, and requests of agents about them.
struct Blocks(Kube);

impl Blocks {
    fn new(host: Host) -> Option<Blocks> {
        let kube = Kube::new(Machine::new(host, "control").into())?;
        if kube.minor() < 30 {
            eprintln!("skipped: Kubernetes 1.{} has no ValidatingAdmissionPolicy", kube.minor());
            return None;
        }
        prepare(&kube);
        let single = |name: &str, node: &str, fields: &Value| {
            let mut block = block(name, node);
            let spec = block["spec"].as_object_mut().expect("a spec");
            spec.insert("range".to_owned(), json!("10.0.1.1/32"));
            spec.extend(fields.as_object().expect("fields").clone());
            kube.apply(&block.to_string());
        };
        kube.apply(&block("block", "n").to_string());
        single("free", "", &json!({}));
        single("asked", "n", &json!({ "transferRequestedFrom": "m" }));
        single("claimed", "n", &json!({ "claim": "vm/x/a" }));
        let blocks = Blocks(kube);
        until("the policy of agents is in force", || {
            (blocks.delete("m", "block").code != Some(0)).then_some(())
        });
        Some(blocks)
    }

    /// Sends a request with the token of a node's agent; nothing is stored.
    fn attempt(&self, node: &str, words: &[&str]) -> Finished {
        let user = format!("--as=system:serviceaccount:{AGENT}");
        let extra = format!("--as-user-extra=authentication.kubernetes.io/node-name={node}");
        self.0.attempt([words, &["--dry-run=server", &user, &extra]].concat(), "")
    }

    fn patch(&self, node: &str, name: &str, change: &Value) -> Finished {
        let change = change.to_string();
        self.attempt(node, &["patch", "ipblocks.weft.dev", name, "--type=merge", "-p", &change])
    }

    fn delete(&self, node: &str, name: &str) -> Finished {
        self.attempt(node, &["delete", "ipblocks.weft.dev", name])
    }
}

#[test]
fn admission_policies_protect_blocks_from_other_agents() {
    let Some(blocks) = Blocks::new(host!(Feature::Root)) else { return };
    let request = json!([{ "node": "m", "requestedAt": 1 }]);
    for (name, change) in [
        ("block", json!({ "spec": { "node": null } })),
        ("block", json!({ "spec": { "node": "m" } })),
        ("block", json!({ "spec": { "reservedAddresses": ["10.0.0.1"] } })),
        ("block", json!({ "spec": { "transferRequests": request, "generation": 7 } })),
        ("block", json!({ "metadata": { "labels": { "weft.dev/node": "m" } } })),
        ("asked", json!({ "spec": { "transferRequestedFrom": null, "node": null } })),
        ("asked", json!({ "spec": { "transferRequestedFrom": null, "owner": "a/b/c" } })),
        ("claimed", json!({ "spec": { "claim": null, "node": "m" } })),
        ("claimed", json!({ "spec": { "node": null } })),
    ] {
        let asked = blocks.patch("m", name, &change);
        assert!(
            asked.code != Some(0) && asked.stderr.contains("changes no block of node n"),
            "{name} {change}: {}{}",
            asked.stdout,
            asked.stderr
        );
        let own = blocks.patch("n", name, &change);
        let leases_for_another = own.stderr.contains("its own node alone");
        assert!(own.code == Some(0) || leases_for_another, "{name} {change}: {}", own.stderr);
    }
    for name in ["block", "asked", "claimed"] {
        let asked = blocks.delete("m", name);
        let why = "changes no block of node n";
        assert!(asked.stderr.contains(why), "{name}: {}{}", asked.stdout, asked.stderr);
        assert_eq!(blocks.delete("n", name).code, Some(0), "{name}");
    }
}

#[test]
fn admission_policies_admit_the_protocol_between_agents() {
    let Some(blocks) = Blocks::new(host!(Feature::Root)) else { return };
    for (name, change) in [
        ("block", json!({ "spec": { "transferRequests": [{ "node": "m", "requestedAt": 1 }] } })),
        ("asked", json!({ "spec": { "transferRequestedFrom": null, "transferRefusedBy": "a/b/c" } })),
        ("claimed", json!({ "spec": { "node": "m", "owner": "a/b/c", "generation": 2 } })),
        ("free", json!({ "spec": { "node": "m", "owner": "a/b/c" } })),
    ] {
        let asked = blocks.patch("m", name, &change);
        assert_eq!(asked.code, Some(0), "{name} {change}: {}", asked.stderr);
    }
    assert_eq!(blocks.delete("m", "free").code, Some(0));
}
