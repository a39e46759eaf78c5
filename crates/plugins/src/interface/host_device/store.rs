//! Files with the records about moved devices: one for each device, found without access to the device.
//!
//! ```text
//!   /run/cni/host-device/eth5:0a1b2c:net1.json
//! ```
//!
//! Rules:
//! - Files have mode 0600 and are replaced atomically.
//! - The file name consists of three names, none of which can contain a colon.
//! - The directory is in `/run`: records end with the boot, as the moves do.
//! - A process that is about to move a device has the device's record locked.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cni::Error;
use plugin_support::failure::refused;
use plugin_support::file;
use plugin_support::owner_tag::OwnerTag;

use super::record::Record;

/// Directory with the records.
const DIRECTORY: &str = "/run/cni/host-device";
/// Largest record read, in bytes.
const FILE_MAX: u64 = 16 << 10;

/// Record file on disk.
#[derive(Debug)]
pub(super) struct StoredRecord {
    /// Content of the file.
    pub record: Record,
    /// Whether an ADD is moving the device now.
    pub is_leaving: bool,
    path: PathBuf,
}

/// Writes a record and locks it. The device counts as leaving while the returned file is open.
pub(super) fn keep(record: &Record) -> Result<File, Error> {
    let tag = record.tag().ok_or_else(|| Error::internal("a record without an owner tag"))?;
    let path = Path::new(DIRECTORY).join(file_name(&record.host_state.name, &tag));
    let written = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(DIRECTORY)
        .and_then(|()| file::replace_locked(&path, &record.text()));
    written.map_err(|cause| failed("write", &path, &cause))
}

/// Returns an attachment's records: one, unless an ADD was killed and a later one moved another device.
pub(super) fn of_attachment(tag: &OwnerTag) -> Result<Vec<StoredRecord>, Error> {
    let suffix = file_name("", tag);
    list(&|name| name.ends_with(&suffix))
}

/// Returns the records about devices that had this name on the host.
pub(super) fn of_device(name: &str) -> Result<Vec<StoredRecord>, Error> {
    list(&|file| file.split_once(':').is_some_and(|(device, _)| device == name))
}

/// Returns a container's records.
pub(super) fn of_container(container: &str) -> Result<Vec<StoredRecord>, Error> {
    list(&|file| file.split(':').nth(1) == Some(container))
}

/// Returns all records.
pub(super) fn all() -> Result<Vec<StoredRecord>, Error> {
    list(&|_| true)
}

/// Removes an attachment's records, and the temporary files that a killed writer left.
pub(super) fn forget(tag: &OwnerTag) -> Result<(), Error> {
    let suffix = file_name("", tag);
    for path in paths(&|name| name.strip_suffix(".new").unwrap_or(name).ends_with(&suffix))? {
        remove(&path)?;
    }
    Ok(())
}

impl StoredRecord {
    /// Removes the file.
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

fn list(is_wanted: &dyn Fn(&str) -> bool) -> Result<Vec<StoredRecord>, Error> {
    let whole = |name: &str| !name.starts_with('.') && is_wanted(name);
    let mut kept = Vec::new();
    for path in paths(&whole)? {
        if let Some((record, is_leaving)) = read(&path)? {
            kept.push(StoredRecord { record, is_leaving, path });
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

/// Reads a record; `None` if the file is gone or invalid. Then the configuration decides.
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

fn file_name(device: &str, tag: &OwnerTag) -> String {
    let OwnerTag { plugin: _, network: _, container, ifname } = tag;
    format!("{device}:{container}:{ifname}.json")
}

fn failed(what: &str, path: &Path, cause: &io::Error) -> Error {
    refused(&linux::Error::io(format!("{what} {}", path.display()), cause))
}
