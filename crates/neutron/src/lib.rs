//! OpenStack Networking as weft needs it: who we are, ports, and how they are described to a node.
//!
//! ```text
//!   clouds.yaml, OS_* ─► settings ─► session (Keystone) ─► client ─► ports, subnets, trunks
//!                                                                        │
//!   openstack.org/kuryr-vif ◄── PodState of Vif ◄────────────────────────┘
//! ```
//!
//! Rules: nothing here knows Kubernetes. What a server says is bounded and checked. TLS is verified; who wants
//! another authority names a bundle. A secret is in no message and in no `Debug`.

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
