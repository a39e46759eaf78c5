//! OpenStack Networking (Neutron): settings and authentication, ports, and VIF objects, which describe ports to a node.
//!
//! ```text
//!   clouds.yaml, OS_* ─► settings ─► session (Keystone) ─► client ─► ports, subnets, trunks
//!                                                                        │
//!   openstack.org/kuryr-vif ◄── PodState of Vif ◄────────────────────────┘
//! ```
//!
//! - No code of this crate depends on Kubernetes.
//! - Responses of a server are bounded and validated.
//! - TLS is always verified; a CA bundle replaces the system's authorities.
//! - A secret appears in no message and in no `Debug`.

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
