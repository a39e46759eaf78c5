//! End-to-end tests of lane `node`: a whole Kubernetes node with kubelet, containerd and control plane.
//!
//! Needs what `lanes/node/prepare` makes.

#![cfg(test)]

mod cri_proxy;
mod deployment;
mod devices;
mod installation;
mod multus_migration;
mod pods;
mod sandbox_events;
