//! Test that imports between the files of a crate form no cycle.
//!
//! The children of one module are compared with each other. A child stands for one file and all submodule files below
//! it, so a file and the submodules may import each other. An import from one child's files to another's is an edge.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use testkit::workspace;

use crate::crates::targets;
use crate::modules::{ModulePath, Modules};

/// Crates that still have import cycles. A crate without one may not be listed.
const CYCLES_LEFT: &[&str] = &[];

/// Imports of one cycle: a file, and the file from which it imports.
type Cycle = Vec<(PathBuf, PathBuf)>;

#[test]
fn import_cycles_exist_only_between_a_file_and_its_submodules() {
    let (mut found, mut left) = (BTreeSet::new(), BTreeSet::new());
    for (package, root) in targets() {
        let cycles = cycles(&Modules::read(&root));
        if !CYCLES_LEFT.contains(&package.as_str()) {
            found.extend(cycles.iter().map(shown));
        } else if !cycles.is_empty() {
            left.insert(package);
        }
    }
    let found = Vec::from_iter(found);
    assert!(found.is_empty(), "{} cycles of imports:\n\n{}", found.len(), found.join("\n\n"));
    let clean = CYCLES_LEFT.iter().find(|name| !left.contains(**name));
    assert_eq!(clean, None, "this crate has no cycles: remove it from CYCLES_LEFT");
}

/// Formats the imports of a cycle, one a line, with paths relative to the workspace.
fn shown(cycle: &Cycle) -> String {
    let root = workspace();
    let short = |file: &PathBuf| file.strip_prefix(&root).unwrap_or(file).display().to_string();
    let line = |(from, to): &(PathBuf, PathBuf)| format!("{} imports from {}", short(from), short(to));
    Vec::from_iter(cycle.iter().map(line)).join("\n")
}

/// Returns all cycles; each is between the children of one module.
fn cycles(modules: &Modules) -> Vec<Cycle> {
    let imports = modules.imports();
    let files: BTreeMap<&ModulePath, &Path> = modules.files().collect();
    let file = |path: &ModulePath| files[path].to_owned();
    let mut cycles = Vec::new();
    for parent in files.keys() {
        let between: Vec<_> = imports.iter().filter_map(|import| between_children(parent, import)).collect();
        let mut graph = Graph::new();
        for (from, to) in &between {
            graph.entry(from.child).or_default().insert(to.child);
        }
        for group in components(&graph) {
            let inside =
                between.iter().filter(|(from, to)| group.contains(from.child) && group.contains(to.child));
            cycles.push(inside.map(|(from, to)| (file(from.path), file(to.path))).collect());
        }
    }
    cycles
}

/// Names, and the names from which each of them imports.
type Graph<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Module, and the child of an ancestor module to which it belongs.
struct Descendant<'a> {
    child: &'a str,
    path: &'a ModulePath,
}

/// Returns the import if it leads from one child of `parent` to another.
fn between_children<'a>(
    parent: &ModulePath,
    (from, to): &'a (ModulePath, ModulePath),
) -> Option<(Descendant<'a>, Descendant<'a>)> {
    let descendant = |path: &'a ModulePath| {
        let child = path.get(parent.len()).filter(|_| path.starts_with(parent))?;
        Some(Descendant { child, path })
    };
    let (from, to) = (descendant(from)?, descendant(to)?);
    (from.child != to.child).then_some((from, to))
}

/// Returns groups of more than one name that reach each other.
fn components<'a>(graph: &Graph<'a>) -> BTreeSet<BTreeSet<&'a str>> {
    let reached: Graph<'a> = graph.keys().map(|name| (*name, reachable(graph, name))).collect();
    let group = |(name, others): (&&'a str, &BTreeSet<&'a str>)| {
        let back = |other: &&&str| reached.get(**other).is_some_and(|back| back.contains(name));
        others.iter().filter(back).copied().collect::<BTreeSet<_>>()
    };
    reached.iter().map(group).filter(|group| group.len() > 1).collect()
}

fn reachable<'a>(graph: &Graph<'a>, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![from];
    while let Some(name) = waiting.pop() {
        for other in graph.get(name).into_iter().flatten() {
            if found.insert(*other) {
                waiting.push(other);
            }
        }
    }
    found
}

#[test]
fn import_cycles_are_found_through_reexports() {
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
    let without_cycle = cycles(&Modules::read(&directory.join("lib.rs")));
    fs::remove_dir_all(&directory).expect("the directory");
    let (a, b) = (directory.join("a.rs"), directory.join("b.rs"));
    assert_eq!(found, [[(a.clone(), b.clone()), (b, a)]]);
    assert_eq!(without_cycle, Vec::<Cycle>::new());
}
