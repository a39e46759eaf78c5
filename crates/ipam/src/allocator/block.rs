//! Leases for whole blocks.

use std::collections::HashSet;

use ipnet::IpNet;

use super::{ATTEMPTS, BlockAllocator, Listed, RequestContext, SEED_STEP, UNLISTED_ATTEMPTS};
use crate::allocation_error::AllocationError;
use crate::block_lease::{BlockInfo, BlockLease};
use crate::ip_block::{Holder, IpBlock};
use crate::registry::{PoolState, Registry, RegistryError};

impl<R: Registry> BlockAllocator<'_, R> {
    /// Leases a block. If every block is leased, leases a single address that is reserved in a block and free.
    pub(crate) async fn lease_block_or_address(
        &self,
        context: RequestContext<'_>,
        listed: &mut Listed,
    ) -> Result<BlockLease, AllocationError> {
        match self.find_block(context, listed).await {
            Err(AllocationError::Exhausted) => self.lease_any_address(None, context, listed).await,
            found => found.map(|object| object.block_lease()),
        }
    }

    /// Leases a block.
    ///
    /// # Errors
    /// No block is available, or the registry failed.
    pub async fn lease_block(&self, context: RequestContext<'_>) -> Result<BlockLease, AllocationError> {
        self.prefetch_block(context).await.map(|object| object.block_lease())
    }

    /// Leases a block before it is needed. [`BlockAllocator::use_prefetched`] takes the object into use.
    ///
    /// # Errors
    /// No block is available, or the registry failed.
    pub async fn prefetch_block(&self, context: RequestContext<'_>) -> Result<IpBlock, AllocationError> {
        self.find_block(context, &mut None).await
    }

    async fn find_block(
        &self,
        context: RequestContext<'_>,
        listed: &mut Listed,
    ) -> Result<IpBlock, AllocationError> {
        // The store must first report what is held in the blocks it contains.
        let mut taken: HashSet<IpNet> = context.networks().collect();
        // A block belongs to the node, whichever owner needs it.
        let Holder { node, store, .. } = self.holder.clone();
        let holder = Holder { node, store, ..Holder::default() };
        let unlisted = if self.lists_first { 0 } else { UNLISTED_ATTEMPTS };
        for attempt in 0..ATTEMPTS {
            if attempt == unlisted {
                let all = self.registry.list().await?;
                taken.extend(all.iter().map(|object| object.net));
                *listed = Some(all);
            }
            let seed = self.seed.wrapping_add((attempt as u64).wrapping_mul(SEED_STEP));
            let free = |net: &IpNet| !taken.contains(net);
            let Some(net) = self.filter.blocks(&self.layout, seed).find(free) else {
                // A block that was tried before the pool was listed may have been released since.
                if attempt < unlisted {
                    continue;
                }
                return Err(AllocationError::Exhausted);
            };
            taken.insert(net);
            *listed = None;
            match self.registry.create_block(net, &holder).await {
                Ok(object) => {
                    let object = self.with_reserved(object, &[]).await?;
                    if self.filter.addresses(net).any(|ip| !object.reserved.contains(&ip)) {
                        return Ok(object);
                    }
                    // Every address of the block is leased as a single address.
                    self.release(&object).await?;
                }
                Err(RegistryError::Conflict) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(AllocationError::Contended)
    }

    /// Reserves the single addresses inside this node's new block before the block is used. If the pool has
    /// changed, the block is released.
    ///
    /// An address that the store holds since an earlier lease is not reserved: a separate request may be about to ask
    /// for it.
    pub(crate) async fn with_reserved(
        &self,
        mut object: IpBlock,
        blocks: &[BlockInfo],
    ) -> Result<IpBlock, AllocationError> {
        let singles = match self.registry.pool_state(object.net).await? {
            PoolState::Changed => {
                self.release(&object).await?;
                return Err(AllocationError::PoolChanged);
            }
            PoolState::SingleAddressesPossible => self.registry.single_addresses_in(object.net).await?,
            PoolState::NoSingleAddresses => Vec::new(),
        };
        let before = object.reserved.len();
        for single in singles {
            let ip = single.net.addr();
            if blocks.iter().any(|block| block.held.contains(&ip)) {
                continue;
            }
            // A free address whose quarantine is over needs no object. If another node leases it now, it is reserved.
            if single.is_free() && single.quarantined_until(self.clock).is_none() {
                match self.registry.delete(&single).await {
                    Ok(()) => continue,
                    Err(RegistryError::Conflict) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if !object.reserved.contains(&ip) {
                object.reserved.push(ip);
            }
        }
        if object.reserved.len() > before {
            object = self.registry.replace(&object).await?;
        }
        Ok(object)
    }

    /// Confirms that this node leases a block and returns the new lease; `None` if it was changed concurrently.
    ///
    /// The change makes every reclaim fail that read the object before.
    ///
    /// # Errors
    /// What the registry reports.
    pub async fn confirm(&self, object: &IpBlock) -> Result<Option<String>, RegistryError> {
        Ok(self.confirmed(object).await?.map(|object| object.lease_id()))
    }

    async fn confirmed(&self, object: &IpBlock) -> Result<Option<IpBlock>, RegistryError> {
        let store = self.holder.store.clone();
        let generation = object.holder.generation + 1;
        let holder = Holder { generation, store, ..object.holder.clone() };
        match self.registry.replace(&IpBlock { holder, ..object.clone() }).await {
            Ok(object) => Ok(Some(object)),
            Err(RegistryError::Conflict) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes a prefetched block into use; `None` if this node does not lease it any more.
    ///
    /// # Errors
    /// What the registry reports.
    pub async fn use_prefetched(&self, prefetched: &IpBlock) -> Result<Option<BlockLease>, RegistryError> {
        if let Some(object) = self.confirmed(prefetched).await? {
            return Ok(Some(object.block_lease()));
        }
        // A liveness probe may have changed the object.
        let is_own = |object: &IpBlock| {
            object.lease_id() == prefetched.lease_id() && object.holder.node == self.holder.node
        };
        match self.registry.read(prefetched.net).await?.filter(is_own) {
            Some(object) => Ok(self.confirmed(&object).await?.map(|object| object.block_lease())),
            None => Ok(None),
        }
    }
}
