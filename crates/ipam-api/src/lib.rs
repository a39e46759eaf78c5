//! Cluster IPAM in the Kubernetes API: IPPool and IPBlock objects, the registry on them, and a snapshot of the cluster.

#![forbid(unsafe_code)]

pub mod api_registry;
pub mod clock;
pub mod cluster_history;
pub mod cluster_snapshot;
pub mod findings;
pub mod imported_addresses;
pub mod imported_claim;
pub mod ip_claim;
pub mod ip_objects;
pub mod network_windows;
pub mod owned_block;
pub mod pool_lookup;
pub mod pool_usage;
pub mod store_name;
pub mod virtual_machine;
