//! Tests of the build: one exact compiler, and programs without paths of the builder's machine.
//!
//! `make build` makes the programs, and refuses one that contains such a path. CI runs it before the tests; elsewhere the
//! tests of a program that was not built are skipped.
//!
//! Source: elf(5) `e_type`; The rustup book, "The toolchain file".

use std::fs;
use std::path::PathBuf;

use testkit::workspace;

/// Programs in a release, each with the ELF file type.
const PROGRAMS: [(&str, u16); 2] = [("weft", DYNAMIC), ("weft-cni", FIXED)];

/// `ET_EXEC`: code at fixed addresses.
const FIXED: u16 = 2;
/// `ET_DYN`: position-independent code.
const DYNAMIC: u16 = 3;
/// Position of `e_type` in a file.
const TYPE_AT: usize = 16;

/// Returns the released programs: name, content and expected type. `None`, and the test is skipped, if they are not built.
fn released() -> Option<Vec<(PathBuf, Vec<u8>, u16)>> {
    let read = |(name, kind): (&str, u16)| {
        let path = workspace().join("bin").join(name);
        fs::read(&path).map(|bytes| (path, bytes, kind)).ok()
    };
    let found: Option<Vec<_>> = PROGRAMS.into_iter().map(read).collect();
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "bin/ lacks a program: CI runs `make build` first");
        testkit::record_skip(&testkit::test_name(), "needs the programs in bin/: make build");
    }
    found
}

#[test]
fn toolchain_is_pinned_to_an_exact_version() {
    let read = |name: &str| fs::read_to_string(workspace().join(name)).expect("a file of the tree");
    let value = |text: &str, key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='));
        line.expect("the key").trim().trim_matches('"').to_owned()
    };
    let channel = value(&read("rust-toolchain.toml"), "channel");
    let parts: Vec<&str> = channel.split('.').collect();
    let is_exact = parts.len() == 3 && parts.iter().all(|part| part.parse::<u16>().is_ok());
    assert!(is_exact, "rust-toolchain.toml: channel: {channel:?}: not MAJOR.MINOR.PATCH");
    let oldest = value(&read("Cargo.toml"), "rust-version");
    assert!(channel.starts_with(&format!("{oldest}.")), "rust-version is {oldest}, the toolchain {channel}");
}

#[test]
fn released_programs_contain_no_path_of_the_builder() {
    let Some(programs) = released() else { return };
    let of_environment = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let home = of_environment("HOME").filter(|home| home.components().count() > 1);
    let cargo = of_environment("CARGO_HOME").or_else(|| home.as_ref().map(|home| home.join(".cargo")));
    for directory in [home, cargo, Some(workspace())].into_iter().flatten() {
        let needle = format!("{}/", directory.display()).into_bytes();
        for (path, bytes, _) in &programs {
            let found = bytes.windows(needle.len()).any(|part| part == needle);
            assert!(!found, "{} contains {}", path.display(), directory.display());
        }
    }
}

#[test]
fn released_programs_have_the_documented_elf_type() {
    let Some(programs) = released() else { return };
    for (path, bytes, kind) in programs {
        let is = u16::from_le_bytes([bytes[TYPE_AT], bytes[TYPE_AT + 1]]);
        assert_eq!(is, kind, "{}: docs/security.md, \"Programs\"", path.display());
    }
}
