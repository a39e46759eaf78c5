//! DHCP for containers: codec and client for DHCPv4 ([`v4`]) and DHCPv6 ([`v6`]), the lease daemon, and the plugin.
//!
//! ```text
//!   runtime ─► bridge ─► dhcp ─(socket)─► dhcp daemon ─► LeaseManager ─► exchange ─(container's link)─► server
//! ```
//!
//! The plugin runs for one call, but a lease lasts for days. The plugin therefore sends requests to the daemon
//! (`weft-cni dhcp daemon`, or the program called as `dhcp`), which acquires, extends and releases leases. Leases
//! outlive the daemon: the next daemon continues them, even those from the Go plugin's daemon.
//!
//! Source: containernetworking/plugins `plugins/ipam/dhcp` v1.9.1; RFC 2131; RFC 8415.

#![forbid(unsafe_code)]

pub mod daemon;
pub mod flags;
pub mod lease_manager;
pub mod orphans;
pub mod owner;
pub mod plugin;
pub mod protocol;
pub mod state;
pub mod terms;
pub mod v4;
pub mod v6;

pub use plugin::{Dhcp, NAME};
