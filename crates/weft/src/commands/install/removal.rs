//! `weft install --remove`: the configuration is taken away; with `--wait` also what sandboxes of before still hold, as they
//! go.
//!
//! Rules:
//! - it is refused where no other network would be left: no pod could be made, or removed;
//! - it is refused while the journal holds a sandbox, unless it waits: from then on the runtime calls the default network's
//!   plugins for them, which know nothing of the others;
//! - an installer that still runs would write the configuration again: then it ends, and says so;
//! - what waits leaves a sandbox alone as long as its namespace is there, and takes it down by the journal then. It can be
//!   ended and begun again;
//! - credentials that were installed go with the configuration;
//! - while it waits the configuration lies beside those of the runtime, where none reads it: who begins again finds the same
//!   journal by it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use cni::invocation::Attachment;
use cni::name::{ContainerId, IfName, NetworkName};
use cni::runtime::cache::{self, Cache};
use cni::runtime::load::Directory;
use rpc::journal;
use rpc::task::{Certainty, Task, TaskBatch};
use serde_json::value::RawValue;

use super::root::Place;
use super::thin::{self, Thin};
use super::{Arguments, Places, is_meta_plugin};
use crate::meta_plugin_config::MetaPlugin;
use cli_support::atomic_file::sync_directory;
use cli_support::failure::{Exit, Failure};
use cli_support::interrupt::Interrupt;
use cli_support::output::{Format, Progress};
use cli_support::privilege;
use cli_support::terminal::plain;
use node_support::journal_reader::{Journal, Row};
use node_support::weft_cni::WeftCni;

/// How often it is looked whether a sandbox has gone.
const PAUSE: Duration = Duration::from_secs(1);
/// The network of a journal whose configuration is gone.
const NETWORK: &str = "weft";

/// Takes it away, and waits if that is wanted.
pub(super) fn remove(arguments: &Arguments) -> Result<(), Failure> {
    let progress = Progress::beside(Format::Text);
    if arguments.follow && !arguments.wait {
        let why = "--remove --follow: it stays when nothing is left";
        return Err(Failure::new(why).next("add --wait").exit(Exit::Usage));
    }
    if arguments.wait {
        if arguments.root != Path::new("/") {
            let why = "--wait: namespaces of sandboxes are not seen below --root";
            return Err(Failure::new(why).next("run it on the node itself").exit(Exit::Usage));
        }
        privilege::require("weft install --remove --wait", "it takes down what sandboxes have left")?;
    }
    let places = Places::of(arguments)?;
    let Places { networks, plugins: _, written: Place { named, here }, sign: _ } = &places;
    let removed = networks.join(thin::DIRECTORY).join(&arguments.file_name);
    let is_there = exists(here)?;
    let configured = match (is_there, exists(&removed.here)?) {
        (true, _) => MetaPlugin::find_any(Some(here), &[])?,
        (false, true) => MetaPlugin::find_any(Some(&removed.here), &[])?,
        (false, false) => None,
    };
    let usual = || Path::new(journal::DIRECTORY).join(journal::ENTRIES);
    let journal = configured.as_ref().map_or_else(usual, MetaPlugin::journal);
    let mut journal = Place::below(&arguments.root, &journal)?;
    // A journal elsewhere is in no mount of ours.
    journal.here = arguments.on_host.path(&journal.here);
    match is_there {
        false => progress.line(format!("{}: not there", named.display())),
        true => {
            refuse_if_needed(&places, &journal, arguments)?;
            let gone = match arguments.wait {
                true => put_aside(here, &removed.here),
                false => fs::remove_file(here),
            };
            let gone = gone.and_then(|()| sync_directory(here));
            gone.map_err(|cause| privilege::refused(&format!("remove {}", here.display()), &cause))?;
            progress.line(format!("{}: removed", named.display()));
        }
    }
    Thin::remove(&places)?.into_iter().for_each(|line| progress.line(line));
    clear(&removed.here);
    if arguments.wait {
        let interrupt = Interrupt::watch()?;
        let weft_cni = WeftCni::find()?.on_host(arguments.on_host)?;
        let journal = Journal::at(&journal.here);
        wait(configured, &weft_cni, &journal, &places.written, &interrupt, progress)?;
        // It has told all that it was kept for.
        match fs::remove_file(&removed.here) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => {
                return Err(privilege::refused(&format!("remove {}", removed.here.display()), &cause));
            }
            _ => clear(&removed.here),
        }
        if arguments.follow {
            stay(&places.written, &interrupt)?;
        }
    }
    Ok(())
}

/// Is something there? What cannot be looked at is not gone.
fn exists(path: &Path) -> Result<bool, Failure> {
    path.try_exists().map_err(|cause| privilege::refused(&format!("look at {}", path.display()), &cause))
}

/// Removes the directory of what was kept, if nothing is left in it.
fn clear(kept: &Path) {
    let _ = kept.parent().map(fs::remove_dir);
}

/// Keeps a configuration where runtimes read none.
fn put_aside(here: &Path, removed: &Path) -> io::Result<()> {
    removed.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::rename(here, removed)
}

