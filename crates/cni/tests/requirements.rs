//! Tests that every requirement in the CNI specification has a test in this crate, or a reason here why it has none.
//!
//! A test names its requirements in the line above `#[test]`: `// Requirements: S8, trap 1`. The requirements are the
//! rows in `docs/requirements.md` in the families `S`, `K`, `R`, `L`, `V` and `trap`.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Requirements without a test in this crate, each with the reason.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "S25",
        "an interface that exists already is an error of the kernel: the tests of each interface plugin cover it",
    ),
    ("S37", "the container runtime creates and removes the namespace: no code of this crate does"),
    ("V17", "the bridge plugin accepts any previous interface: its tests cover it"),
];

/// Page with one row per requirement.
const PAGE: &str = include_str!("../../../docs/requirements.md");

/// Whether an id belongs to this crate: `S…`, `K…`, `R…`, `L…`, `V…` or `trap …`.
fn is_own(id: &str) -> bool {
    let number = id.strip_prefix("trap ").or_else(|| id.strip_prefix(['S', 'K', 'R', 'L', 'V']));
    number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn wanted() -> BTreeSet<String> {
    let ids = PAGE.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    ids.filter(|id| is_own(id)).map(str::to_owned).collect()
}

/// Parses the ids in a comment line above a test.
fn ids(line: &str) -> Vec<String> {
    let Some(ids) = line.strip_prefix("// Requirements: ") else { return Vec::new() };
    ids.split(", ").map(str::to_owned).collect()
}

/// Collects the tests for each id.
fn tests() -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = vec![root.join("src"), root.join("tests")];
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let source = fs::read_to_string(&path).unwrap();
        let mut lines = source.lines().map(str::trim);
        let mut above = "";
        while let Some(line) = lines.next() {
            if line != "#[test]" {
                above = line;
                continue;
            }
            let name = lines.find_map(|line| line.strip_prefix("fn ")).unwrap_or_default();
            let name = name.split('(').next().unwrap_or_default();
            for id in ids(above) {
                found.entry(id).or_default().push(name.to_owned());
            }
        }
    }
    found
}

#[test]
fn requirements_have_a_test_or_a_reason() {
    let tests = tests();
    assert!(wanted().len() > 80, "docs/requirements.md: no table has the expected form");
    let elsewhere: BTreeMap<&str, &str> = ELSEWHERE.iter().copied().collect();
    let missing: Vec<String> = wanted()
        .into_iter()
        .filter(|id| !tests.contains_key(id) && !elsewhere.contains_key(id.as_str()))
        .collect();
    assert!(missing.is_empty(), "no test names the requirements {missing:?}");
    let unneeded: Vec<&&str> = elsewhere.keys().filter(|id| tests.contains_key(**id)).collect();
    assert!(unneeded.is_empty(), "listed as tested elsewhere, but tested here: {unneeded:?}");
}
