//! End-to-end tests of lane `node`: a complete Kubernetes node with kubelet, containerd and control plane.
//!
//! Needs the programs that `lanes/node/prepare` provides.

#![cfg(test)]

mod container_restarts;
mod cri_proxy;
mod deployment;
mod devices;
mod dhcp;
mod guides;
mod installation;
mod multus_migration;
mod network_test;
mod pods;
mod sandbox_events;
