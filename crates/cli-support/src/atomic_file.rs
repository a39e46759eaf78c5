//! Replaces files atomically: writes a temporary file, syncs it, and renames it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces a file atomically and durably, with mode 0600. Creates missing directories.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().and_then(|name| name.to_str()).ok_or(ErrorKind::InvalidInput)?;
    let temporary = path.with_file_name(format!(".{name}.new"));
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    let mut options = OpenOptions::new();
    let written = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The temporary file is incomplete, so it is useless.
        let _ = fs::remove_file(&temporary);
        return written;
    }
    sync_directory(path)
}

/// Syncs a file's directory, so that the name itself survives a power loss.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}
