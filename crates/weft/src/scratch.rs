//! Private directory for a running command.
//!
//! - It is in `/run`, where only root writes, has mode 0700, and is never an existing directory.
//! - It is removed when the value is dropped, also if the command fails.
//! - The command that uses a directory holds a lock on it. A directory whose lock is free belongs to a killed command;
//!   the next such command locks and removes it.
//!
//! Source: flock(2): the lock ends with the process.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags};

use cli_support::failure::Failure;
use cli_support::privilege;

/// Parent directory.
const PARENT: &str = "/run";

/// Private directory, locked.
#[must_use = "the directory is removed when this is dropped"]
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    on_drop: OnDrop,
    _lock: File,
}

/// Action when the value is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnDrop {
    Remove,
    /// Keep the directory for the next such command, as after a kill.
    Keep,
}

impl Scratch {
    /// Creates `/run/NAME`, and replaces an abandoned one. `busy` is the error if another command holds it.
    pub(crate) fn new(name: &str, busy: &str) -> Result<Scratch, Failure> {
        let path = Path::new(PARENT).join(name);
        // Lock it under a hidden name, so the visible name is never unlocked.
        let hidden = Path::new(PARENT).join(format!(".{name}.{}", std::process::id()));
        match Scratch::create_locked(&hidden, &path) {
            Ok(scratch) => Ok(scratch),
            Err(cause) => {
                // Best effort; the caller needs the first error.
                let _ = fs::remove_dir(&hidden);
                Err(match cause.kind() {
                    ErrorKind::AlreadyExists => Failure::new(busy),
                    _ => privilege::refused(&format!("create {}", path.display()), &cause),
                })
            }
        }
    }

    /// Creates and locks `hidden`, and renames it to `path` unless a running command holds that name.
    fn create_locked(hidden: &Path, path: &Path) -> io::Result<Scratch> {
        make(hidden)?;
        let lock = lock(hidden)?;
        if let Ok(abandoned) = Scratch::lock_abandoned(path) {
            drop(abandoned);
        }
        // Another directory may just have been created and be empty; a plain rename would replace it.
        rustix::fs::renameat_with(CWD, hidden, CWD, path, RenameFlags::NOREPLACE)?;
        Ok(Scratch { path: path.to_owned(), on_drop: OnDrop::Remove, _lock: lock })
    }

    fn lock_abandoned(path: &Path) -> io::Result<Scratch> {
        Ok(Scratch { path: path.to_owned(), on_drop: OnDrop::Remove, _lock: lock(path)? })
    }

    /// Returns the directories whose name begins with `prefix` and whose commands have ended.
    pub(crate) fn abandoned(prefix: &str) -> Vec<Scratch> {
        let entries = fs::read_dir(PARENT).into_iter().flatten().flatten();
        let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
        let paths = named.map(|entry| entry.path()).filter(|path| path.is_dir());
        paths.filter_map(|path| Scratch::lock_abandoned(&path).ok()).collect()
    }

    /// Returns these directories' names, and keeps them.
    pub(crate) fn abandoned_names(prefix: &str) -> Vec<String> {
        let kept = |scratch: Scratch| {
            let name = scratch.name();
            scratch.keep();
            name
        };
        let mut names: Vec<String> = Scratch::abandoned(prefix).into_iter().map(kept).collect();
        names.sort();
        names
    }

    /// Returns the directory's name.
    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Returns the directory's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a subdirectory.
    fn directory(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.path.join(name);
        make(&path).map_err(|cause| Failure::new(format!("create {}: {cause}", path.display())))?;
        Ok(path)
    }

    /// Writes manifests into a subdirectory `name`, in order.
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

    /// Keeps the directory for the next such command, which finds the remaining resources through it.
    pub(crate) fn keep(mut self) {
        self.on_drop = OnDrop::Keep;
    }

    /// Removes the directory. A missing directory is not an error.
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

/// Locks a directory without waiting. Fails if the path now names another directory.
fn lock(path: &Path) -> io::Result<File> {
    let directory = File::open(path)?;
    rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
    // The previous owner may have removed the directory, and another command may have created it again.
    match directory.metadata()?.ino() == fs::metadata(path)?.ino() {
        true => Ok(directory),
        false => Err(ErrorKind::WouldBlock.into()),
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Callers that need the error call `remove`.
        if self.on_drop == OnDrop::Remove {
            let _ = self.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn scratch_directory_race_has_one_winner() {
        // Only root may create directories in /run.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let name = format!("weft-test-scratch-{}", std::process::id());
        let path = Path::new(PARENT).join(&name);
        for _ in 0..50 {
            // A directory left by a killed command.
            make(&path).unwrap();
            let made = race(&path);
            assert_eq!(made, 1);
            assert!(!path.exists());
        }
    }

    #[test]
    fn scratch_directory_kept_is_removed_by_the_next_command() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let name = format!("weft-test-kept-{}", std::process::id());
        let path = Path::new(PARENT).join(&name);
        Scratch::new(&name, "busy").unwrap().keep();
        assert!(path.exists());
        let entries = Scratch::abandoned(&name);
        assert_eq!(entries.iter().map(Scratch::name).collect::<Vec<_>>(), [name]);
        drop(entries);
        assert!(!path.exists());
    }

    /// Runs several concurrent attempts, each as a process of its own would do, and returns the number of winners.
    fn race(path: &Path) -> usize {
        const ATTEMPTS: usize = 4;
        let (start, end) = (Barrier::new(ATTEMPTS), Barrier::new(ATTEMPTS));
        std::thread::scope(|scope| {
            let create_locked = |number: usize| {
                let hidden = path.with_extension(number.to_string());
                let (start, end) = (&start, &end);
                scope.spawn(move || {
                    start.wait();
                    let created = Scratch::create_locked(&hidden, path);
                    end.wait();
                    let _ = fs::remove_dir(&hidden);
                    // The winner can use its directory.
                    created.is_ok_and(|scratch| scratch.directory("in it").is_ok())
                })
            };
            let attempts: Vec<_> = (0..ATTEMPTS).map(create_locked).collect();
            attempts.into_iter().map(|attempt| usize::from(attempt.join().unwrap())).sum()
        })
    }
}
