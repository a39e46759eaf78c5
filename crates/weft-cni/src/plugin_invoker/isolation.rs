//! Built-in plugins in processes, for the call after one that died.
//!
//! A panic, an abort or a stack overflow of one built-in plugin ends a call with all networks, and each retry would end the
//! same way. The next call therefore executes each built-in plugin as `weft-cni run-plugin NAME`, so that a crash is the
//! error of one attachment. Calls after one that ended are not affected: they find no mark on the lock file,
//! and no entry that shows an unfinished ADD or change.
//!
//! The process decides like the caller which program serves the IPAM plugin, and whether a failed DEL is excused.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use cni::environment::Environment;
use cni::name::PluginType;
use cni::network::ipam_type;
use cni::object::Object;
use cni::plugin::{Plugin, process};
use cni::runtime::exec::Exec;
use cni::{Context, Error};
use linux::parent_death;
use npwg::configuration::Builtin;
use rpc::journal::Programs;
use serde::{Deserialize, Serialize};

use super::{Excuse, PluginInvoker};
use crate::builtins;

/// First argument of a process that runs a built-in plugin.
pub(crate) const COMMAND: &str = "run-plugin";
/// Environment variable with the [`Decisions`] as JSON.
pub(crate) const DECISIONS: &str = "WEFT_DECISIONS";
/// Longest end of the process's stderr in an error, in characters.
const QUOTE_MAX: usize = 500;

/// Decisions of the caller about the IPAM plugin.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Decisions {
    builtin: Builtin,
    deadline: Duration,
    programs: Programs,
    never_ran: BTreeSet<PluginType>,
    is_unfinished: bool,
}

impl Decisions {
    /// Returns the decisions that concern the IPAM plugin of a configuration: the others could be too long for a variable.
    pub(crate) fn about(
        builtin: Builtin,
        deadline: Duration,
        programs: &Programs,
        excuse: &Excuse,
        stdin: &[u8],
    ) -> Decisions {
        let config = Object::parse(stdin, "stdin");
        let ipam = config.and_then(|config| ipam_type(&config)).ok().flatten();
        let mut own = Programs::default();
        if let Some(ipam) = &ipam
            && let Some(program) = programs.get(ipam.as_str())
        {
            own.set(ipam, program.clone());
        }
        let never_ran = ipam.filter(|ipam| excuse.never_ran.contains(ipam)).into_iter().collect();
        Decisions { builtin, deadline, programs: own, never_ran, is_unfinished: excuse.is_unfinished }
    }
}

/// Runs a built-in plugin in another process; input, output and errors are those of a call in this process.
///
/// # Errors
/// Those of the plugin. Code 5: the process cannot be started, or it takes too long. Code 999: the plugin crashed.
pub(crate) fn run(
    plugin: &dyn Plugin,
    decisions: &Decisions,
    environment: &Environment,
    stdin: &[u8],
) -> Result<Vec<u8>, Error> {
    let decided = serde_json::to_string(decisions)
        .map_err(|cause| Error::internal(format!("encode the decisions: {cause}")))?;
    let mut command: Command = parent_death::command(Path::new("/proc/self/exe"));
    command.args([COMMAND, plugin.name()]).env(DECISIONS, decided);
    // In this process it would have no deadline, and its programs have their own.
    let (output, failure) =
        Exec::new(Duration::MAX).complete(command, environment, stdin).context(plugin.name())?;
    let _ = std::io::stderr().write_all(&output.stderr);
    match failure {
        None => Ok(output.stdout),
        Some(error) if !output.stdout.trim_ascii().is_empty() => Err(error),
        Some(error) => Err(crashed(plugin.name(), &error, &output.stderr)),
    }
}

/// Returns the error of a plugin that ended without an answer. `ended` names the signal last.
fn crashed(plugin: &str, ended: &Error, stderr: &[u8]) -> Error {
    let how = ended.msg.rsplit(": ").next().unwrap_or_default();
    let said = cni::text::plain(&String::from_utf8_lossy(stderr.trim_ascii()));
    let skip = said.chars().count().saturating_sub(QUOTE_MAX);
    let why = format!("{plugin} crashed: {how}");
    Error::internal(why).details(said.chars().skip(skip).collect::<String>())
}

/// Runs the plugin of this name as the process that [`run`] started.
pub(crate) fn serve(plugin: &str) -> ExitCode {
    let decided = std::env::var(DECISIONS).ok();
    let decided = decided.and_then(|decided| serde_json::from_str::<Decisions>(&decided).ok());
    let (Some(plugin), Some(decisions)) = (builtins::find(plugin), decided) else {
        return process::refuse(builtins::TABLE.iter().map(|plugin| plugin.name()), "");
    };
    #[cfg(debug_assertions)]
    crash::if_requested(plugin.name(), &Environment::of_process());
    let Decisions { builtin, deadline, programs, never_ran, is_unfinished } = decisions;
    let invoker = PluginInvoker::of_plugin(builtin, deadline);
    let code = invoker
        .excusing(Excuse { never_ran, is_unfinished }, || process::run(plugin, &invoker.following(programs)));
    linux::netfilter::closing::close_sockets();
    code
}

/// Crashes that tests request. No released program has this module.
#[cfg(debug_assertions)]
pub(crate) mod crash {
    use cni::environment::Environment;

    /// Environment variable: `PLUGIN VERB IFNAME KIND`, with `*` for any.
    const VARIABLE: &str = "WEFT_TEST_CRASH";

    /// Crashes as the variable says: `panic`, `abort` or `overflow`.
    #[allow(clippy::panic, reason = "a crash is requested")]
    pub(crate) fn if_requested(plugin: &str, environment: &Environment) {
        let Ok(wanted) = std::env::var(VARIABLE) else { return };
        let [name, verb, ifname, kind] = wanted.split(' ').collect::<Vec<_>>()[..] else { return };
        let known = [(name, plugin), (verb, &environment.command), (ifname, &environment.ifname)];
        if !known.iter().all(|(wanted, is)| *wanted == "*" || wanted == is) {
            return;
        }
        match kind {
            "panic" => panic!("a test requested it"),
            "abort" => std::process::abort(),
            _ => drop(overflow(0)),
        }
    }

    #[allow(unconditional_recursion, reason = "a stack overflow is requested")]
    fn overflow(depth: u64) -> Vec<u64> {
        let mut all = overflow(depth + 1);
        all.push(std::hint::black_box(depth));
        all
    }
}
