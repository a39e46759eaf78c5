//! Journals on this node, the meta-plugin for each, and the search for a sandbox in them.
//!
//! If the configuration's `cniDir` names another directory, both that journal and the default one are
//! searched.

use std::path::Path;

use cni::name::ContainerId;
use rpc::journal::{self, Entry};

use crate::input_files;
use crate::manifest_plan::Inputs;
use crate::meta_plugin_config::MetaPlugin;
use crate::pod_name::{PodName, PodSelection};
use cli_support::failure::Failure;
use node_support::journal_reader::{Journal, Row};

/// Journal and meta-plugin configuration, if that is known.
#[derive(Clone, Debug)]
pub(crate) struct JournalHandle {
    journal: Journal,
    meta_plugin: Option<MetaPlugin>,
}

/// Journals on this node.
#[derive(Clone, Debug)]
pub(crate) struct KnownJournals {
    /// Journals that were found.
    pub(crate) known: Vec<JournalHandle>,
    /// Reason why another journal may exist: the configuration that would name it is unusable.
    pub(crate) unknown: Option<Failure>,
}

/// Options that select a sandbox.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = true, args = ["name", "pod", "container_id"])]
pub(crate) struct Target {
    #[command(flatten)]
    selection: PodSelection,
    /// Container ID of the sandbox, or its beginning as crictl prints it (required if the pod has several)
    #[arg(long, value_name = "ID", value_parser = ContainerId::new)]
    pub(crate) container_id: Option<ContainerId>,
}

// === impl JournalHandle ===

impl JournalHandle {
    /// Returns the configured journal and the default one.
    ///
    /// # Errors
    /// A configuration named by an option is unusable. If the container runtime's configuration is unusable,
    /// only the default journal is returned.
    pub(crate) fn all(inputs: &Inputs) -> Result<KnownJournals, Failure> {
        let Inputs { files, config } = inputs;
        let (found, unknown) = match files.is_empty() && config.is_none() {
            true => {
                let found = MetaPlugin::find_any(None, &[]);
                // The renamed file still says where the journal is.
                let found = found.map(|found| found.or_else(MetaPlugin::renamed_by_cilium));
                found.map_or_else(|why| (None, Some(why)), |found| (found, None))
            }
            false => (MetaPlugin::find_any(config.as_deref(), &input_files::read(files)?)?, None),
        };
        let hint = "correct the file, or name another configuration with --config";
        let unknown = unknown.map(|why| why.context("the directory of the journal is unknown").next(hint));
        Ok(KnownJournals { known: JournalHandle::with(found), unknown })
    }

    /// Returns a meta-plugin's journal and the default one.
    pub(crate) fn with(meta_plugin: Option<MetaPlugin>) -> Vec<JournalHandle> {
        let default = Path::new(journal::DIRECTORY).join(journal::ENTRIES);
        let mut handles = Vec::new();
        handles.extend(
            meta_plugin.map(|found| JournalHandle {
                journal: Journal::at(&found.journal()),
                meta_plugin: Some(found),
            }),
        );
        if handles.iter().all(|handle| handle.journal.directory() != default) {
            handles.push(JournalHandle { journal: Journal::at(&default), meta_plugin: None });
        }
        handles
    }

    /// Returns the journal.
    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Returns the path to the meta-plugin's log file, if the configuration has one.
    pub(crate) fn log_file(&self) -> Option<&str> {
        self.meta_plugin.as_ref()?.node.logging.file.as_deref()
    }

    /// Returns the meta-plugin to call for an entry in this journal.
    pub(crate) fn meta_plugin(&self, entry: &Entry) -> Result<MetaPlugin, Failure> {
        match &self.meta_plugin {
            Some(meta_plugin) => Ok(meta_plugin.clone()),
            None => MetaPlugin::for_journal(&entry.network),
        }
    }
}

// === impl KnownJournals ===

impl KnownJournals {
    /// Returns the journals if no other one can exist.
    ///
    /// # Errors
    /// A journal's directory is unknown.
    pub(crate) fn every(self) -> Result<Vec<JournalHandle>, Failure> {
        let KnownJournals { known, unknown } = self;
        unknown.map_or(Ok(known), Err)
    }
}

// === impl Target ===

impl Target {
    /// Returns the target for a pod with a single sandbox.
    pub(crate) fn of(pod: &PodName) -> Target {
        Target { selection: PodSelection::of(pod), container_id: None }
    }

    /// Returns the selected entry and the journal; `None` if there is none.
    ///
    /// # Errors
    /// The entry is unreadable; the pod has several sandboxes; or the sandbox was not found and a journal is unknown.
    pub(crate) fn find(&self, journals: &KnownJournals) -> Result<Option<(JournalHandle, Entry)>, Failure> {
        match (self.search(self.pod()?.as_ref(), &journals.known)?, &journals.unknown) {
            (None, Some(why)) => Err(why.clone()),
            (found, _) => Ok(found),
        }
    }

    /// Returns the pod that the options name.
    pub(crate) fn pod(&self) -> Result<Option<PodName>, Failure> {
        self.selection.selected()
    }

