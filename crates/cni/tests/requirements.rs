//! Every requirement of the protocol has a test whose name begins with its id, or a line here saying where
//! else it is kept. The ids: `S` specification, `K` plugin main, `C` conversion, `L` libcni, `V` conventions,
//! and the traps that an implementation in Rust falls into first.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// What no test of this crate can show.
const ELSEWHERE: &[(&str, &str)] = &[
    ("s25", "«the interface is already there» is the kernel's answer: the tests of every interface plugin"),
    ("s37", "making and removing the namespace is the runtime's part: no code of this crate touches it"),
    ("v17", "working on any previous interface is the bridge plugin's part"),
    ("trap10", "the files of host-local are that plugin's part"),
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

/// The ids a test's name begins with: `s8_s9_a_list_…` is for s8 and s9.
fn ids(name: &str) -> impl Iterator<Item = &str> {
    name.split('_').take_while(|word| {
        let letters = word.trim_end_matches(|c: char| c.is_ascii_digit());
        letters.len() < word.len() && ["s", "k", "c", "l", "v", "trap", "m"].contains(&letters)
    })
}

/// Test functions by id.
fn tests() -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut waiting = vec![root.join("src"), root.join("tests")];
    while let Some(path) = waiting.pop() {
        if path.is_dir() {
            waiting.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let source = fs::read_to_string(&path).unwrap();
        let mut lines = source.lines().map(str::trim);
        while let Some(line) = lines.next() {
            if line != "#[test]" {
                continue;
            }
            let name = lines.find_map(|line| line.strip_prefix("fn ")).unwrap_or_default();
            let name = name.split('(').next().unwrap_or_default();
            for id in ids(name) {
                found.entry(id.to_owned()).or_default().push(name.to_owned());
            }
        }
    }
    found
}

#[test]
fn every_requirement_has_a_test_or_a_reason() {
    let tests = tests();
    let elsewhere: BTreeMap<&str, &str> = ELSEWHERE.iter().copied().collect();
    let missing: Vec<String> = wanted()
        .into_iter()
        .filter(|id| !tests.contains_key(id) && !elsewhere.contains_key(id.as_str()))
        .collect();
    assert!(missing.is_empty(), "no test begins with {missing:?}");
    let unneeded: Vec<&&str> = elsewhere.keys().filter(|id| tests.contains_key(**id)).collect();
    assert!(unneeded.is_empty(), "these have tests now: {unneeded:?}");
}
