//! The hands of weft: every built-in plugin and the meta-plugin, in one short-lived synchronous program.
//!
//! ```text
//!   main ─► builtins (name → plugin) ─► cni::plugin::respond ─► interface/ chained/ ipam/ weft/
//!                                              │                        │
//!                                        delegates (built-in or exec) ◄─┘
//! ```
//!
//! Rules: nothing here runs an async runtime or speaks to a Kubernetes API, and nothing but `dhcp daemon` outlives its
//! call.

#![forbid(unsafe_code)]

pub mod builtins;
pub mod chained;
pub mod command;
pub mod dbus;
pub mod delegates;
pub mod directory;
pub mod entries;
pub mod failure;
mod file;
pub mod fingerprint;
pub mod install;
pub mod interface;
pub mod inventory;
pub mod ipam;
pub mod iptables;
mod leash;
pub mod ovsdb;
mod told;
pub mod weft;

use std::ffi::OsString;
use std::process::ExitCode;

pub(crate) use told::told;

use cni::plugin::process;

/// Answers one call: of a plugin, by the name the program was called as, or of a person.
pub fn run() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = command::run_daemon(&arguments).or_else(|| leash::run(&arguments)) {
        return code;
    }
    let delegates = delegates::Delegates::of_process();
    if process::called_as(builtins::TABLE, arguments.iter().cloned()).is_none()
        && let Some(code) = command::run(&arguments)
    {
        return code;
    }
    process::main(builtins::TABLE, &delegates)
}
