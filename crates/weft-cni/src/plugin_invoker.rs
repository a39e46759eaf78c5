//! Running a delegate: in this process if it is one of ours, else as a program.
//!
//! Which of the two is decided by what CNI_PATH comes to first: this binary (or nothing) means in process, a
//! foreign program of the name in an earlier directory is run, and ends with us. The bytes are the same either way.
//! A meta-plugin is nobody's delegate.
//!
//! Source: SPEC 1.1.0 §4 (S30, L1).

use std::cell::{Cell, RefCell};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use cni::Error;
use cni::environment::Environment;
use cni::invoke::Invoke;
use cni::name::PluginType;
use cni::plugin::respond;
use cni::runtime::exec::Exec;
use linux::parent_death;
use npwg::configuration::Builtin;
use npwg::definition::META_PLUGINS;

use crate::builtins;

/// Environment variable of every delegate and of what it starts: the meta-plugin serves none of them.
const DELEGATE: &str = "WEFT_DELEGATE";
/// How long a delegate of a plain plugin may take: shorter than the kubelet waits for the whole pod.
const DEADLINE: Duration = Duration::from_secs(100);
/// Most calls that are remembered.
const RUNS_MAX: usize = 256;

/// What runs delegates, and knows which it ran if it was told to take notes.
#[derive(Debug)]
pub struct PluginInvoker {
    builtin: Builtin,
    exec: Exec,
    notes: Cell<bool>,
    runs: RefCell<Vec<Run>>,
    depth: Cell<usize>,
}

/// A plugin that was run.
#[derive(Debug)]
pub struct Run {
    /// Its name.
    pub plugin: PluginType,
    /// `CNI_COMMAND`.
    pub verb: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// When it began.
    pub began: Instant,
    /// How long it took; zero while it runs.
    pub took: Duration,
    /// How many plugins had called each other until it was called.
    pub depth: usize,
    /// Did it fail?
    pub failed: bool,
}

impl PluginInvoker {
    /// For a plugin that runs as a process of its own.
    pub fn of_process() -> PluginInvoker {
        PluginInvoker::new(Builtin::Auto, DEADLINE)
    }

    /// With a rule for built-in plugins, and a deadline for programs.
    pub fn new(builtin: Builtin, deadline: Duration) -> PluginInvoker {
        let (notes, runs, depth) = (Cell::default(), RefCell::default(), Cell::default());
        PluginInvoker { builtin, exec: Exec::new(deadline).through(command), notes, runs, depth }
    }

    /// From now on what is run is noted: somebody will ask.
    pub fn take_notes(&self) {
        self.notes.set(true);
    }

    /// What was run, in the order of its beginning; it is told once.
    pub fn runs(&self) -> Vec<Run> {
        self.runs.take()
    }

    /// Does `plugin` run in this process, given this CNI_PATH?
    pub fn in_process(&self, plugin: &PluginType, path: &str) -> bool {
        let foreign = || first_is_foreign(plugin, path);
        builtins::find(plugin.as_str()).is_some()
            && match self.builtin {
                Builtin::Always => true,
                Builtin::Never => false,
                Builtin::Auto => !foreign(),
            }
    }
}

impl Invoke for PluginInvoker {
    fn invoke(&self, plugin: &PluginType, environment: &Environment, stdin: &[u8]) -> Result<Vec<u8>, Error> {
        if !self.notes.get() {
            return self.run(plugin, environment, stdin);
        }
        let (place, depth, began) = (self.runs.borrow().len(), self.depth.get(), Instant::now());
        if place < RUNS_MAX {
            let Environment { command, ifname, .. } = environment;
            let (plugin, verb, ifname) = (plugin.clone(), command.clone(), ifname.clone());
            let took = Duration::ZERO;
            self.runs.borrow_mut().push(Run { plugin, verb, ifname, began, took, depth, failed: false });
        }
        self.depth.set(depth + 1);
        let done = self.run(plugin, environment, stdin);
        self.depth.set(depth);
        if let Some(run) = self.runs.borrow_mut().get_mut(place) {
            run.took = began.elapsed();
            run.failed = done.is_err();
        }
        done
    }

    fn releases_through_interface(&self, plugin: &str) -> bool {
        builtins::find(plugin).is_some_and(|plugin| plugin.releases_through_interface())
    }
}

impl PluginInvoker {
    fn run(&self, plugin: &PluginType, environment: &Environment, stdin: &[u8]) -> Result<Vec<u8>, Error> {
        if META_PLUGINS.contains(&plugin.as_str()) {
            return Err(refused_delegate().context(plugin));
        }
        match builtins::find(plugin.as_str()) {
            Some(builtin) if self.in_process(plugin, &environment.path) => {
                respond(builtin, environment, &mut &*stdin, self).into_result()
            }
            _ => self.exec.invoke(plugin, environment, stdin),
        }
    }
}

/// The command of a delegate: it is killed with this process, and marked as a delegate.
fn command(program: &Path) -> Command {
    let mut command = parent_death::command(program);
    command.env(DELEGATE, "1");
    command
}

/// Refuses to be the meta-plugin in a process that a delegate has started: the configuration that a delegate passes on is
/// the definition's, not the node's.
///
/// # Errors
/// This process is a delegate, or was started by one.
pub fn refuse_delegate() -> Result<(), Error> {
    match std::env::var_os(DELEGATE) {
        None => Ok(()),
        Some(_) => Err(refused_delegate()),
    }
}

fn refused_delegate() -> Error {
    Error::config("a plugin of a network calls the meta-plugin, which would attach the pod's networks again")
}

/// Does CNI_PATH lead to another program under the plugin's name before it comes to us?
///
/// We are in a directory if this program is in it under any of its usual names; beside us, we come first.
fn first_is_foreign(plugin: &PluginType, path: &str) -> bool {
    let identity =
        |path: &Path| fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|m| (m.dev(), m.ino()));
    let own = identity(Path::new("/proc/self/exe"));
    for directory in path.split(':').filter(|directory| !directory.is_empty()).map(Path::new) {
        let found = identity(&directory.join(plugin.as_str()));
        let ours = |name: &str| own.is_some() && identity(&directory.join(name)) == own;
        if (found.is_some() && found == own) || ours(builtins::PROGRAM) || ours("weft") || ours("multus") {
            return false;
        }
        if found.is_some() {
            return true;
        }
    }
    false
}
