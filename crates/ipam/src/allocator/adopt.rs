//! Objects that this node leases and the store does not contain: the answer to an earlier request, or the disk, was
//! lost.

use std::collections::HashSet;

use super::BlockAllocator;
use crate::allocation_error::AllocationError;
use crate::block_lease::{BlockInfo, BlockLease};
use crate::ip_block::{Holder, IpBlock};
use crate::registry::{Registry, RegistryError};

impl<R: Registry> BlockAllocator<'_, R> {
    /// Takes such blocks into use. If a single address has another owner, it is released.
    ///
    /// `seen` may be outdated: every object is read again, and changed objects are left alone.
    ///
    /// # Errors
    /// The pool has changed, or the registry failed.
    pub async fn adopt(
        &self,
        seen: &[IpBlock],
        blocks: &[BlockInfo],
    ) -> Result<Vec<BlockLease>, AllocationError> {
        let mut leases = Vec::new();
        for object in self.unknown_objects(seen, blocks).await? {
            let is_block = !object.is_single_address() && !self.layout.has_single_addresses_only();
            if is_block && self.layout.block_of(object.net.addr()) == Some(object.net) {
                // The new generation makes a release by an older request fail.
                let generation = object.holder.generation + 1;
                let holder = Holder { generation, ..object.holder.clone() };
                let object = self.registry.replace(&IpBlock { holder, ..object }).await?;
                leases.push(self.with_reserved(object, blocks).await?.block_lease());
            } else if is_block || object.holder.owner != self.holder.owner {
                // A block of another size was created after the pool was split again.
                self.release(&object).await?;
            }
        }
        Ok(leases)
    }

    /// Releases such objects.
    ///
    /// # Errors
    /// The registry failed.
    pub async fn release_unknown(
        &self,
        seen: &[IpBlock],
        blocks: &[BlockInfo],
    ) -> Result<(), AllocationError> {
        for object in self.unknown_objects(seen, blocks).await? {
            self.release(&object).await?;
        }
        Ok(())
    }

    async fn unknown_objects(
        &self,
        seen: &[IpBlock],
        blocks: &[BlockInfo],
    ) -> Result<Vec<IpBlock>, RegistryError> {
        let known: HashSet<&str> = blocks.iter().map(|block| block.lease.as_str()).collect();
        let mut unknown = Vec::new();
        for old in seen.iter().filter(|object| !known.contains(object.lease_id().as_str())) {
            let Some(object) = self.registry.read(old.net).await? else { continue };
            let Holder { node, store, .. } = &object.holder;
            let is_own = node == &self.holder.node && store == &self.holder.store;
            if is_own && object.lease_id() == old.lease_id() {
                unknown.push(object);
            }
        }
        Ok(unknown)
    }
}
