//! Plugins on this node: whether they are installed, which CNI versions they support, and how to execute them.
//!
//! The proxy finds plugins the way the meta-plugin does, including those built into `weft-cni`, and executes them the
//! way a runtime does.
//!
//! Every run has a deadline. A program's versions are cached until the file changes.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cni::environment::Environment;
use cni::invoke::Invoke;
use cni::name::PluginType;
use cni::runtime::exec::{self, Exec};
use cni::runtime::probe;
use cni::{Error, Version, code};

use node_support::weft_cni::WeftCni;

/// Deadline for one run.
const DEADLINE: Duration = Duration::from_secs(10);

/// Plugins on a node.
#[derive(Debug)]
pub(crate) struct Plugins {
    path: String,
    weft_cni: Option<PathBuf>,
    known: Mutex<BTreeMap<PluginType, (FileIdentity, Vec<String>)>>,
}

/// Probe for plugin versions; examines each plugin only once.
pub(crate) struct VersionProbe<'a> {
    plugins: &'a Plugins,
    seen: Mutex<BTreeMap<PluginType, Result<Vec<String>, Error>>>,
    /// Time after which no more plugins are run.
    until: Option<Instant>,
}

/// Returns the error for a plugin that was not run in time.
pub(crate) fn late() -> Error {
    Error::new(code::TRY_AGAIN_LATER, "not checked: other plugins are slow")
}

impl VersionProbe<'_> {
    /// Checks that every plugin is installed and supports the version. Runs plugins whose versions are not cached.
    pub(crate) fn require(&self, needs: &[PluginType], version: Version) -> Result<(), Error> {
        let wanted = version.as_str();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for plugin in needs {
            if !seen.contains_key(plugin) {
                if self.until.is_some_and(|until| until <= Instant::now()) {
                    return Err(late());
                }
                seen.insert(plugin.clone(), self.plugins.versions(plugin));
            }
            match seen.get(plugin) {
                Some(Ok(speaks)) if speaks.iter().any(|version| version == wanted) => {}
                Some(Ok(speaks)) => {
                    let why = format!("plugin {plugin} does not support version {wanted}");
                    let error = Error::new(code::INCOMPATIBLE_VERSION, why);
                    return Err(error.details(format!("it supports {}", speaks.join(", "))));
                }
                Some(Err(error)) => return Err(error.clone()),
                None => {}
            }
        }
        Ok(())
    }
}

/// Program that contains a plugin.
enum Program {
    /// A file with the plugin's name.
    File(PathBuf),
    /// `weft-cni`, called with the plugin name as argument. It may not contain the plugin; the error is for that case.
    WeftCni(PathBuf, Error),
}

impl Program {
    fn path(&self) -> &Path {
        let (Program::File(path) | Program::WeftCni(path, _)) = self;
        path
    }
}

/// Identifies a program file, so that a replaced file is noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileIdentity {
    path: PathBuf,
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

impl FileIdentity {
    fn of(path: PathBuf) -> Result<FileIdentity, Error> {
        let found = std::fs::metadata(&path).map_err(|cause| Error::io(path.display(), cause))?;
        let modified = (found.mtime(), found.mtime_nsec());
        Ok(FileIdentity { path, inode: found.ino(), length: found.size(), modified })
    }
}

impl Plugins {
    /// Returns the plugins in the directories in `path`, and the built-in ones.
    pub(crate) fn in_path(path: &str) -> Plugins {
        let weft_cni = WeftCni::find().ok().map(|weft_cni| weft_cni.program().to_owned());
        Plugins { path: path.to_owned(), weft_cni, known: Mutex::default() }
    }

    /// Returns the search path, as in `CNI_PATH`.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns a version probe without time limit.
    pub(crate) fn probe(&self) -> VersionProbe<'_> {
        VersionProbe { plugins: self, seen: Mutex::default(), until: None }
    }

    /// Returns a version probe that starts no plugin after `until`.
    pub(crate) fn probe_until(&self, until: Instant) -> VersionProbe<'_> {
        VersionProbe { until: Some(until), ..self.probe() }
    }

    fn versions(&self, plugin: &PluginType) -> Result<Vec<String>, Error> {
        let program = self.program(plugin)?;
        let file = FileIdentity::of(program.path().to_owned())?;
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(plugin).cloned();
        if let Some((_, versions)) = known.filter(|(known, _)| *known == file) {
            return Ok(versions);
        }
        let versions = probe::versions(self, plugin, &self.path).map_err(|error| match program {
            Program::File(_) => error,
            // The plugin is not built in either.
            Program::WeftCni(_, absent) => absent,
        })?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(plugin.clone(), (file, versions.clone()));
        Ok(versions)
    }

    fn program(&self, plugin: &PluginType) -> Result<Program, Error> {
        match (exec::find(plugin, &self.path), &self.weft_cni) {
            (Ok(found), _) => Ok(Program::File(found)),
            (Err(absent), Some(weft_cni)) => Ok(Program::WeftCni(weft_cni.clone(), absent)),
            (Err(absent), None) => Err(absent),
        }
    }
}

impl Invoke for Plugins {
    fn invoke(&self, plugin: &PluginType, environment: &Environment, stdin: &[u8]) -> Result<Vec<u8>, Error> {
        let program = self.program(plugin)?;
        let mut command = Command::new(program.path());
        if let Program::WeftCni(..) = program {
            command.arg(plugin.as_str());
        }
        let (output, failure) = Exec::new(DEADLINE).complete(command, environment, stdin)?;
        failure.map_or(Ok(output.stdout), Err)
    }
}
