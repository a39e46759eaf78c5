//! Kustomizations of `deploy/` with a kubectl that supports components, applied to a real API server.
//!
//! ```text
//!   deploy/{crds,base,…} ── kubectl kustomize ── kubectl apply --server-side ──► kube-apiserver
//!   deploy/components/* ──┘
//! ```
//!
//! - No kustomization has deprecated fields: kubectl would warn of them.
//! - The networks CRD conflicts with another project's CRD, if that project uses server-side apply, unless a component
//!   leaves it out.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use rig::machine::until;
use rig::parts::text;
use rig::{Kube, Machine};
use serde_json::{Value, json};
use testkit::{Finished, host, workspace};

/// Kustomizations that can be applied alone, in an order in which each finds what it needs.
const APPLIED: [&str; 13] = [
    "crds",
    "policy",
    "",
    "hot-plug",
    "network-policy",
    "thin",
    "dhcp",
    "ipam",
    "services",
    "neutron",
    "page",
    "webhook",
    "removal",
];
/// Name of the networks CRD.
const NETWORKS: &str = "network-attachment-definitions.k8s.cni.cncf.io";

/// Returns the directories below `deploy/` with a kustomization, as paths from there.
fn directories() -> BTreeSet<String> {
    let deploy = workspace().join("deploy");
    let mut found = BTreeSet::new();
    let mut pending = vec![deploy.clone()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).expect("a directory").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            // The chart has a link to the CRDs.
            if path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                pending.push(path);
            } else if name == "kustomization.yaml" || name == "Kustomization" {
                found.insert(text(directory.strip_prefix(&deploy).expect("below deploy")).to_owned());
            }
        }
    }
    found
}

/// Writes a user's kustomization: these directories in `deploy/` with these components. Returns the directory.
fn overlay(machine: &Machine, name: &str, resources: &[&str], components: &[&str]) -> String {
    let directory = format!("/etc/weft-test/{name}");
    let up = "../".repeat(Path::new(&directory).components().count() - 1);
    let deploy = workspace().join("deploy");
    let paths = |names: &[&str], below: &str| -> Vec<String> {
        names
            .iter()
            .map(|name| format!("{up}{}/{below}{name}", text(&deploy).trim_start_matches('/')))
            .collect()
    };
    let document = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": paths(resources, ""), "components": paths(components, "components/"),
    });
    machine.write(format!("{directory}/kustomization.yaml"), document.to_string());
    directory
}

/// Applies a directory by server-side apply.
fn apply(kube: &Kube, directory: &str) -> Finished {
    let kubectl = kube.machine().command(&format!("{}/kubectl", kube.newer_kubectl()));
    let kubectl = kubectl.env("HOME", rig::machine::CONFIGURATIONS).env("KUBECONFIG", kube.admin());
    // Validation would download the OpenAPI document of the server, which validates the objects itself.
    let words = ["apply", "--server-side", "--validate=false", "-k", directory];
    kubectl.args(words).deadline(rig::machine::TIMEOUT).finish()
}

/// CRD of networks as another project applies it: other descriptions, and a schema of the metadata.
fn foreign_definition() -> Value {
    let object = |properties: Value| json!({ "type": "object", "properties": properties });
    let config = json!({ "type": "string", "description": "CNI configuration of another project" });
    let schema = object(json!({
        "apiVersion": { "type": "string" }, "kind": { "type": "string" }, "metadata": { "type": "object" },
        "spec": object(json!({ "config": config })),
    }));
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": { "name": NETWORKS },
        "spec": {
            "group": "k8s.cni.cncf.io", "scope": "Namespaced",
            "names": {
                "plural": "network-attachment-definitions", "singular": "network-attachment-definition",
                "kind": "NetworkAttachmentDefinition", "shortNames": ["net-attach-def"],
            },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
        },
    })
}

#[test]
fn kustomizations_of_all_directories_render_and_are_applied() {
    let machine = Arc::new(Machine::new(host!(), "control"));
    let Some(kube) = Kube::new(Arc::clone(&machine)) else { return };
    let all = directories();
    let (components, rest): (Vec<_>, Vec<_>) = all.iter().partition(|path| path.starts_with("components/"));
    // The API server has no PrometheusRule.
    let applied: BTreeSet<&str> = APPLIED.into_iter().chain(["admission", "base", "monitoring"]).collect();
    assert_eq!(rest.into_iter().map(String::as_str).collect::<BTreeSet<_>>(), applied);
    for directory in APPLIED {
        assert!(kube.kustomize(directory).contains("kind: "), "{directory}");
        let finished = apply(&kube, text(&workspace().join("deploy").join(directory)));
        assert_eq!(finished.code, Some(0), "{directory}: {finished}");
        assert!(!finished.stderr.contains("deprecated"), "{directory}: {finished}");
    }
    assert!(kube.kustomize("monitoring").contains("kind: PrometheusRule"));
    for name in ["net-attach-def", "nad"] {
        until("the short name is served", || {
            kube.attempt(["get", name, "-A"], "").code.filter(|code| *code == 0)
        });
    }
    // Each component renders in the kustomization of a user.
    for component in components {
        let name = component.trim_start_matches("components/");
        let before: &[&str] = if name == "policy" { &["hot-plug"] } else { &[] };
        let directory = overlay(&machine, name, &["", "neutron"], &[before, &[name]].concat());
        let kubectl = machine.command(&format!("{}/kubectl", kube.newer_kubectl()));
        let finished =
            kubectl.args(["kustomize", &directory]).deadline(rig::machine::TIMEOUT).finish().success();
        assert_eq!(finished.stderr, "", "{name}");
        let has = |what: &str| finished.stdout.contains(what);
        let (effect, expected) = match name {
            "agent-policy" | "neutron-policy" => (has("kind: ValidatingAdmissionPolicyBinding"), true),
            "hot-plug" => (has("name: weft-executor") && has("--hot-plug"), true),
            "policy" => (has("name: weft-controller-policy") && has("- --policy"), true),
            "thin" => (has("--thin"), true),
            "command" => (has("--command=/usr/local/bin") && has("path: /usr/local/bin"), true),
            "existing-networks" => (has(&format!("name: {NETWORKS}")), false),
            other => panic!("no expectation for component {other}"),
        };
        assert_eq!(effect, expected, "{name}: {}", finished.stdout);
    }
}

#[test]
fn kustomization_keeps_the_network_crd_of_another_project() {
    let machine = Arc::new(Machine::new(host!(), "control"));
    let Some(kube) = Kube::new(Arc::clone(&machine)) else { return };
    let words = ["apply", "--server-side", "--field-manager=operator", "--validate=false", "-f", "-"];
    kube.attempt(words, &foreign_definition().to_string()).success();
    let before = kube.json(["crd", NETWORKS])["spec"].clone();
    let refused = apply(&kube, text(&workspace().join("deploy")));
    assert!(refused.code != Some(0) && refused.stderr.contains("conflict"), "{refused}");
    let directory = overlay(&machine, "beside", &[""], &["existing-networks"]);
    let applied = apply(&kube, &directory);
    assert_eq!(applied.code, Some(0), "{applied}");
    assert!(applied.stdout.contains("ippools.weft.dev serverside-applied"), "{applied}");
    assert_eq!(kube.json(["crd", NETWORKS])["spec"], before);
    // The short names of the other project stay, and networks are accepted.
    until("networks are served", || {
        kube.attempt(["get", "net-attach-def", "-A"], "").code.filter(|code| *code == 0)
    });
}
