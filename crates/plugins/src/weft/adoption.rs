//! `weft-cni adopt`: takes over a sandbox that another meta-plugin attached, as an entry of the journal on stdin.
//!
//! Rules: only the hands write the journal, and under the sandbox's lock; an entry that is there is never replaced,
//! whatever it holds; what DEL could not use is refused before anything is written.

use std::io::Read;
use std::path::Path;

use cni::network::Network;
use cni::{Context, Error};
use npwg::journal::{ENTRY_MAX, Entry};

use super::journal::Journal;
use super::lock::Lock;

/// The word on the command line for it.
pub const COMMAND: &str = "adopt";

/// Reads an entry from stdin and puts it into the journal below `directory`.
///
/// # Errors
/// The sandbox has an entry, or this one cannot be used.
pub fn adopt(directory: &Path) -> Result<(), Error> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(ENTRY_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|cause| Error::io("read the entry", cause))?;
    if bytes.len() as u64 > ENTRY_MAX {
        return Err(Error::config(format!("the entry is larger than {ENTRY_MAX} bytes")));
    }
    let entry = Entry::read(&bytes).context("entry")?;
    check(&entry).context(format_args!("entry of {}", entry.container_id))?;
    let journal = Journal::open(directory)?;
    let lock = Lock::acquire(journal.directory(), &entry.container_id)?;
    if journal.read(&entry.container_id)?.is_some() {
        return Err(Error::config(format!("sandbox {} is in the journal already", entry.container_id)));
    }
    let begun = journal.begin(&entry).map(drop);
    if begun.is_err() {
        lock.retire();
    }
    begun
}

/// What a DEL will rely on.
fn check(entry: &Entry) -> Result<(), Error> {
    let (plan, attachments) = (&entry.plan, &entry.attachments);
    if plan.container != entry.container_id {
        return Err(Error::config(format!("its plan is of container {}", plan.container)));
    }
    if plan.delegates.is_empty() || plan.delegates.len() != attachments.len() {
        let (wanted, had) = (plan.delegates.len(), attachments.len());
        return Err(Error::config(format!("{wanted} networks and {had} attachments")));
    }
    for delegate in &plan.delegates {
        Network::parse(delegate.config.as_bytes(), &delegate.network)?;
    }
    Ok(())
}
