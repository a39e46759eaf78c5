//! The journals of this node and the meta-plugin that each belongs to, and the search for a sandbox in them.
//!
//! Where the configuration moves the journal (`cniDir`), both places are searched.

use std::path::Path;

use cni::name::ContainerId;
use rpc::journal::{self, Entry};

use crate::input_files;
use crate::manifest_plan::Inputs;
use crate::meta_plugin_config::MetaPlugin;
use crate::pod_name::PodName;
use cli_support::failure::Failure;
use node_support::journal_reader::{Journal, Row};

/// A journal, and the configuration it belongs to if that is known.
#[derive(Clone, Debug)]
pub(crate) struct JournalHandle {
    journal: Journal,
    meta_plugin: Option<MetaPlugin>,
}

/// The journals of this node.
#[derive(Clone, Debug)]
pub(crate) struct KnownJournals {
    /// Those that are known.
    pub(crate) known: Vec<JournalHandle>,
    /// Why there may be another one, elsewhere: the configuration that would say so cannot be used.
    pub(crate) unknown: Option<Failure>,
}

/// Which sandbox is meant.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Target {
    /// Namespace and name of the pod
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub(crate) pod: Option<PodName>,
    /// Container ID of the sandbox (required if the pod has several)
    #[arg(long, value_name = "ID", value_parser = ContainerId::new)]
    pub(crate) container_id: Option<ContainerId>,
}

// === impl JournalHandle ===

impl JournalHandle {
    /// The journals of this node: that of the configuration, and the usual one.
    ///
    /// # Errors
    /// A configuration that was named and cannot be used; one of the container runtime may be broken: then only the
    /// usual one is known.
    pub(crate) fn all(inputs: &Inputs) -> Result<KnownJournals, Failure> {
        let Inputs { files, config } = inputs;
        let (found, unknown) = match files.is_empty() && config.is_none() {
            true => {
                MetaPlugin::find_any(None, &[]).map_or_else(|why| (None, Some(why)), |found| (found, None))
            }
            false => (MetaPlugin::find_any(config.as_deref(), &input_files::read(files)?)?, None),
        };
        let usual = Path::new(journal::DIRECTORY).join(journal::ENTRIES);
        let mut keepers = Vec::new();
        keepers.extend(
            found.map(|found| JournalHandle {
                journal: Journal::at(&found.journal()),
                meta_plugin: Some(found),
            }),
        );
        if keepers.iter().all(|keeper| keeper.journal.directory() != usual) {
            keepers.push(JournalHandle { journal: Journal::at(&usual), meta_plugin: None });
        }
        let cure = "mend it, or name the configuration with --config";
        let unknown = unknown.map(|why| why.context("where the journal is cannot be told").next(cure));
        Ok(KnownJournals { known: keepers, unknown })
    }

    /// Where it is.
    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The meta-plugin to call for an entry of this journal.
    pub(crate) fn meta_plugin(&self, entry: &Entry) -> Result<MetaPlugin, Failure> {
        match &self.meta_plugin {
            Some(meta_plugin) => Ok(meta_plugin.clone()),
            None => MetaPlugin::of_journal(&entry.network),
        }
    }
}

// === impl Target ===

impl Target {
    /// The entry that is meant, and who keeps it; `None` if there is none.
    ///
    /// # Errors
    /// Its entry cannot be read, or the pod has several sandboxes; or it may be in a journal that is not known.
    pub(crate) fn find(&self, keepers: &KnownJournals) -> Result<Option<(JournalHandle, Entry)>, Failure> {
        match (self.among(&keepers.known)?, &keepers.unknown) {
            (None, Some(why)) => Err(why.clone()),
            (found, _) => Ok(found),
        }
    }

    fn among(&self, keepers: &[JournalHandle]) -> Result<Option<(JournalHandle, Entry)>, Failure> {
        if let Some(container) = self.container()? {
            for keeper in keepers {
                if let Some(entry) = keeper.journal.entry(&container)? {
                    self.refuse_other_pod(&entry)?;
                    return Ok(Some((keeper.clone(), entry)));
                }
            }
        }
        match (&self.pod, &self.container_id) {
            (Some(pod), None) => among_all(pod, keepers),
            _ => Ok(None),
        }
    }

    fn refuse_other_pod(&self, entry: &Entry) -> Result<(), Failure> {
        let is = &entry.plan.pod;
        match &self.pod {
            Some(pod) if is.namespace != pod.namespace || is.name != pod.name => {
                let of = format!("{}/{}", is.namespace, is.name);
                Err(Failure::new(format!("container {} is of pod {of}, not of {pod}", entry.container_id)))
            }
            _ => Ok(()),
        }
    }

    /// The container id that was said, else the one that follows from the pod's name.
    pub(crate) fn container(&self) -> Result<Option<ContainerId>, Failure> {
        match (&self.container_id, &self.pod) {
            (Some(container), _) => Ok(Some(container.clone())),
            (None, Some(pod)) => Ok(Some(pod.container_id()?)),
            (None, None) => Ok(None),
        }
    }

    /// For messages.
    pub(crate) fn describe(&self) -> String {
        match (&self.pod, &self.container_id) {
            (Some(pod), None) => format!("pod {pod}"),
            (Some(pod), Some(id)) => format!("pod {pod}, container {id}"),
            (None, Some(id)) => format!("container {id}"),
            (None, None) => "nothing".to_owned(),
        }
    }
}

/// A sandbox of the pod that a container runtime named.
fn among_all(pod: &PodName, keepers: &[JournalHandle]) -> Result<Option<(JournalHandle, Entry)>, Failure> {
    let mut found = Vec::new();
    for keeper in keepers {
        for row in keeper.journal.rows()? {
            match row {
                Row::Entry(entry)
                    if entry.plan.pod.namespace == pod.namespace && entry.plan.pod.name == pod.name =>
                {
                    found.push((keeper.clone(), *entry));
                }
                _ => {}
            }
        }
    }
    if found.len() > 1 {
        let ids: Vec<&str> = found.iter().map(|(_, entry)| entry.container_id.as_str()).collect();
        let why = format!("pod {pod} has {} sandboxes: {}", ids.len(), ids.join(", "));
        return Err(Failure::new(why).next("say which one with --container-id"));
    }
    Ok(found.pop())
}
