//! A private directory for as long as a command runs.
//!
//! Rules: mode 0700, made anew or not at all, in `/run`, where only root writes; it goes with the value, also when
//! the command fails.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::privilege;

/// Where it is made.
const PARENT: &str = "/run";

/// The directory.
#[must_use = "it goes when this is dropped"]
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes `/run/NAME`.
    pub(crate) fn new(name: &str) -> Result<Scratch, Failure> {
        let path = Path::new(PARENT).join(name);
        make(&path).map_err(|cause| privilege::refused(&format!("create {}", path.display()), &cause))?;
        Ok(Scratch(path))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes a directory in it.
    fn directory(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.0.join(name);
        make(&path).map_err(|cause| Failure::new(format!("create {}: {cause}", path.display())))?;
        Ok(path)
    }

    /// Writes the texts of manifests into a directory `name` in it, in their order.
    pub(crate) fn manifests<'a>(
        &self,
        name: &str,
        texts: impl Iterator<Item = &'a str>,
    ) -> Result<PathBuf, Failure> {
        let directory = self.directory(name)?;
        for (index, text) in texts.enumerate() {
            let path = directory.join(format!("{index:05}.yaml"));
            let mut options = OpenOptions::new();
            let opened = options.write(true).create_new(true).mode(0o600).open(&path);
            opened
                .and_then(|mut file| file.write_all(text.as_bytes()))
                .map_err(|cause| Failure::new(format!("write {}: {cause}", path.display())))?;
        }
        Ok(directory)
    }

    /// Removes it; what is gone is success.
    pub(crate) fn remove(&self) -> Result<(), Failure> {
        match fs::remove_dir_all(&self.0) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                Err(Failure::new(format!("remove {}: {cause}", self.0.display())))
            }
            _ => Ok(()),
        }
    }
}

fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Who wants to know calls `remove`.
        let _ = self.remove();
    }
}
