//! The files of `-f`: manifests, and CNI configurations among them.
//!
//! Rules: of a directory the files count whose names say what they are, in the order of their names, not those in
//! directories below, as with `kubectl`; a file that is named itself may be anything that can be read, a pipe
//! too; a `.json` file is a manifest if it says its `kind`, else a configuration.

use std::fs::{self, File as Open};
use std::io::Read;
use std::path::{Path, PathBuf};

use cni::object::{DOCUMENT_MAX, Object};

use cli_support::failure::Failure;

/// Most files read from one directory.
const FILES_MAX: usize = 10_000;

const MANIFESTS: &[&str] = &["yaml", "yml"];
const CONFIGURATIONS: &[&str] = &["conflist", "configlist", "conf", "config"];

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    /// As it was named, or found in the directory that was named.
    pub(crate) path: PathBuf,
    /// What is in it.
    pub(crate) text: String,
    /// What it is.
    pub(crate) kind: Kind,
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Kubernetes objects.
    Manifest,
    /// A network: one plugin's configuration, or a list.
    Configuration,
}

/// Reads the named files, and those of the named directories.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<File>, Failure> {
    let mut files = Vec::new();
    for path in paths {
        match path.is_dir() {
            false => files.push(read_file(path)?),
            true => {
                let found = of_directory(path)?;
                if found.is_empty() {
                    let why = format!("{}: no manifest and no CNI configuration is in it", path.display());
                    let known = "looked for are .yaml .yml .json .conf .conflist, not in directories below";
                    return Err(Failure::new(why).next(known));
                }
                for file in found {
                    files.push(read_file(&file)?);
                }
            }
        }
    }
    Ok(files)
}

fn read_file(path: &Path) -> Result<File, Failure> {
    let failed = |why: &dyn std::fmt::Display| Failure::new(format!("read {}: {why}", path.display()));
    let mut bytes = Vec::new();
    Open::open(path)
        .and_then(|file| file.take(DOCUMENT_MAX as u64 + 1).read_to_end(&mut bytes))
        .map_err(|cause| failed(&cause))?;
    if bytes.len() > DOCUMENT_MAX {
        return Err(failed(&format_args!("larger than {DOCUMENT_MAX} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| failed(&"not UTF-8"))?;
    Ok(File { path: path.to_owned(), kind: kind(path, &text), text })
}

fn kind(path: &Path, text: &str) -> Kind {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
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

fn of_directory(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |cause| Failure::new(format!("read {}: {cause}", directory.display()));
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let known =
            extension == "json" || MANIFESTS.contains(&extension) || CONFIGURATIONS.contains(&extension);
        // Metadata follows links: a fifo would hang us.
        if known && fs::metadata(&path).is_ok_and(|metadata| metadata.is_file()) {
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
    fn a_file_is_what_its_name_or_its_content_says() {
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
    fn what_cannot_be_read_is_named() {
        let failure = read(&["/nonexistent/weft.yaml".into()]).unwrap_err().to_string();
        assert!(failure.starts_with("read /nonexistent/weft.yaml: "), "{failure}");
    }
}
