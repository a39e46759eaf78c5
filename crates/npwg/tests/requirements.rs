//! Test that every requirement of the multi-network specification has a test, or a reason here why it has none.
//!
//! A test in the workspace names its requirements in the line above `#[test]`:
//! `// Requirements: NPWG1-4.1.2.1.3-2, conflict C2`. Requirement ids at the beginning of a test's name count, too
//! (`npwg1_4_1_2_1_3_2_…`, `conflict_c2_…`).
//!
//! | id | requirement |
//! |---|---|
//! | `NPWG1-4.1.2.1.3-2` | second requirement of section 4.1.2.1.3 of v1.0 |
//! | `V11-…` to `V13-…` | requirement that a later version added or changed |
//! | `DI-…` | device information specification |
//! | `conflict C…` | contradiction in the specification or between its versions, and its resolution |
//! | `M…` | defect of Multus that weft does not have |

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Requirements of v1.0, without the prefix `NPWG1-`.
const V1_0: &str = "
    1.1.1-1 1.1.2-1 1.1.3-1 1.1.4-1 1.1.5-1 1.1.6-1 2.1-1 2.1-2 2.3-1
    3.1-1 3.1-2 3.2-1 3.2-2 3.2-3 3.2-4 3.2-5 3.3-1
    3.4.1-rule1 3.4.1-rule2 3.4.1-rule3 3.4.1-rule4 3.4.2-1 3.4.3-1
    4-1 4.1-1 4.1-2 4.1.1-1 4.1.2.1-1 4.1.2.1.1-1 4.1.2.1.2-1
    4.1.2.1.3-1 4.1.2.1.3-2 4.1.2.1.3-3 4.1.2.1.3.2-1 4.1.2.1.3.2-2
    4.1.2.1.4-1 4.1.2.1.4-2 4.1.2.1.4.2-1 4.1.2.1.4.2-2
    4.1.2.1.5-1 4.1.2.1.5-2 4.1.2.1.5-3 4.1.2.1.5.1-1 4.2-1 4.2.1-1 4.2.1-2
    5-1 5-2 5.1-1 5.1.1-1 5.1.1-2 5.1.1-3 5.1.1-4 5.2-1 5.3-1 5.3.1-1 5.3.2-1 5.3.2.1-1 5.3.2.1-2
    5.3.3-1 5.3.3.1-rule1 5.3.3.1-rule2 5.3.3.1-rule3 5.3.3.1-4 5.3.4-1 5.3.4.1-1 5.3.5-1 5.3.5-2
    5.3.6-1 5.3.6-2 5.3.6-3
    6-1 6.1-1 6.1-2 6.1.1-1 6.1.2-1 6.1.2-2 6.2-1
    7.1-1 7.1-2 7.2-1 7.2-2 7.2-3 7.2-4 7.2-5 7.3-1 7.4-1 7.4-2";

/// Requirements that v1.1 to v1.3 and the device information specification added or changed.
const LATER: &str = "
    V11-0-1 V11-1.1.5-1 V11-3.2-1 V11-4.1.2.1.3-1 V11-4.1.2.1.3.2-1 V11-4.1.2.1.3.2-2 V11-4.1.2.1.4.2-1
    V11-4.1.2.1.4.2-2 V11-4.1.2.1.6-1 V11-4.1.2.1.6.2-1 V11-4.1.2.1.7-1 V11-4.1.2.1.7-2 V11-4.1.2.1.7.2-1
    V11-4.1.2.1.7.2-2 V11-4.1.2.1.8-1 V11-4.1.2.1.8.2-1 V11-4.1.2.1.8.2-2 V11-4.1.2.1.9-1 V11-4.1.2.1.9-2
    V11-4.1.2.1.9-3 V11-5.3.6.4-1 V11-5.4-1 V11-6-1 V11-7.5-1
    V12-4.1.2.1.4-1 V12-4.1.2.1.10-1 V12-4.1.2.1.10.2-1 V12-4.1.2.1.10.2-2 V12-5.3.1-1 V12-5.3.7-1 V12-5.4-1
    V13-4.1.2.1.11-1 V13-4.1.2.1.11-2 V13-4.1.2.1.11-3 V13-4.1.2.1.11-4 V13-5.1-1 V13-7.3 V13-8-1 V13-8.1-1 V13-8.2-1
    V13-8.3-1 V13-8.3.2-1
    DI-1 DI-2 DI-3 DI-4 DI-5";

/// Requirements without a test, each with the reason.
const UNTESTED: &[(&str, &str)] = &[
    ("npwg1_1_1_1_1", "scheduling is out of scope"),
    ("npwg1_1_1_2_1", "nothing here changes the API: only annotations are read"),
    ("npwg1_1_1_3_1", "services are unspecified"),
    ("npwg1_3_2_4", "binds implementations that do not delegate"),
    ("v11_0_1", "a numbering of documents"),
    ("v11_1_1_5_1", "a section that was removed"),
    ("v11_3_2_1", "binds implementations that do not delegate"),
    ("v13_7_3", "wording"),
    ("v13_8_3_2_1", "binds the component that creates IPAMClaims for its workloads"),
];

/// Returns the form of an id in a test name: `npwg1_4_1_2_1_3_2` for `NPWG1-4.1.2.1.3-2`.
fn encoded(id: &str) -> String {
    id.to_lowercase().replace(['.', '-', ' '], "_")
}

fn wanted() -> BTreeSet<String> {
    let first = V1_0.split_whitespace().map(|id| encoded(&format!("NPWG1-{id}")));
    let conflicts = (1..=20).map(|number| format!("conflict_c{number}"));
    let defects = (1..=29).map(|number| format!("m{number}"));
    first.chain(LATER.split_whitespace().map(encoded)).chain(conflicts).chain(defects).collect()
}

/// Returns the ids at the beginning of a test's name.
fn ids_of_name(name: &str) -> Vec<String> {
    let is_number = |word: &str| {
        let digits = word.strip_prefix("rule").unwrap_or(word);
        !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
    };
    let mut ids: Vec<String> = Vec::new();
    let mut words = name.split('_').peekable();
    while let Some(word) = words.next() {
        let defect = word.strip_prefix('m').is_some_and(is_number);
        // Ids of CNI requirements may stand between those of this specification.
        let other = ["s", "k", "l", "c", "g", "trap"].iter();
        let other = other.filter_map(|kind| word.strip_prefix(kind)).any(is_number);
        match word {
            "npwg1" | "v11" | "v12" | "v13" | "di" => {
                let mut id = word.to_owned();
                while let Some(number) = words.next_if(|word| is_number(word)) {
                    id = format!("{id}_{number}");
                }
                // `v13` alone is an id of the CNI conventions.
                ids.extend((id != word).then_some(id));
            }
            "conflict" => ids.extend(words.next().map(|number| format!("conflict_{number}"))),
            _ if defect => ids.push(word.to_owned()),
            _ if other => {}
            _ => break,
        }
    }
    ids
}

/// Returns the ids in a comment line above a test, without those of CNI requirements.
fn ids_of_comment(line: &str) -> Vec<String> {
    let Some(ids) = line.strip_prefix("// Requirements: ") else { return Vec::new() };
    let known = |id: &&str| {
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        id.contains(['-', '.']) || id.starts_with("conflict ") || id.strip_prefix('M').is_some_and(digits)
    };
    ids.split(", ").filter(known).map(encoded).collect()
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
            for id in ids_of_name(name).into_iter().chain(ids_of_comment(above)) {
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
