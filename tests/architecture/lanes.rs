//! Tests of the lanes: each directory of tests is a lane, and each file in it is compiled.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use testkit::workspace;

use crate::crates::targets;
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
