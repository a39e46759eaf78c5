//! IPAM in the Kubernetes API: IPPool and IPBlock objects, the registry on them, and a snapshot of the cluster.

pub(crate) mod api_registry;
pub(crate) mod clock;
pub(crate) mod cluster_snapshot;
pub(crate) mod findings;
pub(crate) mod ip_claim;
pub(crate) mod ip_objects;
pub(crate) mod pool_lookup;
pub(crate) mod store_name;
