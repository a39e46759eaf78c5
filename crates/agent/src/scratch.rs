//! A private directory for as long as a command runs.
//!
//! Rules: mode 0700, made anew or not at all, in `/run`, where only root writes; it goes with the value, also when
//! the command fails. It is locked as long as its owner lives: one whose lock is free was left by a command
//! that was killed, and the next one of its kind takes it over to clear it away.
//!
//! Source: flock(2): a lock ends with the process, however that ends.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::failure::Failure;
use crate::privilege;

/// Where it is made.
const PARENT: &str = "/run";

/// The directory.
#[must_use = "it goes when this is dropped"]
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    _lock: File,
}

impl Scratch {
    /// Makes `/run/NAME`; one that was abandoned is replaced. `busy` is what it means that there is a living one.
    pub(crate) fn new(name: &str, busy: &str) -> Result<Scratch, Failure> {
        let path = Path::new(PARENT).join(name);
        // Locked before it has its name: whoever sees it sees that it is in use.
        let hidden = Path::new(PARENT).join(format!(".{name}.{}", std::process::id()));
        let made = make(&hidden).and_then(|()| lock(&hidden)).and_then(|lock| {
            if let Ok(abandoned) = Scratch::take_over(&path) {
                drop(abandoned);
            }
            // Renaming does not replace a directory that has something in it.
            match path.exists() {
                true => Err(ErrorKind::AlreadyExists.into()),
                false => fs::rename(&hidden, &path).map(|()| lock),
            }
        });
        match made {
            Ok(lock) => Ok(Scratch { path, _lock: lock }),
            Err(cause) => {
                // Best effort: the error that matters is the one we return.
                let _ = fs::remove_dir(&hidden);
                Err(match cause.kind() {
                    ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty => Failure::new(busy),
                    _ => privilege::refused(&format!("create {}", path.display()), &cause),
                })
            }
        }
    }

    fn take_over(path: &Path) -> io::Result<Scratch> {
        Ok(Scratch { path: path.to_owned(), _lock: lock(path)? })
    }

    /// Those whose name begins with `prefix` and whose owners are gone.
    pub(crate) fn abandoned(prefix: &str) -> Vec<Scratch> {
        let found = fs::read_dir(PARENT).into_iter().flatten().flatten();
        let named = found.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
        let paths = named.map(|entry| entry.path()).filter(|path| path.is_dir());
        paths.filter_map(|path| Scratch::take_over(&path).ok()).collect()
    }

    /// Its name.
    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory in it.
    fn directory(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.path.join(name);
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
        match fs::remove_dir_all(&self.path) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => {
                Err(Failure::new(format!("remove {}: {cause}", self.path.display())))
            }
            _ => Ok(()),
        }
    }
}

fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Taken at once or not at all.
fn lock(path: &Path) -> io::Result<File> {
    let directory = File::open(path)?;
    rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
    Ok(directory)
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Who wants to know calls `remove`.
        let _ = self.remove();
    }
}
