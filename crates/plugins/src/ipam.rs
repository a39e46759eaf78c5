//! The IPAM plugins.
//!
//! Rules:
//! - An IPAM plugin receives the whole configuration of the plugin that calls it and reads its `ipam`.
//! - Every error names the field and its value.

pub mod host_local;
pub mod static_address;
