//! Program files: which are `weft-cni`, and which program a plugin name leads to.
//!
//! - A file is `weft-cni` if it is this process's file, or if the build id begins with the program's name (`build.rs`).
//!   A copy, a link, another name and another version are recognized; the directory does not matter.
//! - Only a file's ELF header, program headers and notes are read, and only if it is not this file.
//!
//! Source: ELF-64 object file format; `elf(5)`.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use cni::name::PluginType;
use rpc::journal::ProgramFile;

use crate::builtins;

/// Beginning of the build id.
const BUILD_ID: &[u8] = b"weft-cni";
/// Size that the header has, and an entry in the program header table.
const HEADER: usize = 64;
const ENTRY: usize = 56;
/// Maximum number of program headers, and of note bytes, that are read.
const ENTRIES_MAX: usize = 32;
const NOTES_MAX: usize = 4096;
/// Type that a program header for notes has, and the note with the build id.
const PT_NOTE: u32 = 4;
const BUILD_ID_NOTE: u32 = 3;

/// Program that a plugin name leads to in the plugin directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// `weft-cni`, under the plugin's name or under one of the usual names in the same directory.
    Weft,
    /// A program that is not weft's.
    External(ProgramFile),
}

/// Returns the program for a plugin name: the first directory in `path` decides that has a file with the name or, with
/// [`ByName::OrBeside`], `weft-cni` under any of the usual names.
#[must_use]
pub fn search(plugin: &PluginType, path: &str, by_name: ByName) -> Option<Found> {
    let own = identity(Path::new("/proc/self/exe"));
    let usual: &[&str] = match by_name {
        ByName::Required => &[],
        ByName::OrBeside => &[builtins::PROGRAM, "weft", "multus"],
    };
    for directory in path.split(':').filter(|directory| !directory.is_empty()).map(Path::new) {
        let file = directory.join(plugin.as_str());
        let named = ProgramFile::at(&file);
        // The file of this process needs no look into it.
        let is_own = |file: &Path| own.is_some() && identity(file) == own;
        let beside = || usual.iter().map(|name| directory.join(name));
        if named.is_some() && is_own(&file) || beside().any(|file| is_own(&file)) {
            return Some(Found::Weft);
        }
        if named.is_some() && is_weft(&file) || beside().any(|file| is_weft(&file)) {
            return Some(Found::Weft);
        }
        if let Some(file) = named {
            return Some(Found::External(file));
        }
    }
    None
}

/// Whether `weft-cni` serves a plugin only under the plugin's own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByName {
    /// `weft-cni` must have the plugin's name.
    Required,
    /// It may also lie beside, under one of the usual names.
    OrBeside,
}

/// Whether the file at a path is `weft-cni`, in any version.
#[must_use]
pub fn is_weft(path: &Path) -> bool {
    let Some(file) = identity(path) else { return false };
    Some(file) == identity(Path::new("/proc/self/exe")) || has_build_id(path).unwrap_or(false)
}

/// Returns a regular file's device and inode.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|meta| (meta.dev(), meta.ino()))
}

/// Whether a file has weft-cni's build id; `None` if it has none.
fn has_build_id(path: &Path) -> Option<bool> {
    let file = File::open(path).ok()?;
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, 0).ok()?;
    // Both architectures that weft is built for are of 64 bits and little-endian.
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, count) = (number(&header, 32, 8)?, usize::try_from(number(&header, 56, 2)?).ok()?);
    if number(&header, 54, 2)? != ENTRY as u64 || count > ENTRIES_MAX {
        return None;
    }
    let mut entries = vec![0; count * ENTRY];
    file.read_exact_at(&mut entries, table).ok()?;
    for entry in entries.chunks_exact(ENTRY).filter(|entry| number(entry, 0, 4) == Some(u64::from(PT_NOTE))) {
        let size = usize::try_from(number(entry, 32, 8)?).ok()?.min(NOTES_MAX);
        let mut notes = vec![0; size];
        file.read_exact_at(&mut notes, number(entry, 8, 8)?).ok()?;
        if let Some(id) = build_id(&notes, number(entry, 48, 8)?) {
            return Some(id.starts_with(BUILD_ID));
        }
    }
    None
}

/// Returns the build id among notes whose parts have this alignment.
fn build_id(mut notes: &[u8], align: u64) -> Option<&[u8]> {
    let align = if align == 8 { 8 } else { 4 };
    let padded = |size: u64| usize::try_from(size).ok().map(|size| size.next_multiple_of(align));
    while notes.len() >= 12 {
        let (name, description) = (number(notes, 0, 4)?, number(notes, 4, 4)?);
        let (kind, rest) = (number(notes, 8, 4)?, notes.get(12..)?);
        // The name follows the three numbers; both parts begin at a multiple of the alignment from the note's beginning.
        let begin = padded(12 + name)? - 12;
        let end = begin.checked_add(usize::try_from(description).ok()?)?;
        let content = rest.get(begin..end)?;
        if kind == u64::from(BUILD_ID_NOTE) && rest.starts_with(b"GNU\0") {
            return Some(content);
        }
        notes = rest.get(begin.checked_add(padded(description)?)?..)?;
    }
    None
}

/// Reads a little-endian number.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + size)?;
    Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a note.
    fn note(kind: u32, name: &[u8], content: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        for value in [name.len() as u32, content.len() as u32, kind] {
            note.extend(value.to_le_bytes());
        }
        for part in [name, content] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn program_file_build_id_is_found_among_other_notes() {
        let notes = [note(1, b"GNU\0", &[0; 16]), note(3, b"GNU\0", b"weft-cni\x01\x02")].concat();
        assert_eq!(build_id(&notes, 4), Some(&b"weft-cni\x01\x02"[..]));
        let other = [note(4, b"Go\0\0", b"a/b/c"), note(3, b"Go\0\0", b"weft-cni")].concat();
        assert_eq!(build_id(&other, 4), None, "a note of another owner");
        for end in 0..notes.len() {
            let id = build_id(&notes[..end], 4);
            assert!(id.is_none_or(|id| id == b"weft-cni\x01\x02"), "{end} bytes");
        }
        let huge = [&u32::MAX.to_le_bytes()[..], &u32::MAX.to_le_bytes(), &[3, 0, 0, 0], b"GNU\0"].concat();
        assert_eq!(build_id(&huge, 4), None);
    }

    #[test]
    fn program_file_that_is_no_elf_file_is_not_weft() {
        let directory = std::env::temp_dir().join(format!("weft-program-file-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("bridge");
        for content in
            [&b""[..], b"#!/bin/sh\n", b"\x7fELF\x02\x01", &[&b"\x7fELF\x02\x01"[..], &[0xff; 200]].concat()]
        {
            fs::write(&path, content).unwrap();
            assert!(!is_weft(&path), "{content:?}");
        }
        fs::copy("/proc/self/exe", &path).unwrap();
        assert!(!is_weft(&path), "the test program is not weft-cni");
        assert!(is_weft(Path::new("/proc/self/exe")), "the file of this process is");
        assert!(!is_weft(&directory) && !is_weft(&directory.join("absent")));
        fs::remove_dir_all(&directory).unwrap();
    }
}
