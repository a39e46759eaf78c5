//! Block leases: the blocks that a node has leased from a pool, as `weft-cni` and the node agent exchange
//! them.
//!
//! See `docs/design/ipam.md#messages`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// State that a block has on the node that leased it. The numbers are those in the address store's file.
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
    /// Addresses in the block.
    pub net: IpNet,
    /// Lease identifier; if the same block is leased again, it gets another one. At most 64 bytes.
    pub id: String,
    /// Whether the lease is a single address for one owner.
    #[serde(default)]
    pub single_owner: bool,
    /// Addresses in the block that other nodes hold.
    #[serde(default)]
    pub reserved: Vec<IpAddr>,
}

/// Block that a node's address store contains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockInfo {
    /// Addresses in the block.
    pub net: IpNet,
    /// Lease identifier.
    pub lease: String,
    /// State that the block has on the node.
    pub state: BlockState,
    /// Held addresses in an unconfirmed block; empty for other states and after a boot.
    #[serde(default)]
    pub held: Vec<IpAddr>,
    /// When a single address that is being returned was released, in milliseconds since 1970; 0 for other
    /// blocks.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub released_at: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
