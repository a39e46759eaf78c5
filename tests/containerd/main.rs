//! End-to-end tests in lane `containerd`: weft under a real containerd and runc, without Kubernetes.
//!
//! Needs a machine prepared by `lanes/containerd/prepare`.

#![cfg(test)]

mod cri_proxy;
mod dhcp;
mod host_ports;
mod network_api;
mod network_api_client;
mod network_api_failures;
mod pod_setup_failures;
mod pods;
mod release_images;
