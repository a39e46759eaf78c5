//! Tests of the crates: permitted dependencies between them, and the content of manifests.
//!
//! Cargo resolves the dependencies (`cargo metadata`, for Linux). A crate without a row in [`BOUNDARIES`] fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use testkit::workspace;

use crate::tree::directories;

/// Crate, the crates of the workspace that it may use, and the packages that it may not reach, by the beginning of the name.
struct Boundary {
    name: &'static str,
    may_use: &'static [&'static str],
    never: &'static [&'static str],
}

/// Packages that wait for sockets or speak to a cluster.
const CLUSTER: &[&str] =
    &["tokio", "async-std", "smol", "hyper", "reqwest", "tonic", "kube", "k8s-openapi", "schemars"];

/// Packages that wait for sockets, speak to a cluster, or use the kernel.
const IMPURE: &[&str] = &[
    "tokio",
    "async-std",
    "smol",
    "hyper",
    "reqwest",
    "tonic",
    "kube",
    "k8s-openapi",
    "netlink",
    "rustix",
    "nix",
];

const BOUNDARIES: &[Boundary] = &[
    Boundary {
        name: "cni",
        may_use: &[],
        never: &["tokio", "async-std", "smol", "hyper", "reqwest", "tonic", "kube", "k8s-openapi", "netlink"],
    },
    Boundary { name: "build-info", may_use: &[], never: IMPURE },
    Boundary { name: "linux", may_use: &[], never: CLUSTER },
    Boundary { name: "ipam", may_use: &[], never: IMPURE },
    Boundary { name: "npwg", may_use: &["cni"], never: CLUSTER },
    Boundary { name: "plugin-config", may_use: &["cni", "ipam", "npwg"], never: CLUSTER },
    Boundary { name: "manifest", may_use: &["cni", "npwg", "plugin-config"], never: CLUSTER },
    Boundary { name: "rpc", may_use: &["cni", "ipam", "manifest", "npwg"], never: CLUSTER },
    Boundary { name: "neutron", may_use: &[], never: &["kube", "k8s-openapi", "netlink"] },
    Boundary { name: "plugin-support", may_use: &["cni", "linux"], never: CLUSTER },
    Boundary { name: "dhcp", may_use: &["cni", "linux", "plugin-config", "plugin-support"], never: CLUSTER },
    Boundary {
        name: "plugins",
        may_use: &["cni", "ipam", "linux", "plugin-config", "plugin-support"],
        never: CLUSTER,
    },
    Boundary {
        name: "weft-cni",
        may_use: &[
            "build-info",
            "cni",
            "dhcp",
            "ipam",
            "linux",
            "manifest",
            "npwg",
            "plugin-config",
            "plugin-support",
            "plugins",
            "rpc",
        ],
        never: CLUSTER,
    },
    Boundary {
        name: "cli-support",
        may_use: &["cni"],
        never: &["hyper", "reqwest", "tonic", "kube", "k8s-openapi", "netlink"],
    },
    Boundary {
        name: "kube-support",
        may_use: &["build-info", "cli-support", "cni", "manifest", "neutron", "npwg", "rpc"],
        never: &["netlink"],
    },
    Boundary {
        name: "ipam-api",
        may_use: &["cli-support", "ipam", "kube-support", "npwg", "rpc"],
        never: &["netlink"],
    },
    Boundary { name: "policy-api", may_use: &["kube-support", "npwg"], never: &["netlink"] },
    Boundary { name: "cri", may_use: &["cni", "ipam", "npwg"], never: &["kube", "k8s-openapi", "netlink"] },
    Boundary {
        name: "node-support",
        may_use: &["cli-support", "cni", "cri", "ipam", "npwg", "rpc"],
        never: &["kube", "k8s-openapi", "netlink"],
    },
    Boundary {
        name: "admission",
        may_use: &["cli-support", "cni", "kube-support", "manifest", "npwg"],
        never: &["netlink"],
    },
    Boundary {
        name: "controllers",
        may_use: &[
            "admission",
            "cli-support",
            "cni",
            "ipam",
            "ipam-api",
            "kube-support",
            "manifest",
            "neutron",
            "npwg",
            "policy-api",
            "rpc",
        ],
        never: &["netlink"],
    },
    Boundary {
        name: "cri-proxy",
        may_use: &["cli-support", "cni", "cri", "node-support", "npwg", "rpc"],
        never: &["kube", "k8s-openapi", "netlink"],
    },
    Boundary {
        name: "node-agent",
        may_use: &[
            "build-info",
            "cli-support",
            "cni",
            "cri",
            "ipam",
            "ipam-api",
            "kube-support",
            "manifest",
            "neutron",
            "node-support",
            "npwg",
            "policy-api",
            "rpc",
        ],
        never: &["netlink"],
    },
    Boundary {
        name: "weft",
        may_use: &[
            "build-info",
            "cli-support",
            "cni",
            "controllers",
            "cri",
            "cri-proxy",
            "ipam",
            "ipam-api",
            "kube-support",
            "manifest",
            "neutron",
            "node-agent",
            "node-support",
            "npwg",
            "policy-api",
            "rpc",
        ],
        never: &["netlink"],
    },
    Boundary { name: "testkit", may_use: &[], never: CLUSTER },
    Boundary { name: "benches", may_use: &["cni", "dhcp", "ipam", "linux", "weft-cni"], never: CLUSTER },
    Boundary { name: "tests", may_use: &["testkit"], never: &[] },
];

