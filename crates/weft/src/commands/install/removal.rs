//! `weft install --remove`: removes the configuration. With `--wait` it also takes down the networks of existing
//! sandboxes when the pods are deleted.
//!
//! - It is refused if no other network would remain: no pod could be created or deleted.
//! - Without `--wait` it is refused while the journal has a sandbox. After the removal the runtime calls only the default
//!   network's plugins for it, which do not know the other networks.
//! - With `--wait` a sandbox is left alone while the network namespace exists, and is then taken down as recorded in
//!   the journal. The command may be interrupted and restarted.
//! - If another installer writes the configuration again, the command fails.
//! - The credentials of `--thin` are removed with the configuration.
//! - While the command waits, the configuration is kept in a subdirectory that no runtime reads. A restarted command finds
//!   the journal through it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use cni::invocation::Attachment;
use cni::name::{ContainerId, IfName, NetworkName};
use cni::runtime::cache::{self, Cache};
use rpc::journal;
use rpc::task::{Certainty, Task, TaskBatch};
use serde_json::value::RawValue;

use super::default_network::is_no_network;
use super::node_path::NodePath;
use super::thin::{self, Thin};
use super::{Arguments, InstallPaths, command};
use crate::meta_plugin_config::MetaPlugin;
use cli_support::atomic_file::sync_directory;
use cli_support::failure::{Exit, Failure};
use cli_support::interrupt::Interrupt;
use cli_support::output::{Format, Progress, counted};
use cli_support::privilege;
use cli_support::terminal::plain;
use node_support::journal_reader::{Journal, Row};
use node_support::weft_cni::WeftCni;

/// Interval between two checks of the sandboxes.
const PAUSE: Duration = Duration::from_secs(1);
/// Network name of a journal whose configuration no longer exists.
const NETWORK: &str = "weft";

/// Removes the configuration and, with `--wait`, waits for the sandboxes.
pub(super) fn remove(arguments: &Arguments) -> Result<(), Failure> {
    let progress = Progress::beside(Format::Text);
    if arguments.follow && !arguments.wait {
        let why = "--remove --follow: requires --wait";
        return Err(Failure::new(why).next("add --wait").exit(Exit::Usage));
    }
    if arguments.wait {
        if arguments.root != Path::new("/") {
            let why = "--wait: the network namespaces of sandboxes are not visible below --root";
            return Err(Failure::new(why)
                .next("run it on the node itself, without --root")
                .exit(Exit::Usage));
        }
        privilege::require("weft install --remove --wait", "it takes down the networks of sandboxes")?;
    }
    let paths = InstallPaths::of(arguments)?;
    let InstallPaths { networks, written: NodePath { named, here }, .. } = &paths;
    let kept = networks.join(thin::DIRECTORY).join(&arguments.file_name);
    let is_installed = exists(here)?;
    let configured = match (is_installed, exists(&kept.here)?) {
        (true, _) => MetaPlugin::find_any(Some(here), &[])?,
        (false, true) => MetaPlugin::find_any(Some(&kept.here), &[])?,
        (false, false) => None,
    };
    let default_journal = || Path::new(journal::DIRECTORY).join(journal::ENTRIES);
    let journal = configured.as_ref().map_or_else(default_journal, MetaPlugin::journal);
    let mut journal = NodePath::below(&arguments.root, &journal)?;
    // The journal may be outside of the mounts of this container.
    journal.here = arguments.on_host.path(&journal.here);
    match is_installed {
        false => progress.line(format!("{}: not found", named.display())),
        true => {
            refuse_if_needed(&paths, &journal, arguments)?;
            let removal = match arguments.wait {
                true => move_aside(here, &kept.here),
                false => fs::remove_file(here),
            };
            let removal = removal.and_then(|()| sync_directory(here));
            removal.map_err(|cause| privilege::refused(&format!("remove {}", here.display()), &cause))?;
            progress.line(format!("{}: removed", named.display()));
        }
    }
    Thin::remove(&paths)?.into_iter().for_each(|line| progress.line(line));
    let commands = command::remove(&paths, &arguments.root, arguments.on_host)?;
    commands.lines.iter().for_each(|line| progress.line(line));
    remove_parent_if_empty(&kept.here);
    if arguments.wait {
        let interrupt = Interrupt::watch()?;
        let weft_cni = WeftCni::find()?.on_host(arguments.on_host)?;
        let journal = Journal::at(&journal.here);
        wait(configured, &weft_cni, &journal, &paths.written, &interrupt, progress)?;
        // The kept configuration is no longer needed.
        match fs::remove_file(&kept.here) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => {
                return Err(privilege::refused(&format!("remove {}", kept.here.display()), &cause));
            }
            _ => remove_parent_if_empty(&kept.here),
        }
        if arguments.follow {
            watch_configuration(&paths.written, &interrupt)?;
        }
    }
    // The networks of the sandboxes are taken down nevertheless.
    commands.failure.map_or(Ok(()), Err)
}

