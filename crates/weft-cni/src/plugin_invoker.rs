//! Invocation of a delegate: in this process if the plugin is built in, else as a program.
//!
//! - For a new attachment the option `builtin` of the meta-plugin decides. With `auto`, the default, the first
//!   directory in CNI_PATH decides that has weft-cni or a program with the plugin's name: a plugin is external only if
//!   the program lies in an earlier directory than weft-cni. Any copy of weft-cni counts ([`program_file`]), so every
//!   copy decides alike.
//! - The decision is recorded in the journal, and later calls of the attachment follow the record ([`AttachmentInvoker`]).
//! - For an address manager with state in the cluster (`whereabouts`), `auto` runs this binary only if it is installed
//!   under that name. Without any such program an ADD is refused; a DEL has nothing to release then.
//! - A plugin is searched once: a pod with several networks calls the same few plugins many times.
//! - Input and output are the same bytes in both cases.
//! - A program is killed when this process ends.
//! - After a call that died, built-in plugins run in processes, too ([`isolation`]).
//! - A meta-plugin is never a delegate, and `ipam.type` never names a plugin that has an IPAM plugin itself. Programs that
//!   call each other through weft end at a fixed depth ([`recursion`]).
//! - A configuration that every ADD refuses has done nothing, so DEL and GC succeed. The same holds for DEL with a
//!   plugin that never ran ([`Excuse`]).
//!
//! Source: SPEC 1.1.0 §4 (S30, L1).

pub(crate) mod isolation;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cni::environment::Environment;
use cni::invoke::Invoke;
use cni::name::PluginType;
use cni::plugin::{Plugin, respond};
use cni::runtime::exec::{self, Exec};
use cni::{Error, code};
use linux::parent_death;
use npwg::configuration::Builtin;
use npwg::plan::Delegate;
use plugin_support::log::{self, Level};
use rpc::journal::{Entry, PluginProgram, ProgramFile, Programs};

use self::isolation::Decisions;
use crate::program_file::{self, ByName, Found};
use crate::{builtins, recursion};

/// Deadline for the delegates of a plugin that runs alone: shorter than the kubelet's timeout for a whole pod.
const DEADLINE: Duration = Duration::from_secs(100);
/// Largest number of recorded invocations.
const RUNS_MAX: usize = 256;
/// Largest number of recorded searches; a process that handles many sandboxes may know many names and paths.
const ORIGINS_MAX: usize = 64;

/// Invoker of delegates, which optionally records the invocations.
#[derive(Debug)]
pub struct PluginInvoker {
    builtin: Builtin,
    deadline: Duration,
    exec: Exec,
    isolates: Cell<bool>,
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

/// Search result: the program for a plugin name with this CNI_PATH.
#[derive(Debug)]
struct Origin {
    plugin: PluginType,
    path: String,
    program: PluginProgram,
}

/// Invoker for one attachment's plugins: calls the programs that the ADD called.
#[derive(Debug)]
pub struct AttachmentInvoker<'a> {
    invoker: &'a PluginInvoker,
    programs: Programs,
}

/// Built-in plugin or program that serves a plugin now.
enum Server {
    BuiltIn(&'static dyn Plugin),
    Program(PathBuf),
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
    /// Returns the invoker for a plugin that runs as a separate process.
    pub fn of_process() -> PluginInvoker {
        PluginInvoker::of_plugin(Builtin::Auto, DEADLINE)
    }

    /// Returns the invoker for a plugin that decides about delegates by this rule and deadline.
    pub fn of_plugin(builtin: Builtin, deadline: Duration) -> PluginInvoker {
        // Its delegates are IPAM plugins.
        PluginInvoker { depth: Cell::new(1), ..PluginInvoker::new(builtin, deadline) }
    }

    /// Returns an invoker with a rule for built-in plugins and a deadline for programs.
    pub fn new(builtin: Builtin, deadline: Duration) -> PluginInvoker {
        PluginInvoker {
            builtin,
            deadline,
            exec: Exec::new(deadline).through(command),
            isolates: Cell::default(),
            records: Cell::default(),
            runs: RefCell::default(),
            depth: Cell::default(),
            origins: RefCell::default(),
            ran: RefCell::default(),
            excuse: RefCell::default(),
        }
    }

    /// Sets whether built-in plugins run in processes from now on, because an earlier call died.
    pub fn isolate(&self, isolates: bool) {
        self.isolates.set(isolates);
    }

    /// Starts to record invocations.
    pub fn start_recording(&self) {
        self.records.set(true);
    }

    /// Takes the recorded invocations, in the order in which they started.
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

    fn is_excused(&self, plugin: &PluginType, error: &Error) -> bool {
        let excuse = self.excuse.borrow();
        excuse.never_ran.contains(plugin) || (excuse.is_unfinished && error.code == code::NOT_EXECUTED)
    }

    /// Returns the invoker of an attachment's plugins.
    pub fn attachment(&self, entry: &Entry, delegate: &Delegate) -> AttachmentInvoker<'_> {
        self.following(entry.programs(delegate))
    }

