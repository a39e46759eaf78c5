//! Leases for single addresses that the caller names.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{BlockAllocator, RequestContext, UNLISTED_ATTEMPTS};
use crate::allocation_error::AllocationError;
use crate::block_lease::BlockLease;
use crate::clock::Clock;
use crate::ip_block::{Holder, IpBlock};
use crate::reclaim::reclaim;
use crate::registry::{Registry, RegistryError, create_object};

/// Reaction to a single address that lies in a leased block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockConflict {
    /// The address is released again; any other address suffices.
    Yield,
    /// The address is needed: the block's node is asked to transfer it.
    RequestTransfer,
}

/// Whether two owners (pod uid, container, interface) are the same interface on one pod.
pub(super) fn is_of_same_pod(one: &str, other: &str) -> bool {
    fn parts(owner: &str) -> Option<(&str, &str)> {
        let (uid, rest) = owner.split_once('/')?;
        Some((uid, rest.rsplit_once('/')?.1)).filter(|_| !uid.is_empty())
    }
    parts(one).is_some_and(|interface| parts(other) == Some(interface))
}

impl<R: Registry> BlockAllocator<'_, R> {
    /// Leases this address. The quarantine does not apply to an address that is named.
    ///
    /// # Errors
    /// The address is held or was not transferred, or the registry failed.
    pub async fn lease_address(
        &self,
        ip: IpAddr,
        context: RequestContext<'_>,
    ) -> Result<BlockLease, AllocationError> {
        let clock = Clock { quarantine: 0, ..self.clock };
        self.lease_address_at(ip, clock, BlockConflict::RequestTransfer, context).await
    }

    pub(super) async fn lease_address_at(
        &self,
        ip: IpAddr,
        clock: Clock,
        conflict: BlockConflict,
        context: RequestContext<'_>,
    ) -> Result<BlockLease, AllocationError> {
        let net = IpNet::from(ip);
        for _ in 0..UNLISTED_ATTEMPTS {
            // An address in the store has an object, or had one.
            let created = if context.contains(net) {
                Err(RegistryError::Conflict)
            } else {
                create_object(self.registry, net, &self.holder).await
            };
            let object = match created {
                Ok(object) => object,
                Err(RegistryError::Conflict) => match self.registry.read(net).await? {
                    Some(existing) => self.take_over(existing, clock, context).await?,
                    None if context.contains(net) => return Err(AllocationError::HeldOnThisNode(ip)),
                    None => continue,
                },
                Err(error) => return Err(error.into()),
            };
            return self.resolve_block_conflict(object, conflict).await;
        }
        Err(AllocationError::Contended)
    }

    /// Returns the lease for a single address unless it lies in a leased block.
    pub(super) async fn resolve_block_conflict(
        &self,
        object: IpBlock,
        conflict: BlockConflict,
    ) -> Result<BlockLease, AllocationError> {
        let Some(block) = self.block_around(object.net.addr()).await? else {
            return Ok(object.single_lease());
        };
        match conflict {
            BlockConflict::RequestTransfer => self.request_transfer(object, block).await,
            BlockConflict::Yield => {
                self.yield_address(object).await?;
                Err(AllocationError::Held { net: block.net, node: block.holder.node })
            }
        }
    }

    /// Gives back a single address that lies in a leased block.
    pub(super) async fn yield_address(&self, object: IpBlock) -> Result<(), RegistryError> {
        if object.holder.claim.is_empty() || object.holder.generation == 0 {
            return self.registry.delete(&object).await;
        }
        // The claim kept the address before: the node that leases the block sees the object and reserves the address.
        reclaim(self.registry, object, self.clock.now).await
    }

    /// Takes over an existing object, if that is allowed. One that is changed concurrently, for example by the answer
    /// to a liveness probe, is read once more.
    pub(super) async fn take_over(
        &self,
        object: IpBlock,
        clock: Clock,
        context: RequestContext<'_>,
    ) -> Result<IpBlock, AllocationError> {
        let net = object.net;
        if let Some(taken) = self.try_take_over(object, clock, context).await? {
            return Ok(taken);
        }
        let object = self.registry.read(net).await?.ok_or(AllocationError::Contended)?;
        self.try_take_over(object, clock, context).await?.ok_or(AllocationError::Contended)
    }

    /// Takes over an existing object; `None` if it was changed concurrently.
    async fn try_take_over(
        &self,
        object: IpBlock,
        clock: Clock,
        context: RequestContext<'_>,
    ) -> Result<Option<IpBlock>, AllocationError> {
        let Holder { node, store, owner, claim, generation, .. } = &object.holder;
        let (own, held) = (&self.holder, AllocationError::Held { net: object.net, node: node.clone() });
        let has_claim = !claim.is_empty() && *claim == own.claim;
        let is_own = node == &own.node && store == &own.store && owner == &own.owner;
        if !claim.is_empty() && !has_claim {
            return Err(held);
        }
        if !node.is_empty() {
            // The answer to an earlier request was lost. The new generation makes a release by that request fail.
            if is_own && !object.is_among(context.seen) {
                return Err(AllocationError::Contended);
            }
            let is_movable =
                is_own || has_claim && (self.shares_claim || self.registry.is_pod_deleted(owner).await?);
            if !is_movable {
                return Err(held);
            }
        } else if let (false, Some(end)) =
            (has_claim || is_of_same_pod(owner, &own.owner), object.quarantined_until(clock))
        {
            return Err(AllocationError::Quarantined(end));
        }
        // A pod deleted from the cluster may still run on its node.
        if context.contains(object.net) && !is_own && !(has_claim && self.shares_claim) {
            return Err(AllocationError::HeldOnThisNode(object.net.addr()));
        }
        // An object that was created under another layout of the pool is in no record.
        self.registry.record_single_address(object.net).await?;
        let holder = Holder { generation: generation + 1, released_at: 0, ..own.clone() };
        match self.registry.replace(&IpBlock { holder, ..object }).await {
            Ok(object) => Ok(Some(object)),
            Err(RegistryError::Conflict) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
