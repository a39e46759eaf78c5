//! Files that are replaced as a whole: written beside their place, synced, and renamed into it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes beside, onto the disk, and renames; 0600.
pub fn write(place: &Path, text: &str) -> io::Result<()> {
    let name = place.file_name().and_then(|name| name.to_str()).ok_or(ErrorKind::InvalidInput)?;
    let temporary = place.with_file_name(format!(".{name}.new"));
    fs::create_dir_all(place.parent().unwrap_or(place))?;
    let mut options = OpenOptions::new();
    let written = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, place));
    if written.is_err() {
        // An incomplete file is useless.
        let _ = fs::remove_file(&temporary);
        return written;
    }
    sync_directory(place)
}

/// Syncs the directory of a file, so that its name is durable.
pub fn sync_directory(place: &Path) -> io::Result<()> {
    place.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}
