//! Leases of single addresses that the registry chooses, and the check whether an address is available.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::single_address::{BlockConflict, is_of_same_pod};
use super::{ATTEMPTS, BlockAllocator, Listed, RequestContext};
use crate::address_span::AddressSpan;
use crate::allocation_error::AllocationError;
use crate::block_lease::{BlockInfo, BlockLease, BlockState};
use crate::ip_block::{Holder, IpBlock};
use crate::registry::Registry;

/// Time after which a requester of a transfer has given up, in milliseconds.
const REQUESTER_MAX: u64 = 10_000;

impl<R: Registry> BlockAllocator<'_, R> {
    /// Leases a single address: the one that the holder's claim keeps, else one that is free outside of leased blocks,
    /// else a released one, else `offer`, which is free in a block of this node.
    pub(crate) async fn lease_any_address(
        &self,
        offer: Option<IpAddr>,
        context: RequestContext<'_>,
        listed: &mut Listed,
    ) -> Result<BlockLease, AllocationError> {
        if !self.holder.claim.is_empty() {
            let kept = self.registry.list_of_claim(&self.holder.claim).await?;
            let kept = kept.into_iter().filter(|object| self.filter.admits(object.net.addr()));
            // Of several addresses, the one that the last pod of the claim has or had.
            let last = |object: &IpBlock| (!object.holder.node.is_empty(), object.holder.released_at);
            if let Some(object) = kept.max_by_key(last) {
                let object = self.take_over(object, self.clock, context).await?;
                return self.resolve_block_conflict(object, BlockConflict::RequestTransfer).await;
            }
        }
        let all = match listed.take() {
            Some(all) => all,
            None => self.registry.list().await?,
        };
        let is_own = |object: &&IpBlock| {
            let Holder { node, store, owner, claim, .. } = &object.holder;
            let own = &self.holder;
            object.is_single_address()
                && (node, store, owner, claim) == (&own.node, &own.store, &own.owner, &own.claim)
        };
        if let Some(object) = all.iter().find(is_own).filter(|_| !self.holder.owner.is_empty()) {
            let object = self.take_over(object.clone(), self.clock, context).await?;
            return self.resolve_block_conflict(object, BlockConflict::Yield).await;
        }
        let mut taken: HashSet<IpNet> =
            all.iter().map(|object| object.net).chain(context.networks()).collect();
        let mut has_tried = false;
        for _ in 0..ATTEMPTS {
            let Some(ip) =
                self.address_without_object(&taken).or_else(|| self.reserved_without_object(&all, &taken))
            else {
                break;
            };
            has_tried = true;
            match self.lease_address_at(ip, self.clock, BlockConflict::Yield, context).await {
                Err(AllocationError::Held { net, .. }) => taken.extend([net, IpNet::from(ip)]),
                Err(AllocationError::Contended) => taken.extend([IpNet::from(ip)]),
                other => return other,
            }
        }
        let released = self.released_addresses(&all);
        *listed = Some(all).filter(|_| !has_tried && released.is_empty());
        match (self.lease_released_address(released, context).await, offer) {
            (
                Err(
                    AllocationError::Exhausted | AllocationError::Quarantined(_) | AllocationError::Contended,
                ),
                Some(ip),
            ) => self.lease_offer(ip, context).await,
            (outcome, _) => outcome,
        }
    }

    async fn lease_offer(
        &self,
        ip: IpAddr,
        context: RequestContext<'_>,
    ) -> Result<BlockLease, AllocationError> {
        match self.lease_address(ip, context).await {
            Err(
                AllocationError::Held { .. }
                | AllocationError::HeldOnThisNode(_)
                | AllocationError::Contended,
            ) => Err(AllocationError::OfferTaken(ip)),
            outcome => outcome,
        }
    }

    /// Returns released addresses, those that have been free longest first.
    fn released_addresses(&self, all: &[IpBlock]) -> Vec<IpBlock> {
        // An address with a transfer request is about to be leased by the requester, unless that gave up.
        let is_requested = |object: &IpBlock| {
            let holder = &object.holder;
            let is_recent = holder.released_at.saturating_add(REQUESTER_MAX) >= self.clock.now;
            !holder.transfer_requested_from.is_empty() && is_recent
        };
        let is_released = |object: &IpBlock| {
            let is_free = object.is_free() && !is_requested(object);
            object.is_single_address() && is_free && self.filter.admits(object.net.addr())
        };
        let mut released: Vec<&IpBlock> = all.iter().filter(|object| is_released(object)).collect();
        let is_other = |object: &IpBlock| !is_of_same_pod(&object.holder.owner, &self.holder.owner);
        released.sort_by_key(|object| (is_other(object), object.holder.released_at));
        released.into_iter().take(ATTEMPTS).cloned().collect()
    }

    /// Leases the first of the released addresses that is available.
    async fn lease_released_address(
        &self,
        released: Vec<IpBlock>,
        context: RequestContext<'_>,
    ) -> Result<BlockLease, AllocationError> {
        let mut error = AllocationError::Exhausted;
        for object in released {
            match self.take_over(object, self.clock, context).await {
                Ok(object) => match self.resolve_block_conflict(object, BlockConflict::Yield).await {
                    // The object of an abandoned transfer request, inside a leased block.
                    Err(AllocationError::Held { .. }) => {}
                    outcome => return outcome,
                },
                Err(quarantined @ AllocationError::Quarantined(_)) => return Err(quarantined),
                Err(
                    AllocationError::Held { .. }
                    | AllocationError::HeldOnThisNode(_)
                    | AllocationError::Contended,
                ) => error = AllocationError::Contended,
                Err(other) => return Err(other),
            }
        }
        Err(error)
    }

    /// Checks whether an address is available: in an unconfirmed block of this node, by a new lease, or perhaps in a block
    /// of another node, whose address store alone knows.
    ///
    /// # Errors
    /// No address is available, or the registry failed.
    pub async fn check_capacity(&self, blocks: &[BlockInfo]) -> Result<(), AllocationError> {
        let all = self.registry.list().await?;
        let is_own = |block: &&BlockInfo| {
            let found = all.iter().find(|object| object.net == block.net);
            found.is_some_and(|object| {
                object.lease_id() == block.lease && object.holder.node == self.holder.node
            })
        };
        let mut unconfirmed =
            blocks.iter().filter(|block| block.state == BlockState::Unconfirmed && block.held.is_empty());
        if unconfirmed.any(|block| self.filter.overlaps(block.net) && is_own(&block)) {
            return Ok(());
        }
        // A network with another range may have a store of its own on this node.
        let is_other = |object: &&IpBlock| {
            let Holder { node, store, .. } = &object.holder;
            let is_own = (node, store) == (&self.holder.node, &self.holder.store);
            !object.is_single_address() && !node.is_empty() && !is_own
        };
        if all.iter().filter(is_other).any(|block| !AddressSpan::of_block(self.filter, block).is_empty()) {
            return Ok(());
        }
        // A released address is available by a lease of itself or of the block around it.
        let is_available = |object: &&IpBlock| {
            object.is_single_address() && object.is_free() && object.quarantined_until(self.clock).is_none()
        };
        let taken = all.iter().filter(|object| !is_available(object)).map(|object| object.net).collect();
        let found =
            self.address_without_object(&taken).or_else(|| self.reserved_without_object(&all, &taken));
        found.map(drop).ok_or(AllocationError::Exhausted)
    }

    /// Finds an address that no object covers.
    fn address_without_object(&self, taken: &HashSet<IpNet>) -> Option<IpAddr> {
        let is_free = |ip: &IpAddr| !taken.contains(&IpNet::from(*ip));
        // The search for a block begins at the seed; the search for a single address begins elsewhere.
        let blocks = self.filter.blocks(&self.layout, !self.seed);
        let mut blocks =
            blocks.filter(|block| self.layout.has_single_addresses_only() || !taken.contains(block));
        blocks.find_map(|block| self.filter.addresses(block).find(is_free))
    }

    /// Finds an address that is reserved in a block although no object exists, because the last holder is gone.
    fn reserved_without_object(&self, all: &[IpBlock], taken: &HashSet<IpNet>) -> Option<IpAddr> {
        let is_free = |ip: &IpAddr| self.filter.admits(*ip) && !taken.contains(&IpNet::from(*ip));
        all.iter().flat_map(|object| &object.reserved).copied().find(is_free)
    }
}