/// Stays until it is told to end.
fn stay(written: &Place, interrupt: &Interrupt) -> Result<(), Failure> {
    while !interrupt.is_set() {
        refuse_if_written(written)?;
        sleep(PAUSE);
    }
    Ok(())
}

/// Refuses to go on beside somebody who installs.
fn refuse_if_written(Place { named, here }: &Place) -> Result<(), Failure> {
    if !exists(here)? {
        return Ok(());
    }
    let why = format!("{}: somebody has written it again", named.display());
    Err(Failure::new(why).next("end `weft install --follow`, the DaemonSet weft-agent, and run this again"))
}

/// Refuses what would leave the node, or a sandbox, without a network.
fn refuse_if_needed(places: &Places, journal: &Place, arguments: &Arguments) -> Result<(), Failure> {
    let Places { networks, plugins: _, written: Place { named, here }, sign: _ } = places;
    let directory = Directory::read(&networks.here)?;
    let other = directory.networks.iter().find(|(path, network)| path != here && !is_meta_plugin(network));
    if other.is_none() {
        let why = format!(
            "{}: no other network is in {}: no pod could be made, or removed",
            named.display(),
            networks.named.display()
        );
        return Err(Failure::new(why).next("put the configuration of the default network there first"));
    }
    let held = entries(&journal.here)
        .map_err(|cause| privilege::refused(&format!("read {}", journal.here.display()), &cause))?;
    if held > 0 && !arguments.wait {
        let why =
            format!("{}: {held} sandboxes in {} need weft's DEL", named.display(), journal.named.display());
        let next = "drain the node first, or let --wait take down what is left of each when it goes; `weft list` shows them";
        return Err(Failure::new(why).next(next));
    }
    Ok(())
}

/// How many sandboxes a journal knows, whether or not they can be read.
fn entries(journal: &Path) -> io::Result<usize> {
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

/// Takes down what sandboxes have left, until the journal is empty.
fn wait(
    configured: Option<MetaPlugin>,
    weft_cni: &WeftCni,
    journal: &Journal,
    written: &Place,
    interrupt: &Interrupt,
    progress: Progress,
) -> Result<(), Failure> {
    let meta_plugin = match configured {
        Some(meta_plugin) => meta_plugin,
        None => MetaPlugin::of_journal(NETWORK)?,
    };
    let configuration = RawValue::from_string(meta_plugin.object.to_json())
        .map_err(|cause| Failure::new(format!("encode the configuration: {cause}")))?;
    let flavour = meta_plugin.flavour;
    let (mut known, mut told) = (BTreeMap::new(), BTreeSet::new());
    loop {
        interrupt.stop_here()?;
        refuse_if_written(written)?;
        let (held, broken) = look(journal)?;
        for (container, Held { network, ifname, .. }) in &known {
            // One that cannot be read now has not gone.
            if !held.contains_key(container) && !broken.iter().any(|broken| broken == container.as_str()) {
                forget(network, container, ifname)?;
            }
        }
        if held.is_empty() {
            return match broken.as_slice() {
                [] => {
                    progress.line("no sandbox needs weft any more");
                    Ok(())
                }
                broken => Err(Failure::new(format!("cannot be read, and are left: {}", broken.join(", ")))
                    .next("docs/operations.md, «A pod does not go»")),
            };
        }
        if known.len() != held.len() {
            progress.line(format!("waiting: {} sandboxes of before; their pods may run on", held.len()));
        }
        let tasks = held.iter().map(|(container, held)| held.task(container)).collect();
        let batch = TaskBatch { configuration: configuration.clone(), flavour, tasks };
        if let Err(failure) = weft_cni.run_tasks(&batch) {
            // It is tried again; each thing is said once.
            let text = plain(&failure.to_string());
            if told.insert(text.clone()) {
                progress.line(text);
            }
        }
        known = held;
        sleep(PAUSE);
    }
}

/// What the journal says of a sandbox.
struct Held {
    uid: String,
    network: String,
    ifname: IfName,
}

impl Held {
    /// To take it down once its namespace is gone.
    fn task(&self, container: &ContainerId) -> Task {
        let (container, uid) = (container.clone(), self.uid.clone());
        Task::TakeDown { container, uid, certainty: Certainty::PodGone }
    }
}

/// The sandboxes, and the containers whose entry cannot be read.
fn look(journal: &Journal) -> Result<(BTreeMap<ContainerId, Held>, Vec<String>), Failure> {
    let (mut all, mut broken) = (BTreeMap::new(), Vec::new());
    for row in journal.rows()? {
        match row {
            Row::Entry(entry) => {
                let (uid, network, ifname) =
                    (entry.plan.pod.uid.clone(), entry.network.clone(), entry.ifname.clone());
                all.insert(entry.container_id.clone(), Held { uid, network, ifname });
            }
            Row::Broken { container, .. } => broken.push(container),
        }
    }
    Ok((all, broken))
}

/// What the runtime noted of its call to weft: it asks another network for the sandbox's end, and removes that one's note.
fn forget(network: &str, container: &ContainerId, ifname: &IfName) -> Result<(), Failure> {
    let who = Attachment { container: container.clone(), ifname: ifname.clone() };
    let cache = Cache::new(Path::new(cache::DIRECTORY));
    Ok(cache.remove(&NetworkName::new(network)?, &who)?)
}
