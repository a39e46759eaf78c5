//! Network policies in the Kubernetes API: the objects that the controller writes and agents read.
//!
//! ```text
//!  MultiNetworkPolicy ──► WatchedPolicy ──► npwg::network_policy::resolve (controller) ──► PolicyAddressSet
//!                              └──────────► npwg::network_policy::compile (agent) ◄────────────────┘
//! ```

#![forbid(unsafe_code)]

pub mod address_list;
pub mod address_set;
pub mod policy_object;
pub mod policy_watch;
