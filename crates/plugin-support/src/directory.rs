//! Lets STATUS check whether a plugin can keep files in a directory, without changing anything.

use std::io::{self, ErrorKind};
use std::path::Path;

use cni::{Error, code};
use rustix::fs::{Access, access};

/// Fails with code 50 if files cannot be created in `directory`, or if the directory is missing and cannot be created.
///
/// `key` is the option that configures the directory; the error names it.
pub fn usable(key: &str, directory: &Path) -> Result<(), Error> {
    let refused = |why: String| Error {
        code: code::NOT_AVAILABLE,
        ..Error::key(key, format!("{:?}", directory.display().to_string()), why)
    };
    let unseen = |path: &Path, error: &io::Error| {
        refused(linux::Error::io(format!("look at {}", path.display()), error).to_string())
    };
    let mut there = directory;
    for path in directory.ancestors() {
        there = path;
        match path.symlink_metadata() {
            Ok(_) => break,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            // The path may exist although it cannot be examined.
            Err(error) => return Err(unseen(path, &error)),
        }
    }
    let at = there.display();
    match there.metadata() {
        Err(error) => Err(unseen(there, &error)),
        Ok(meta) if !meta.is_dir() => Err(refused(format!("{at} is not a directory"))),
        Ok(_) => access(there, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|errno| refused(linux::Error::kernel(format!("write to {at}"), errno).to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_is_usable_if_it_exists_or_can_be_created() {
        let temporary = std::env::temp_dir();
        assert_eq!(usable("dataDir", &temporary), Ok(()));
        assert_eq!(usable("dataDir", &temporary.join("not/yet/there")), Ok(()));
        let inside_a_file = std::env::current_exe().unwrap().join("x");
        let error = usable("dataDir", &inside_a_file).unwrap_err();
        assert_eq!(error.code, 50);
        let start = format!("dataDir: {:?}: ", inside_a_file.display().to_string());
        assert!(error.msg.starts_with(&start) && error.msg.ends_with(" is not a directory"), "{error}");
        // No path can have a name this long, and examining it fails.
        let error = usable("dataDir", &temporary.join("x".repeat(300))).unwrap_err();
        assert!(error.code == 50 && error.msg.contains("look at "), "{error}");
    }
}
