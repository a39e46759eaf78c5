//! Tests of the documents: links lead to existing files, tables of tests name existing tests, and each cited requirement
//! has a row in `docs/requirements.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use testkit::workspace;

use crate::language::{Kind, texts};
use crate::tokens::{Piece, pieces};
use crate::tree::{directories, sources};

/// Page that explains the ids of requirements.
const REQUIREMENTS: &str = "docs/requirements.md";

/// Letters before the number of an id such as `S13`.
const SHORT_FAMILIES: [&str; 8] = ["S", "K", "R", "L", "V", "G", "C", "M"];

/// Beginnings of ids that continue with a section or a number, such as `NPWG1-4.1.2.1.3-2`.
const LONG_FAMILIES: [&str; 5] = ["NPWG1-", "V11-", "V12-", "V13-", "DI-"];

/// Longest range of ids that one citation names.
const LONGEST_RANGE: usize = 40;

#[test]
fn document_links_lead_to_existing_files() {
    let mut documents = directories(&workspace().join("docs"));
    documents.push(workspace());
    documents.push(workspace().join("docs"));
    let files = documents
        .iter()
        .filter_map(|directory| fs::read_dir(directory).ok())
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    for file in files.filter(|file| file.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(&file).expect("a document");
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap_or_default();
            let internal = !path.is_empty() && !path.contains("://") && !path.starts_with("mailto:");
            let found = file.parent().is_some_and(|directory| directory.join(path).exists());
            assert!(!internal || found, "{}: {path} does not exist", file.display());
        }
    }
}

#[test]
fn documents_name_existing_tests_for_each_row() {
    let functions = functions();
    for (document, head) in [
        ("DEVIATIONS.md", "| what | why | test |"),
        ("ARCHITECTURE.md", "| always | test |"),
        ("docs/design/journal.md", "| killed after | on disk | next DEL, ADD, GC | test |"),
        ("docs/design/journal.md", "| state | next DEL, ADD, GC | test |"),
        ("docs/design/ipam.md", "| argument | test |"),
        ("docs/security.md", "| prevented | how | test |"),
        ("docs/security.md", "| mark | written by | conclusion of weft | test |"),
        ("docs/security.md", "| token | allows | prevented | test |"),
    ] {
        let text = fs::read_to_string(workspace().join(document)).expect("a document");
        let mut lines = text.lines();
        let mut rows = 0;
        while lines.by_ref().any(|line| line == head) {
            for row in lines.by_ref().skip(1).take_while(|line| line.starts_with('|')) {
                rows += 1;
                let named = row.rsplit('|').nth(1).unwrap_or_default();
                let pinned = named.trim() == "the same" || named.matches('`').count() >= 4;
                assert!(pinned, "{document}: no test is named for {row}");
                // Crate names contain no underscore, test names do.
                for name in named.split('`').filter(|word| word.contains('_')) {
                    assert!(functions.contains(name), "{document}: no test {name}");
                }
            }
        }
        assert!(rows > 2, "{document}: no table has the expected head");
    }
}

