//! End-to-end tests in lane `neutron`: the Neutron controller and plugin with a real Neutron and ML2/OVN.
//!
//! Needs the programs that `lanes/neutron/prepare` provides.

#![cfg(test)]

mod auth;
mod controller;
mod controller_failover;
mod default_network;
mod deployment;
mod nested_ports;
mod network_policy;
mod plugin;
mod pod_annotations;
mod pods;
mod security_groups;
mod trunk_ports;
mod vif_annotation;
