//! Device information files for an attachment.
//!
//! A file is bounded, written by rename and readable by root alone. A missing file is no error. An invalid
//! file costs the status one field and nothing else.
//!
//! Source: Device Information Specification v1.1.0 (DI-1 to DI-5).

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cni::Error;
use npwg::device::{DeviceInfo, FILE_MAX};
use npwg::plan::DeviceInfoFile;
use plugin_support::log;

/// Copies the device plugin's file to the path where CNI plugins expect it (DI-1).
pub(super) fn publish(file: &DeviceInfoFile) -> Result<(), Error> {
    let DeviceInfoFile { copy_from, path } = file;
    let path = Path::new(path);
    let failed =
        |cause: std::io::Error| Error::io(format_args!("device information {}", path.display()), cause);
    if let Some(directory) = path.parent() {
        // Other programs read the files by their paths. The caller's umask must not open the directory to writers.
        create_directory(directory).map_err(failed)?;
    }
    let Some(source) = copy_from else { return Ok(()) };
    match read(Path::new(source)).map_err(failed)? {
        None => Ok(()),
        Some(bytes) => plugin_support::file::replace(path, &bytes).map_err(failed),
    }
}

/// Returns what the file contains after ADD (DI-4). Invalid content is logged and left out.
pub(super) fn collect(file: &DeviceInfoFile) -> Option<DeviceInfo> {
    let bytes = read(Path::new(&file.path)).ok().flatten()?;
    match DeviceInfo::read(&bytes) {
        Ok(info) => Some(info),
        Err(error) => {
            log!("weft: device information {}: {error}", file.path);
            None
        }
    }
}

/// Removes the file (DI-5).
pub(super) fn withdraw(file: &DeviceInfoFile) -> Result<(), Error> {
    match fs::remove_file(&file.path) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => {
            Err(Error::io(format_args!("device information {}", file.path), cause))
        }
        _ => Ok(()),
    }
}

/// Creates a directory and all parents with mode 0755, whatever the umask is.
fn create_directory(directory: &Path) -> std::io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    if let Some(parent) = directory.parent() {
        create_directory(parent)?;
    }
    match fs::create_dir(directory) {
        Ok(()) => fs::set_permissions(directory, Permissions::from_mode(0o755)),
        Err(cause) if cause.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(cause) => Err(cause),
    }
}

fn read(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(FILE_MAX as u64 + 1).read_to_end(&mut bytes).map(|_| Some(bytes)),
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(cause),
    }
}
