//! Transfer request: a single address lies in another node's block, seen from the node that needs it.
//!
//! The other node's part is in [`crate::transfer`]; the protocol is in
//! `docs/design/ipam.md#transfer-between-nodes`.

use super::BlockAllocator;
use crate::allocation_error::AllocationError;
use crate::block_lease::BlockLease;
use crate::ip_block::{Holder, IpBlock};
use crate::registry::{Registry, RegistryError};

impl<R: Registry> BlockAllocator<'_, R> {
    /// Asks the node that leases `block` to transfer an address that this node leases, and waits for the
    /// result.
    pub(super) async fn request_transfer(
        &self,
        object: IpBlock,
        mut block: IpBlock,
    ) -> Result<BlockLease, AllocationError> {
        let holder = Holder {
            transfer_requested_from: block.holder.node.clone(),
            transfer_refused_by: String::new(),
            ..object.holder.clone()
        };
        let mut object = self.registry.replace(&IpBlock { holder, ..object }).await?;
        // The caller has locked its own store: it must unlock it and ask again.
        let is_own = (&block.holder.node, &block.holder.store) == (&self.holder.node, &self.holder.store);
        let checks = if is_own { 0 } else { self.transfer_checks };
        for check in 0..checks {
            self.registry.wait_for_answer(check, vec![object.net], &self.holder.node).await;
            match self.read_with_block(&object).await? {
                (object, None) => return Ok(object.single_lease()),
                (current, Some(around)) => (object, block) = (current, around),
            }
            if !object.holder.transfer_refused_by.is_empty() {
                break;
            }
        }
        let held_by = object.holder.transfer_refused_by.clone();
        let ended = if held_by.is_empty() {
            self.leave_request(object.clone()).await
        } else {
            self.yield_address(object.clone()).await
        };
        // The object was changed at the last moment: the address may have been transferred.
        if ended == Err(RegistryError::Conflict)
            && let (object, None) = self.read_with_block(&object).await?
        {
            return Ok(object.single_lease());
        }
        ended?;
        if is_own && held_by.is_empty() {
            return Err(AllocationError::InOwnBlock { ip: object.net.addr(), net: block.net });
        }
        Err(AllocationError::NotTransferred { net: block.net, node: block.holder.node, held_by })
    }

    /// Reads one of this node's objects again, and the block around it. The object is read first: if it is
    /// still this node's and then lies in no block, no other node has the address.
    async fn read_with_block(&self, object: &IpBlock) -> Result<(IpBlock, Option<IpBlock>), AllocationError> {
        let current = self.registry.read(object.net).await?;
        let is_own = |current: &IpBlock| {
            current.lease_id() == object.lease_id() && current.holder.node == self.holder.node
        };
        let object = current.filter(is_own).ok_or(AllocationError::Contended)?;
        let around = self.block_around(object.net.addr()).await?;
        Ok((object, around))
    }

    /// Releases the object but leaves the request in it: the next request for the address may find it transferred.
    async fn leave_request(&self, mut object: IpBlock) -> Result<(), RegistryError> {
        let Holder { claim, generation, transfer_requested_from, .. } = object.holder;
        // An address that the claim never had is not kept for it.
        let claim = if generation == 0 { String::new() } else { claim };
        let released_at = self.clock.now;
        object.holder =
            Holder { claim, generation, transfer_requested_from, released_at, ..Holder::default() };
        self.registry.replace(&object).await.map(drop)
    }
}
