//! Test that every requirement of the multi-network specification has a test, or a reason here why it has none.
//!
//! A test in the workspace names its requirements in the line above `#[test]`:
//! `// Requirements: NPWG1-4.1.2.1.3-2, conflict C2`. The requirements are the rows of `docs/requirements.md` in the
//! families of the specification, of the Device Information Specification, `C` and `M`.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Requirements without a test, each with the reason.
const UNTESTED: &[(&str, &str)] = &[
    ("NPWG1-1.1.1-1", "scheduling is out of scope"),
    ("NPWG1-1.1.2-1", "nothing here changes the API: only annotations are read"),
    ("NPWG1-1.1.3-1", "services are unspecified"),
    ("NPWG1-3.2-4", "binds implementations that do not delegate"),
    ("V11-0-1", "a numbering of documents"),
    ("V11-1.1.5-1", "a section that was removed"),
    ("V11-3.2-1", "binds implementations that do not delegate"),
    ("V13-7.3", "wording"),
    ("V13-8.3.2-1", "binds the component that creates IPAMClaims for its workloads"),
];

/// Page with one row for each requirement.
const PAGE: &str = include_str!("../../../docs/requirements.md");

/// Returns whether an id is one of this crate: `NPWG1-…`, `V11-…` to `V13-…`, `DI-…`, `C…` or `M…`.
fn is_own(id: &str) -> bool {
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let is_short = id.strip_prefix(['C', 'M']).is_some_and(is_number);
    is_short || ["NPWG1-", "V11-", "V12-", "V13-", "DI-"].iter().any(|family| id.starts_with(family))
}

fn wanted() -> BTreeSet<String> {
    let ids = PAGE.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    ids.filter(|id| is_own(id)).map(str::to_owned).collect()
}

/// Returns the ids in a comment line above a test, without those of CNI requirements.
fn ids_of_comment(line: &str) -> Vec<String> {
    let Some(ids) = line.strip_prefix("// Requirements: ") else { return Vec::new() };
    let ids = ids.split(", ").map(|id| id.strip_prefix("conflict ").unwrap_or(id));
    ids.filter(|id| is_own(id)).map(str::to_owned).collect()
}

/// Returns the tests of each id.
fn tests() -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut paths = vec![crates.parent().unwrap().join("tests")];
    for one in fs::read_dir(crates).unwrap() {
        let one = one.unwrap().path();
        paths.extend([one.join("src"), one.join("tests")].into_iter().filter(|path| path.is_dir()));
    }
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        if path.extension().is_none_or(|extension| extension != "rs") {
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
            for id in ids_of_comment(above) {
                found.entry(id).or_default().push(name.to_owned());
            }
        }
    }
    found
}

#[test]
fn requirements_have_a_test_or_a_reason() {
    let tests = tests();
    let wanted = wanted();
    assert!(wanted.len() > 150, "docs/requirements.md: no table has the expected form");
    let untested: BTreeMap<&str, &str> = UNTESTED.iter().copied().collect();
    let missing: Vec<&String> =
        wanted.iter().filter(|id| !tests.contains_key(*id) && !untested.contains_key(id.as_str())).collect();
    assert!(missing.is_empty(), "no test names the requirements {missing:?}");
    let unneeded: Vec<&&str> = untested.keys().filter(|id| tests.contains_key(**id)).collect();
    assert!(unneeded.is_empty(), "listed as untested, but tested: {unneeded:?}");
    let unknown: Vec<&&str> = untested.keys().filter(|id| !wanted.contains(**id)).collect();
    assert!(unknown.is_empty(), "unknown requirements: {unknown:?}");
}

#[test]
fn requirements_named_by_tests_exist() {
    let wanted = wanted();
    let tests = tests();
    let unknown: Vec<(&String, &Vec<String>)> =
        tests.iter().filter(|(id, _)| !wanted.contains(*id)).collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
}
