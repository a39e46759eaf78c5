//! `weft detach`: detaches a pod as recorded in the journal, and removes the namespace that `weft attach` created.
//!
//! - Only the journal is needed: no manifest and no configuration.
//! - Detaching a pod without attachments succeeds.
//! - The namespace is kept as long as an interface in it could not be detached.
//! - Without an entry, or if another namespace now has its path, a namespace is deleted only if a killed attach left it.

use clap::Args;
use rpc::journal::Entry;

use crate::known_journals::{JournalHandle, KnownJournals, Target};
use crate::leftover_namespaces::{self, NamedNamespace};
use crate::manifest_plan::Inputs;
use crate::place::require_host;
use crate::sandbox_operations::SandboxOperations;
use crate::trial_sandbox::{is_created, lock_sandbox};
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output::{Format, Progress};
use cli_support::terminal::plain;
use node_support::weft_cni::{Plugins, WeftCni};

/// Arguments of `weft detach`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft detach --pod my-namespace/my-pod
  weft detach --container-id my-namespace_my-pod

The journal has everything that detaching needs. -f and --config are only used to find the journal if cniDir of the
configuration moves it. Detaching a pod without attachments succeeds.

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    plugins: Plugins,
}

/// Runs `weft detach`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { target, inputs, plugins } = arguments;
    require_host("detach", "it removes network interfaces")?;
    let weft_cni = WeftCni::find()?;
    let progress = Progress::beside(Format::Text);
    let step = format!("detach {}", target.describe());
    let journals = JournalHandle::all(inputs)?;
    let sandbox = target.find(&journals).map_err(|failure| failure.context(&step))?;
    let Some((handle, entry)) = sandbox else {
        return remove_leftover_namespace(target, &journals, &weft_cni, progress)
            .map_err(|failure| failure.context(&step));
    };
    progress.line(plain(&format!("{}: {} networks", target.describe(), entry.plan.delegates.len())));
    // A running attach of the sandbox would use the namespace that is deleted. The private directory of a failed attach
    // is removed at the end.
    let _lock = lock_sandbox(&entry.container_id).map_err(|failure| failure.context(&step))?;
    detach_sandbox(&weft_cni, &handle, &entry, plugins, progress).map_err(|failure| failure.context(&step))
}

/// Detaches a sandbox of the journal, and deletes its namespace if `weft attach` created it.
pub(super) fn detach_sandbox(
    weft_cni: &WeftCni,
    handle: &JournalHandle,
    entry: &Entry,
    plugins: &Plugins,
    progress: Progress,
) -> Result<(), Failure> {
    operations_on(weft_cni, handle, entry, plugins, progress)?.detach(entry)?;
    if !is_created(entry) {
        return Ok(());
    }
    let is_another = leftover_namespaces::is_another(weft_cni, entry)?;
    let reason = is_another.then(|| leftover_namespaces::reason_to_keep(weft_cni, &entry.netns)).flatten();
    match reason {
        Some(reason) => {
            progress.line(plain(&format!("  kept {}: another namespace: {reason}", entry.netns)));
        }
        None => {
            weft_cni.delete(&entry.netns)?;
            progress.line(plain(&format!("  removed {}", entry.netns)));
        }
    }
    Ok(())
}

/// Returns the operations on a sandbox of the journal.
pub(crate) fn operations_on(
    weft_cni: &WeftCni,
    handle: &JournalHandle,
    entry: &Entry,
    plugins: &Plugins,
    progress: Progress,
) -> Result<SandboxOperations, Failure> {
    let (meta_plugin, journal) = (handle.meta_plugin(entry)?, handle.journal().clone());
    let mut operations =
        SandboxOperations::for_entry(weft_cni.clone(), meta_plugin, entry, journal, progress);
    if let Some(path) = plugins.given() {
        path.clone_into(&mut operations.subject.path);
    }
    Ok(operations)
}

/// Removes the namespace that an attach created if it was killed before its first journal entry.
fn remove_leftover_namespace(
    target: &Target,
    journals: &KnownJournals,
    weft_cni: &WeftCni,
    progress: Progress,
) -> Result<(), Failure> {
    if let Some(container) = target.container()? {
        let namespace = NamedNamespace::before_lock(&container);
        // A running attach still needs the namespace.
        let _lock = lock_sandbox(&container)?;
        if namespace.exists()? {
            let path = namespace.path();
            match namespace.reason_to_keep(weft_cni, &journals.known)? {
                Some(reason) => progress.line(plain(&format!("kept {path}: {reason}"))),
                None => {
                    weft_cni.delete(path)?;
                    progress.line(format!("removed {path}, left by an interrupted attach"));
                }
            }
        }
    }
    progress.line(format!("{}: no attachments", target.describe()));
    Ok(())
}
