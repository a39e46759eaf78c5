//! `weft`: the command line and the long-running roles.
//!
//! This file converts the result of a command into an exit code and an error message on stderr. [`cli`] has everything
//! else; the codes are in [`cli_support::failure`].

#![forbid(unsafe_code)]

mod attachments;
mod cli;
mod cluster_access;
mod commands;
mod expected_devices;
mod input_files;
mod known_journals;
mod kubectl;
mod leftover_namespaces;
mod manifest_plan;
mod meta_plugin_config;
#[cfg(test)]
mod metrics_reference;
mod place;
mod pod_name;
mod policy_counters;
mod remote_node;
mod sandbox_operations;
mod scratch;
mod trial_sandbox;
mod watched_table;
mod whereabouts_program;

use std::path::Path;
use std::process::ExitCode;

use cni::environment::Environment;
use cni::plugin::process;
use cni::{Error, code};

use cli_support::output::{Format, Progress};

fn main() -> ExitCode {
    if let Some(refused) = refuse_cni_call() {
        return refused;
    }
    let invocation = match cli::parse(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(error) => return cli::print_error(&error),
    };
    match invocation.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_quiet() {
                Progress::beside(Format::Json).line(format!("{}{failure}", invocation.prefix()));
            }
            failure.code()
        }
    }
}

/// Refuses the call of a container runtime: this program is in the place of a plugin. Plugins are called without arguments.
fn refuse_cni_call() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    let (program, none) = (arguments.next()?, arguments.next());
    if none.is_some() || Environment::of_process().command.is_empty() {
        return None;
    }
    let program = Path::new(&program).display().to_string();
    let own = std::fs::canonicalize("/proc/self/exe").unwrap_or_default();
    let why =
        format!("plugin {program}: {} is the command line weft, not the plugin weft-cni", own.display());
    let hint = "run weft install on this node from another directory than the plugin directory";
    Some(process::refuse_call(Error::new(code::INVALID_ENVIRONMENT, why).details(hint)))
}