/// Whether a path exists. A path that cannot be checked is an error, not a missing path.
fn exists(path: &Path) -> Result<bool, Failure> {
    path.try_exists().map_err(|cause| privilege::refused(&format!("stat {}", path.display()), &cause))
}

/// Removes the directory of the kept configuration if it is empty.
fn remove_parent_if_empty(kept: &Path) {
    let _ = kept.parent().map(fs::remove_dir);
}

/// Moves a configuration to a directory that runtimes do not read.
fn move_aside(here: &Path, kept: &Path) -> io::Result<()> {
    kept.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::rename(here, kept)
}

/// Waits until SIGTERM or SIGINT, and fails if the configuration is written again.
fn watch_configuration(written: &NodePath, interrupt: &Interrupt) -> Result<(), Failure> {
    while !interrupt.is_set() {
        refuse_if_written(written)?;
        sleep(PAUSE);
    }
    Ok(())
}

/// Fails if another installer has written the configuration again.
fn refuse_if_written(NodePath { named, here }: &NodePath) -> Result<(), Failure> {
    if !exists(here)? {
        return Ok(());
    }
    let why = format!("{}: another installer has written it again", named.display());
    Err(Failure::new(why)
        .next("stop `weft install --follow` or the DaemonSet weft-agent, and run this command again"))
}

/// Refuses a removal that would leave the node, or a sandbox, without networks.
fn refuse_if_needed(paths: &InstallPaths, journal: &NodePath, arguments: &Arguments) -> Result<(), Failure> {
    let InstallPaths { networks, written: NodePath { named, here }, .. } = paths;
    let directory = paths.directory()?;
    let other = directory.networks.iter().find(|(path, network)| path != here && !is_no_network(network));
    if other.is_none() {
        let why = format!(
            "{}: no other network in {}; no pod could be created or deleted",
            named.display(),
            networks.named.display()
        );
        return Err(
            Failure::new(why).next("put the configuration of the default network into that directory first")
        );
    }
    let sandboxes = count_entries(&journal.here)
        .map_err(|cause| privilege::refused(&format!("read {}", journal.here.display()), &cause))?;
    if sandboxes > 0 && !arguments.wait {
        let why = format!(
            "{}: weft must end {} in {} first",
            named.display(),
            counted(sandboxes, "sandbox", "sandboxes"),
            journal.named.display()
        );
        let next = "drain the node first, or add --wait to take down each sandbox when its pod is deleted; `weft list` shows them";
        return Err(Failure::new(why).next(next));
    }
    Ok(())
}

/// Returns the number of sandboxes in a journal, readable or not.
fn count_entries(journal: &Path) -> io::Result<usize> {
    match fs::read_dir(journal) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(0),
        Err(cause) => Err(cause),
        Ok(found) => {
            let names = found.collect::<io::Result<Vec<_>>>()?;
            let is_entry = |path: &Path| path.extension().is_some_and(|extension| extension == "json");
            Ok(names.iter().filter(|entry| is_entry(&entry.path())).count())
        }
    }
}

