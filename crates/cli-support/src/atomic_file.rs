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
    let written = create_new(&temporary, 0o600)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The temporary file is incomplete, so it is useless.
        let _ = fs::remove_file(&temporary);
        return written;
    }
    sync_directory(path)
}

/// Creates a new file for writing, and first removes anything with that name: a leftover, or a link that another user
/// planted so that the link target is overwritten.
pub fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    match options.open(path) {
        Err(cause) if cause.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            options.open(path)
        }
        created => created,
    }
}

/// Syncs a file's directory, so that the name itself survives a power loss.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn temporary_file_planted_as_link_is_replaced() {
        let directory = std::env::temp_dir().join(format!("weft-atomic-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (victim, path, planted) =
            (directory.join("victim"), directory.join("a"), directory.join(".a.new"));
        for plant in
            [|from: &Path, to: &Path| symlink(from, to), |from: &Path, to: &Path| fs::hard_link(from, to)]
        {
            fs::write(&victim, "kept").unwrap();
            plant(&victim, &planted).unwrap();
            write(&path, "new").unwrap();
            assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
            assert_eq!(fs::read_to_string(&path).unwrap(), "new");
            assert!(fs::symlink_metadata(&path).unwrap().is_file());
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        // A directory in its place is an error, and stays.
        fs::create_dir(&planted).unwrap();
        assert!(create_new(&planted, 0o600).is_err() && planted.is_dir());
        fs::remove_dir_all(&directory).unwrap();
    }
}
