//! The plugins of this node: are they there, do they speak a network's version, what do they say of themselves?
//!
//! They are looked for as the meta-plugin does it, the built-in ones of `weft-cni` included, and run as a runtime runs
//! them.
//!
//! Rules: every run has a deadline; what a program said of its versions counts as long as its file is the same.

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

/// Time for one run.
const DEADLINE: Duration = Duration::from_secs(10);

/// The plugins of a node.
#[derive(Debug)]
pub(crate) struct Plugins {
    path: String,
    weft_cni: Option<PathBuf>,
    known: Mutex<BTreeMap<PluginType, (Fingerprint, Vec<String>)>>,
}

/// One look at the plugins: what was seen of one is not looked for again.
pub(crate) struct Look<'a> {
    plugins: &'a Plugins,
    seen: Mutex<BTreeMap<PluginType, Result<Vec<String>, Error>>>,
    /// None is asked anew after that.
    until: Option<Instant>,
}

/// Why nothing is known of a plugin.
pub(crate) fn late() -> Error {
    Error::new(code::TRY_AGAIN_LATER, "not asked: other plugins take their time")
}

impl Look<'_> {
    /// Is every plugin there, and does it speak this version? Takes time where one is new.
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

/// What runs as a plugin.
enum Program {
    /// A file of its own.
    File(PathBuf),
    /// `weft-cni`, which has to be told the name and may not know it; and why there is no file.
    WeftCni(PathBuf, Error),
}

impl Program {
    fn path(&self) -> &Path {
        let (Program::File(path) | Program::WeftCni(path, _)) = self;
        path
    }
}

/// Which file a program is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fingerprint {
    path: PathBuf,
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

impl Fingerprint {
    fn of(path: PathBuf) -> Result<Fingerprint, Error> {
        let found = std::fs::metadata(&path).map_err(|cause| Error::io(path.display(), cause))?;
        let modified = (found.mtime(), found.mtime_nsec());
        Ok(Fingerprint { path, inode: found.ino(), length: found.size(), modified })
    }
}

impl Plugins {
    /// Those in the directories of `path`, and those that are built in.
    pub(crate) fn in_path(path: &str) -> Plugins {
        let weft_cni = WeftCni::find().ok().map(|weft_cni| weft_cni.program().to_owned());
        Plugins { path: path.to_owned(), weft_cni, known: Mutex::default() }
    }

    /// Where they are looked for.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Looks at plugins, at each once.
    pub(crate) fn look(&self) -> Look<'_> {
        Look { plugins: self, seen: Mutex::default(), until: None }
    }

    /// The same for so long.
    pub(crate) fn look_until(&self, until: Instant) -> Look<'_> {
        Look { until: Some(until), ..self.look() }
    }

    fn versions(&self, plugin: &PluginType) -> Result<Vec<String>, Error> {
        let program = self.program(plugin)?;
        let file = Fingerprint::of(program.path().to_owned())?;
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(plugin).cloned();
        if let Some((_, versions)) = known.filter(|(known, _)| *known == file) {
            return Ok(versions);
        }
        let versions = probe::versions(self, plugin, &self.path).map_err(|error| match program {
            Program::File(_) => error,
            // It is not built in, either.
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
