//! The plugins: those that make or move an interface, those that are chained behind one, and those that manage addresses.
//!
//! A plugin is a value that implements [`cni::plugin::Plugin`]; the crate `weft-cni` has the table of them.
//!
//! Nothing here runs an async runtime or speaks to a Kubernetes API.

#![forbid(unsafe_code)]

pub mod chained;
pub mod dbus;
pub mod entries;
pub mod interface;
pub mod ipam;
pub mod iptables;
pub mod ovsdb;
