//! Files of the journal: one entry for each sandbox, written durably before the first effect.
//!
//! The format is [`rpc::journal`]; order of writes, fsync, and the states after a crash are in `docs/design/journal.md`.
//! An entry that cannot be decoded is never overwritten and never removed: a DEL renames it.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cni::name::ContainerId;
use cni::{Context, Error, code};
use linux::boot_id;
use plugin_support::{file, log};
use rpc::journal::{ENTRIES, ENTRY_MAX, Entry};
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Maximum number of unreadable entries that are kept for one sandbox.
const ASIDE_MAX: usize = 16;

/// Journal of this node.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    directory: PathBuf,
}

impl Journal {
    /// Opens the journal below `directory` (`/var/lib/weft`, or `cniDir`); creates it if it does not exist.
    pub(super) fn open(directory: &Path) -> Result<Journal, Error> {
        let directory = directory.join(ENTRIES);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(|cause| Error::io(format_args!("journal: create {}", directory.display()), cause))?;
        Ok(Journal { directory })
    }

    /// Returns the directory of entries and locks.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the entry of a sandbox, if it has one.
    ///
    /// # Errors
    /// The entry exists and cannot be used.
    pub(super) fn read(&self, container: &ContainerId) -> Result<Option<Entry>, Error> {
        let path = self.file(container);
        let Some(bytes) = read_bounded(&path)? else { return Ok(None) };
        let mut entry = Entry::read(&bytes).context(format_args!("journal: {}", path.display()))?;
        if entry.container_id != *container || entry.attachments.len() < entry.plan.delegates.len() {
            let why = format!(
                "journal: {}: unreadable: it is of sandbox {}, with {} of {} attachments",
                path.display(),
                entry.container_id,
                entry.attachments.len(),
                entry.plan.delegates.len()
            );
            return Err(Error::new(code::DECODING_FAILURE, why));
        }
        if entry.is_interrupted() {
            entry.note_never_begun(boot_id::current().unwrap_or_default());
        }
        Ok(Some(entry))
    }

    /// As [`Journal::read`] for a DEL, but an entry that cannot be decoded is renamed to `ID.json.unreadable`. A file that
    /// cannot be read stays, because a later call may read it, and so does an entry of a newer release.
    ///
    /// # Errors
    /// The entry cannot be read or renamed.
    pub(super) fn read_or_set_aside(&self, container: &ContainerId) -> Result<Found, Error> {
        match self.read(container) {
            Ok(Some(entry)) => Ok(Found::Entry(Box::new(entry))),
            Ok(None) => Ok(Found::Nothing),
            Err(error) if error.code == code::DECODING_FAILURE && !self.is_newer(container) => {
                let path = self.set_aside(container)?;
                log!("weft: {error}: renamed to {}", path.display());
                Ok(Found::Unreadable)
            }
            Err(error) => Err(error),
        }
    }

    fn is_newer(&self, container: &ContainerId) -> bool {
        matches!(read_bounded(&self.file(container)), Ok(Some(bytes)) if Entry::is_newer(&bytes))
    }

