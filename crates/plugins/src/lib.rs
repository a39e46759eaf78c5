//! Interface, chained and IPAM plugins.
//!
//! A plugin is a value that implements [`cni::plugin::Plugin`]; the crate `weft-cni` has the table with all
//! plugins.
//!
//! This crate uses no async runtime and no Kubernetes API.

#![forbid(unsafe_code)]

pub mod chained;
pub mod dbus;
pub mod entries;
pub mod interface;
pub mod ipam;
pub mod iptables;
pub mod ovsdb;
