//! OpenStack Networking (Neutron): settings and authentication, ports, and the VIF objects that describe a port to a
//! node.
//!
//! ```text
//!   clouds.yaml, OS_* ─► settings ─► session (Keystone) ─► client ─► ports, subnets, trunks
//!                                                                        │
//!   openstack.org/kuryr-vif ◄── PodState with VIFs ◄─────────────────────┘
//! ```
//!
//! - This crate does not depend on Kubernetes.
//! - Server responses are bounded and validated.
//! - TLS is always verified; a CA bundle replaces the system's CAs.
//! - Secrets never appear in messages or in `Debug` output.

#![forbid(unsafe_code)]

pub mod client;
pub mod clouds;
pub mod error;
mod http;
pub mod pod_state;
pub mod port;
mod primitive;
mod session;
pub mod settings;
pub mod trunk;
pub mod vif;

pub use client::Client;
pub use error::Error;