    /// Returns an invoker that follows recorded programs.
    pub fn following(&self, programs: Programs) -> AttachmentInvoker<'_> {
        AttachmentInvoker { invoker: self, programs }
    }

    /// Whether a new attachment's `plugin` runs in this process, given this CNI_PATH.
    pub fn in_process(&self, plugin: &PluginType, path: &str) -> bool {
        self.decide(plugin, path) == Some(PluginProgram::BuiltIn)
    }

    /// Returns the program that serves a plugin of a new attachment; `None` if there is none.
    pub fn decide(&self, plugin: &PluginType, path: &str) -> Option<PluginProgram> {
        let is_same = |known: &&Origin| known.plugin == *plugin && known.path == path;
        if let Some(known) = self.origins.borrow().iter().find(is_same) {
            return Some(known.program.clone());
        }
        let program = self.look_up(plugin, path)?;
        let mut origins = self.origins.borrow_mut();
        if origins.len() < ORIGINS_MAX {
            let (plugin, path, program) = (plugin.clone(), path.to_owned(), program.clone());
            origins.push(Origin { plugin, path, program });
        }
        Some(program)
    }

    fn look_up(&self, plugin: &PluginType, path: &str) -> Option<PluginProgram> {
        let executed = || ProgramFile::at(&exec::find(plugin, path).ok()?).map(PluginProgram::External);
        let Some(builtin) = builtins::find(plugin.as_str()) else { return executed() };
        let by_name = if builtin.replaces_state() { ByName::Required } else { ByName::OrBeside };
        match self.builtin {
            Builtin::Always => Some(PluginProgram::BuiltIn),
            Builtin::Never => executed(),
            Builtin::Auto => match program_file::search(plugin, path, by_name) {
                Some(Found::Weft) => Some(PluginProgram::BuiltIn),
                Some(Found::External(file)) => Some(PluginProgram::External(file)),
                None => (by_name == ByName::OrBeside).then_some(PluginProgram::BuiltIn),
            },
        }
    }

    /// Returns the refusal for an ADD if no program exists for a plugin that must be installed under that name.
    pub fn undecided(&self, plugin: &PluginType, path: &str) -> Option<Error> {
        let builtin = builtins::find(plugin.as_str()).filter(|builtin| builtin.replaces_state())?;
        let is_undecided = self.builtin == Builtin::Auto && self.decide(plugin, path).is_none();
        is_undecided.then(|| undecided(builtin.name(), path))
    }

    /// Runs a call, and records it if calls are recorded.
    fn run_recorded(
        &self,
        plugin: &PluginType,
        environment: &Environment,
        run: impl FnOnce() -> Result<Vec<u8>, Error>,
    ) -> Result<Vec<u8>, Error> {
        let depth = self.depth.get();
        if !self.records.get() {
            self.depth.set(depth + 1);
            let done = run_logged(plugin, environment, run);
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
        let done = run_logged(plugin, environment, run);
        self.depth.set(depth);
        if let Some(run) = self.runs.borrow_mut().get_mut(place) {
            run.took = began.elapsed();
            run.failed = done.is_err();
        }
        done
    }
}

impl Invoke for PluginInvoker {
    fn invoke(&self, plugin: &PluginType, environment: &Environment, stdin: &[u8]) -> Result<Vec<u8>, Error> {
        self.following(Programs::default()).invoke(plugin, environment, stdin)
    }

    fn releases_through_interface(&self, plugin: &str) -> bool {
        builtins::find(plugin).is_some_and(|plugin| plugin.releases_through_interface())
    }
}

impl Invoke for AttachmentInvoker<'_> {
    fn invoke(&self, plugin: &PluginType, environment: &Environment, stdin: &[u8]) -> Result<Vec<u8>, Error> {
        self.invoker.run_recorded(plugin, environment, || self.run(plugin, environment, stdin))
    }

    fn releases_through_interface(&self, plugin: &str) -> bool {
        self.invoker.releases_through_interface(plugin)
    }
}