    /// Renames an entry to a name that no entry has and no file had; returns the new path.
    fn set_aside(&self, container: &ContainerId) -> Result<PathBuf, Error> {
        let path = self.file(container);
        let names = (0..ASIDE_MAX).map(|number| match number {
            0 => format!("{container}.json.unreadable"),
            number => format!("{container}.json.unreadable.{number}"),
        });
        let failed = |errno: Errno| Error::io(format_args!("journal: rename {}", path.display()), errno);
        for target in names.map(|name| self.directory.join(name)) {
            match renameat_with(CWD, &path, CWD, &target, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(target),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Err(failed(Errno::EXIST))
    }

    /// Writes an entry durably: file and directory are synchronized on return.
    pub(super) fn begin(&self, entry: &Entry) -> Result<Record, Error> {
        let file = self.replacement(entry)?;
        let begun = file
            .sync_all()
            .and_then(|()| self.publish(entry))
            .and_then(|()| File::open(&self.directory).and_then(|directory| directory.sync_all()));
        begun.map_err(|cause| self.failed("write", entry, &cause))?;
        let written = file.metadata().map_err(|cause| self.failed("write", entry, &cause))?.len();
        let (path, room) = (self.file(&entry.container_id), ENTRY_MAX.saturating_sub(written));
        Ok(Record { file, path, room })
    }

    /// Replaces an entry without synchronizing the disk: a loss of power destroys the network namespaces as well.
    pub(super) fn update(&self, entry: &Entry) -> Result<(), Error> {
        self.replacement(entry)?;
        self.publish(entry).map_err(|cause| self.failed("write", entry, &cause))
    }

    /// Removes a sandbox's entry, and the temporary file that a killed writer left.
    pub(super) fn remove(&self, container: &ContainerId) -> Result<(), Error> {
        for path in [self.file(container), self.temporary(container)] {
            match fs::remove_file(&path) {
                Err(cause) if cause.kind() != ErrorKind::NotFound => {
                    return Err(Error::io(format_args!("journal: remove {}", path.display()), cause));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the sandboxes with an entry, sorted by id.
    pub(super) fn containers(&self) -> Result<Vec<ContainerId>, Error> {
        let failed = |cause| Error::io(format_args!("journal: read {}", self.directory.display()), cause);
        let mut containers = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let Some(id) = name.to_str().and_then(|name| name.strip_suffix(".json")) else { continue };
            containers.extend(ContainerId::new(id));
        }
        containers.sort();
        Ok(containers)
    }

    /// Writes the temporary file. The name is fixed, so a crash leaves at most one.
    fn replacement(&self, entry: &Entry) -> Result<File, Error> {
        let bytes = entry.value().context("journal")?;
        if bytes.len() as u64 > ENTRY_MAX {
            return Err(too_long(&self.file(&entry.container_id)));
        }
        let opened = file::create_new(&self.temporary(&entry.container_id), 0o600);
        opened
            .and_then(|mut file| file.write_all(&bytes).map(|()| file))
            .map_err(|cause| self.failed("write", entry, &cause))
    }

    fn publish(&self, entry: &Entry) -> std::io::Result<()> {
        fs::rename(self.temporary(&entry.container_id), self.file(&entry.container_id))
    }

    fn failed(&self, what: &str, entry: &Entry, cause: &std::io::Error) -> Error {
        // An incomplete temporary file is useless and takes space on a full disk.
        let _ = fs::remove_file(self.temporary(&entry.container_id));
        Error::io(format_args!("journal: {what} {}", self.file(&entry.container_id).display()), cause)
    }

    fn file(&self, container: &ContainerId) -> PathBuf {
        self.directory.join(format!("{container}.json"))
    }

    fn temporary(&self, container: &ContainerId) -> PathBuf {
        self.directory.join(format!(".{container}.new"))
    }
}

/// Result when DEL looks for a sandbox's entry.
pub(super) enum Found {
    /// The entry of the sandbox.
    Entry(Box<Entry>),
    /// An entry that cannot be decoded, which was renamed.
    Unreadable,
    /// No entry.
    Nothing,
}

/// The open entry of a sandbox that is being attached.
pub(super) struct Record {
    file: File,
    path: PathBuf,
    /// Remaining space in bytes.
    room: u64,
}

impl Record {
    /// Appends values in one write, without synchronizing the disk, for the same reason as [`Journal::update`].
    ///
    /// After a failure the entry must be replaced: the last value may be incomplete.
    pub(super) fn add(&mut self, values: &[u8]) -> Result<(), Error> {
        self.room = self.room.checked_sub(values.len() as u64).ok_or_else(|| too_long(&self.path))?;
        let written = self.file.write_all(values);
        written.map_err(|cause| Error::io(format_args!("journal: write {}", self.path.display()), cause))
    }
}

fn too_long(path: &Path) -> Error {
    let why = format!("journal: {}: longer than {ENTRY_MAX} bytes", path.display());
    Error::new(code::IO_FAILURE, why)
        .details("the results of this pod's networks are too large, or there are too many networks")
}

fn read_bounded(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    let failed = |cause| Error::io(format_args!("journal: read {}", path.display()), cause);
    // Without NONBLOCK, opening a FIFO would block.
    let opened = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(failed(cause)),
    };
    if !file.metadata().map_err(failed)?.is_file() {
        let why = format!("journal: {}: unreadable: not a file", path.display());
        return Err(Error::new(code::DECODING_FAILURE, why));
    }
    let mut bytes = Vec::new();
    file.take(ENTRY_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}