/// Takes down sandboxes whose namespaces are gone, until the journal is empty.
fn wait(
    configured: Option<MetaPlugin>,
    weft_cni: &WeftCni,
    journal: &Journal,
    written: &NodePath,
    interrupt: &Interrupt,
    progress: Progress,
) -> Result<(), Failure> {
    let meta_plugin = match configured {
        Some(meta_plugin) => meta_plugin,
        None => MetaPlugin::for_journal(NETWORK)?,
    };
    let configuration = RawValue::from_string(meta_plugin.object.to_json())
        .map_err(|cause| Failure::new(format!("encode the configuration: {cause}")))?;
    let flavour = meta_plugin.flavour;
    let (mut known, mut printed) = (BTreeMap::new(), BTreeSet::new());
    loop {
        interrupt.stop_here()?;
        refuse_if_written(written)?;
        let (sandboxes, broken) = read_journal(journal)?;
        for (container, SandboxEntry { network, ifname, .. }) in &known {
            // A sandbox whose entry is unreadable now still exists.
            if !sandboxes.contains_key(container) && !broken.iter().any(|broken| broken == container.as_str())
            {
                remove_cached_result(network, container, ifname)?;
            }
        }
        if sandboxes.is_empty() {
            return match broken.as_slice() {
                [] => {
                    progress.line("no remaining sandboxes");
                    Ok(())
                }
                broken => {
                    Err(Failure::new(format!("unreadable journal entries remain: {}", broken.join(", ")))
                        .next("see docs/operations.md, «A pod is not deleted»"))
                }
            };
        }
        if known.len() != sandboxes.len() {
            let waits = counted(sandboxes.len(), "sandbox", "sandboxes");
            progress.line(format!("waiting for {waits}; the pods may continue to run"));
        }
        let tasks = sandboxes.iter().map(|(container, sandbox)| sandbox.task(container)).collect();
        let batch = TaskBatch { configuration: configuration.clone(), flavour, tasks };
        if let Err(failure) = weft_cni.run_tasks(&batch) {
            // The tasks are run again; each failure is printed once.
            let text = plain(&failure.to_string());
            if printed.insert(text.clone()) {
                progress.line(text);
            }
        }
        known = sandboxes;
        sleep(PAUSE);
    }
}

/// Facts about a sandbox, from the journal entry.
struct SandboxEntry {
    uid: String,
    network: String,
    ifname: IfName,
}

impl SandboxEntry {
    /// Returns the task that takes the sandbox down once the namespace is gone.
    fn task(&self, container: &ContainerId) -> Task {
        let (container, uid) = (container.clone(), self.uid.clone());
        Task::TakeDown { container, uid, certainty: Certainty::PodGone }
    }
}

/// Returns the sandboxes, and the container IDs of unreadable entries.
fn read_journal(journal: &Journal) -> Result<(BTreeMap<ContainerId, SandboxEntry>, Vec<String>), Failure> {
    let (mut all, mut broken) = (BTreeMap::new(), Vec::new());
    for row in journal.rows()? {
        match row {
            Row::Entry(entry) => {
                let (uid, network, ifname) =
                    (entry.plan.pod.uid.clone(), entry.network.clone(), entry.ifname.clone());
                all.insert(entry.container_id.clone(), SandboxEntry { uid, network, ifname });
            }
            Row::Broken { container, .. } => broken.push(container),
        }
    }
    Ok((all, broken))
}

/// Removes the cached result of the runtime's call to weft. The runtime calls DEL of another network for this sandbox and
/// removes only that network's result.
fn remove_cached_result(network: &str, container: &ContainerId, ifname: &IfName) -> Result<(), Failure> {
    let who = Attachment { container: container.clone(), ifname: ifname.clone() };
    let cache = Cache::new(Path::new(cache::DIRECTORY));
    Ok(cache.remove(&NetworkName::new(network)?, &who)?)
}
