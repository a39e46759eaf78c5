//! Deferred releases: attachments that ended while the address store was unreadable, one line each, until it is readable.
//!
//! ```text
//!   DEL ──► store unreadable ──► owners: had it an address? ──► released: NETWORK CONTAINER INTERFACE
//!   any call ──► store readable again ──► released ──► those addresses are free ──► released is removed
//! ```
//!
//! - A DEL succeeds with an unreadable store. Nothing is allocated from such a store, so no address is allocated twice.
//! - A line is on the disk before the DEL returns, and stays until the addresses are released on the disk.
//! - A line that a loss of power cut off is ignored: the pod ended with the machine.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cni::invocation::Attachment;

use super::owners::{OWNERS, RECORD};

/// File name.
const RELEASED: &str = "released";
/// Maximum file length: a line for each address in a store, with a margin.
const LENGTH_MAX: u64 = 64 << 20;

/// Records that an attachment to this network has ended. An attachment without an owner record needs no line.
pub(super) fn remember(directory: &Path, network: &str, who: &Attachment) -> io::Result<()> {
    let Attachment { container, ifname } = who;
    if !has_owner_record(directory, &format!("{container}\n{ifname}\n{network}\n")) {
        return Ok(());
    }
    let line = format!("{network} {container} {ifname}");
    let path = directory.join(RELEASED);
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    let mut text = String::new();
    (&file).take(LENGTH_MAX).read_to_string(&mut text)?;
    if !text.lines().any(|known| known == line) {
        // The previous line may be incomplete because its writer was killed.
        let divider = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        file.write_all(format!("{divider}{line}\n").as_bytes())?;
    }
    file.sync_data()
}

/// Returns network, container and interface for each recorded attachment.
pub(super) fn recall(directory: &Path) -> io::Result<Vec<[String; 3]>> {
    let mut text = String::new();
    match File::open(directory.join(RELEASED)) {
        Ok(file) => file.take(LENGTH_MAX).read_to_string(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let line = |line: &str| {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        <[String; 3]>::try_from(words).ok()
    };
    Ok(text.lines().filter_map(line).collect())
}

/// Removes the file, once the address store contains the releases.
pub(super) fn forget(directory: &Path) -> io::Result<()> {
    std::fs::remove_file(directory.join(RELEASED))
}

/// Whether an address was recorded for this owner, or the file cannot be read.
fn has_owner_record(directory: &Path, owner: &str) -> bool {
    let Ok(mut file) = File::open(directory.join(OWNERS)) else { return true };
    let mut record = [0; RECORD];
    loop {
        match file.read_exact(&mut record) {
            Ok(()) if record.starts_with(owner.as_bytes()) => return true,
            Ok(()) => {}
            Err(error) => return error.kind() != io::ErrorKind::UnexpectedEof,
        }
    }
}
