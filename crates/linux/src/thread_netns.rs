//! Finds the calling thread's network namespace.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::error::Error;

/// Returns the path of the calling thread's namespace. The main thread uses the process path, which the kernel resolves
/// in half the time.
pub(crate) fn path() -> &'static str {
    match rustix::thread::gettid() == rustix::process::getpid() {
        true => "/proc/self/ns/net",
        false => "/proc/thread-self/ns/net",
    }
}

/// Returns device and inode of the calling thread's namespace.
pub(crate) fn identity() -> Result<(u64, u64), Error> {
    match fs::metadata(path()) {
        Ok(meta) => Ok((meta.dev(), meta.ino())),
        Err(error) => Err(Error::io(format!("stat {}", path()), &error)),
    }
}
