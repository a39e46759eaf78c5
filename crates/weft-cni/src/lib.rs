//! `weft-cni`: every built-in plugin and the meta-plugin, in one short-lived synchronous program.
//!
//! ```text
//!   main ─► builtins (name → plugin) ─► cni::plugin::respond ─► plugins · dhcp · weft_ipam · meta_plugin
//!                                              │                        │
//!                                 plugin_invoker (built-in or exec) ◄───┘
//! ```
//!
//! Nothing here runs an async runtime or speaks to a Kubernetes API, and only `dhcp daemon` outlives its call.

#![forbid(unsafe_code)]

pub mod builtins;
pub mod command;
pub mod install;
pub mod inventory;
pub mod meta_plugin;
pub mod plugin_invoker;
pub mod weft_ipam;

use std::ffi::OsString;
use std::process::ExitCode;

use cni::plugin::process;

/// Answers one call: of a plugin, by the name the program was called as, or of a person.
pub fn run() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = command::run_daemon(&arguments).or_else(|| command::exec_with_parent(&arguments)) {
        return code;
    }
    let delegates = plugin_invoker::PluginInvoker::of_process();
    if process::called_as(builtins::TABLE, arguments.iter().cloned()).is_none()
        && let Some(code) = command::run(&arguments)
    {
        return code;
    }
    process::main(builtins::TABLE, &delegates)
}
