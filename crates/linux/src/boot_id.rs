//! Identifies the current boot, so that state from before a reboot is recognized.
//!
//! Source: random(4) `boot_id`.

use std::io::{self, ErrorKind};
use std::sync::OnceLock;

/// File with the boot id, which the kernel generates at each boot.
pub const PATH: &str = "/proc/sys/kernel/random/boot_id";

/// Returns the boot id, if it can be read.
pub fn current() -> Option<&'static str> {
    read().ok().flatten()
}

/// Returns the boot id, which is read only once; `None` if the kernel has none or the file is masked.
///
/// # Errors
/// The file cannot be read at the moment. A caller must not treat this as a different boot, because it would then
/// release state that is in use.
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
