//! The house as DESIGN drew it, held by a test: which crate may know which, and what every file keeps to.
//!
//! Rules that clippy can check are in the root manifest and in `clippy.toml`, not here. A crate that does
//! not exist yet has nothing to answer for; a crate that is not in the table must be put there.

#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testkit::workspace;

/// A crate, those of ours that it may use, and what it may not reach outside, by the beginning of the name.
struct Wall {
    name: &'static str,
    may_use: &'static [&'static str],
    never: &'static [&'static str],
}

/// Whatever waits for sockets or speaks to a cluster.
const CLUSTER: &[&str] = &["tokio", "async-std", "smol", "hyper", "reqwest", "tonic", "kube", "k8s-openapi"];

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
    Wall { name: "plugins", may_use: &["cni", "dhcp", "ipam", "linux", "plugin-support"], never: CLUSTER },
    Wall {
        name: "weft-cni",
        may_use: &["cni", "dhcp", "ipam", "linux", "manifest", "npwg", "plugin-support", "plugins", "rpc"],
        never: CLUSTER,
    },
    Wall {
        name: "agent",
        may_use: &["cni", "ipam", "manifest", "neutron", "npwg", "rpc"],
        never: &["netlink"],
    },
    Wall { name: "testkit", may_use: &[], never: CLUSTER },
    Wall { name: "benches", may_use: &["cni", "ipam", "linux", "weft-cni"], never: CLUSTER },
    Wall { name: "tests", may_use: &["testkit"], never: &[] },
];

/// The prefixes of test files, which say what they need; a file without one needs nothing but cargo.
const LANES: [&str; 7] = ["net", "vm", "containerd", "kube", "node", "neutron", "peer"];

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 10] =
    ["util", "utils", "common", "helper", "helpers", "manager", "misc", "types", "core", "shared"];

/// The one file that may change the namespace of a thread.
const ENTERS_NAMESPACES: &str = "crates/linux/src/netns.rs";

/// The one file that may be unsafe.
const UNSAFE: &str = "crates/linux/src/link/tap/device.rs";

const LONGEST_FILE: usize = 800;
const LONGEST_HEADER: usize = 25;

// === the arrows ===

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
    if ours.contains("agent") {
        assert!(
            !reachable(&arrows, "agent").contains("linux"),
            "the brain has no hands: agent reaches linux"
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

// === the files ===

#[test]
fn every_source_file_is_short_and_opens_with_its_purpose() {
    for (name, source) in sources() {
        let lines = source.lines().count();
        assert!(lines <= LONGEST_FILE, "{name} has {lines} lines; the ceiling is {LONGEST_FILE}");
        let header = source.lines().take_while(|line| line.starts_with("//!")).count();
        assert!(header > 0, "{name} does not open with //!: why does it exist?");
        assert!(
            header <= LONGEST_HEADER,
            "the header of {name} has {header} lines; {LONGEST_HEADER} are enough"
        );
        assert!(source.ends_with('\n') && !source.contains('\r'), "{name}: lines end with a line feed");
    }
}

#[test]
fn file_names_say_what_is_inside() {
    for (name, _) in sources() {
        let path = Path::new(&name);
        let empty = path
            .components()
            .filter_map(|part| Path::new(part.as_os_str()).file_stem()?.to_str())
            .find(|part| EMPTY_NAMES.contains(part));
        assert_eq!(empty, None, "{name}: a file is a noun of the glossary");
    }
}

#[test]
fn one_file_enters_namespaces() {
    let calls = ["setns(", "move_into_link_name_space(", "move_into_thread_name_spaces("];
    for (name, source) in sources() {
        let exempt = name == ENTERS_NAMESPACES
            || name.starts_with("crates/testkit/")
            || name == "tests/architecture.rs";
        let enters = code_lines(&source).any(|line| calls.iter().any(|call| line.contains(call)));
        assert!(exempt || !enters, "{name} enters a namespace; {ENTERS_NAMESPACES} does that for everyone");
    }
}

#[test]
fn one_file_is_unsafe() {
    // The root manifest denies it; these are the ways around that.
    let ways = [concat!("allow(", "unsafe_code"), concat!("expect(", "unsafe_code")];
    for (name, source) in sources() {
        let is_unsafe = code_lines(&source).any(|line| ways.iter().any(|way| line.contains(way)));
        assert_eq!(is_unsafe, name == UNSAFE, "{name}: what is unsafe is in {UNSAFE} and nowhere else");
    }
}

#[test]
fn nothing_is_unfinished() {
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("unimple", "mented!"),
        concat!("#[ig", "nore"),
    ];
    for (name, source) in sources() {
        for (number, line) in source.lines().enumerate() {
            let mark = marks.iter().find(|mark| line.contains(**mark));
            assert_eq!(mark, None, "{name}:{}: {line}", number + 1);
        }
    }
}

#[test]
fn words_are_spelled_out_and_functions_do_not_get() {
    for (name, source) in sources() {
        let getter = code_lines(&source).find(|line| line.contains(concat!("fn ", "get_")));
        assert_eq!(getter, None, "{name}: a function is a verb that says what it does");
    }
}

// === the manifests ===

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

#[test]
fn every_end_to_end_test_is_in_the_manifest_and_names_its_lane() {
    let directory = workspace().join("tests");
    let manifest = fs::read_to_string(directory.join("Cargo.toml")).expect("the manifest of the tests");
    for entry in fs::read_dir(&directory).expect("the tests").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(stem) = name.strip_suffix(".rs") else { continue };
        assert!(
            manifest.contains(&format!("path = \"{name}\"")),
            "tests/{name} is not in tests/Cargo.toml: it never runs"
        );
        let lane = stem.split_once('_').map(|(lane, _)| lane);
        let known = stem == "architecture" || lane.is_some_and(|lane| LANES.contains(&lane));
        assert!(known, "tests/{name}: the prefix is the lane, one of {LANES:?}");
    }
}

