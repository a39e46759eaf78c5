//! `weft crds` prints what lies in `deploy/crds`, all of it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use testkit::workspace;

#[test]
fn what_is_printed_is_what_is_deployed() {
    let directory = workspace().join("deploy/crds");
    let mut files: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let deployed: Vec<String> =
        files.iter().map(|path| format!("---\n{}", std::fs::read_to_string(path).unwrap())).collect();
    let output = Command::new(testkit::binary("weft")).arg("crds").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), deployed.concat());
    assert!(!deployed.is_empty());
}
