//! Invocation of a delegate: in this process if the plugin is built in, else as a program.
//!
//! - The option `builtin` of the meta-plugin decides. With its default, `auto`, the order of the directories in CNI_PATH
//!   decides: a program with the plugin's name is executed if its directory precedes the directory of this binary.
//! - Under the name of an address manager with state in the cluster (`whereabouts`), `auto` runs this binary only if it is
//!   installed under that name. Without any program of the name an ADD is refused; a DEL has nothing to release then.
//! - A plugin is searched once: a pod with several networks calls the same few plugins many times.
//! - Input and output are the same bytes in both cases.
//! - A program is killed when this process ends.
//! - A meta-plugin is never a delegate, and `ipam.type` never names a plugin that has an IPAM plugin itself. Programs that
//!   call each other through weft end at a fixed depth ([`recursion`]).
//! - A call that every ADD refuses has done nothing, so its DEL and GC succeed. The same holds for the DEL of a plugin that
//!   never ran ([`Excuse`]).
//!
//! Source: SPEC 1.1.0 §4 (S30, L1).

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use cni::environment::Environment;
use cni::invoke::Invoke;
use cni::name::PluginType;
use cni::plugin::respond;
use cni::runtime::exec::Exec;
use cni::{Error, code};
use linux::parent_death;
use npwg::configuration::Builtin;
use plugin_support::log::{self, Level};

use crate::recursion::{identity, own_identity};
use crate::{builtins, recursion};

/// Deadline of the delegates of a plugin that runs alone: shorter than the kubelet's timeout for a whole pod.
const DEADLINE: Duration = Duration::from_secs(100);
/// Largest number of recorded invocations.
const RUNS_MAX: usize = 256;
/// Largest number of recorded searches; a process that handles many sandboxes may know many names and paths.
const ORIGINS_MAX: usize = 64;

/// Invoker of delegates, which optionally records its invocations.
#[derive(Debug)]
pub struct PluginInvoker {
    builtin: Builtin,
    exec: Exec,
    records: Cell<bool>,
    runs: RefCell<Vec<Run>>,
    depth: Cell<usize>,
    origins: RefCell<Vec<Origin>>,
    ran: RefCell<BTreeSet<PluginType>>,
    excuse: RefCell<Excuse>,
}

/// Plugins of an attachment whose DEL may fail, because they never ran.
#[derive(Clone, Debug, Default)]
pub struct Excuse {
    /// Plugins that the ADD did not reach or could not execute, as the journal records.
    pub never_ran: BTreeSet<PluginType>,
    /// Whether the ADD did not end. A program that the kernel refuses to execute now is then taken for one that it also
    /// refused to execute for the ADD.
    pub is_unfinished: bool,
}

/// Result of a search: whether a plugin of this name, with this CNI_PATH, runs in this process.
#[derive(Debug)]
struct Origin {
    plugin: PluginType,
    path: String,
    in_process: bool,
}

/// Recorded invocation of a plugin.
#[derive(Debug)]
pub struct Run {
    /// Plugin name.
    pub plugin: PluginType,
    /// `CNI_COMMAND`.
    pub verb: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// Start time.
    pub began: Instant,
    /// Duration; zero while the plugin runs.
    pub took: Duration,
    /// Number of plugins that are calling each other above this one.
    pub depth: usize,
    /// Whether the invocation failed.
    pub failed: bool,
}

impl PluginInvoker {
    /// Returns the invoker of a plugin that runs as its own process.
    pub fn of_process() -> PluginInvoker {
        // Its delegates are IPAM plugins.
        PluginInvoker { depth: Cell::new(1), ..PluginInvoker::new(Builtin::Auto, DEADLINE) }
    }

    /// Returns an invoker with a rule for built-in plugins and a deadline for programs.
    pub fn new(builtin: Builtin, deadline: Duration) -> PluginInvoker {
        PluginInvoker {
            builtin,
            exec: Exec::new(deadline).through(command),
            records: Cell::default(),
            runs: RefCell::default(),
            depth: Cell::default(),
            origins: RefCell::default(),
            ran: RefCell::default(),
            excuse: RefCell::default(),
        }
    }

    /// Starts to record invocations.
    pub fn start_recording(&self) {
        self.records.set(true);
    }

    /// Takes the recorded invocations, in the order of their start.
    pub fn take_runs(&self) -> Vec<Run> {
        self.runs.take()
    }

    /// Takes the plugins whose ADD has run since the last call.
    pub fn take_ran(&self) -> BTreeSet<PluginType> {
        self.ran.take()
    }

    /// Runs `work`, in which the DEL of an excused plugin succeeds.
    pub fn excusing<T>(&self, excuse: Excuse, work: impl FnOnce() -> T) -> T {
        let outer = self.excuse.replace(excuse);
        let done = work();
        self.excuse.replace(outer);
        done
    }

    /// Whether `plugin` runs in this process, given this CNI_PATH.
    pub fn in_process(&self, plugin: &PluginType, path: &str) -> bool {
        let Some(builtin) = builtins::find(plugin.as_str()) else { return false };
        match self.builtin {
            Builtin::Always => true,
            Builtin::Never => false,
            Builtin::Auto if builtin.replaces_state() => program(plugin, path) == Some(Program::Own),
            Builtin::Auto => self.comes_first(plugin, path),
        }
    }

    /// Whether this program precedes any other program of the plugin's name in CNI_PATH, as found by the first search.
    fn comes_first(&self, plugin: &PluginType, path: &str) -> bool {
        let mut origins = self.origins.borrow_mut();
        let is_same = |known: &&Origin| known.plugin == *plugin && known.path == path;
        if let Some(known) = origins.iter().find(is_same) {
            return known.in_process;
        }
        let in_process = !first_is_foreign(plugin, path);
        if origins.len() < ORIGINS_MAX {
            origins.push(Origin { plugin: plugin.clone(), path: path.to_owned(), in_process });
        }
        in_process
    }

