//! Tests of the lanes: each directory of tests is a lane, and each file in it is compiled.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use testkit::workspace;

use crate::crates::targets;
use crate::documents::functions;
use crate::modules::Modules;
use crate::tree::{directories, sources};

/// Lanes that have tests in `tests/`.
const LANES: [&str; 7] = ["net", "vm", "containerd", "kube", "node", "neutron", "peer"];

/// Directories of `tests/` that are not lanes.
const OTHERS: [&str; 3] = ["architecture", "benches", "src"];

#[test]
fn every_directory_of_tests_is_a_lane() {
    for directory in directories(&workspace().join("tests")) {
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let known = LANES.contains(&name.as_str()) || OTHERS.contains(&name.as_str());
        assert!(known, "tests/{name}: no such lane; the lanes are {LANES:?}");
    }
}

#[test]
fn every_file_of_a_lane_is_a_module_of_its_test_binary() {
    let root = workspace();
    let roots: BTreeSet<PathBuf> = targets().into_iter().map(|(_, root)| root).collect();
    for lane in LANES {
        let main = root.join("tests").join(lane).join("main.rs");
        assert!(roots.contains(&main), "tests/{lane}/main.rs is not in tests/Cargo.toml: it never runs");
        let modules = Modules::read(&main);
        let compiled: BTreeSet<&Path> = modules.files().map(|(_, file)| file).collect();
        for (name, _) in sources().iter().filter(|(name, _)| name.starts_with(&format!("tests/{lane}/"))) {
            assert!(
                compiled.contains(root.join(name).as_path()),
                "{name}: no `mod` declares it: it never runs"
            );
        }
    }
}

#[test]
fn priorities_of_the_lanes_name_existing_tests() {
    let config = std::fs::read_to_string(workspace().join(".config/nextest.toml")).expect("a configuration");
    let (functions, mut count) = (functions(), 0);
    // `test(/^(auth|deployment)::/)`, `test(/::network_test_between_nodes/)`
    for pattern in config.split("test(/").skip(1).filter_map(|rest| rest.split("/)").next()) {
        let words = pattern.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        for word in words.filter(|word| !word.is_empty()) {
            count += 1;
            let is_module = LANES
                .iter()
                .any(|lane| workspace().join("tests").join(lane).join(format!("{word}.rs")).exists());
            let is_test = functions.iter().any(|name| name.starts_with(word));
            assert!(is_module || is_test, ".config/nextest.toml: no test and no module begins with {word}");
        }
    }
    assert!(count > 10, "{count} names");
}

#[test]
fn list_for_the_oldest_kubernetes_names_existing_tests() {
    let list = std::fs::read_to_string(workspace().join("lanes/kube/oldest")).expect("the list");
    let functions = functions();
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut count = 0;
    for line in lines {
        count += 1;
        let Some((lane, name)) = line.split_once(' ') else { panic!("{line}: not a lane and a name") };
        assert!(["kube", "node"].contains(&lane), "{line}: no such lane of Kubernetes");
        let exists = match name.strip_suffix("::") {
            Some(module) => workspace().join("tests").join(lane).join(format!("{module}.rs")).exists(),
            None => functions.contains(name),
        };
        assert!(exists, "{line}: tests/{lane} has no such test or module");
    }
    assert!(count > 10, "{count} names");
}
