//! `weft install --command`: puts this program onto the node, where an operator finds it.
//!
//! - The file is written under a temporary name and renamed, and is never in the plugin directory, where a runtime would call
//!   it as a plugin.
//! - A record beside the configurations has the path and the SHA-256 of each installed file. Only such a file is
//!   replaced or removed. A damaged record is never replaced, because the files in it would be forgotten: nothing is
//!   installed or removed.
//! - A node without a writable directory still gets networks: the failure is a line of the output, and of
//!   `weft doctor`, which reads it from the record.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cni::wording::syntax_error;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::node_path::NodePath;
use super::{Arguments, InstallPaths, thin};
use cli_support::atomic_file;
use cli_support::failure::{Exit, Failure};
use cli_support::privilege;
use node_support::weft_cni::{OnHost, is_copy};

/// Directory of `--command` without a value.
pub(super) const DIRECTORY: &str = "/usr/local/bin";
/// File name of the program.
const PROGRAM: &str = "weft";
/// File name of the record.
const RECORD: &str = "command.json";
/// Size of the pieces in which a file is read, in bytes.
const PIECE: usize = 64 << 10;
/// Longest record, in bytes.
const RECORD_MAX: u64 = 1 << 20;
/// Next step for a damaged record.
pub(crate) const REPAIR: &str =
    "restore the record, or delete it together with the program, which is in /usr/local/bin by default";
/// This program.
const OWN: &str = "/proc/self/exe";

/// Program on the node, and the record.
#[derive(Clone, Debug)]
pub(super) struct Command {
    program: NodePath,
    record: NodePath,
}

/// Record of the installed files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CommandRecord {
    /// Installed files.
    installed: Vec<InstalledFile>,
    /// Failure of the last installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<FailedFile>,
}

/// Installed file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct InstalledFile {
    path: PathBuf,
    sha256: String,
}

/// File that could not be installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FailedFile {
    pub(crate) path: PathBuf,
    pub(crate) why: String,
}

/// Result of removing the recorded files.
#[derive(Debug)]
pub(super) struct Removal {
    /// A line for each file.
    pub(super) lines: Vec<String>,
    /// Failure that names the remaining files.
    pub(super) failure: Option<Failure>,
}

// === impl Command ===

impl Command {
    /// Returns the paths if `--command` is given.
    ///
    /// # Errors
    /// The directory is one of the runtime's directories: a usage error.
    pub(super) fn of(arguments: &Arguments, paths: &InstallPaths) -> Result<Option<Command>, Failure> {
        let Some(directory) = &arguments.command else { return Ok(None) };
        let here = NodePath::below(&arguments.root, directory)?;
        let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        for (of, what) in
            [(&paths.plugins, "plugin directory"), (&paths.networks, "CNI configuration directory")]
        {
            if real(&of.here) == real(&here.here) {
                let why = format!("--command {}: it is the {what} of the runtime", directory.display());
                return Err(Failure::new(why).next(format!("use {DIRECTORY}")).exit(Exit::Usage));
            }
        }
        Ok(Some(Command { program: here.join(PROGRAM), record: record(paths) }))
    }

    /// Installs the program. Returns a line for a change or a failure.
    pub(super) fn install(&self) -> Option<String> {
        let Command { program: NodePath { named, .. }, record } = self;
        let mut known = match CommandRecord::read(&record.here) {
            Ok(known) => known,
            Err(failure) => return Some(format!("{}: not installed: {failure}; {REPAIR}", named.display())),
        };
        let failed = match self.copy(&mut known) {
            Ok(false) if known.failed.is_none() => return None,
            Ok(_) => None,
            Err(cause) => Some(FailedFile { path: named.clone(), why: cause.to_string() }),
        };
        let line = failed.as_ref().map_or_else(
            || format!("{}: installed", named.display()),
            |FailedFile { why, .. }| format!("{}: not installed: {why}", named.display()),
        );
        if known.failed == failed {
            return Some(line);
        }
        known.failed = failed;
        let recorded = known.write(&record.here).map_err(|cause| format!("{line}; record it: {cause}"));
        Some(recorded.map_or_else(|error| error, |()| line))
    }

    /// Copies this program to the path unless it is there. Returns whether it was written.
    ///
    /// The record has the old and the new file before the change, so that a killed command leaves no unknown file.
    fn copy(&self, known: &mut CommandRecord) -> io::Result<bool> {
        let Command { program: NodePath { named, here }, record } = self;
        if is_copy(Path::new(OWN), here) {
            return Ok(false);
        }
        match digest(here) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => {}
            Err(cause) => return Err(cause),
            Ok(found) if known.has(named, &found) => {}
            Ok(_) => {
                let why = "another file has this name; remove it, or name another directory";
                return Err(io::Error::other(why));
            }
        }
        if let Some(directory) = here.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        }
        let sha256 = digest(Path::new(OWN))?;
        if !known.has(named, &sha256) {
            known.installed.push(InstalledFile { path: named.clone(), sha256: sha256.clone() });
        }
        known.write(&record.here)?;
        thin::copy_own(here)?;
        known.installed.retain(|file| file.path != *named || file.sha256 == sha256);
        known.write(&record.here)?;
        Ok(true)
    }

    /// Returns the written files.
    pub(super) fn files(&self) -> [PathBuf; 2] {
        [self.program.here.clone(), self.record.here.clone()]
    }
}