#[test]
fn requirement_ids_in_the_tree_are_explained() {
    let rows = requirement_rows();
    let is_section =
        |id: &str| rows.keys().any(|row| row.strip_prefix(id).is_some_and(|rest| rest.starts_with('-')));
    let mut unused: BTreeSet<&String> = rows.keys().collect();
    let mut faults = Vec::new();
    for (file, id) in citations() {
        if !unused.remove(&id) && !rows.contains_key(&id) && !is_section(&id) {
            faults.push(format!("{file}: {id} has no row in {REQUIREMENTS}"));
        }
    }
    faults.extend(unused.into_iter().map(|id| format!("{REQUIREMENTS}: nothing cites {id}")));
    let functions = functions();
    for (id, tests) in &rows {
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        if names.is_empty() && tests != "-" {
            faults.push(format!("{REQUIREMENTS}: {id}: {tests:?} is neither a list of tests nor \"-\""));
        }
        let names = names.iter().map(|name| name.rsplit("::").next().unwrap_or_default());
        let missing = names.filter(|name| !functions.contains(*name));
        faults.extend(missing.map(|name| format!("{REQUIREMENTS}: {id}: no test {name}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Returns the last column in each row on the requirements page.
fn requirement_rows() -> BTreeMap<String, String> {
    let text = fs::read_to_string(workspace().join(REQUIREMENTS)).expect("a document");
    let mut rows = BTreeMap::new();
    let mut lines = text.lines();
    while lines.by_ref().any(|line| line == "| id | requirement | source | tests |") {
        for row in lines.by_ref().skip(1).take_while(|line| line.starts_with('|')) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let [_, id, requirement, source, tests, _] = cells[..] else {
                panic!("{row}: four cells are needed")
            };
            assert!(!requirement.is_empty() && !source.is_empty(), "{row}: an empty cell");
            assert!(rows.insert(id.to_owned(), tests.to_owned()).is_none(), "{id} has two rows");
        }
    }
    assert!(rows.len() > 200, "{REQUIREMENTS}: no table has the expected head");
    rows
}

/// Returns the ids that the tree cites, each with the file that cites it.
///
/// Comments and documents cite ids anywhere, test names and string literals only at the beginning (`"S25"`,
/// `"K6: own namespace"`).
fn citations() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (file, source) in sources().into_iter().filter(|(file, _)| file != file!()) {
        for (_, piece) in pieces(&source) {
            if let Piece::Literal(literal) = piece {
                let text = literal.trim_matches('"');
                let first = text.split([':', ',']).next().unwrap_or_default();
                found.extend(
                    id(first).map(|_| cited_ids(text)).into_iter().flatten().map(|id| (file.clone(), id)),
                );
            }
        }
    }
    for text in texts().into_iter().filter(|text| text.file != REQUIREMENTS && text.file != file!()) {
        let ids = match text.kind {
            Kind::Comment | Kind::Doc | Kind::Document => cited_ids(&text.text),
            // A name begins with an id in lower case (`s13_…`).
            Kind::TestName => {
                text.text.split('_').take(1).filter_map(|word| id(&word.to_uppercase())).collect()
            }
            _ => continue,
        };
        found.extend(ids.into_iter().map(|id| (format!("{}:{}", text.file, text.line), id)));
    }
    found
}

/// Returns the ids in a text. A range such as `S16–S19` or `V11-7.5-1…3` contains all ids in between.
fn cited_ids(text: &str) -> Vec<String> {
    let is_part = |letter: char| letter.is_alphanumeric() || "-._:/".contains(letter);
    let mut ids: Vec<String> = Vec::new();
    // Whether the last word was an id, and whether a range begins with it.
    let (mut after_id, mut in_range, mut after_trap) = (false, false, false);
    for piece in text.split_inclusive(|letter| !is_part(letter)) {
        let word = piece.trim_end_matches(|letter| !is_part(letter)).trim_end_matches(['.', ':', '-', '/']);
        let ends_range = std::mem::take(&mut in_range);
        let begins_range = piece.ends_with(['–', '…']);
        if after_id && word == "to" {
            in_range = true;
            continue;
        }
        let trap = after_trap && word.parse::<u8>().is_ok();
        let cited = if trap { Some(format!("trap {word}")) } else { id(word) };
        if let Some(first) = ids.last().filter(|_| ends_range) {
            let range = range(first, cited.as_deref().unwrap_or(word));
            ids.extend(range);
        } else {
            ids.extend(cited.clone());
        }
        after_id = cited.is_some();
        in_range = after_id && begins_range;
        after_trap = word == "trap";
    }
    ids
}

/// Returns the id that a word is.
fn id(word: &str) -> Option<String> {
    let digits = word.find(|letter: char| letter.is_ascii_digit())?;
    let (family, number) = word.split_at(digits);
    let is_short = SHORT_FAMILIES.contains(&family)
        && number.len() <= 2
        && !number.starts_with('0')
        && number.bytes().all(|digit| digit.is_ascii_digit());
    let is_long = LONG_FAMILIES.iter().any(|family| {
        word.strip_prefix(family).is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()))
    });
    (is_short || is_long).then(|| word.to_owned())
}

/// Returns the ids in a range after the first one, including the last one; none if it is no range.
fn range(first: &str, last: &str) -> Vec<String> {
    let (head, from) = split_number(first);
    let (last_head, to) = split_number(last);
    let (Some(from), Some(to)) = (from, to) else { return Vec::new() };
    let is_range = (last_head == head || last_head.is_empty()) && to.saturating_sub(from) <= LONGEST_RANGE;
    if is_range { (from + 1..=to).map(|number| format!("{head}{number}")).collect() } else { Vec::new() }
}

/// Splits an id before the number at the end.
fn split_number(id: &str) -> (&str, Option<usize>) {
    let head = id.trim_end_matches(|letter: char| letter.is_ascii_digit());
    (head, id[head.len()..].parse().ok())
}

/// Returns the names of all functions in the tree.
pub(crate) fn functions() -> BTreeSet<String> {
    let names = |source: &str| -> Vec<String> {
        let definitions = source.split("fn ").skip(1).filter_map(|rest| rest.split_once('('));
        definitions.map(|(name, _)| name.to_owned()).collect()
    };
    sources().iter().flat_map(|(_, source)| names(source)).collect()
}

#[test]
fn requirement_ids_are_found_in_texts() {
    assert_eq!(cited_ids("Code 4 (S25). K6, trap 7; V11-7.5-1"), ["S25", "K6", "trap 7", "V11-7.5-1"]);
    assert_eq!(
        cited_ids("S16–S18, M1 to M3, DI-1 to DI-2"),
        ["S16", "S17", "S18", "M1", "M2", "M3", "DI-1", "DI-2"]
    );
    assert_eq!(cited_ids("(NPWG1-7.2-1…3)"), ["NPWG1-7.2-1", "NPWG1-7.2-2", "NPWG1-7.2-3"]);
    assert!(cited_ids("IpAddr::V4, C2-11, S256, dir/S3, ML2, IPv4, T1").is_empty());
}

/// Reasons of Events in `crates/kube-support/src/event_reason.rs` and in the IPAM controller.
#[test]
fn events_are_documented_with_their_meaning() {
    let read = |file: &str| fs::read_to_string(workspace().join(file)).expect("a file");
    let source = read("crates/kube-support/src/event_reason.rs");
    let names = source.split("EventReason::").skip(1).filter_map(|rest| rest.split_once(" => \""));
    let mut reasons: BTreeSet<&str> = names.filter_map(|(_, rest)| rest.split('"').next()).collect();
    let finding = read("crates/controllers/src/ipam/reconciler.rs");
    let line =
        finding.lines().find(|line| line.trim().starts_with("reason: ")).expect("the Event of a finding");
    reasons.extend(line.split('"').skip(3).step_by(2));
    assert!(reasons.len() > 25 && reasons.contains("ObjectInvalid"), "{reasons:?}");
    let pages = read("docs/operations.md") + &read("docs/neutron.md");
    reasons.retain(|reason| !pages.contains(&format!("`{reason}`")));
    assert!(reasons.is_empty(), "neither docs/operations.md nor docs/neutron.md has the Events {reasons:?}");
}
