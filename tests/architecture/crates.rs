//! Tests of the crates: which of them may depend on which, and what their manifests contain.
//!
//! Cargo resolves the dependencies (`cargo metadata`, for Linux). A crate that has no row in [`WALLS`] fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use testkit::workspace;

use crate::tree::directories;

/// A crate, those of ours that it may use, and what it may not reach outside, by the beginning of the name.
struct Wall {
    name: &'static str,
    may_use: &'static [&'static str],
    never: &'static [&'static str],
}

/// Whatever waits for sockets or speaks to a cluster.
const CLUSTER: &[&str] =
    &["tokio", "async-std", "smol", "hyper", "reqwest", "tonic", "kube", "k8s-openapi", "schemars"];

/// The same, and the kernel.
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

const WALLS: &[Wall] = &[
    Wall {
        name: "cni",
        may_use: &[],
        never: &["tokio", "async-std", "smol", "hyper", "reqwest", "tonic", "kube", "k8s-openapi", "netlink"],
    },
    Wall { name: "linux", may_use: &[], never: CLUSTER },
    Wall { name: "ipam", may_use: &[], never: IMPURE },
    Wall { name: "npwg", may_use: &["cni"], never: CLUSTER },
    Wall { name: "manifest", may_use: &["cni", "npwg"], never: CLUSTER },
    Wall { name: "rpc", may_use: &["cni", "ipam", "manifest", "npwg"], never: CLUSTER },
    Wall { name: "neutron", may_use: &[], never: &["kube", "k8s-openapi", "netlink"] },
    Wall { name: "plugin-support", may_use: &["cni", "linux"], never: CLUSTER },
    Wall { name: "dhcp", may_use: &["cni", "linux", "plugin-support"], never: CLUSTER },
    Wall { name: "plugins", may_use: &["cni", "ipam", "linux", "plugin-support"], never: CLUSTER },
    Wall {
        name: "weft-cni",
        may_use: &["cni", "dhcp", "ipam", "linux", "manifest", "npwg", "plugin-support", "plugins", "rpc"],
        never: CLUSTER,
    },
    Wall {
        name: "cli-support",
        may_use: &["cni"],
        never: &["hyper", "reqwest", "tonic", "kube", "k8s-openapi", "netlink"],
    },
    Wall {
        name: "kube-support",
        may_use: &["cli-support", "cni", "manifest", "neutron", "npwg", "rpc"],
        never: &["netlink"],
    },
    Wall {
        name: "ipam-api",
        may_use: &["cli-support", "ipam", "kube-support", "npwg", "rpc"],
        never: &["netlink"],
    },
    Wall { name: "cri", may_use: &["cni", "ipam", "npwg"], never: &["kube", "k8s-openapi", "netlink"] },
    Wall {
        name: "node-support",
        may_use: &["cli-support", "cni", "cri", "ipam", "npwg", "rpc"],
        never: &["kube", "k8s-openapi", "netlink"],
    },
    Wall {
        name: "controllers",
        may_use: &[
            "cli-support",
            "cni",
            "ipam",
            "ipam-api",
            "kube-support",
            "manifest",
            "neutron",
            "npwg",
            "rpc",
        ],
        never: &["netlink"],
    },
    Wall {
        name: "cri-proxy",
        may_use: &["cli-support", "cni", "cri", "node-support", "npwg", "rpc"],
        never: &["kube", "k8s-openapi", "netlink"],
    },
    Wall {
        name: "node-agent",
        may_use: &[
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
            "rpc",
        ],
        never: &["netlink"],
    },
    Wall {
        name: "weft",
        may_use: &[
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
            "rpc",
        ],
        never: &["netlink"],
    },
    Wall { name: "testkit", may_use: &[], never: CLUSTER },
    Wall { name: "benches", may_use: &["cni", "ipam", "linux", "weft-cni"], never: CLUSTER },
    Wall { name: "tests", may_use: &["testkit"], never: &[] },
];

