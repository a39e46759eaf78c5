//! Tests of the source files: length, header, names, and permissions that only single files have.

use std::path::Path;

use crate::tree::{code_lines, sources};

/// File names that do not describe the content.
const EMPTY_NAMES: [&str; 10] =
    ["util", "utils", "common", "helper", "helpers", "manager", "misc", "types", "core", "shared"];

/// Only file that may change the namespace of a thread.
const ENTERS_NAMESPACES: &str = "crates/linux/src/netns.rs";

/// Only file that may contain unsafe code.
const UNSAFE: &str = "crates/linux/src/link/tap/device.rs";

const LONGEST_FILE: usize = 800;
const LONGEST_HEADER: usize = 25;

#[test]
fn source_files_are_short_and_have_a_header() {
    for (name, source) in sources() {
        let lines = source.lines().count();
        assert!(lines <= LONGEST_FILE, "{name} has {lines} lines; the limit is {LONGEST_FILE}");
        let header = source.lines().take_while(|line| line.starts_with("//!")).count();
        assert!(header > 0, "{name} does not open with a //! header");
        assert!(
            header <= LONGEST_HEADER,
            "the header of {name} has {header} lines; the limit is {LONGEST_HEADER}"
        );
        assert!(source.ends_with('\n') && !source.contains('\r'), "{name}: lines end with a line feed");
    }
}

#[test]
fn file_names_describe_their_content() {
    for (name, _) in sources() {
        let path = Path::new(&name);
        let empty = path
            .components()
            .filter_map(|part| Path::new(part.as_os_str()).file_stem()?.to_str())
            .find(|part| EMPTY_NAMES.contains(part));
        assert_eq!(empty, None, "{name}: a file is a noun of the glossary");
    }
}

#[test]
fn only_one_file_enters_namespaces() {
    let calls = ["setns(", "move_into_link_name_space(", "move_into_thread_name_spaces("];
    for (name, source) in sources() {
        let exempt = name == ENTERS_NAMESPACES || name.starts_with("crates/testkit/") || name == file!();
        let enters = code_lines(&source).any(|line| calls.iter().any(|call| line.contains(call)));
        assert!(
            exempt || !enters,
            "{name} enters a namespace; {ENTERS_NAMESPACES} is the only file that may"
        );
    }
}

#[test]
fn only_one_file_contains_unsafe_code() {
    // The root manifest denies unsafe code; these attributes would permit it.
    let ways = [concat!("allow(", "unsafe_code"), concat!("expect(", "unsafe_code")];
    for (name, source) in sources() {
        let is_unsafe = code_lines(&source).any(|line| ways.iter().any(|way| line.contains(way)));
        assert_eq!(is_unsafe, name == UNSAFE, "{name}: unsafe code belongs into {UNSAFE}");
    }
}

#[test]
fn source_files_contain_no_unfinished_work() {
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("unimple", "mented!"),
        concat!("#[ig", "nore"),
    ];
    for (name, source) in sources() {
        for (number, line) in source.lines().enumerate() {
            let mark = marks.iter().find(|mark| line.contains(**mark));
            assert_eq!(mark, None, "{name}:{}: {line}", number + 1);
        }
    }
}

#[test]
fn function_names_do_not_begin_with_get() {
    for (name, source) in sources() {
        let getter = code_lines(&source).find(|line| line.contains(concat!("fn ", "get_")));
        assert_eq!(getter, None, "{name}: a function is a verb that describes its effect");
    }
}
