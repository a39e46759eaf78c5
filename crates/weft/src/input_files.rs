//! Files given with `-f`: manifests and CNI configurations.
//!
//! - In a directory, only files with a known extension are read, sorted by name. Subdirectories are not read,
//!   as with `kubectl`.
//! - A file that is named itself may have any name, and may be a pipe; `-` is standard input.
//! - A `.json` file is a manifest if it has `kind` or `apiVersion`, else a CNI configuration.

use std::fs::{self, File as Open};
use std::io::{BufReader, Chain, Cursor, Read};
use std::path::{Path, PathBuf};

use cni::object::{DOCUMENT_MAX, Object};

use cli_support::failure::Failure;

/// Maximum number of files in one directory.
const FILES_MAX: usize = 10_000;

/// Name for standard input, as in kubectl, and the file behind it.
const STDIN: &str = "-";
const STDIN_FILE: &str = "/dev/stdin";

const MANIFESTS: &[&str] = &["yaml", "yml"];
const CONFIGURATIONS: &[&str] = &["conflist", "configlist", "conf", "config"];

/// File that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    /// Path as given on the command line, or below the directory given there.
    pub(crate) path: PathBuf,
    /// File text.
    pub(crate) text: String,
    /// Kind of content.
    pub(crate) kind: Kind,
}

/// Kind of content in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Kubernetes objects.
    Manifest,
    /// CNI configuration: one plugin, or a list.
    Configuration,
}

/// File, or the beginning of a long manifest.
#[derive(Debug)]
pub(crate) enum Input {
    /// File and content.
    Whole(File),
    /// Path and content for a manifest that is longer than a document may be.
    Long(PathBuf, BufReader<Chain<Cursor<Vec<u8>>, Open>>),
}

/// Reads the given files and those in the given directories.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<File>, Failure> {
    let mut files = Vec::new();
    for path in expand(paths)? {
        match open(&path)? {
            Input::Whole(file) => files.push(file),
            Input::Long(path, _) => return Err(too_long(&path)),
        }
    }
    Ok(files)
}

/// Returns the given files and those in the given directories.
pub(crate) fn expand(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        match path.is_dir() {
            false => files.push(path.clone()),
            true => {
                let files_found = files_in(path)?;
                if files_found.is_empty() {
                    let why =
                        format!("{}: no manifest and no CNI configuration in this directory", path.display());
                    let next =
                        "files with .yaml, .yml, .json, .conf or .conflist are read; subdirectories are not";
                    return Err(Failure::new(why).next(next));
                }
                files.extend(files_found);
            }
        }
    }
    Ok(files)
}

/// Reads a file, or the beginning of a long manifest.
pub(crate) fn open(path: &Path) -> Result<Input, Failure> {
    let failed = |why: &dyn std::fmt::Display| Failure::new(format!("read {}: {why}", path.display()));
    let mut bytes = Vec::new();
    let path = if path == Path::new(STDIN) { Path::new(STDIN_FILE) } else { path };
    let mut file = Open::open(path).map_err(|cause| failed(&cause))?;
    let read = file.by_ref().take(DOCUMENT_MAX as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|cause| failed(&cause))?;
    if bytes.len() > DOCUMENT_MAX {
        return match CONFIGURATIONS.contains(&extension(path)) {
            true => Err(too_long(path)),
            false => Ok(Input::Long(path.to_owned(), BufReader::new(Cursor::new(bytes).chain(file)))),
        };
    }
    let text = String::from_utf8(bytes).map_err(|_| failed(&"not UTF-8"))?;
    Ok(Input::Whole(File { path: path.to_owned(), kind: kind(path, &text), text }))
}

/// Returns the error for a file that must be read whole.
pub(crate) fn too_long(path: &Path) -> Failure {
    Failure::new(format!("read {}: larger than {DOCUMENT_MAX} bytes", path.display()))
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

fn kind(path: &Path, text: &str) -> Kind {
    let extension = extension(path);
    if CONFIGURATIONS.contains(&extension) {
        return Kind::Configuration;
    }
    let object = match MANIFESTS.contains(&extension) {
        true => None,
        false => Object::parse(text.as_bytes(), "file").ok(),
    };
    match object {
        Some(object) if !object.contains("kind") && !object.contains("apiVersion") => Kind::Configuration,
        _ => Kind::Manifest,
    }
}

fn files_in(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |cause| Failure::new(format!("read {}: {cause}", directory.display()));
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let extension = extension(&path);
        let is_known =
            extension == "json" || MANIFESTS.contains(&extension) || CONFIGURATIONS.contains(&extension);
        // The metadata of the target of a link: opening a FIFO would block.
        if is_known && fs::metadata(&path).is_ok_and(|metadata| metadata.is_file()) {
            files.push(path);
        }
        if files.len() > FILES_MAX {
            return Err(Failure::new(format!("{}: more than {FILES_MAX} files", directory.display())));
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_file_kind_follows_extension_or_content() {
        let pod = r#"{"apiVersion":"v1","kind":"Pod"}"#;
        let plugin = r#"{"name":"a","type":"bridge"}"#;
        for (name, text, expected) in [
            ("a.yaml", plugin, Kind::Manifest),
            ("a.yml", "", Kind::Manifest),
            ("a.conf", pod, Kind::Configuration),
            ("a.conflist", "{", Kind::Configuration),
            ("a.json", pod, Kind::Manifest),
            ("a.json", plugin, Kind::Configuration),
            ("a.json", "{", Kind::Manifest),
            ("stdin", plugin, Kind::Configuration),
            ("stdin", "kind: Pod", Kind::Manifest),
        ] {
            assert_eq!(kind(Path::new(name), text), expected, "{name} {text}");
        }
    }

    #[test]
    fn input_file_unreadable_is_named_in_the_error() {
        let failure = read(&["/nonexistent/weft.yaml".into()]).unwrap_err().to_string();
        assert!(failure.starts_with("read /nonexistent/weft.yaml: "), "{failure}");
    }
}
