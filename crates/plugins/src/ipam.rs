//! IPAM plugins.
//!
//! Rules:
//! - An IPAM plugin receives the whole configuration for the plugin that calls it and reads `ipam` in it.
//! - Every error names field and value.

pub mod host_local;
pub mod static_address;