/// What a package depends on, by kind: `normal`, `build` or `dev`.
type Arrows = BTreeMap<String, Vec<(String, &'static str)>>;

#[test]
fn arrows_between_our_crates_point_down_only() {
    let (arrows, ours) = arrows();
    for name in &ours {
        let wall = WALLS.iter().find(|wall| wall.name == name);
        let wall = wall.unwrap_or_else(|| panic!("crate {name} has no row in WALLS: say what it may know"));
        for (target, kind) in arrows[name].iter().filter(|(target, _)| ours.contains(target)) {
            let allowed = match *kind {
                "dev" => target == "testkit" || wall.may_use.contains(&target.as_str()) || name == "tests",
                _ => wall.may_use.contains(&target.as_str()),
            };
            assert!(allowed, "{name} may not depend on {target} ({kind})");
        }
    }
}

#[test]
fn what_a_crate_must_not_know_is_out_of_its_reach() {
    let (arrows, ours) = arrows();
    for wall in WALLS.iter().filter(|wall| ours.contains(wall.name)) {
        for reached in reachable(&arrows, wall.name) {
            let banned = wall.never.iter().find(|start| reached.starts_with(**start));
            assert!(
                banned.is_none(),
                "{} reaches {reached}; `cargo tree -p {0} -i {reached}` shows how",
                wall.name
            );
        }
    }
}

#[test]
fn the_agent_cannot_reach_the_kernel_crate() {
    let (arrows, ours) = arrows();
    let agents = [
        "cli-support",
        "kube-support",
        "ipam-api",
        "cri",
        "node-support",
        "controllers",
        "cri-proxy",
        "node-agent",
        "weft",
    ];
    for name in agents {
        assert!(ours.contains(name), "{name} is no crate of this tree");
        assert!(
            !reachable(&arrows, name).contains("linux"),
            "only weft-cni changes the host, and {name} reaches linux"
        );
    }
}

/// Everything that ends up in a crate's program: normal and build dependencies, and theirs.
fn reachable(arrows: &Arrows, from: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![from.to_owned()];
    while let Some(name) = waiting.pop() {
        for (target, kind) in arrows.get(&name).into_iter().flatten() {
            if *kind != "dev" && found.insert(target.clone()) {
                waiting.push(target.clone());
            }
        }
    }
    found
}

/// Every package's dependencies, and the names of our own; as cargo resolves them for Linux.
fn arrows() -> (Arrows, BTreeSet<String>) {
    let metadata = metadata();
    let mut names = BTreeMap::new();
    for package in list(&metadata["packages"]) {
        names.insert(text(&package["id"]), text(&package["name"]));
    }
    let ours = list(&metadata["workspace_members"]).iter().map(|id| names[&text(id)].clone()).collect();
    let mut arrows = Arrows::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let targets = arrows.entry(names[&text(&node["id"])].clone()).or_default();
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
    (arrows, ours)
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

/// Head of the table of crates in ARCHITECTURE.md.
const CRATES_HEAD: &str = "| crate | depends on |";

#[test]
fn crates_table_in_architecture_matches_the_manifests() {
    let (arrows, ours) = arrows();
    let row = |name: &String| {
        let used = arrows[name].iter().filter(|(target, kind)| *kind != "dev" && ours.contains(target));
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
        "ARCHITECTURE.md, section «Crates»: the manifests say\n\n{CRATES_HEAD}\n|---|---|\n{}\n",
        expected.join("\n")
    );
}

#[test]
fn lints_and_versions_live_in_the_root_manifest() {
    let root = workspace();
    for directory in directories(&root.join("crates")).into_iter().chain([root.join("tests")]) {
        let Ok(manifest) = fs::read_to_string(directory.join("Cargo.toml")) else { continue };
        let name = directory.display();
        assert!(manifest.contains("[lints]\nworkspace = true\n"), "{name}: the root manifest has the lints");
        let own = manifest
            .lines()
            .find(|line| line.contains("version = \"") || line.contains("= \"^") || is_bare_version(line));
        assert_eq!(own, None, "{name}: the root manifest has the versions");
    }
}

/// `serde = "1"`: a dependency with nothing but a version.
fn is_bare_version(line: &str) -> bool {
    line.split_once(" = \"").is_some_and(|(_, value)| value.starts_with(|first: char| first.is_ascii_digit()))
}

/// The root files of all targets of our crates, each with the name of its package.
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
