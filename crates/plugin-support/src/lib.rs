//! Support for plugins: code that connects CNI and the kernel.
//!
//! The crates `cni` and `linux` do not depend on each other. Below the plugins only this crate depends on both. It converts
//! kernel errors to CNI errors, defines the tag of objects that belong to an attachment, and has the file operations that
//! several plugins share.

#![forbid(unsafe_code)]

pub mod directory;
pub mod failure;
pub mod file;
pub mod hash;
pub mod log;
pub mod log_file;
pub mod netns;
pub mod owner_tag;
