//! End-to-end tests in lane `peer`: weft's plugins and the Go reference plugins on the same hosts.
//!
//! Needs root and the Go plugins, which `lanes/peer/prepare` installs.

#![cfg(test)]

mod bandwidth;
mod dhcp;
mod dhcp_takeover;
mod firewall;
mod firewalld;
mod host_device;
mod host_local;
mod migration;
mod portmap;
mod reference_plugins;
mod sbr;
mod tuning;
