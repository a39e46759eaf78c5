//! Test that imports between the files of a crate form no cycle.
//!
//! The children of one module are compared with each other. A child stands for its file and the files of its own submodules, so
//! a file and its submodules may import each other. An import from one child's files to another's is an edge.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use testkit::workspace;

use crate::crates::targets;
use crate::modules::{ModulePath, Modules};

/// Crates that still have cycles. A crate without one may not be listed.
const CYCLES_LEFT: &[&str] = &["agent", "cni", "ipam", "plugins"];

#[test]
fn no_import_cycle_is_larger_than_a_file_and_its_submodules() {
    let mut found = Vec::new();
    let mut left = BTreeSet::new();
    for (package, root) in targets() {
        let cycles = cycles(&Modules::read(&root));
        if CYCLES_LEFT.contains(&package.as_str()) {
            left.extend((!cycles.is_empty()).then_some(package));
            continue;
        }
        found.extend(cycles.into_iter().map(|files| format!("{package}: {}", names(&files))));
    }
    found.dedup();
    assert!(found.is_empty(), "files that import each other in a cycle:\n{}", found.join("\n"));
    let clean = CYCLES_LEFT.iter().find(|name| !left.contains(**name));
    assert_eq!(clean, None, "this crate has no cycle any more: remove it from CYCLES_LEFT");
}

/// Names of files below the root of the tree.
fn names(files: &[PathBuf]) -> String {
    let root = workspace();
    let short = |file: &PathBuf| file.strip_prefix(&root).unwrap_or(file).display().to_string();
    Vec::from_iter(files.iter().map(short)).join(" ")
}

/// Groups of files that import each other in a cycle.
fn cycles(modules: &Modules) -> Vec<Vec<PathBuf>> {
    let imports = modules.imports();
    let files: BTreeMap<&ModulePath, &Path> = modules.files().collect();
    let below = |parent: &&ModulePath| {
        let of = |name: String| files[&[(*parent).clone(), vec![name]].concat()].to_owned();
        let groups = components(&children(parent, &imports));
        groups.into_iter().map(|group| group.into_iter().map(of).collect()).collect::<Vec<_>>()
    };
    files.keys().flat_map(below).collect()
}

/// Imports between the children of one module, by their names.
fn children(
    parent: &ModulePath,
    imports: &BTreeSet<(ModulePath, ModulePath)>,
) -> BTreeMap<String, BTreeSet<String>> {
    let depth = parent.len();
    let child = |path: &ModulePath| path.starts_with(parent).then(|| path.get(depth).cloned()).flatten();
    let mut graph = BTreeMap::<String, BTreeSet<String>>::new();
    for (from, to) in imports {
        if let (Some(from), Some(to)) = (child(from), child(to))
            && from != to
        {
            graph.entry(from).or_default().insert(to);
        }
    }
    graph
}

/// Groups of more than one name that reach each other.
fn components(graph: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|name| (name, reachable(graph, name))).collect();
    let mut found = BTreeSet::new();
    for (name, others) in &reached {
        let reaches_back = |other: &&&String| reached.get(**other).is_some_and(|back| back.contains(*name));
        let group: Vec<String> = others.iter().filter(reaches_back).map(|other| (*other).clone()).collect();
        if group.len() > 1 {
            found.insert(group);
        }
    }
    found.into_iter().collect()
}

fn reachable<'a>(graph: &'a BTreeMap<String, BTreeSet<String>>, from: &'a String) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![from];
    while let Some(name) = waiting.pop() {
        for other in graph.get(name).into_iter().flatten() {
            if found.insert(other) {
                waiting.push(other);
            }
        }
    }
    found
}

#[test]
fn cycles_are_found_through_reexports_and_not_between_a_file_and_its_submodules() {
    let directory = std::env::temp_dir().join(format!("weft-cycles-{}", std::process::id()));
    fs::create_dir_all(directory.join("a")).expect("a directory");
    let write = |name: &str, source: &str| fs::write(directory.join(name), source).expect("a file");
    write("lib.rs", "mod a; mod b; mod c; pub use b::{B, other::O as P};");
    write("a.rs", "mod x; pub struct A; use x::X; fn f() { crate::P::new() }");
    write("a/x.rs", "use super::A; pub struct X;");
    write(
        "b.rs",
        "pub struct B; #[cfg(test)] mod tests { use crate::c::C; } pub mod other { use crate::a::A; }",
    );
    write("c.rs", "pub struct C; use crate::B;");
    let found = cycles(&Modules::read(&directory.join("lib.rs")));
    write("b.rs", "pub struct B; pub mod other {}");
    let cut = cycles(&Modules::read(&directory.join("lib.rs")));
    fs::remove_dir_all(&directory).expect("the directory");
    assert_eq!(found, [[directory.join("a.rs"), directory.join("b.rs")]]);
    assert_eq!(cut, Vec::<Vec<PathBuf>>::new());
}
