//! Lock of a sandbox: one operation at a time, `flock` on a file beside the journal entry.
//!
//! Rules and waiting times are in `docs/design/journal.md`, "Locks". A call that may crash gives the lock file another
//! mode, and restores it only at the end, so the next call sees that it died.
//!
//! Source: CNI 1.1.0 §2; the multi-network specification 7.3; flock(2).

use std::cell::Cell;
use std::fs::{self, File, Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use cni::name::ContainerId;
use cni::{Error, code};
use rustix::fs::{FlockOperation, Mode, fchmod};
use rustix::io::Errno;

/// Timeout for another operation on the same sandbox.
const WAIT_MAX: Duration = Duration::from_secs(90);
/// Longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Mode of a lock file.
const MODE: Mode = Mode::from_raw_mode(0o600);
/// Mode while a call works that may crash. A mode needs no space on a full disk.
const WORKING: Mode = Mode::from_raw_mode(0o700);

/// Name of the lock that a GC and hot-plug changes exclude each other with. No sandbox has this name.
const CHANGES: &str = "changes";

/// A held lock on a sandbox.
#[must_use = "dropping it unlocks"]
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    file: File,
    is_marked: Cell<bool>,
    holder_died: bool,
}

impl Lock {
    /// Acquires the lock of a sandbox; waits up to [`WAIT_MAX`].
    ///
    /// # Errors
    /// Code 11 if another operation does not end in time.
    pub(super) fn acquire(directory: &Path, container: &ContainerId) -> Result<Lock, Error> {
        let started = Instant::now();
        let mut pause = Duration::from_micros(500);
        loop {
            if let Some(lock) = Lock::attempt(directory, container)? {
                return Ok(lock);
            }
            if started.elapsed() >= WAIT_MAX {
                let why = format!("another operation has been running for {} s", WAIT_MAX.as_secs());
                return Err(Error::new(code::TRY_AGAIN_LATER, format!("sandbox {container}: {why}")));
            }
            sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Acquires the lock that prevents changes of running pods.
    ///
    /// # Errors
    /// As for [`Lock::acquire`].
    pub(super) fn changes(directory: &Path) -> Result<Lock, Error> {
        Lock::acquire(directory, &ContainerId::new(CHANGES)?)
    }

    /// Acquires the lock if it is free.
    pub(super) fn attempt(directory: &Path, container: &ContainerId) -> Result<Option<Lock>, Error> {
        let path = directory.join(format!("{container}.lock"));
        loop {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).mode(MODE.as_raw_mode()).open(&path);
            let file = file.map_err(|cause| Error::io(format_args!("lock {}", path.display()), cause))?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(Error::io(format_args!("lock {}", path.display()), errno)),
            }
            if let Some(held) = current(&file, &path) {
                let holder_died = Mode::from_raw_mode(held.mode()).contains(WORKING);
                return Ok(Some(Lock { path, file, is_marked: Cell::new(false), holder_died }));
            }
        }
    }

    /// Whether an earlier holder died with the mark.
    pub(super) fn holder_died(&self) -> bool {
        self.holder_died
    }

    /// Marks the lock until it is dropped, and returns whether an earlier holder died with the mark.
    pub(super) fn mark_work(&self) -> bool {
        // Without the mark, a crash would only repeat.
        self.is_marked.set(fchmod(&self.file, WORKING).is_ok());
        self.holder_died
    }

    /// Removes the lock file of a deleted sandbox, then unlocks.
    pub(super) fn retire(self) {
        // A leftover lock file is harmless: the next operation reuses it.
        let is_removed = fs::remove_file(&self.path).is_ok();
        self.is_marked.set(self.is_marked.get() && !is_removed);
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.is_marked.get() {
            let _ = fchmod(&self.file, MODE);
        }
    }
}

/// Returns the metadata of the locked file if the path still leads to it.
fn current(file: &File, path: &Path) -> Option<Metadata> {
    let (held, named) = (file.metadata().ok()?, fs::metadata(path).ok()?);
    ((held.dev(), held.ino()) == (named.dev(), named.ino())).then_some(held)
}
