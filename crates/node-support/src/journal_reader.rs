//! Reader for the meta-plugin's journal: one file for each sandbox.
//!
//! It changes nothing. An unreadable entry is reported and does not hide the others.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use cni::name::ContainerId;
use cni::{Context, Error};
use rpc::journal::{ENTRY_MAX, Entry};

use cli_support::failure::Failure;
use cli_support::privilege;

/// Directory with journal entries.
#[derive(Clone, Debug)]
pub struct Journal(PathBuf);

/// Journal file, readable or not.
#[derive(Debug)]
pub enum Row {
    /// Entry that could be read.
    Entry(Box<Entry>),
    /// Entry that cannot be read.
    Broken {
        /// Container id, from the file name.
        container: String,
        /// Why it cannot be read.
        error: Error,
    },
}

// === impl Journal ===

impl Journal {
    /// Returns the journal in a directory, which need not exist.
    pub fn at(directory: &Path) -> Journal {
        Journal(directory.to_owned())
    }

    /// Returns the journal directory.
    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// Returns the path that a sandbox's file has.
    pub fn file(&self, container: &ContainerId) -> PathBuf {
        self.0.join(format!("{container}.json"))
    }

    /// Returns a sandbox's entry, if there is one.
    pub fn entry(&self, container: &ContainerId) -> Result<Option<Entry>, Failure> {
        let path = self.file(container);
        match read(&path) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(privilege::refused(&format!("journal: read {}", path.display()), &cause)),
            Ok(bytes) => Ok(Some(
                decode(&bytes, container.as_str()).context(format_args!("journal: {}", path.display()))?,
            )),
        }
    }

    /// Returns every entry, sorted by container id.
    pub fn rows(&self) -> Result<Vec<Row>, Failure> {
        Ok(self.containers()?.into_iter().filter_map(|container| self.row(container)).collect())
    }

    /// Returns the files to which a DEL renamed unreadable entries, sorted.
    pub fn renamed(&self) -> Result<Vec<PathBuf>, Failure> {
        let names = self.names()?.into_iter().filter(|name| name.contains(".json.unreadable"));
        let mut renamed: Vec<PathBuf> = names.map(|name| self.0.join(name)).collect();
        renamed.sort();
        Ok(renamed)
    }

    /// Returns the container ids that have an entry, sorted.
    pub(crate) fn containers(&self) -> Result<Vec<String>, Failure> {
        // A hidden file is still being written.
        let names = self.names()?.into_iter().filter(|name| !name.starts_with('.'));
        let mut containers: Vec<String> =
            names.filter_map(|name| name.strip_suffix(".json").map(str::to_owned)).collect();
        containers.sort();
        Ok(containers)
    }

    /// Returns all file names.
    fn names(&self) -> Result<Vec<String>, Failure> {
        let failed = |cause| privilege::refused(&format!("journal: read {}", self.0.display()), &cause);
        let files = match fs::read_dir(&self.0) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            files => files.map_err(failed)?,
        };
        files
            .map(|file| file.map(|file| file.file_name().to_string_lossy().into_owned()).map_err(failed))
            .collect()
    }

    /// Returns a sandbox's entry; `None` if it was removed meanwhile.
    pub(crate) fn row(&self, container: String) -> Option<Row> {
        let path = self.0.join(format!("{container}.json"));
        let entry = match read(&path) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => return None,
            Err(cause) => Err(Error::io("unreadable", cause)),
            Ok(bytes) => decode(&bytes, &container),
        };
        Some(match entry {
            Ok(entry) => Row::Entry(Box::new(entry)),
            Err(error) => Row::Broken { container, error },
        })
    }
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(ENTRY_MAX + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > ENTRY_MAX {
        true => Err(std::io::Error::other(format!("larger than {ENTRY_MAX} bytes"))),
        false => Ok(bytes),
    }
}

fn decode(bytes: &[u8], container: &str) -> Result<Entry, Error> {
    let entry = Entry::read(bytes)?;
    match entry.container_id.as_str() == container {
        true => Ok(entry),
        false => Err(Error::internal(format!("the entry is of sandbox {}", entry.container_id))),
    }
}
