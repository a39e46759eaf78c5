//! Registry objects: a block in a pool, or a single address in one, and who holds it.
//!
//! Object states, and what they mean: `docs/design/ipam.md#objects`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::address_filter::AddressFilter;
use crate::address_span::AddressSpan;
use crate::block_lease::BlockLease;
use crate::clock::Clock;
use crate::number::number;
use crate::pool_layout::is_single_address;

/// Maximum number of transfer requests in an object.
pub const REQUESTS_MAX: usize = 16;
/// Maximum number of address spans in a transfer request: as many as a block with 256 addresses can have.
pub const SPANS_MAX: usize = 128;
/// Time for which a request is served after the requester has given up, in milliseconds.
pub(crate) const REQUEST_LIFETIME: u64 = 600_000;

/// Object in a pool: a block, or a single address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpBlock {
    /// Addresses. They are the object's name within the pool.
    pub net: IpNet,
    /// Identifier that differs each time the object is created.
    pub uid: String,
    /// Version that differs each time the object is changed.
    pub version: String,
    /// Holder of the address or object.
    pub holder: Holder,
    /// Addresses in a block that the holder may not use.
    pub reserved: Vec<IpAddr>,
}

/// Holder of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Node that leases the object; empty if it is free.
    pub node: String,
    /// Address store on the node that contains it.
    pub store: String,
    /// Attachment that holds a single address.
    pub owner: String,
    /// Claim that keeps the address when the pod is deleted; empty if there is none.
    pub claim: String,
    /// Time at which the object became free, in milliseconds since 1970.
    pub released_at: u64,
    /// Number of times that the object got another holder.
    pub generation: u64,
    /// For a single address: node that leases the block around it and is asked to transfer it; empty if there is none.
    pub transfer_requested_from: String,
    /// For a single address: who holds the address on that node, as the node answered; empty if it is free or
    /// the node has not answered.
    pub transfer_refused_by: String,
    /// For a block: other nodes' requests for any address in this node's blocks.
    pub transfer_requests: Vec<TransferRequest>,
}

/// Another node's request for any address in the blocks that this object's holder leases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TransferRequest {
    /// Node that needs an address.
    pub node: String,
    /// Address store on that node.
    pub store: String,
    /// Addresses that the requester may allocate.
    pub addresses: Vec<AddressSpan>,
    /// Quarantine in milliseconds.
    pub quarantine: u64,
    /// When it was requested, in milliseconds since 1970.
    pub requested_at: u64,
}

impl TransferRequest {
    /// Whether the requester may allocate an address.
    pub fn admits(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|span| (span.first..=span.last).contains(&ip))
    }

    /// Whether the requester has given up long ago.
    pub fn has_expired(&self, now: u64) -> bool {
        self.requested_at.saturating_add(REQUEST_LIFETIME) < now
    }

    /// Whether this is the same request, or an earlier or later one from the same store.
    pub(crate) fn is_of_store(&self, other: &TransferRequest) -> bool {
        (&self.node, &self.store) == (&other.node, &other.store)
    }
}

impl AddressSpan {
    /// Returns the spans of addresses in a block that a network may allocate and that are not reserved.
    pub(crate) fn of_block(filter: &AddressFilter, block: &IpBlock) -> Vec<AddressSpan> {
        let mut spans: Vec<AddressSpan> = Vec::new();
        for ip in filter.addresses(block.net).filter(|ip| !block.reserved.contains(ip)) {
            match spans.last_mut().filter(|span| number(span.last).checked_add(1) == Some(number(ip))) {
                Some(span) => span.last = ip,
                None => spans.push(AddressSpan { first: ip, last: ip }),
            }
        }
        spans
    }
}

impl IpBlock {
    /// Returns what identifies the current lease.
    pub fn lease_id(&self) -> String {
        format!("{}.{}", self.uid, self.holder.generation)
    }

    /// Whether no node leases the object and no claim keeps it.
    pub fn is_free(&self) -> bool {
        self.holder.node.is_empty() && self.holder.claim.is_empty()
    }

    /// Whether a node leases the object or a claim keeps it.
    pub fn is_in_use(&self) -> bool {
        !self.is_free()
    }

    /// Returns when the quarantine ends in milliseconds since 1970; `None` if it is over. The two times come
    /// from two nodes' clocks; a release time far in the future means that a clock was wrong.
    pub fn quarantined_until(&self, clock: Clock) -> Option<u64> {
        clock.quarantined_until(self.holder.released_at)
    }

    /// Whether the object is a single address.
    pub fn is_single_address(&self) -> bool {
        is_single_address(self.net)
    }

    /// Returns the lease for the whole block.
    pub fn block_lease(&self) -> BlockLease {
        BlockLease {
            net: self.net,
            id: self.lease_id(),
            single_owner: false,
            reserved: self.reserved.clone(),
        }
    }

    /// Returns the lease for a single address for one owner.
    pub(crate) fn single_lease(&self) -> BlockLease {
        BlockLease { net: self.net, id: self.lease_id(), single_owner: true, reserved: Vec::new() }
    }

    /// Whether one of these objects is this one under the same lease.
    pub(crate) fn is_among(&self, objects: &[IpBlock]) -> bool {
        objects.iter().any(|other| other.net == self.net && other.lease_id() == self.lease_id())
    }
}