    /// Returns the refusal of an ADD if no program has the name of a plugin that must be installed under it.
    pub fn undecided(&self, plugin: &PluginType, path: &str) -> Option<Error> {
        let builtin = builtins::find(plugin.as_str()).filter(|builtin| builtin.replaces_state())?;
        let is_undecided = self.builtin == Builtin::Auto && program(plugin, path).is_none();
        is_undecided.then(|| undecided(builtin.name(), path))
    }
}

impl Invoke for PluginInvoker {
    fn invoke(&self, plugin: &PluginType, environment: &Environment, stdin: &[u8]) -> Result<Vec<u8>, Error> {
        let depth = self.depth.get();
        if !self.records.get() {
            self.depth.set(depth + 1);
            let done = self.run_logged(plugin, environment, stdin);
            self.depth.set(depth);
            return done;
        }
        let (place, began) = (self.runs.borrow().len(), Instant::now());
        if place < RUNS_MAX {
            let Environment { command, ifname, .. } = environment;
            let (plugin, verb, ifname) = (plugin.clone(), command.clone(), ifname.clone());
            let took = Duration::ZERO;
            self.runs.borrow_mut().push(Run { plugin, verb, ifname, began, took, depth, failed: false });
        }
        self.depth.set(depth + 1);
        let done = self.run_logged(plugin, environment, stdin);
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
    fn run_logged(
        &self,
        plugin: &PluginType,
        environment: &Environment,
        stdin: &[u8],
    ) -> Result<Vec<u8>, Error> {
        if !log::is_written(Level::Debug) {
            return self.run(plugin, environment, stdin);
        }
        let began = Instant::now();
        let done = self.run(plugin, environment, stdin);
        let (verb, ifname, took) = (&environment.command, &environment.ifname, began.elapsed());
        let outcome = done.as_ref().map_or_else(Error::to_string, |_| "succeeded".to_owned());
        log::write(Level::Debug, format_args!("weft: {plugin} {verb} {ifname}: {outcome} after {took:?}"));
        done
    }

    fn run(&self, plugin: &PluginType, environment: &Environment, stdin: &[u8]) -> Result<Vec<u8>, Error> {
        let undoes = matches!(environment.command.as_str(), "DEL" | "GC");
        if let Err(error) = recursion::refuse_call(plugin, self.depth.get() > 1) {
            return if undoes { Ok(Vec::new()) } else { Err(error) };
        }
        let done = self.choose(plugin, environment, stdin, undoes);
        match done {
            Err(error) if environment.command == "DEL" && self.is_excused(plugin, &error) => {
                plugin_support::log!("weft: {error}: {plugin} never ran for this network: nothing to remove");
                Ok(Vec::new())
            }
            // For the reader of an error, it is one of the file system.
            Err(error) if error.code == code::NOT_EXECUTED => Err(Error { code: code::IO_FAILURE, ..error }),
            done => {
                if environment.command == "ADD" {
                    self.ran.borrow_mut().insert(plugin.clone());
                }
                done
            }
        }
    }

    fn is_excused(&self, plugin: &PluginType, error: &Error) -> bool {
        let excuse = self.excuse.borrow();
        excuse.never_ran.contains(plugin) || (excuse.is_unfinished && error.code == code::NOT_EXECUTED)
    }

    /// Calls the plugin in this process, or its program.
    fn choose(
        &self,
        plugin: &PluginType,
        environment: &Environment,
        stdin: &[u8],
        undoes: bool,
    ) -> Result<Vec<u8>, Error> {
        match builtins::find(plugin.as_str()) {
            Some(builtin) if self.in_process(plugin, &environment.path) => {
                respond(builtin, environment, &mut &*stdin, self).into_result()
            }
            builtin => match (builtin, self.undecided(plugin, &environment.path)) {
                (Some(builtin), Some(_)) if undoes => {
                    respond(builtin, environment, &mut &*stdin, self).into_result()
                }
                (_, Some(error)) => Err(error),
                (_, None) => self.exec.invoke(plugin, environment, stdin),
            },
        }
    }
}

/// Returns the command of a delegate: it is killed with this process, and its environment identifies it as a delegate.
fn command(program: &Path) -> Command {
    let mut command = parent_death::command(program);
    command.env(recursion::DELEGATE, recursion::process_depth().saturating_add(1).to_string());
    command
}

/// Returns the refusal to serve a name whose state in the cluster nothing has taken over.
fn undecided(plugin: &str, path: &str) -> Error {
    let why = format!(
        "plugin {plugin}: no program of this name in {path}: weft allocates addresses under it only where it is installed \
         under it, because addresses of running pods may be recorded elsewhere"
    );
    Error::config(why).details(format!(
        "run weft import {plugin}, then weft-cni install DIR --names {plugin}; for a new network use type weft-ipam"
    ))
}

/// Origin of the first program of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Own,
    Foreign,
}

/// Returns the origin of the first program in CNI_PATH with the plugin's name; `None` if there is none.
fn program(plugin: &PluginType, path: &str) -> Option<Program> {
    let own = own_identity();
    let directories = path.split(':').filter(|directory| !directory.is_empty());
    let found =
        directories.filter_map(|directory| identity(&Path::new(directory).join(plugin.as_str()))).next()?;
    Some(if Some(found) == own { Program::Own } else { Program::Foreign })
}

/// Whether CNI_PATH contains another program under the plugin's name before it contains this one.
///
/// A directory contains this program if any of its usual names leads to this file; this program then comes first.
fn first_is_foreign(plugin: &PluginType, path: &str) -> bool {
    let own = own_identity();
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
