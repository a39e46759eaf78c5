//! Files of the tree, as the tests read them.

use std::fs;
use std::path::{Path, PathBuf};

use testkit::workspace;

/// Returns all Rust files in the tree, by path from the root.
pub(crate) fn sources() -> Vec<(String, String)> {
    let root = workspace();
    let mut found = Vec::new();
    let mut waiting: Vec<PathBuf> =
        ["crates", "tests", "benches", "fuzz"].iter().map(|name| root.join(name)).collect();
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() && entry.file_name() != "target" {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(&root).expect("below the root").display().to_string();
                found.push((name, fs::read_to_string(&path).expect("a source file is text")));
            }
        }
    }
    assert!(found.len() > 10, "the tree has too few source files: {found:?}");
    found
}

/// Returns the directories in a directory.
pub(crate) fn directories(parent: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Returns the lines of a source file that are not comments.
pub(crate) fn code_lines(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter(|line| !line.trim_start().starts_with("//"))
}
