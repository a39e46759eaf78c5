//! `weft detach`: detaches a pod as recorded in the journal, and removes the namespace that `weft attach` created.
//!
//! - Only the journal is needed: no manifest and no configuration.
//! - Detaching a pod without attachments succeeds. If an entry of the journal cannot be read, the pod may have some.
//! - `--forget NETWORK` gives up a network whose DEL fails, after one more attempt.
//! - The namespace is kept as long as an interface in it could not be detached.
//! - A namespace without an entry, or whose path now leads to another one, is deleted only if a killed attach left it.

use clap::Args;
use npwg::plan::PodIdentity;
use rpc::journal::{Entry, State};
use serde::Serialize;

use crate::attachments::{NamedAttachment, named_attachments, network_count};
use crate::cluster_access::ClusterAccess;
use crate::known_journals::{JournalHandle, KnownJournals, Target};
use crate::leftover_namespaces::{self, NamedNamespace};
use crate::manifest_plan::Inputs;
use crate::place::require_host;
use crate::remote_node::{Needs, RemoteNode};
use crate::sandbox_operations::SandboxOperations;
use crate::trial_sandbox::{is_created, lock_sandbox};
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output::{Output, Progress};
use cli_support::terminal::plain;
use node_support::weft_cni::{Plugins, WeftCni};

/// Arguments of `weft detach`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft detach -n my-namespace my-pod
  weft detach my-namespace/my-pod -o json
  weft detach --container-id my-namespace_my-pod
  weft detach my-namespace/my-pod --forget my-namespace/macvtap

The journal has everything that detaching needs. -f and --config are only used to find the journal if cniDir of the
configuration moves it. Detaching a pod without attachments succeeds.

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    remote: RemoteNode,
    #[command(flatten)]
    cluster: ClusterAccess,
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    plugins: Plugins,
    /// Network to give up if its plugin fails to detach; what the plugin attached may remain
    #[arg(long, value_name = "NETWORK")]
    forget: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// Document for `-o json`.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct DetachedSandbox<'a> {
    /// Pod in the journal entry; `null` if there was none.
    pod: Option<&'a PodIdentity>,
    container_id: Option<&'a str>,
    /// Detached attachments, in the order in which they were removed.
    detached: Vec<NamedAttachment<'a>>,
    /// Path of the network namespace that was removed; `null` if none was.
    removed_namespace: Option<String>,
}

/// Runs `weft detach`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { target, inputs, plugins, forget, output: Output { format }, .. } = arguments;
    let node_pod = target.pod()?;
    if let Some(done) = arguments.remote.run(&arguments.cluster, node_pod.as_ref(), Needs::Namespaces) {
        return done;
    }
    require_host("detach", "it removes network interfaces")?;
    let weft_cni = WeftCni::find()?;
    let progress = Progress::beside(*format);
    let subject = target.describe()?;
    let step = format!("detach {subject}");
    let journals = JournalHandle::all(inputs)?;
    let sandbox = target.find(&journals).map_err(|failure| failure.context(&step))?;
    let Some((handle, entry)) = sandbox else {
        let removed = remove_leftover_namespace(target, &journals, &weft_cni, progress);
        let removed_namespace = removed.map_err(|failure| failure.context(&step))?;
        return format
            .print(&DetachedSandbox { removed_namespace, ..DetachedSandbox::default() })
            .unwrap_or(Ok(()));
    };
    progress.line(plain(&format!("{subject}: {}", network_count(entry.plan.delegates.len()))));
    // A running attach of the sandbox would use the namespace that is deleted. The private directory of a failed attach
    // is removed at the end.
    let _lock = lock_sandbox(&entry.container_id).map_err(|failure| failure.context(&step))?;
    let mut removed = detach_sandbox(&weft_cni, &handle, &entry, plugins, progress);
    if let (Err(_), Some(network)) = (&removed, forget) {
        let left = give_up(&weft_cni, &handle, &entry, network, progress);
        let left = left.map_err(|failure| failure.context(&step))?;
        removed = detach_sandbox(&weft_cni, &handle, left.as_ref().unwrap_or(&entry), plugins, progress);
    }
    let detached = DetachedSandbox {
        pod: Some(&entry.plan.pod),
        container_id: Some(entry.container_id.as_str()),
        detached: attached_before(&entry),
        removed_namespace: removed.map_err(|failure| failure.context(&step))?,
    };
    format.print(&detached).unwrap_or(Ok(()))
}

/// Returns the attachments that are not yet detached in an entry, the last one first.
fn attached_before(entry: &Entry) -> Vec<NamedAttachment<'_>> {
    let named: Vec<NamedAttachment<'_>> = named_attachments(entry).collect();
    let is_attached = |index: usize| {
        entry.attachments.get(index).is_none_or(|attachment| attachment.state != State::Detached)
    };
    let attached = named.into_iter().enumerate().rev().filter(|(index, _)| is_attached(*index));
    attached.map(|(_, named)| named).collect()
}

/// Detaches a sandbox in the journal, and deletes its namespace if `weft attach` created it. Returns the
/// deleted namespace's path.
pub(super) fn detach_sandbox(
    weft_cni: &WeftCni,
    handle: &JournalHandle,
    entry: &Entry,
    plugins: &Plugins,
    progress: Progress,
) -> Result<Option<String>, Failure> {
    operations_on(weft_cni, handle, entry, plugins, progress)?.detach(entry)?;
    if !is_created(entry) {
        return Ok(None);
    }
    let is_another = leftover_namespaces::is_another(weft_cni, entry)?;
    let reason = is_another.then(|| leftover_namespaces::reason_to_keep(weft_cni, &entry.netns)).flatten();
    match reason {
        Some(reason) => {
            progress.line(plain(&format!("  kept {}: another namespace: {reason}", entry.netns)));
            Ok(None)
        }
        None => {
            weft_cni.delete(&entry.netns)?;
            progress.line(plain(&format!("  removed {}", entry.netns)));
            Ok(Some(entry.netns.clone()))
        }
    }
}

/// Gives up a network in a sandbox whose DEL failed. Returns the entry without it, if other networks remain.
fn give_up(
    weft_cni: &WeftCni,
    handle: &JournalHandle,
    entry: &Entry,
    network: &str,
    progress: Progress,
) -> Result<Option<Entry>, Failure> {
    let entries = handle.journal().directory();
    weft_cni.forget(entries.parent().unwrap_or(entries), &entry.container_id, network)?;
    progress.line(plain(&format!("  gave up {network}: what its plugin attached may remain")));
    handle.journal().entry(&entry.container_id)
}

/// Returns what can be done with a sandbox in the journal.
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

/// Removes the namespace that an attach created if it was killed before the first journal entry. Returns the deleted
/// namespace's path.
fn remove_leftover_namespace(
    target: &Target,
    journals: &KnownJournals,
    weft_cni: &WeftCni,
    progress: Progress,
) -> Result<Option<String>, Failure> {
    let mut removed = None;
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
                    removed = Some(path.to_owned());
                }
            }
        }
    }
    progress.line(format!("{}: no attachments", target.describe()?));
    Ok(removed)
}
