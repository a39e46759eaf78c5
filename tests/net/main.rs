//! End-to-end tests of lane `net`: plugins and the meta-plugin on this machine's kernel. Each test has its
//! own network namespaces.
//!
//! Needs root; a test names further needs as a `Feature`.

#![cfg(test)]

mod agent_replies;
mod alerts;
mod attach_namespaces;
mod bandwidth;
mod bond;
mod bridge;
mod capture;
mod chained_plugins;
mod command_line;
mod concurrency;
mod configuration_files;
mod configuration_limits;
mod conflists;
mod console_blocks;
mod crash_recovery;
mod crash_recovery_tasks;
mod dead_namespaces;
mod delegate_failures;
mod delegates;
mod demo;
mod descriptors;
mod dhcp;
mod dhcp_v6;
mod doctor;
mod dummy;
mod firewall;
mod history;
mod host_device;
mod host_local;
mod host_ports;
mod hostile_devices;
mod hostile_names;
mod hostile_pods;
mod import_multus;
mod impossible_networks;
mod interface_metrics;
mod interface_plugins;
mod ipam_command;
mod ipvlan;
mod journal;
mod large_pods;
mod link_removal;
mod lint;
mod log_file;
mod lost_entry;
mod macvlan;
mod masquerade;
mod network_policy;
mod network_policy_bridge;
mod network_policy_matrix;
mod network_policy_tap;
mod network_policy_update;
mod network_policy_window;
mod network_selection;
mod plugin_options;
mod portmap;
mod preexisting_attachments;
mod probe;
mod ptp;
mod reset;
mod sbr;
mod shared_address;
mod static_ipam;
mod support;
mod tap;
mod trace;
mod tuning;
mod vlan;
mod vrf;
mod weft_ipam;
mod weft_ipam_stores;
