//! Sandboxes on this node: which containers may live, by every journal and by the container runtimes' caches.
//!
//! - A container is gone if a journal is known, no journal contains it with a namespace that exists, and no
//!   runtime's cache contains it. The caches have the containers that another meta-plugin attached.
//! - Nothing is known to be gone while the configuration that names the journal directory is unusable.
//!
//! Source: CNI specification, section 4 (libcni caches each attachment in a file
//! `NETWORK-CONTAINER-INTERFACE`).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rpc::journal::ENTRIES;
use serde::Deserialize;

use crate::commands::doctor::RESULT_CACHES;
use crate::known_journals::{JournalHandle, KnownJournals};
use crate::manifest_plan::Inputs;
use cli_support::failure::Failure;
use node_support::journal_reader::{Journal, Row};

/// Directories in which this node's sandboxes are found.
pub(super) struct NodeSandboxes {
    /// Directories with journal entries.
    entries: Vec<PathBuf>,
    /// Reason why another journal may exist.
    unknown: Option<Failure>,
}

/// Containers that may live.
pub(super) struct LivingContainers {
    of_journals: BTreeSet<String>,
    cached: Vec<CachedFile>,
}

/// Attachment in a container runtime's cache.
struct CachedFile {
    name: String,
    path: PathBuf,
}

/// Fields in such a file.
#[derive(Deserialize)]
struct CachedAttachment {
    #[serde(default)]
    netns: String,
}

// === impl NodeSandboxes ===

impl NodeSandboxes {
    /// Finds the journals: the named one, else the configured one and the default one.
    pub(super) fn find(named: Option<&Path>) -> Result<NodeSandboxes, Failure> {
        if let Some(journal) = named {
            return Ok(NodeSandboxes { entries: vec![journal.join(ENTRIES)], unknown: None });
        }
        let KnownJournals { known, unknown } =
            JournalHandle::all(&Inputs { files: Vec::new(), config: None })?;
        let entries = known.iter().map(|handle| handle.journal().directory().to_owned()).collect();
        Ok(NodeSandboxes { entries, unknown })
    }

    /// Returns the directories with journal entries.
    pub(super) fn entries(&self) -> &[PathBuf] {
        &self.entries
    }

    /// Reason why no container is known to be gone, if the journals are not known.
    pub(super) fn unknown(&self) -> Option<&Failure> {
        self.unknown.as_ref()
    }

    /// Returns the containers that may live; `None` if no container is known to be gone.
    pub(super) fn living(&self) -> Result<Option<LivingContainers>, Failure> {
        let mut journals = self.entries.iter().filter(|entries| entries.is_dir()).peekable();
        if self.unknown.is_some() || journals.peek().is_none() {
            return Ok(None);
        }
        let mut of_journals = BTreeSet::new();
        for entries in journals {
            of_journals.extend(Journal::at(entries).rows()?.into_iter().filter_map(|row| match row {
                Row::Entry(entry) => Path::new(&entry.netns).exists().then(|| entry.container_id.to_string()),
                Row::Broken { container, .. } => Some(container),
            }));
        }
        let files = RESULT_CACHES.iter().filter_map(|cache| fs::read_dir(cache).ok());
        let files = files.flat_map(|files| files.flatten().map(|file| file.path()));
        let cached = files.map(|path| CachedFile {
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            path,
        });
        Ok(Some(LivingContainers { of_journals, cached: cached.collect() }))
    }
}

// === impl LivingContainers ===

impl LivingContainers {
    /// Whether a container may live.
    pub(super) fn contain(&self, container: &str) -> bool {
        let infix = format!("-{container}-");
        self.of_journals.contains(container)
            || self.cached.iter().any(|file| file.name.contains(&infix) && has_namespace(&file.path))
    }
}

/// Whether a cached attachment's namespace may exist. Earlier libcni releases do not record it.
fn has_namespace(path: &Path) -> bool {
    let Ok(bytes) = fs::read(path) else { return true };
    match serde_json::from_slice::<CachedAttachment>(&bytes) {
        Ok(CachedAttachment { netns }) if !netns.is_empty() => Path::new(&netns).exists(),
        _ => true,
    }
}
