//! Every requirement of the standard has a test whose name begins with its id, or a line here saying where else it is
//! kept. The ids: `NPWG1-4.1.2.1.3-2` is section 4.1.2.1.3 of v1.0, written `npwg1_4_1_2_1_3_2`; `V11` to `V13` what
//! later versions changed; `C` conflicts (`conflict_c7`), `M` defects of Multus, `DI` device information.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Requirements of v1.0, without their `NPWG1-`.
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

/// What v1.1 to v1.3 changed.
const LATER: &str = "
    V11-0-1 V11-1.1.5-1 V11-3.2-1 V11-4.1.2.1.3-1 V11-4.1.2.1.3.2-1 V11-4.1.2.1.3.2-2 V11-4.1.2.1.4.2-1
    V11-4.1.2.1.4.2-2 V11-4.1.2.1.6-1 V11-4.1.2.1.6.2-1 V11-4.1.2.1.7-1 V11-4.1.2.1.7-2 V11-4.1.2.1.7.2-1
    V11-4.1.2.1.7.2-2 V11-4.1.2.1.8-1 V11-4.1.2.1.8.2-1 V11-4.1.2.1.8.2-2 V11-4.1.2.1.9-1 V11-4.1.2.1.9-2
    V11-4.1.2.1.9-3 V11-5.3.6.4-1 V11-5.4-1 V11-6-1 V11-7.5-1
    V12-4.1.2.1.4-1 V12-4.1.2.1.10-1 V12-4.1.2.1.10.2-1 V12-4.1.2.1.10.2-2 V12-5.3.1-1 V12-5.3.7-1 V12-5.4-1
    V13-4.1.2.1.11-1 V13-4.1.2.1.11-2 V13-4.1.2.1.11-3 V13-4.1.2.1.11-4 V13-5.1-1 V13-7.3 V13-8-1 V13-8.1-1 V13-8.2-1
    V13-8.3-1 V13-8.3.2-1
    DI-1 DI-2 DI-3 DI-4 DI-5";

/// What no test of this crate can show: what binds the hands, the cluster, or nobody.
const ELSEWHERE: &[(&str, &str)] = &[
    ("npwg1_1_1_1_1", "scheduling is out of scope"),
    ("npwg1_1_1_2_1", "nothing here changes the API: only annotations are read"),
    ("npwg1_1_1_3_1", "services are unspecified"),
    ("npwg1_1_1_4_1", "the containerd lane: an unmodified runtime"),
    ("npwg1_1_1_6_1", "the containerd lane: the runtime calls one plugin"),
    ("npwg1_2_1_1", "tests of the meta-plugin over every version of the protocol"),
    ("npwg1_2_1_2", "the meta-plugin's installation"),
    ("npwg1_3_2_4", "binds implementations that do not delegate"),
    ("npwg1_5_1", "publishing is the agent's part; the text is here (npwg1_5_2)"),
    ("npwg1_6_1_1", "the installer: no configuration before the default network is ready"),
    ("npwg1_6_1_2", "the same"),
    ("npwg1_6_1_1_1", "the same"),
    ("npwg1_6_1_2_1", "the same: the name begins with 00-"),
    ("npwg1_6_1_2_2", "the meta-plugin waits for the readiness file"),
    ("npwg1_7_1_1", "crate cni: chains"),
    ("npwg1_7_1_2", "the meta-plugin's answer in the version asked for"),
    ("npwg1_7_2_2", "the meta-plugin stops at the first failure; the order is the plan's (npwg1_6_2_1)"),
    ("npwg1_7_2_3", "the meta-plugin unwinds by its journal"),
    ("npwg1_7_2_4", "the same"),
    ("npwg1_7_2_5", "the same"),
    ("npwg1_7_3_1", "the meta-plugin's lock"),
    ("v11_0_1", "a numbering of documents"),
    ("v11_1_1_5_1", "a section that was taken out"),
    ("v11_3_2_1", "binds implementations that do not delegate"),
    ("v13_7_3", "wording"),
    ("v13_8_1", "IPAMClaims: cluster address management"),
    ("v13_8_1_1", "the same"),
    ("v13_8_2_1", "the same"),
    ("v13_8_3_1", "the same"),
    ("v13_8_3_2_1", "the same"),
    ("di_5", "the hands remove the file after DEL; its name is in the plan (di_1)"),
    (
        "conflict_c19",
        "DEL waits for nothing: the meta-plugin warns, and goes on from the journal (DEVIATIONS.md)",
    ),
    ("conflict_c20", "the journal keeps what could not be torn down"),
    ("m1", "the hands: default routes, read back from the kernel"),
    ("m2", "the same"),
    ("m10", "the meta-plugin's DEL returns what failed"),
    ("m11", "the journal"),
    ("m12", "GC, STATUS and CHECK go over all delegates of the journal"),
    ("m17", "the agent patches; a failing patch fails nothing"),
    ("m18", "crate cni: a scan of CNI_ARGS (m18 there), and the runtime's own CNI_PATH"),
    ("m19", "crate cni: a delegate's code and details survive"),
    ("m21", "the meta-plugin unwinds after any failure"),
    ("m22", "the journal knows what was plugged in later"),
    ("m24", "the installer writes a temporary file and renames it"),
    ("m25", "the roles of the deployment"),
    ("m28", "the meta-plugin's answer in the version asked for"),
];

