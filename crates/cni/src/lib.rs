//! The Container Network Interface, both roles.
//!
//! ```text
//!             words                       callee: plugin              caller: network, runtime
//!  version name error args address        process (stdin, stdout)     Network ◄─ load ◄─ files
//!  object fold capability                   └► respond ► Plugin       chain ─► Invoke: exec, or built in
//!  config result environment invocation               └► ipam ──►     Runtime = chain + cache
//! ```
//!
//! A plugin is a value that implements [`plugin::Plugin`]; a runtime holds something that implements
//! [`invoke::Invoke`]. The two meet either through a process ([`runtime`]'s `Exec`) or in one process:
//! the bytes are the same, so nobody can tell which.
//!
//! This crate is synchronous and knows neither the kernel, nor Kubernetes, nor which plugins exist.
//!
//! Sources: SPEC.md of the tags v0.1.0 … v1.1.0, CONVENTIONS.md, and libcni where users rely on what
//! it does beyond them. Requirement ids (`S…`, `K…`, `C…`, `L…`, `V…`, traps) name the tests.

#![forbid(unsafe_code)]

pub mod address;
pub mod args;
pub mod capability;
pub mod config;
pub mod environment;
pub mod error;
pub mod fold;
pub mod invocation;
pub mod invoke;
pub mod name;
pub mod network;
pub mod object;
pub mod plugin;
pub mod result;
pub mod runtime;
mod shallow;
pub mod version;

pub use error::{Context, Error, code};
pub use version::{Verb, Version};
