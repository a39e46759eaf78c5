//! Could a plugin keep its files in a directory? Asked by STATUS, so nothing is made.

use std::path::Path;

use cni::{Error, code};
use rustix::fs::{Access, access};

/// Fails with code 50 if files cannot be made in `directory`, or the directory itself where it is missing.
///
/// `key` is what configures it.
pub fn usable(key: &str, directory: &Path) -> Result<(), Error> {
    let there = directory.ancestors().find(|path| path.symlink_metadata().is_ok()).unwrap_or(directory);
    let refused = |why: String| Error {
        code: code::NOT_AVAILABLE,
        ..Error::key(key, format!("{:?}", directory.display().to_string()), why)
    };
    let at = there.display();
    match there.metadata() {
        Err(error) => Err(refused(linux::Error::io(format!("look at {at}"), &error).to_string())),
        Ok(meta) if !meta.is_dir() => Err(refused(format!("{at} is not a directory"))),
        Ok(_) => access(there, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|errno| refused(linux::Error::kernel(format!("write to {at}"), errno).to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_usable_if_it_could_be_made() {
        let temporary = std::env::temp_dir();
        assert_eq!(usable("dataDir", &temporary), Ok(()));
        assert_eq!(usable("dataDir", &temporary.join("not/yet/there")), Ok(()));
        let inside_a_file = std::env::current_exe().unwrap().join("x");
        let error = usable("dataDir", &inside_a_file).unwrap_err();
        assert_eq!(error.code, 50);
        let start = format!("dataDir: {:?}: ", inside_a_file.display().to_string());
        assert!(error.msg.starts_with(&start) && error.msg.ends_with(" is not a directory"), "{error}");
    }
}
