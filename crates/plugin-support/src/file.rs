//! Replaces a file atomically: concurrent readers see either the old content or the new one, never a mixture.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use linux::error::leads_nowhere;

/// Replaces the file at `path` by `bytes`, with mode 0600, through a temporary file in the same directory.
///
/// The temporary file has a fixed name, so that a crash leaves at most one such file. Writers to one path must
/// therefore exclude each other.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_after(path, bytes, |_| Ok(())).map(drop)
}

/// Replaces the file like [`replace`], but locks the new file (flock(2)) before it gets the name.
///
/// The lock is held until the returned file is dropped, so no reader can lock the file first.
pub fn replace_locked(path: &Path, bytes: &[u8]) -> io::Result<File> {
    replace_after(path, bytes, File::lock)
}

fn replace_after(path: &Path, bytes: &[u8], last: impl Fn(&File) -> io::Result<()>) -> io::Result<File> {
    let temporary = temporary(path)?;
    let written = create_new(&temporary, 0o600)
        .and_then(|mut file| file.write_all(bytes).map(|()| file))
        .and_then(|file| last(&file).map(|()| file))
        .and_then(|file| fs::rename(&temporary, path).map(|()| file));
    if written.is_err() {
        // An incomplete file is useless and only takes space, perhaps on a full disk.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Creates a new file for writing, and first removes anything with that name: a leftover, or a link that another user
/// planted so that the link target is overwritten.
pub fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    match options.open(path) {
        Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            options.open(path)
        }
        created => created,
    }
}

/// Removes the file, and the temporary file if a writer was killed. Missing files are not an error.
pub fn remove(path: &Path) -> io::Result<()> {
    for path in [path, &temporary(path)?] {
        match fs::remove_file(path) {
            Err(error) if !leads_nowhere(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn temporary(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(path.with_file_name(format!(".{name}.new")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn temporary_file_planted_as_link_is_replaced() {
        let directory = std::env::temp_dir().join(format!("weft-file-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (victim, path, planted) =
            (directory.join("victim"), directory.join("a"), directory.join(".a.new"));
        for plant in
            [|from: &Path, to: &Path| symlink(from, to), |from: &Path, to: &Path| fs::hard_link(from, to)]
        {
            fs::write(&victim, "kept").unwrap();
            plant(&victim, &planted).unwrap();
            replace(&path, b"new").unwrap();
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
