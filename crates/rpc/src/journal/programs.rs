//! Programs that serve an attachment's plugins: `weft-cni` itself, or external programs.
//!
//! They are decided before an ADD and recorded with it, so that every later call for the attachment goes to
//! the same program, whichever `weft-cni` copy makes it. The recorded file identity shows whether an external
//! program was replaced since.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cni::name::PluginType;
use serde::{Deserialize, Serialize};

/// Program that serves a plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PluginProgram {
    /// The plugin is built into `weft-cni`.
    BuiltIn,
    /// A program that is not weft's.
    External(ProgramFile),
}

/// External program, and which file it was at the ADD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgramFile {
    /// Path, as found in the plugin directories.
    pub path: PathBuf,
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// When the content last changed, in nanoseconds since 1970.
    pub modified: i64,
}

/// Programs for an attachment's plugins, by plugin name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Programs(BTreeMap<String, PluginProgram>);

// === impl ProgramFile ===

impl ProgramFile {
    /// Returns the regular file at a path; `None` if there is none.
    #[must_use]
    pub fn at(path: &Path) -> Option<ProgramFile> {
        let file = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        let modified = file.mtime().saturating_mul(1_000_000_000).saturating_add(file.mtime_nsec());
        let (device, inode, size) = (file.dev(), file.ino(), file.size());
        Some(ProgramFile { path: path.to_owned(), device, inode, size, modified })
    }
}

// === impl Programs ===

impl Programs {
    /// Returns no programs, for an attachment whose ADD recorded none.
    #[must_use]
    pub const fn unknown() -> Programs {
        Programs(BTreeMap::new())
    }

    /// Whether no program is recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the program for a plugin, if it is recorded.
    #[must_use]
    pub fn get(&self, plugin: &str) -> Option<&PluginProgram> {
        self.0.get(plugin)
    }

    /// Returns plugins and programs, by plugin name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &PluginProgram)> {
        self.0.iter().map(|(plugin, program)| (plugin.as_str(), program))
    }

    /// Records which program serves a plugin.
    pub fn set(&mut self, plugin: &PluginType, program: PluginProgram) {
        self.0.insert(plugin.to_string(), program);
    }
}