/// Dependencies of each package, with the kind: `normal`, `build` or `dev`.
type Dependencies = BTreeMap<String, Vec<(String, &'static str)>>;

#[test]
fn crates_depend_only_on_permitted_crates() {
    let (dependencies, ours) = dependencies();
    for name in &ours {
        let boundary = BOUNDARIES.iter().find(|boundary| boundary.name == name);
        let boundary = boundary.unwrap_or_else(|| {
            panic!("crate {name} has no row in BOUNDARIES: list the crates that it may use")
        });
        for (target, kind) in dependencies[name].iter().filter(|(target, _)| ours.contains(target)) {
            let allowed = match *kind {
                "dev" => {
                    target == "testkit" || boundary.may_use.contains(&target.as_str()) || name == "tests"
                }
                _ => boundary.may_use.contains(&target.as_str()),
            };
            assert!(allowed, "{name} may not depend on {target} ({kind})");
        }
    }
}

#[test]
fn crates_reach_no_forbidden_packages() {
    let (dependencies, ours) = dependencies();
    for boundary in BOUNDARIES.iter().filter(|boundary| ours.contains(boundary.name)) {
        for reached in reachable(&dependencies, boundary.name) {
            let banned = boundary.never.iter().find(|start| reached.starts_with(**start));
            assert!(
                banned.is_none(),
                "{} reaches {reached}; `cargo tree -p {0} -i {reached}` shows how",
                boundary.name
            );
        }
    }
}

#[test]
fn agent_crates_cannot_reach_the_kernel_crate() {
    let (dependencies, ours) = dependencies();
    let agents = [
        "cli-support",
        "kube-support",
        "ipam-api",
        "policy-api",
        "cri",
        "node-support",
        "controllers",
        "cri-proxy",
        "node-agent",
        "weft",
    ];
    for name in agents {
        assert!(ours.contains(name), "{name} is not a crate of this workspace");
        assert!(
            !reachable(&dependencies, name).contains("linux"),
            "only weft-cni changes the host, and {name} reaches linux"
        );
    }
}

/// Returns all packages that are part of a crate's program: transitive normal and build dependencies.
fn reachable(dependencies: &Dependencies, from: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![from.to_owned()];
    while let Some(name) = waiting.pop() {
        for (target, kind) in dependencies.get(&name).into_iter().flatten() {
            if *kind != "dev" && found.insert(target.clone()) {
                waiting.push(target.clone());
            }
        }
    }
    found
}

/// Returns the dependencies of every package, and the names of the workspace's crates, as cargo resolves them for Linux.
fn dependencies() -> (Dependencies, BTreeSet<String>) {
    let metadata = metadata();
    let mut names = BTreeMap::new();
    for package in list(&metadata["packages"]) {
        names.insert(text(&package["id"]), text(&package["name"]));
    }
    let ours = list(&metadata["workspace_members"]).iter().map(|id| names[&text(id)].clone()).collect();
    let mut dependencies = Dependencies::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let targets = dependencies.entry(names[&text(&node["id"])].clone()).or_default();
        for dependency in list(&node["deps"]) {
            for kind in list(&dependency["dep_kinds"]) {
                let kind = match kind["kind"].as_str() {
                    Some("dev") => "dev",
                    Some("build") => "build",
                    _ => "normal",
                };
                targets.push((names[&text(&dependency["pkg"])].clone(), kind));
            }
        }
    }
    (dependencies, ours)
}

fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            "x86_64-unknown-linux-gnu",
        ])
        .current_dir(workspace())
        .output()
        .expect("run cargo metadata");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON of cargo metadata")
}

/// Head of the crate table in ARCHITECTURE.md.
const CRATES_HEAD: &str = "| crate | depends on |";

#[test]
fn crates_table_in_architecture_matches_the_manifests() {
    let (dependencies, ours) = dependencies();
    let row = |name: &String| {
        let used = dependencies[name].iter().filter(|(target, kind)| *kind != "dev" && ours.contains(target));
        let used: BTreeSet<&str> = used.map(|(target, _)| target.as_str()).collect();
        let targets = Vec::from_iter(used.iter().map(|target| format!("`{target}`"))).join(", ");
        format!("| `{name}` | {} |", if used.is_empty() { "–" } else { &targets })
    };
    let expected: Vec<String> = ours.iter().map(row).collect();
    let text = fs::read_to_string(workspace().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let rows = text.lines().skip_while(|line| *line != CRATES_HEAD).skip(2);
    let found: Vec<&str> = rows.take_while(|line| line.starts_with('|')).collect();
    assert!(
        found == expected,
        "ARCHITECTURE.md, section Crates, does not match the manifests:\n\n{CRATES_HEAD}\n|---|---|\n{}\n",
        expected.join("\n")
    );
}

#[test]
fn lints_and_versions_are_in_the_root_manifest() {
    let root = workspace();
    for directory in directories(&root.join("crates")).into_iter().chain([root.join("tests")]) {
        let Ok(manifest) = fs::read_to_string(directory.join("Cargo.toml")) else { continue };
        let name = directory.display();
        assert!(
            manifest.contains("[lints]\nworkspace = true\n"),
            "{name}: lints belong into the root manifest"
        );
        let own = manifest
            .lines()
            .find(|line| line.contains("version = \"") || line.contains("= \"^") || is_bare_version(line));
        assert_eq!(own, None, "{name}: versions belong into the root manifest");
    }
}

/// Whether a line is a dependency with only a version, such as `serde = "1"`.
fn is_bare_version(line: &str) -> bool {
    line.split_once(" = \"").is_some_and(|(_, value)| value.starts_with(|first: char| first.is_ascii_digit()))
}

/// Returns the root files of all targets in the workspace, each with the package name.
pub(crate) fn targets() -> BTreeSet<(String, PathBuf)> {
    let metadata = metadata();
    let ours: BTreeSet<String> = list(&metadata["workspace_members"]).iter().map(text).collect();
    let packages = list(&metadata["packages"]).iter().filter(|package| ours.contains(&text(&package["id"])));
    packages
        .flat_map(|package| list(&package["targets"]).iter().map(move |target| (package, target)))
        .map(|(package, target)| (text(&package["name"]), text(&target["src_path"]).into()))
        .collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
