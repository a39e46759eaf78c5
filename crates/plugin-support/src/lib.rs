//! Helpers that connect CNI and the kernel, for plugins.
//!
//! The crates `cni` and `linux` do not depend on each other. This is the only crate below the plugins that depends on
//! both. It converts kernel errors to CNI errors, defines the owner tag, and has the file operations that several
//! plugins share.

#![forbid(unsafe_code)]

pub mod directory;
pub mod failure;
pub mod file;
pub mod hash;
pub mod log;
pub mod log_file;
pub mod netns;
pub mod owner_tag;
