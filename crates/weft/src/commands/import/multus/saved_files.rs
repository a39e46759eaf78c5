//! Copies of the Multus configurations that the runtime's directory had, for a repeated import and for the way back.
//!
//! ```text
//!   /etc/cni/net.d/00-multus.conf | .conflist | … ── save ──► JOURNAL/multus/ ── restore ──► /etc/cni/net.d/
//! ```
//!
//! The Multus daemon removes the file when it ends, and different installers name it differently, so the content
//! decides what is a Multus configuration.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cni::network::{Network, plugin_type};
use cni::runtime::load::Directory;

use cli_support::atomic_file::{self, sync_directory};
use cli_support::failure::Failure;
use cli_support::privilege;

/// Types of the Multus plugin, without and with a daemon.
const TYPES: [&str; 2] = ["multus", "multus-shim"];
/// Directory of the copies below the journal's directory.
const DIRECTORY: &str = "multus";

/// Directory of the copies, and that of the runtime.
#[derive(Clone, Debug)]
pub(super) struct SavedFiles {
    copies: PathBuf,
    conf_dir: PathBuf,
}

impl SavedFiles {
    /// Returns the files below the journal's directory.
    pub(super) fn below(journal: &Path, conf_dir: &Path) -> SavedFiles {
        SavedFiles { copies: journal.join(DIRECTORY), conf_dir: conf_dir.to_owned() }
    }

    /// Returns the directory of the copies.
    pub(super) fn directory(&self) -> &Path {
        &self.copies
    }

    /// Saves every configuration of Multus in the runtime's directory. Returns a line for each.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub(super) fn save(&self) -> Result<Vec<String>, Failure> {
        let mut lines = Vec::new();
        for (path, name) in configurations(&self.conf_dir)? {
            let text = read(&path)?;
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.copies);
            made.map_err(|cause| privilege::refused(&format!("create {}", self.copies.display()), &cause))?;
            let copy = self.copies.join(name);
            write(&copy, &text)?;
            lines.push(format!("{}: saved as {}", path.display(), copy.display()));
        }
        Ok(lines)
    }

    /// Removes every Multus configuration from the runtime's directory, if the copy is the same. Returns a line for
    /// each.
    ///
    /// # Errors
    /// A file cannot be removed, or was changed since it was saved.
    pub(super) fn remove(&self) -> Result<Vec<String>, Failure> {
        let mut lines = Vec::new();
        for (path, name) in configurations(&self.conf_dir)? {
            if read(&path)? != read(&self.copies.join(name))? {
                let why = format!("{} has changed since it was saved", path.display());
                return Err(
                    Failure::new(why).next("repeat the command once no pod of Multus runs on this node")
                );
            }
            let removed = fs::remove_file(&path).and_then(|()| sync_directory(&path));
            removed.map_err(|cause| privilege::refused(&format!("remove {}", path.display()), &cause))?;
            lines.push(format!("{}: removed", path.display()));
        }
        if lines.is_empty() {
            lines.push(format!("no configuration of Multus is left in {}", self.conf_dir.display()));
        }
        Ok(lines)
    }

    /// Writes the copies back. Returns a line for each.
    ///
    /// # Errors
    /// There is no copy, or a file cannot be written.
    pub(super) fn restore(&self) -> Result<Vec<String>, Failure> {
        let mut lines = Vec::new();
        for (copy, name) in configurations(&self.copies)? {
            let path = self.conf_dir.join(name);
            write(&path, &read(&copy)?)?;
            lines.push(format!("{}: written", path.display()));
        }
        match lines.is_empty() {
            true => Err(Failure::new(format!("no configuration of Multus in {}", self.copies.display()))
                .next("weft import multus --apply saves it before the change")),
            false => Ok(lines),
        }
    }
}

/// Whether this is a configuration of Multus.
pub(super) fn is_of_multus(network: &Network) -> bool {
    let name = network.plugins.first().and_then(|plugin| plugin_type(plugin).ok());
    name.is_some_and(|name| TYPES.contains(&name.as_str()))
}

/// Returns path and name of each Multus configuration in a directory, sorted.
fn configurations(directory: &Path) -> Result<Vec<(PathBuf, PathBuf)>, Failure> {
    let networks = Directory::read(directory)?.networks;
    let mut found: Vec<(PathBuf, PathBuf)> = networks
        .into_iter()
        .filter(|(_, network)| is_of_multus(network))
        .filter_map(|(path, _)| Some((path.clone(), PathBuf::from(path.file_name()?))))
        .collect();
    found.sort();
    Ok(found)
}

/// Returns the content of a file; empty if it does not exist.
fn read(path: &Path) -> Result<String, Failure> {
    match fs::read_to_string(path) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(String::new()),
        read => read.map_err(|cause| privilege::refused(&format!("read {}", path.display()), &cause)),
    }
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    atomic_file::write(path, text)
        .map_err(|cause| privilege::refused(&format!("write {}", path.display()), &cause))
}
