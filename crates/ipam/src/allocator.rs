//! Block allocator: leases blocks and single addresses of one pool from the registry, and returns them.
//!
//! The allocator runs in the node agent, once for each request of an address store. How it prevents two nodes from
//! getting the same address is in `docs/design/ipam.md#leasing`.

mod adopt;
mod any_address;
mod block;
mod other_nodes;
mod request_transfer;
mod single_address;

use std::net::IpAddr;

use ipnet::IpNet;

use crate::address_filter::AddressFilter;
use crate::allocation_error::AllocationError;
use crate::block_lease::{BlockInfo, BlockLease, BlockState};
use crate::clock::Clock;
use crate::ip_block::{Holder, IpBlock};
use crate::pool_layout::PoolLayout;
use crate::reclaim::release_lease;
use crate::registry::{PoolState, Registry, RegistryError, block_around};

/// Number of blocks that are tried before the pool is listed.
const UNLISTED_ATTEMPTS: usize = 2;
/// Number of objects that are tried in all.
const ATTEMPTS: usize = 64;
/// Step between the seeds of two attempts: 2⁶⁴ divided by the golden ratio.
const SEED_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Allocator of one pool for one holder.
#[derive(Debug)]
pub struct BlockAllocator<'a, R> {
    /// Objects of the pool.
    pub registry: &'a R,
    /// Layout of the pool.
    pub layout: PoolLayout,
    /// Addresses that the network may allocate.
    pub filter: &'a AddressFilter,
    /// Holder of the new leases.
    pub holder: Holder,
    /// Whether several pods may hold the claim's address at a time, as during a virtual machine's live migration.
    pub shares_claim: bool,
    /// Current time and quarantine.
    pub clock: Clock,
    /// Place in the pool where the search for a block begins; different on each node.
    pub seed: u64,
    /// Number of checks whether another node has transferred an address.
    pub transfer_checks: u32,
    /// Whether the pool is listed before a block is tried, because no block was free a moment ago.
    pub lists_first: bool,
}

/// Objects of the pool, if they were listed and nothing was tried since. The next step of the request needs no other list.
pub(crate) type Listed = Option<Vec<IpBlock>>;

/// Facts from the time at which a request was made.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestContext<'a> {
    /// Blocks in the address store.
    pub blocks: &'a [BlockInfo],
    /// Objects that the store's node was known to lease by then.
    pub seen: &'a [IpBlock],
}

impl RequestContext<'_> {
    /// Networks in the store, without those it returns. An address in them may be held on this node, even if the object
    /// or the pod was deleted.
    fn networks(&self) -> impl Iterator<Item = IpNet> {
        self.blocks.iter().filter(|block| block.state != BlockState::Returning).map(|block| block.net)
    }

    fn contains(&self, net: IpNet) -> bool {
        self.networks().any(|other| other == net)
    }
}

impl<R: Registry> BlockAllocator<'_, R> {
    /// Returns a single-address lease if the pool is unchanged and has a record of it; else releases it.
    pub(crate) async fn verify_single_address(
        &self,
        lease: BlockLease,
    ) -> Result<BlockLease, AllocationError> {
        if self.registry.pool_state(lease.net).await? == PoolState::SingleAddressesPossible {
            return Ok(lease);
        }
        release_lease(self.registry, lease.net, (&self.holder.node, &lease.id), self.clock.now).await?;
        Err(AllocationError::PoolChanged)
    }

    /// Returns the leased block around an address, unless the address is reserved in it.
    pub(crate) async fn block_around(&self, ip: IpAddr) -> Result<Option<IpBlock>, RegistryError> {
        block_around(self.registry, self.layout, ip).await
    }

    pub(crate) async fn release(&self, object: &IpBlock) -> Result<(), RegistryError> {
        let lease = object.lease_id();
        release_lease(self.registry, object.net, (&self.holder.node, &lease), self.clock.now).await
    }
}
