//! Block leases: the blocks of a pool that a node has leased, as they are sent between `weft-cni` and the node agent.
//!
//! See `docs/design/ipam.md#messages`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// State of a block on the node that leased it. The numbers are those of the address store's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[repr(u8)]
pub enum BlockState {
    /// Addresses may be allocated from the block.
    Active = 1,
    /// The block is being returned to the pool; nothing in it is held.
    Returning = 2,
    /// The node may have lost the block; it must ask the cluster before it allocates from it.
    Unconfirmed = 3,
}

/// Leased block, or leased single address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockLease {
    /// Addresses of the block.
    pub net: IpNet,
    /// Identifier of this lease of the block; every lease of the same block has another one. At most 64 bytes.
    pub id: String,
    /// Whether the lease is a single address for one owner.
    #[serde(default)]
    pub single_owner: bool,
    /// Addresses of the block that other nodes hold.
    #[serde(default)]
    pub reserved: Vec<IpAddr>,
}

/// Block that a node's address store contains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockInfo {
    /// Addresses of the block.
    pub net: IpNet,
    /// Identifier of the lease.
    pub lease: String,
    /// State of the block on the node.
    pub state: BlockState,
    /// Held addresses of an unconfirmed block; empty for other states and after a boot.
    #[serde(default)]
    pub held: Vec<IpAddr>,
    /// Time of release of a single address that is being returned, in milliseconds since 1970; 0 for other blocks.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub released_at: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
