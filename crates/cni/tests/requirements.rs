//! Test that every requirement of the CNI specification has a test of this crate, or a reason here why it has none.
//!
//! A test names its requirements in the line above `#[test]`: `// Requirements: S8, S9`.
//!
//! | id | requirement |
//! |---|---|
//! | `S…` | CNI specification |
//! | `K…` | behaviour of the reference plugins' `main` |
//! | `C…` | conversion between versions of the result |
//! | `L…` | behaviour of the reference runtime library, libcni |
//! | `V…` | conventions (CONVENTIONS.md) |
//! | `trap …` | difference between Go and Rust that an implementation in Rust easily overlooks |

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Requirements without a test in this crate, each with the reason.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "s25",
        "an interface that exists already is an error of the kernel: the tests of each interface plugin cover it",
    ),
    ("s37", "the container runtime creates and removes the namespace: no code of this crate does"),
    ("v17", "the bridge plugin accepts any previous interface: its tests cover it"),
    ("trap10", "the tests of host-local cover its files"),
];

fn wanted() -> BTreeSet<String> {
    let range = |letter: &'static str, last: u32| (1..=last).map(move |number| format!("{letter}{number}"));
    range("s", 39)
        .chain(range("k", 6))
        .chain(range("c", 8))
        .chain(range("l", 12))
        .chain(range("v", 17))
        .chain(range("trap", 10))
        .collect()
}

/// Returns the ids in a comment line above a test, in lower case and without spaces.
fn ids(line: &str) -> Vec<String> {
    let Some(ids) = line.strip_prefix("// Requirements: ") else { return Vec::new() };
    ids.split(", ").map(|id| id.to_lowercase().replace(' ', "")).collect()
}

/// Returns the tests of each id.
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
    let elsewhere: BTreeMap<&str, &str> = ELSEWHERE.iter().copied().collect();
    let missing: Vec<String> = wanted()
        .into_iter()
        .filter(|id| !tests.contains_key(id) && !elsewhere.contains_key(id.as_str()))
        .collect();
    assert!(missing.is_empty(), "no test names the requirements {missing:?}");
    let unneeded: Vec<&&str> = elsewhere.keys().filter(|id| tests.contains_key(**id)).collect();
    assert!(unneeded.is_empty(), "listed as tested elsewhere, but tested here: {unneeded:?}");
}
