//! What was given back while the ledger could not be read: a line for each attachment, until the ledger can be.
//!
//! ```text
//!   DEL ──► ledger spoilt ──► owners: was it ever given anything? ──► released: NETWORK CONTAINER INTERFACE
//!   any call ──► ledger read again ──► released ──► those addresses are free ──► released is removed
//! ```
//!
//! Rules: a pod ends whatever has become of the ledger; nothing is given from a ledger that cannot be read, so nothing is
//! given twice; a line is on the disk before the DEL is answered, and stays until what it says is. A line that was
//! half written when the power went is of a pod that went with it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use cni::invocation::Attachment;

use super::owners::{OWNERS, RECORD};

/// The file's name.
const RELEASED: &str = "released";
/// Longest file: a line for each address of a ledger, and some.
const LENGTH_MAX: u64 = 64 << 20;

/// Writes down that an attachment of this network is gone. One that no address was signed for needs no line.
pub(super) fn remember(directory: &Path, network: &str, who: &Attachment) -> io::Result<()> {
    let Attachment { container, ifname } = who;
    if !was_given(directory, &format!("{container}\n{ifname}\n{network}\n")) {
        return Ok(());
    }
    let line = format!("{network} {container} {ifname}");
    let path = directory.join(RELEASED);
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    let mut text = String::new();
    (&file).take(LENGTH_MAX).read_to_string(&mut text)?;
    if !text.lines().any(|known| known == line) {
        // After half a line of somebody who was killed.
        let divider = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        file.write_all(format!("{divider}{line}\n").as_bytes())?;
    }
    file.sync_data()
}

/// Network, container and interface of each attachment that is gone.
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

/// Removes the file, once what it says is in the ledger.
pub(super) fn forget(directory: &Path) -> io::Result<()> {
    std::fs::remove_file(directory.join(RELEASED))
}

/// Is there an address that was signed for this owner? If that cannot be said, there may be.
fn was_given(directory: &Path, owner: &str) -> bool {
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
