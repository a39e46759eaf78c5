//! What every plugin needs between the CNI protocol and the kernel.
//!
//! The crates `cni` and `linux` do not know each other. This crate is the only one below the plugins that knows both: it
//! turns a refusal by the kernel into a CNI error, defines the tag that marks an object as an attachment's, and has the
//! few operations on files that several plugins share.

#![forbid(unsafe_code)]

pub mod directory;
pub mod failure;
pub mod file;
pub mod hash;
pub mod log;
pub mod netns;
pub mod owner_tag;
