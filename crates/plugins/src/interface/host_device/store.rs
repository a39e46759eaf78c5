//! Where the records of devices that are away lie: one file each, found without knowing the device.
//!
//! ```text
//!   /run/cni/host-device/eth5:0a1b2c:net1.json
//! ```
//!
//! Rules: files are 0600 and replaced whole; no name of the three can hold a colon; they end with the machine's
//! running, as what they are about does; whoever is about to move a device has its record locked.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cni::Error;
use plugin_support::failure::refused;
use plugin_support::file;
use plugin_support::owner_tag::OwnerTag;

use super::record::Record;

/// Where they are.
const DIRECTORY: &str = "/run/cni/host-device";
/// Largest record read, in bytes.
const FILE_MAX: u64 = 16 << 10;

/// One file.
#[derive(Debug)]
pub(super) struct Kept {
    /// What it says.
    pub record: Record,
    /// Is an ADD at work that moves the device?
    pub is_leaving: bool,
    path: PathBuf,
}

/// Writes a record down, which is that of a device that is leaving as long as the returned value lives.
pub(super) fn keep(record: &Record) -> Result<File, Error> {
    let mark = record.mark().ok_or_else(|| Error::internal("a record without a mark"))?;
    let path = Path::new(DIRECTORY).join(file_name(&record.was.name, &mark));
    let written = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(DIRECTORY)
        .and_then(|()| file::replace_locked(&path, &record.text()));
    written.map_err(|cause| failed("write", &path, &cause))
}

/// The records of an attachment: one, unless an ADD was killed and another device followed.
pub(super) fn of_attachment(mark: &OwnerTag) -> Result<Vec<Kept>, Error> {
    let end = file_name("", mark);
    list(&|name| name.ends_with(&end))
}

/// The records of devices that had one of these names.
pub(super) fn of_devices(names: &[&str]) -> Result<Vec<Kept>, Error> {
    list(&|name| name.split_once(':').is_some_and(|(device, _)| names.contains(&device)))
}

/// Every record.
pub(super) fn all() -> Result<Vec<Kept>, Error> {
    list(&|_| true)
}

/// Removes what there is of an attachment, also what a writer that was killed left.
pub(super) fn forget(mark: &OwnerTag) -> Result<(), Error> {
    let end = file_name("", mark);
    for path in paths(&|name| name.strip_suffix(".new").unwrap_or(name).ends_with(&end))? {
        remove(&path)?;
    }
    Ok(())
}

impl Kept {
    /// Removes it.
    pub(super) fn remove(&self) -> Result<(), Error> {
        remove(&self.path)
    }
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => Err(failed("remove", path, &cause)),
        _ => Ok(()),
    }
}

fn list(is_wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Kept>, Error> {
    let whole = |name: &str| !name.starts_with('.') && is_wanted(name);
    let mut kept = Vec::new();
    for path in paths(&whole)? {
        if let Some((record, is_leaving)) = read(&path)? {
            kept.push(Kept { record, is_leaving, path });
        }
    }
    Ok(kept)
}

fn paths(is_wanted: &dyn Fn(&str) -> bool) -> Result<Vec<PathBuf>, Error> {
    let failed = |cause: io::Error| failed("list", Path::new(DIRECTORY), &cause);
    let entries = match fs::read_dir(DIRECTORY) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if entry.file_name().to_str().is_some_and(is_wanted) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// `None` if it is gone or cannot be understood: then the alias alone says what the device was.
fn read(path: &Path) -> Result<Option<(Record, bool)>, Error> {
    let failed = |cause: io::Error| failed("read", path, &cause);
    let file = match File::open(path) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed)?,
    };
    let mut bytes = Vec::new();
    (&file).take(FILE_MAX).read_to_end(&mut bytes).map_err(failed)?;
    let is_leaving = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    Ok(Record::read(&bytes).map(|record| (record, is_leaving)))
}

fn file_name(device: &str, mark: &OwnerTag) -> String {
    let OwnerTag { plugin: _, network: _, container, ifname } = mark;
    format!("{device}:{container}:{ifname}.json")
}

fn failed(what: &str, path: &Path, cause: &io::Error) -> Error {
    refused(&linux::Error::io(format!("{what} {}", path.display()), cause))
}
