//! `weft-cni import-entry`: writes the journal entry of a sandbox that another meta-plugin attached.
//!
//! The entry comes on stdin. An existing entry is never replaced, whatever it holds (`docs/design/journal.md`).

use std::io::Read;
use std::path::Path;

use cni::Error;
use rpc::journal::{ENTRY_MAX, Entry};

use super::journal::Journal;
use super::lock::Lock;

/// Name of the command.
pub const COMMAND: &str = "import-entry";

/// Reads an entry from stdin and writes it to the journal below `directory`.
///
/// # Errors
/// The sandbox already has an entry, or the one on stdin is invalid.
pub fn import(directory: &Path) -> Result<(), Error> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(ENTRY_MAX).read_to_end(&mut bytes);
    read.map_err(|cause| Error::io("read the entry", cause))?;
    let entry = Entry::read(&bytes)?;
    let Entry { container_id, plan, attachments, .. } = &entry;
    if plan.container != *container_id || plan.delegates.len() != attachments.len() {
        return Err(Error::config(format!("sandbox {container_id}: entry and plan do not match")));
    }
    let journal = Journal::open(directory)?;
    let lock = Lock::acquire(journal.directory(), container_id)?;
    if journal.read(container_id)?.is_some() {
        return Err(Error::config(format!("sandbox {container_id} already has a journal entry")));
    }
    let begun = journal.begin(&entry).map(drop);
    if begun.is_err() {
        lock.retire();
    }
    begun
}
