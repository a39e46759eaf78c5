//! `weft-cni import-entry`: writes the journal entry for a sandbox that another meta-plugin attached.
//!
//! The entry comes on stdin. An existing entry is never replaced, whatever it holds
//! (`docs/design/journal.md`). The other meta-plugin executed programs, so the entry gets those programs, and
//! later calls go to them.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use cni::Error;
use cni::network::Network;
use cni::plugin::Plugin;
use npwg::configuration::Builtin;
use rpc::journal::{ENTRY_MAX, Entry};

use super::journal::Journal;
use super::lock::Lock;
use super::readiness;
use crate::builtins;
use crate::plugin_invoker::PluginInvoker;

/// Command name.
pub const COMMAND: &str = "import-entry";

/// Reads an entry from stdin and writes it to the journal below `directory`.
///
/// # Errors
/// The sandbox already has an entry, or the one on stdin is invalid.
pub fn import(directory: &Path) -> Result<(), Error> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(ENTRY_MAX).read_to_end(&mut bytes);
    read.map_err(|cause| Error::io("read the entry", cause))?;
    let mut entry = Entry::read(&bytes)?;
    assign_programs(&mut entry);
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

/// Records the programs that the other meta-plugin executed. A program that is not installed any more is not
/// recorded, and neither are those in a network whose addresses weft takes over (`weft import whereabouts`).
fn assign_programs(entry: &mut Entry) {
    let programs = PluginInvoker::new(Builtin::Never, Duration::ZERO);
    for (delegate, attachment) in entry.plan.delegates.iter().zip(&mut entry.attachments) {
        let Ok(network) = Network::parse(delegate.config.as_bytes(), &delegate.network) else { continue };
        let takes_over = |name: &str| builtins::find(name).is_some_and(Plugin::replaces_state);
        let needs = network.needs().unwrap_or_default();
        if attachment.programs.is_empty() && !needs.iter().any(|plugin| takes_over(plugin.as_str())) {
            attachment.programs =
                readiness::find_programs(&programs, &network, &entry.path).unwrap_or_default();
        }
    }
}
