//! Registry objects: a block of a pool, or a single address of it, and its holder.
//!
//! States of an object and their meaning: `docs/design/ipam.md#objects`.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::block_lease::BlockLease;
use crate::clock::Clock;
use crate::pool_layout::is_single_address;

/// Object of a pool: a block, or a single address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpBlock {
    /// Addresses. They are the object's name within the pool.
    pub net: IpNet,
    /// Identifier that differs each time the object is created.
    pub uid: String,
    /// Version that differs each time the object is changed.
    pub version: String,
    /// Holder.
    pub holder: Holder,
    /// Addresses of a block that its holder may not use.
    pub reserved: Vec<IpAddr>,
}

/// Holder of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Node that leases the object; empty if it is free.
    pub node: String,
    /// Address store of the node that contains it.
    pub store: String,
    /// Attachment that holds a single address.
    pub owner: String,
    /// Claim that keeps the address when the pod is deleted; empty if there is none.
    pub claim: String,
    /// Time at which the object became free, in milliseconds since 1970.
    pub released_at: u64,
    /// Number of times the object changed its holder.
    pub generation: u64,
    /// For a single address: node that leases the block around it and is asked to transfer it; empty if there is none.
    pub transfer_requested_from: String,
    /// For a single address: holder of the address on that node, as the node answered; empty if it is free or the
    /// node has not answered.
    pub transfer_refused_by: String,
}

impl IpBlock {
    /// Identifier of the current lease.
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

    /// End of the quarantine in milliseconds since 1970; `None` if it is over. The two times come from the clocks of
    /// two nodes; a release time far in the future counts as a clock that was wrong.
    pub fn quarantined_until(&self, clock: Clock) -> Option<u64> {
        clock.quarantined_until(self.holder.released_at)
    }

    /// Whether the object is a single address.
    pub fn is_single_address(&self) -> bool {
        is_single_address(self.net)
    }

    /// Lease of the whole block.
    pub fn block_lease(&self) -> BlockLease {
        BlockLease {
            net: self.net,
            id: self.lease_id(),
            single_owner: false,
            reserved: self.reserved.clone(),
        }
    }

    /// Lease of a single address for one owner.
    pub(crate) fn single_lease(&self) -> BlockLease {
        BlockLease { net: self.net, id: self.lease_id(), single_owner: true, reserved: Vec::new() }
    }

    /// Whether one of these objects is this one under the same lease.
    pub(crate) fn is_among(&self, objects: &[IpBlock]) -> bool {
        objects.iter().any(|other| other.net == self.net && other.lease_id() == self.lease_id())
    }
}