/// `NPWG1-4.1.2.1.3-2` as tests write it.
fn encoded(id: &str) -> String {
    id.to_lowercase().replace(['.', '-'], "_")
}

fn wanted() -> BTreeSet<String> {
    let first = V1_0.split_whitespace().map(|id| encoded(&format!("NPWG1-{id}")));
    let conflicts = (1..=20).map(|number| format!("conflict_c{number}"));
    let defects = (1..=29).map(|number| format!("m{number}"));
    first.chain(LATER.split_whitespace().map(encoded)).chain(conflicts).chain(defects).collect()
}

/// The ids a test's name begins with.
fn ids(name: &str) -> Vec<String> {
    let is_number = |word: &str| {
        let digits = word.strip_prefix("rule").unwrap_or(word);
        !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
    };
    let mut ids: Vec<String> = Vec::new();
    let mut words = name.split('_').peekable();
    while let Some(word) = words.next() {
        let defect = word.strip_prefix('m').is_some_and(is_number);
        match word {
            "npwg1" | "v11" | "v12" | "v13" | "di" => {
                let mut id = word.to_owned();
                while let Some(number) = words.next_if(|word| is_number(word)) {
                    id = format!("{id}_{number}");
                }
                ids.push(id);
            }
            "conflict" => ids.extend(words.next().map(|number| format!("conflict_{number}"))),
            _ if defect => ids.push(word.to_owned()),
            _ => break,
        }
    }
    ids
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
                found.entry(id).or_default().push(name.to_owned());
            }
        }
    }
    found
}

#[test]
fn every_requirement_has_a_test_or_a_reason() {
    let tests = tests();
    let wanted = wanted();
    let elsewhere: BTreeMap<&str, &str> = ELSEWHERE.iter().copied().collect();
    let missing: Vec<&String> =
        wanted.iter().filter(|id| !tests.contains_key(*id) && !elsewhere.contains_key(id.as_str())).collect();
    assert!(missing.is_empty(), "no test begins with {missing:?}");
    let unneeded: Vec<&&str> = elsewhere.keys().filter(|id| tests.contains_key(**id)).collect();
    assert!(unneeded.is_empty(), "these have tests now: {unneeded:?}");
    let strange: Vec<&&str> = elsewhere.keys().filter(|id| !wanted.contains(**id)).collect();
    assert!(strange.is_empty(), "no such requirement: {strange:?}");
}

#[test]
fn every_id_in_a_name_is_a_requirement() {
    let wanted = wanted();
    let tests = tests();
    let strange: Vec<(&String, &Vec<String>)> =
        tests.iter().filter(|(id, _)| !wanted.contains(*id)).collect();
    assert!(strange.is_empty(), "{strange:#?}");
}
