//! `weft crds` prints what is in `deploy/crds` and in the Helm chart, and writes the same files.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use std::fs;
use std::path::Path;
use std::process::Command;

use testkit::workspace;

/// Runs `weft crds` and returns its output.
fn weft_crds(arguments: &[&str]) -> String {
    let output = Command::new(testkit::binary("weft")).arg("crds").args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the YAML files of a directory as one stream of documents.
fn documents_in(directory: &Path) -> String {
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    assert!(!files.is_empty(), "{}", directory.display());
    files.iter().map(|path| format!("---\n{}", fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn custom_resource_definitions_in_deploy_are_those_of_weft_crds() {
    let printed = weft_crds(&[]);
    for directory in ["deploy/crds", "deploy/helm/weft/crds"] {
        let deployed = documents_in(&workspace().join(directory));
        assert!(
            deployed == printed,
            "{directory} differs from what `weft crds` prints: run `cargo run -p weft -- crds --write {directory}`"
        );
    }
}

#[test]
fn network_policy_definition_is_deployed_separately() {
    let deployed = documents_in(&workspace().join("deploy/policy"));
    let directory = "deploy/policy";
    assert!(
        deployed == weft_crds(&["--network-policies"]),
        "run `cargo run -p weft -- crds --network-policies --write {directory}`"
    );
    assert!(!weft_crds(&[]).contains("multi-networkpolicies"));
}

#[test]
fn custom_resource_definitions_are_written_as_they_are_printed() {
    let directory = std::env::temp_dir().join(format!("weft-crds-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    assert_eq!(weft_crds(&["--write", directory.to_str().unwrap()]), "");
    let written = documents_in(&directory);
    fs::remove_dir_all(&directory).unwrap();
    assert_eq!(written, weft_crds(&[]));
}
