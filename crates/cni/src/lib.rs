//! Container Network Interface (CNI): the plugin side (callee) and the runtime side (caller).
//!
//! ```text
//!             types                       callee: plugin              caller: network, runtime
//!  version name error args address        process (stdin, stdout)     Network ◄─ load ◄─ files
//!  object fold capability                   └► respond ► Plugin       chain ─► Invoke: exec, or built in
//!  config result environment invocation               └► ipam ──►     Runtime = chain + cache
//! ```
//!
//! A plugin is a value that implements [`plugin::Plugin`]. A runtime calls plugins through [`invoke::Invoke`], either
//! as processes ([`runtime`]'s `Exec`) or within the calling process. The same bytes are exchanged in both cases, so
//! plugin and caller behave the same.
//!
//! This crate is synchronous. It uses neither the kernel nor Kubernetes, and does not know which plugins exist.
//!
//! Sources: SPEC.md of the tags v0.1.0 … v1.1.0, CONVENTIONS.md, and libcni where users rely on behaviour beyond them.
//! `tests/requirements.rs` explains the requirement ids (`S…`, `K…`, `C…`, `L…`, `V…`, traps).

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
pub mod text;
pub mod version;
pub mod wording;

pub use error::{Context, Error, code};
pub use version::{Verb, Version};
