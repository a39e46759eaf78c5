//! Errors in a round of the IPAM reconciler.

use ipam_api::cluster_snapshot::SnapshotError;
use kube_support::api_error;
use thiserror::Error;

/// Failure of a round.
#[derive(Debug, Error)]
pub(crate) enum RoundError {
    /// The objects of the cluster cannot be read.
    #[error("{0}")]
    Snapshot(#[from] SnapshotError),
    /// The status of a pool was not written.
    #[error("status of pool {pool}: {}", api_error::describe(.error))]
    Status {
        /// Name of the pool.
        pool: String,
        /// Error of the API.
        error: kube::Error,
    },
    /// The IPAMClaims cannot be listed.
    #[error("list ipamclaims: {}", api_error::describe(.0))]
    Claims(kube::Error),
    /// The state of a node that seems to be gone cannot be read.
    #[error("node {node}: {}", api_error::describe(.error))]
    Node {
        /// Name of the node.
        node: String,
        /// Error of the API.
        error: kube::Error,
    },
    /// The liveness probe of a block was not written.
    #[error("ipblock {block}: {}", api_error::describe(.error))]
    Probe {
        /// Name of the object.
        block: String,
        /// Error of the API.
        error: kube::Error,
    },
}
