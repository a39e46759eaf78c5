//! Atomic replacement of a corrected file.
//!
//! A link stays a link and the target is replaced. Mode and owner are kept. A reader never sees an incomplete file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use cli_support::failure::Failure;

/// Replaces the content of the file at `path`.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |cause: io::Error| Failure::new(format!("rewrite {}: {cause}", path.display()));
    let old = fs::metadata(path).map_err(failed)?;
    if !old.is_file() {
        return Err(failed(io::Error::other("not a regular file")));
    }
    let target = fs::canonicalize(path).map_err(failed)?;
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let temporary = target.with_file_name(format!(".{name}.{}.new", std::process::id()));
    let written = write(&temporary, text, &old).and_then(|()| fs::rename(&temporary, &target));
    if written.is_err() {
        // An incomplete file is useless, and a full disk needs its space.
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(failed)
}

fn write(temporary: &Path, text: &str, old: &fs::Metadata) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)?;
    file.write_all(text.as_bytes())?;
    // Only root may change the owner. For other users the new file belongs to the caller.
    let _ = std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()));
    file.set_permissions(old.permissions())?;
    file.sync_all()
}
