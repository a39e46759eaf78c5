//! Lease messages: what the allocator needs to know about an address store, and what the store must change.
//!
//! The node agent makes a [`LeaseRequest`] from the `AllocateRequest` (crate `rpc`) that `weft-cni` sends,
//! and answers with the [`LeaseResponse`], which `weft-cni` applies to the store. See
//! `docs/design/ipam.md#messages`.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::allocation_error::AllocationError;
use crate::block_lease::{BlockInfo, BlockLease};

/// Kind of address that a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AllocationKind {
    /// No address: only return and confirm blocks.
    Nothing,
    /// Any address.
    Any,
    /// A single address for a claim. The registry chooses, in this order: the address that the claim keeps, one outside
    /// of all leased blocks, or this one, which is free in the store.
    ForClaim(Option<IpAddr>),
    /// This address.
    Address(IpAddr),
    /// This address, as a single address for a claim.
    AddressForClaim(IpAddr),
}

/// Request that an address store makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseRequest {
    /// Blocks in the store.
    pub blocks: Vec<BlockInfo>,
    /// Kind of address that is needed.
    pub kind: AllocationKind,
}

/// Answer from the allocator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LeaseResponse {
    /// New leases.
    pub leases: Vec<BlockLease>,
    /// Returned leases, which the store removes.
    pub returned: Vec<String>,
    /// Leases that the node still has: the old identifier and the new one.
    pub confirmed: Vec<(String, String)>,
    /// Leases that the node has lost.
    pub lost: Vec<String>,
    /// Reason why the request was not fulfilled.
    pub error: Option<AllocationError>,
}
