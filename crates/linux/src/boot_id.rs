//! Identifier of the current boot.
//!
//! Source: random(4) `boot_id`.

use std::io::{self, ErrorKind};
use std::sync::OnceLock;

/// Path of the identifier, which the kernel generates at each boot.
pub const PATH: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the identifier of the current boot, if it can be read.
pub fn current() -> Option<&'static str> {
    read().ok().flatten()
}

/// Returns the identifier of the current boot, read once; `None` if the kernel has none or the file is masked.
///
/// # Errors
/// The file cannot be read now. A caller that treated this as another boot would release state that is in use.
pub fn read() -> io::Result<Option<&'static str>> {
    static ID: OnceLock<Option<String>> = OnceLock::new();
    if ID.get().is_none() {
        let id = match std::fs::read_to_string(PATH) {
            // A masked file stays masked.
            Err(cause) if matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => None,
            read => Some(read?.trim().to_owned()).filter(|id| !id.is_empty()),
        };
        let _ = ID.set(id);
    }
    Ok(ID.get().and_then(Option::as_deref))
}
