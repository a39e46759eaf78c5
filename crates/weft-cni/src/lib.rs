//! `weft-cni`: every built-in plugin and the meta-plugin, in one short-lived synchronous program.
//!
//! ```text
//!   main ─► role ─► dispatch (name → plugin) ─► cni::plugin::respond ─► plugins · dhcp · weft_ipam · meta_plugin
//!                                              │                        │
//!                                 plugin_invoker (built-in or exec) ◄───┘
//! ```
//!
//! No code of this crate runs an async runtime or connects to a Kubernetes API. Only `dhcp daemon` outlives a call.

#![forbid(unsafe_code)]

pub mod builtins;
pub mod command;
pub mod diagnosis;
pub mod dispatch;
pub mod install;
pub mod inventory;
pub mod meta_plugin;
pub mod plugin_invoker;
pub mod program_file;
mod recursion;
pub mod role;
pub mod weft_ipam;

use std::ffi::OsString;
use std::process::ExitCode;

use cni::plugin::process;

use crate::plugin_invoker::{PluginInvoker, isolation};
use crate::role::Role;

/// Advice for a call under an unknown name.
const OTHER_NAMES: &str = "weft-cni install DIR --names NAME=PLUGIN installs a plugin under another name";

/// Runs the program in the role that the arguments select.
pub fn run() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    linux::grace_period::enable();
    match Role::of(&arguments) {
        Role::Plugin(plugin) => {
            let code = process::run(plugin, &PluginInvoker::of_process());
            linux::netfilter::closing::close_sockets();
            code
        }
        Role::Command(command) => command.run(),
        Role::DhcpDaemon(flags) => command::run_daemon(&flags),
        Role::ExecWithParent { parent, program, arguments } => {
            command::exec_with_parent(parent, program, arguments)
        }
        Role::RemoveLinks(indexes) => command::remove_links(&indexes),
        Role::CloseSockets => command::close_sockets(),
        Role::RunPlugin(plugin) => isolation::serve(plugin),
        Role::Unknown => process::refuse(dispatch::names(), OTHER_NAMES),
    }
}
