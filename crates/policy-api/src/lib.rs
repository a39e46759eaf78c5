//! Network policies in the Kubernetes API: the objects that the controller writes and agents read.
//!
//! ```text
//!  MultiNetworkPolicy ──► WatchedPolicy ──► selections ─► controller ──► PolicyAddressSet, one for each selection
//!                              └──────────► npwg::network_policy::compile (agent) ◄──────┘ by its name
//! ```

#![forbid(unsafe_code)]

pub mod address_set;
pub mod policy_object;
pub mod policy_watch;
pub mod set_name;
