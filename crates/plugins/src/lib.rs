//! The hands of weft: every built-in plugin and the meta-plugin, in one short-lived synchronous program.
//!
//! ```text
//!   main ─► builtins (name → plugin) ─► cni::plugin::respond ─► interface/ chained/ ipam/ weft/
//!                                              │                        │
//!                                        delegates (built-in or exec) ◄─┘
//! ```
//!
//! Rules: nothing here runs an async runtime, speaks to a Kubernetes API, or outlives its call.

#![forbid(unsafe_code)]

pub mod builtins;
pub mod delegates;
pub mod failure;
pub mod fingerprint;
pub mod interface;

use std::process::ExitCode;

/// Answers one call: of a plugin, by the name the program was called as.
pub fn run() -> ExitCode {
    cni::plugin::process::main(builtins::TABLE, &delegates::Delegates::of_process())
}