/// Removes the recorded files. The record keeps those that could not be removed, so that a repeated removal finds them.
pub(super) fn remove(paths: &InstallPaths, root: &Path, on_host: OnHost) -> Result<Removal, Failure> {
    let record = record(paths);
    let mut known = match CommandRecord::read(&record.here) {
        Ok(known) => known,
        Err(failure) => {
            let failure = failure.context("program of --command not removed").next(REPAIR);
            return Ok(Removal { lines: Vec::new(), failure: Some(failure) });
        }
    };
    let files: BTreeSet<PathBuf> = known.installed.iter().map(|file| file.path.clone()).collect();
    let (mut lines, mut remaining) = (Vec::new(), BTreeSet::new());
    for path in files {
        let here = on_host.path(&NodePath::below(root, &path)?.here);
        let state = match digest(&here) {
            Err(cause) if matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => continue,
            Ok(found) if !known.has(&path, &found) => "kept, because it is another file now".to_owned(),
            found => match found.and_then(|_| fs::remove_file(&here)) {
                Ok(()) => "removed".to_owned(),
                Err(cause) => {
                    remaining.insert(path.clone());
                    format!("not removed: {cause}")
                }
            },
        };
        lines.push(format!("{}: {state}", path.display()));
    }
    if !remaining.is_empty() {
        known.installed.retain(|file| remaining.contains(&file.path));
        let written = known.write(&record.here);
        written.map_err(|cause| privilege::refused(&format!("write {}", record.here.display()), &cause))?;
        let paths: Vec<String> = remaining.iter().map(|path| path.display().to_string()).collect();
        let failure = Failure::new(format!("program of --command not removed: {}", paths.join(", ")))
            .next("make it removable, and run weft install --remove again");
        return Ok(Removal { lines, failure: Some(failure) });
    }
    match fs::remove_file(&record.here) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => {
            Err(privilege::refused(&format!("remove {}", record.here.display()), &cause))
        }
        _ => Ok(Removal { lines, failure: None }),
    }
}

fn record(paths: &InstallPaths) -> NodePath {
    paths.networks.join(thin::DIRECTORY).join(RECORD)
}

/// Returns the record in a directory of configurations.
///
/// # Errors
/// The record is unreadable or damaged.
pub(crate) fn record_below(configurations: &Path) -> Result<CommandRecord, Failure> {
    CommandRecord::read(&configurations.join(thin::DIRECTORY).join(RECORD))
}

/// Returns the SHA-256 of a file in hexadecimal digits, as `sha256sum` does.
fn digest(path: &Path) -> io::Result<String> {
    let (mut file, mut hash, mut piece) = (fs::File::open(path)?, Sha256::new(), vec![0; PIECE]);
    loop {
        match file.read(&mut piece)? {
            0 => break,
            read => hash.update(piece.get(..read).unwrap_or_default()),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

// === impl CommandRecord ===

impl CommandRecord {
    /// Reads a record. One that is missing has no files.
    ///
    /// # Errors
    /// The record is unreadable or damaged.
    fn read(path: &Path) -> Result<CommandRecord, Failure> {
        let mut text = Vec::new();
        match fs::File::open(path).and_then(|file| file.take(RECORD_MAX).read_to_end(&mut text)) {
            Err(cause) if matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(CommandRecord::default());
            }
            Err(cause) => return Err(privilege::refused(&format!("read {}", path.display()), &cause)),
            Ok(_) => {}
        }
        serde_json::from_slice(&text).map_err(|cause| {
            let why = syntax_error(&text, &cause);
            Failure::new(format!("{}: damaged record of installed programs: {why}", path.display()))
        })
    }

    /// Whether a file of this content was installed at the path.
    fn has(&self, path: &Path, sha256: &str) -> bool {
        self.installed.iter().any(|file| file.path == path && file.sha256 == sha256)
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        if let Some(directory) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        atomic_file::write(path, &serde_json::to_string_pretty(self)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_record_keeps_a_program_that_was_not_removed() {
        let root = std::env::temp_dir().join(format!("weft-command-{}", std::process::id()));
        let path = |name: &str| NodePath { named: root.join(name), here: root.join(name) };
        let paths = InstallPaths {
            root: PathBuf::from("/"),
            networks: path("net.d"),
            plugins: path("bin"),
            written: path("net.d/00-weft.conflist"),
            ready_file: None,
        };
        // The root user can remove every file, but no directory in this way.
        fs::create_dir_all(root.join("stuck")).unwrap();
        fs::write(root.join("own"), "own").unwrap();
        fs::write(root.join("other"), "changed").unwrap();
        let sha256 = digest(&root.join("own")).unwrap();
        let installed = ["own", "other", "stuck", "absent", "own/absent"]
            .map(|name| InstalledFile { path: root.join(name), sha256: sha256.clone() })
            .to_vec();
        let record = record(&paths).here;
        CommandRecord { installed, failed: None }.write(&record).unwrap();
        let remove = || remove(&paths, Path::new("/"), OnHost::default()).unwrap();

        let Removal { lines, failure } = remove();
        assert_eq!(lines.len(), 3, "{lines:?}");
        let failure = failure.unwrap().to_string();
        assert!(failure.contains("/stuck") && !failure.contains("/own"), "{failure}");
        assert!(!root.join("own").exists() && root.join("other").exists());
        let known: Vec<PathBuf> =
            CommandRecord::read(&record).unwrap().installed.into_iter().map(|file| file.path).collect();
        assert_eq!(known, [root.join("stuck")]);

        fs::remove_dir(root.join("stuck")).unwrap();
        assert!(remove().failure.is_none());
        assert!(!record.exists());
        fs::remove_dir_all(root).unwrap();
    }
}