// === the documents ===

#[test]
fn links_between_documents_lead_somewhere() {
    let mut documents = directories(&workspace().join("docs"));
    documents.push(workspace());
    documents.push(workspace().join("docs"));
    let files = documents
        .iter()
        .filter_map(|directory| fs::read_dir(directory).ok())
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    for file in files.filter(|file| file.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(&file).expect("a document");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap_or_default();
            let internal = !path.is_empty() && !path.contains("://") && !path.starts_with("mailto:");
            let found = file.parent().is_some_and(|directory| directory.join(path).exists());
            assert!(!internal || found, "{}: there is no {path}", file.display());
        }
    }
}

#[test]
fn every_deviation_and_every_invariant_is_pinned_by_a_test_that_exists() {
    let sources: Vec<String> = sources().into_iter().map(|(_, source)| source).collect();
    for (document, head) in [
        ("DEVIATIONS.md", "| what | why | test |"),
        ("ARCHITECTURE.md", "| always | test |"),
        ("docs/design/ipam.md", "| argument | test |"),
    ] {
        let text = fs::read_to_string(workspace().join(document)).expect("a document");
        let mut lines = text.lines();
        let mut rows = 0;
        while lines.by_ref().any(|line| line == head) {
            for row in lines.by_ref().skip(1).take_while(|line| line.starts_with('|')) {
                rows += 1;
                let named = row.rsplit('|').nth(1).unwrap_or_default();
                let pinned = named.trim() == "the same" || named.matches('`').count() >= 4;
                assert!(pinned, "{document}: no test is named for {row}");
                // Crate names have no underscore, test names do.
                for name in named.split('`').filter(|word| word.contains('_')) {
                    let head = format!("fn {name}(");
                    let found = sources.iter().any(|source| source.contains(&head));
                    assert!(found, "{document}: no test {name}");
                }
            }
        }
        assert!(rows > 5, "{document}: its tables have another head");
    }
}

// === reading the tree ===

/// Every Rust file of ours, by its path from the root.
fn sources() -> Vec<(String, String)> {
    let root = workspace();
    let mut found = Vec::new();
    let mut waiting: Vec<PathBuf> =
        ["crates", "tests", "benches", "fuzz"].iter().map(|name| root.join(name)).collect();
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() && entry.file_name() != "target" {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(&root).expect("below the root").display().to_string();
                found.push((name, fs::read_to_string(&path).expect("a source file is text")));
            }
        }
    }
    assert!(found.len() > 10, "the tree is elsewhere: {found:?}");
    found
}

fn directories(parent: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Lines that are no comment.
fn code_lines(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter(|line| !line.trim_start().starts_with("//"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
