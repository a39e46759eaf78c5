//! Messages about address blocks for one of the node's address stores: [`AllocateRequest`] and [`AllocateResponse`].
//!
//! The agent reads no file on the node: the request contains the blocks in the store, the response the new leases, and
//! `weft-cni` writes them into the store. Block and lease types come from the crate `ipam`; reading a message checks
//! the values. The protocol is in `docs/design/ipam.md#messages`.

use std::net::IpAddr;

use ipam::{AddressFilter, AllocationError, AllocationKind, BlockInfo, LeaseResponse};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use npwg::plan::PodIdentity;

/// Request of an address store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllocateRequest {
    /// Pool.
    pub pool: PoolReference,
    /// Addresses of the pool that the network may allocate.
    pub filter: AddressFilter,
    /// Store name on the node.
    pub store: String,
    /// Directory of the store, as the network's configuration names it.
    pub directory: String,
    /// Blocks in the store.
    pub blocks: Vec<BlockInfo>,
    /// Operation.
    pub operation: Operation,
    /// Pod, as the container runtime names it.
    pub pod: PodIdentity,
    /// Owner of the address; different for each attachment.
    pub owner: String,
    /// Claim that keeps the address when the pod is deleted; empty if there is none.
    pub claim: String,
    /// Whether several pods may hold the claim's address at a time.
    pub shares_claim: bool,
    /// Length of the quarantine in milliseconds.
    pub quarantine: u64,
}

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Operation {
    /// Return and confirm blocks, and lease what the address needs. The client has the store locked.
    Allocate(AllocationKind),
    /// Return blocks. The client has the store unlocked.
    Return,
    /// Lease a block before it is needed. The client does not wait for the response.
    Prefetch,
    /// Check whether an address is available.
    CheckCapacity,
    /// Give a released address to the nodes that needed one: the store had no free address before. The client does not wait
    /// for the response.
    Freed,
    /// Find the addresses that were imported for the pod and interface. The client has the store unlocked.
    FindImported,
}

/// Reference to a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolReference {
    /// Name of the object.
    pub name: String,
    /// Whether the object must exist. If not, it is created for `range`.
    pub must_exist: bool,
    /// Name of the address space; empty for the common one.
    pub network: String,
    /// Addresses of the pool.
    pub range: IpNet,
}

/// Response of the node agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllocateResponse {
    /// Changes of the store, and the error if there is one.
    pub lease: LeaseResponse,
    /// Addition to the text of the error.
    pub hint: Option<String>,
    /// Response to [`Operation::FindImported`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<ImportedAddresses>,
}

/// Imported addresses of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImportedAddresses {
    /// Addresses that were imported for the pod and interface, and the claims that keep them.
    pub of_pod: Vec<ClaimedAddress>,
    /// Whether the pool has imported addresses, of any pod.
    pub in_pool: bool,
}

/// Address that a claim keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimedAddress {
    /// The address.
    pub address: IpAddr,
    /// Name of the claim.
    pub claim: String,
}

impl Operation {
    /// Whether the client waits for an address.
    pub fn needs_address(self) -> bool {
        matches!(self, Operation::Allocate(kind) if kind != AllocationKind::Nothing)
    }

    /// Whether the operation may lease something that the store does not have.
    pub fn leases(self) -> bool {
        self.needs_address() || self == Operation::Prefetch
    }

    /// Whether a later call repeats the operation, so that no client waits long for it.
    pub fn is_best_effort(self) -> bool {
        !self.needs_address() && !matches!(self, Operation::CheckCapacity | Operation::FindImported)
    }

    /// Whether the operation is completed although the client goes away.
    pub fn outlives_client(self) -> bool {
        matches!(self, Operation::Return | Operation::Prefetch | Operation::Freed)
    }
}

impl AllocateResponse {
    /// Returns the response of an agent that cannot serve the request.
    pub fn unavailable(why: impl Into<String>) -> AllocateResponse {
        let error = Some(AllocationError::Unavailable(why.into()));
        AllocateResponse {
            lease: LeaseResponse { error, ..LeaseResponse::default() },
            ..AllocateResponse::default()
        }
    }

    /// Returns the text of the error, with the addition.
    pub fn error(&self) -> Option<String> {
        let error = self.lease.error.as_ref()?;
        Some(self.hint.as_ref().map_or_else(|| error.to_string(), |hint| format!("{error}; {hint}")))
    }
}