impl AttachmentInvoker<'_> {
    fn run(&self, plugin: &PluginType, environment: &Environment, stdin: &[u8]) -> Result<Vec<u8>, Error> {
        let undoes = matches!(environment.command.as_str(), "DEL" | "GC");
        if let Err(error) = recursion::refuse_call(plugin, self.invoker.depth.get() > 1) {
            return if undoes { Ok(Vec::new()) } else { Err(error) };
        }
        let done = self.server(plugin, environment, undoes).and_then(|server| match server {
            Server::BuiltIn(builtin) if self.invoker.isolates.get() => {
                self.run_isolated(builtin, environment, stdin)
            }
            Server::BuiltIn(builtin) => {
                #[cfg(debug_assertions)]
                isolation::crash::if_requested(builtin.name(), environment);
                respond(builtin, environment, &mut &*stdin, self).into_result()
            }
            Server::Program(file) => self.invoker.exec.invoke_file(&file, environment, stdin),
        });
        match done {
            Err(error) if environment.command == "DEL" && self.invoker.is_excused(plugin, &error) => {
                plugin_support::log!("weft: {error}: {plugin} never ran for this network: nothing to remove");
                Ok(Vec::new())
            }
            // For the reader of an error, it is one of the file system.
            Err(error) if error.code == code::NOT_EXECUTED => Err(Error { code: code::IO_FAILURE, ..error }),
            done => {
                if environment.command == "ADD" {
                    self.invoker.ran.borrow_mut().insert(plugin.clone());
                }
                done
            }
        }
    }

    fn run_isolated(
        &self,
        builtin: &dyn Plugin,
        environment: &Environment,
        stdin: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let PluginInvoker { builtin: rule, deadline, excuse, ran, .. } = self.invoker;
        let decisions = Decisions::about(*rule, *deadline, &self.programs, &excuse.borrow(), stdin);
        let done = isolation::run(builtin, &decisions, environment, stdin);
        if environment.command == "ADD" {
            // It is not known which delegates it has called.
            let called = self.programs.iter().filter_map(|(plugin, _)| PluginType::new(plugin).ok());
            ran.borrow_mut().extend(called);
        }
        done
    }

    /// Whether a plugin of the attachment runs in this process.
    pub fn in_process(&self, plugin: &PluginType, path: &str) -> bool {
        match self.programs.get(plugin.as_str()) {
            Some(recorded) => matches!(current(recorded, plugin, path), Some(Server::BuiltIn(_))),
            None => self.invoker.in_process(plugin, path),
        }
    }

    /// Whether the program that made the attachment is gone, and the built-in plugin replaces it.
    pub fn is_replaced(&self, plugin: &PluginType, path: &str) -> bool {
        let recorded = self.programs.get(plugin.as_str());
        matches!(recorded, Some(PluginProgram::External(_))) && self.in_process(plugin, path)
    }

    fn server(&self, plugin: &PluginType, environment: &Environment, undoes: bool) -> Result<Server, Error> {
        let path = &environment.path;
        let recorded = self.programs.get(plugin.as_str());
        let decided = || match self.invoker.decide(plugin, path)? {
            PluginProgram::BuiltIn => builtins::find(plugin.as_str()).map(Server::BuiltIn),
            PluginProgram::External(file) => Some(Server::Program(file.path)),
        };
        if let Some(server) = recorded.map_or_else(decided, |recorded| current(recorded, plugin, path)) {
            return Ok(server);
        }
        // A program that is gone cannot remove what it made; the built-in plugin can.
        if undoes
            && let Some(builtin) = builtins::find(plugin.as_str())
            && exec::find(plugin, path).is_err()
        {
            return Ok(Server::BuiltIn(builtin));
        }
        match self.invoker.undecided(plugin, path) {
            Some(error) => Err(error),
            None => exec::find(plugin, path).map(Server::Program),
        }
    }
}

/// Returns what serves a plugin with a recorded program now.
///
/// - An external program that was replaced by a newer one is executed at the same path.
/// - If weft-cni is now at that path, the plugin is the built-in one.
/// - If it was removed, a program with that name in another directory serves the plugin, else the built-in one, which
///   removes the reference plugins' resources, too.
fn current(recorded: &PluginProgram, plugin: &PluginType, path: &str) -> Option<Server> {
    let builtin = builtins::find(plugin.as_str()).map(Server::BuiltIn);
    let found = || exec::find(plugin, path).ok();
    match recorded {
        PluginProgram::BuiltIn => builtin.or_else(|| found().map(Server::Program)),
        PluginProgram::External(file) => {
            let file = if file.path.is_file() { Some(file.path.clone()) } else { found() };
            match file {
                Some(file) if builtin.is_none() || !program_file::is_weft(&file) => {
                    Some(Server::Program(file))
                }
                _ => builtin,
            }
        }
    }
}

/// Runs a call, and writes it to the log at the level `debug`.
fn run_logged(
    plugin: &PluginType,
    environment: &Environment,
    run: impl FnOnce() -> Result<Vec<u8>, Error>,
) -> Result<Vec<u8>, Error> {
    if !log::is_written(Level::Debug) {
        return run();
    }
    let began = Instant::now();
    let done = run();
    let (verb, ifname, took) = (&environment.command, &environment.ifname, began.elapsed());
    let outcome = done.as_ref().map_or_else(Error::to_string, |_| "succeeded".to_owned());
    log::write(Level::Debug, format_args!("weft: {plugin} {verb} {ifname}: {outcome} after {took:?}"));
    done
}

/// Returns a delegate's command: it is killed with this process, and the environment identifies it as a delegate.
fn command(program: &Path) -> Command {
    let mut command = parent_death::command(program);
    command.env(recursion::DELEGATE, recursion::process_depth().saturating_add(1).to_string());
    command.env_remove(isolation::DECISIONS);
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
