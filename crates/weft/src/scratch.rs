//! A private directory for as long as a command runs.
//!
//! Rules: mode 0700, made anew or not at all, in `/run`, where only root writes; it goes with the value, also when
//! the command fails. It is locked as long as its owner lives: one whose lock is free was left by a command
//! that was killed, and the next one of its kind takes it over to clear it away.
//!
//! Source: flock(2): a lock ends with the process, however that ends.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags};

use cli_support::failure::Failure;
use cli_support::privilege;

/// Where it is made.
const PARENT: &str = "/run";

/// The directory.
#[must_use = "it goes when this is dropped"]
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    end: End,
    _lock: File,
}

/// What becomes of it with the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Removed,
    /// For the next command of its kind, as if this one had been killed.
    Kept,
}

impl Scratch {
    /// Makes `/run/NAME`; one that was abandoned is replaced. `busy` is what it means that there is a living one.
    pub(crate) fn new(name: &str, busy: &str) -> Result<Scratch, Failure> {
        let path = Path::new(PARENT).join(name);
        // Locked before it has its name: whoever sees it sees that it is in use.
        let hidden = Path::new(PARENT).join(format!(".{name}.{}", std::process::id()));
        match Scratch::take(&hidden, &path) {
            Ok(scratch) => Ok(scratch),
            Err(cause) => {
                // Best effort: the error that matters is the one we return.
                let _ = fs::remove_dir(&hidden);
                Err(match cause.kind() {
                    ErrorKind::AlreadyExists => Failure::new(busy),
                    _ => privilege::refused(&format!("create {}", path.display()), &cause),
                })
            }
        }
    }

    /// Makes `hidden` and gives it the name `path`, unless a living one has that.
    fn take(hidden: &Path, path: &Path) -> io::Result<Scratch> {
        make(hidden)?;
        let lock = lock(hidden)?;
        if let Ok(abandoned) = Scratch::take_over(path) {
            drop(abandoned);
        }
        // A living one has nothing in it yet, for a moment: a plain rename would replace it.
        rustix::fs::renameat_with(CWD, hidden, CWD, path, RenameFlags::NOREPLACE)?;
        Ok(Scratch { path: path.to_owned(), end: End::Removed, _lock: lock })
    }

    fn take_over(path: &Path) -> io::Result<Scratch> {
        Ok(Scratch { path: path.to_owned(), end: End::Removed, _lock: lock(path)? })
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

    /// Leaves it to the next command of its kind: there is something yet that is found by it.
    pub(crate) fn keep(mut self) {
        self.end = End::Kept;
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

/// Taken at once or not at all; and only of what still has this name.
fn lock(path: &Path) -> io::Result<File> {
    let directory = File::open(path)?;
    rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
    // Whoever had the lock before may have removed it, and another one taken its place.
    match directory.metadata()?.ino() == fs::metadata(path)?.ino() {
        true => Ok(directory),
        false => Err(ErrorKind::WouldBlock.into()),
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Who wants to know calls `remove`.
        if self.end == End::Removed {
            let _ = self.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn of_many_at_once_one_gets_the_directory_and_keeps_it() {
        // Only root may make one.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let name = format!("weft-test-scratch-{}", std::process::id());
        let path = Path::new(PARENT).join(&name);
        for _ in 0..50 {
            // What a killed command has left.
            make(&path).unwrap();
            let made = race(&path);
            assert_eq!(made, 1);
            assert!(!path.exists());
        }
    }

    #[test]
    fn one_that_is_kept_is_the_next_ones_to_remove() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let name = format!("weft-test-kept-{}", std::process::id());
        let path = Path::new(PARENT).join(&name);
        Scratch::new(&name, "busy").unwrap().keep();
        assert!(path.exists());
        let found = Scratch::abandoned(&name);
        assert_eq!(found.iter().map(Scratch::name).collect::<Vec<_>>(), [name]);
        drop(found);
        assert!(!path.exists());
    }

    /// Several takers, each as its own process would be; how many of them got it.
    fn race(path: &Path) -> usize {
        const TAKERS: usize = 4;
        let (start, end) = (Barrier::new(TAKERS), Barrier::new(TAKERS));
        std::thread::scope(|scope| {
            let take = |number: usize| {
                let hidden = path.with_extension(number.to_string());
                let (start, end) = (&start, &end);
                scope.spawn(move || {
                    start.wait();
                    let taken = Scratch::take(&hidden, path);
                    end.wait();
                    let _ = fs::remove_dir(&hidden);
                    // Whoever has it finds it as its own.
                    taken.is_ok_and(|scratch| scratch.directory("in it").is_ok())
                })
            };
            let takers: Vec<_> = (0..TAKERS).map(take).collect();
            takers.into_iter().map(|taker| usize::from(taker.join().unwrap())).sum()
        })
    }
}