    fn search(
        &self,
        pod: Option<&PodName>,
        handles: &[JournalHandle],
    ) -> Result<Option<(JournalHandle, Entry)>, Failure> {
        if let Some(container) = self.container()? {
            for handle in handles {
                let entry = handle
                    .journal
                    .entry(&container)
                    .map_err(|error| error.context(format!("sandbox {container} has no readable entry")))?;
                if let Some(entry) = entry {
                    refuse_other_pod(pod, &entry)?;
                    return Ok(Some((handle.clone(), entry)));
                }
            }
        }
        match (pod, &self.container_id) {
            (Some(pod), None) => search_by_pod(pod, handles),
            (_, Some(prefix)) => {
                let found = search_by_prefix(prefix, handles)?;
                found.iter().try_for_each(|(_, entry)| refuse_other_pod(pod, entry))?;
                Ok(found)
            }
            (None, None) => Ok(None),
        }
    }

    /// Returns the given container ID, or else the ID derived from the pod's name.
    pub(crate) fn container(&self) -> Result<Option<ContainerId>, Failure> {
        match (&self.container_id, self.pod()?) {
            (Some(container), _) => Ok(Some(container.clone())),
            (None, Some(pod)) => Ok(Some(pod.container_id()?)),
            (None, None) => Ok(None),
        }
    }

    /// Returns what messages call the selected sandbox.
    ///
    /// # Errors
    /// The pod's name is invalid: a usage error.
    pub(crate) fn describe(&self) -> Result<String, Failure> {
        Ok(match (self.pod()?, &self.container_id) {
            (Some(pod), None) => format!("pod {pod}"),
            (Some(pod), Some(id)) => format!("pod {pod}, container {id}"),
            (None, Some(id)) => format!("container {id}"),
            (None, None) => "nothing".to_owned(),
        })
    }
}

/// Fails if the sandbox belongs to another pod than the named one.
fn refuse_other_pod(pod: Option<&PodName>, entry: &Entry) -> Result<(), Failure> {
    let actual = &entry.plan.pod;
    match pod {
        Some(pod) if actual.namespace != pod.namespace || actual.name != pod.name => {
            let actual = format!("{}/{}", actual.namespace, actual.name);
            Err(Failure::new(format!(
                "container {} belongs to pod {actual}, not to {pod}",
                entry.container_id
            )))
        }
        _ => Ok(()),
    }
}

/// Returns the sandbox whose container ID begins with `prefix`, the short form in crictl.
///
/// Only container IDs that runtimes choose have a short form: hexadecimal ones. Other IDs contain a pod's
/// name, and one pod's name can begin with another's.
fn search_by_prefix(
    prefix: &ContainerId,
    handles: &[JournalHandle],
) -> Result<Option<(JournalHandle, Entry)>, Failure> {
    let has_prefix =
        |id: &str| id.starts_with(prefix.as_str()) && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut found = Vec::new();
    for handle in handles {
        for row in handle.journal.rows()? {
            match row {
                Row::Entry(entry) if has_prefix(entry.container_id.as_str()) => {
                    found.push((entry.container_id.to_string(), Ok((handle.clone(), *entry))));
                }
                Row::Broken { container, error } if has_prefix(&container) => {
                    let failure = Failure::from(error).context(format!("journal entry {container}"));
                    found.push((container, Err(failure)));
                }
                _ => {}
            }
        }
    }
    if found.len() > 1 {
        let ids: Vec<&str> = found.iter().map(|(id, _)| id.as_str()).collect();
        let why =
            format!("--container-id {prefix}: {} sandboxes begin with it: {}", ids.len(), ids.join(", "));
        return Err(Failure::new(why).next("use more characters of the container ID"));
    }
    found.pop().map(|(_, result)| result).transpose()
}

/// Returns a pod's sandbox, whatever the container ID is.
fn search_by_pod(
    pod: &PodName,
    handles: &[JournalHandle],
) -> Result<Option<(JournalHandle, Entry)>, Failure> {
    let (mut found, mut unreadable) = (Vec::new(), None);
    for handle in handles {
        for row in handle.journal.rows()? {
            match row {
                Row::Broken { container, error } => {
                    let failure = Failure::from(error).context(format!("journal entry {container}"));
                    unreadable = Some(failure);
                }
                Row::Entry(entry)
                    if entry.plan.pod.namespace == pod.namespace && entry.plan.pod.name == pod.name =>
                {
                    found.push((handle.clone(), *entry));
                }
                _ => {}
            }
        }
    }
    if found.len() > 1 {
        let ids: Vec<&str> = found.iter().map(|(_, entry)| entry.container_id.as_str()).collect();
        let why = format!("pod {pod} has {} sandboxes: {}", ids.len(), ids.join(", "));
        return Err(Failure::new(why).next("name one with --container-id"));
    }
    match (found.pop(), unreadable) {
        (None, Some(failure)) => {
            let next = "it may be the entry of this pod; delete the pod: its DEL renames the entry";
            Err(failure.context(format!("pod {pod} has no readable entry")).next(next))
        }
        (found, _) => Ok(found),
    }
}
