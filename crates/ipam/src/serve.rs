//! The node agent's answer to a request of an address store: returns, confirms and leases blocks.

use std::net::IpAddr;

use crate::allocation_error::AllocationError;
use crate::allocator::{BlockAllocator, Listed, RequestContext};
use crate::block_lease::{BlockInfo, BlockLease, BlockState};
use crate::confirm::confirm_blocks;
use crate::ip_block::IpBlock;
use crate::lease_message::{AllocationKind, LeaseRequest, LeaseResponse};
use crate::reclaim::release_lease;
use crate::registry::Registry;

impl<R: Registry> BlockAllocator<'_, R> {
    /// Answers a request.
    ///
    /// `seen` are the objects that the agent believes the store to lease. They may be outdated, but must not contain a
    /// lease that was made after the request.
    pub async fn serve(&self, request: &LeaseRequest, seen: &[IpBlock]) -> LeaseResponse {
        let mut response = LeaseResponse::default();
        self.return_blocks(request, &mut response).await;
        if request.blocks.iter().any(|block| block.state == BlockState::Unconfirmed)
            && let Err(error) = confirm_blocks(self, request, seen, &mut response).await
        {
            response.error = Some(error);
        }
        let (context, mut seen) = (RequestContext { blocks: &request.blocks, seen }, seen.to_vec());
        // An object that was leased again without a request, or whose lease was lost with the store, keeps held addresses
        // from other nodes. A block is adopted, around the held addresses. A single address is confirmed instead.
        let is_needed = |object: &IpBlock| unconfirmed_and_held(request).any(|ip| object.net.contains(ip));
        let needs_address = request.kind != AllocationKind::Nothing;
        seen.retain(|object| !is_needed(object) || !object.is_single_address() && needs_address);
        if !needs_address {
            if let Err(error) = self.release_unknown(&seen, &request.blocks).await {
                response.error = Some(error);
            }
            return response;
        }
        // A confirmed block may have a free address.
        match request.kind {
            AllocationKind::Any if !response.confirmed.is_empty() || !response.leases.is_empty() => {
                return response;
            }
            AllocationKind::Address(ip) if is_in_confirmed_block(request, &response, ip) => return response,
            _ => {}
        }
        let leased = match self.adopt(&seen, &request.blocks).await {
            Ok(adopted) if !adopted.is_empty() => {
                response.leases.extend(adopted);
                match request.kind {
                    AllocationKind::Any => return response,
                    AllocationKind::Address(ip)
                        if response.leases.iter().any(|lease| lease.net.contains(&ip)) =>
                    {
                        return response;
                    }
                    kind => self.lease(kind, context).await,
                }
            }
            Ok(_) => self.lease(request.kind, context).await,
            Err(error) => Err(error),
        };
        match leased {
            Ok(lease) => response.leases.push(lease),
            Err(error) => response.error = Some(error),
        }
        response
    }

    /// Returns the blocks that the store returns. Only this part of a request is allowed without the store's lock: the
    /// state of a returning lease never changes again.
    pub async fn return_blocks(&self, request: &LeaseRequest, response: &mut LeaseResponse) {
        let returning = request.blocks.iter().filter(|block| block.state == BlockState::Returning);
        for BlockInfo { net, lease, released_at, .. } in returning {
            // The quarantine of a single address began when its owner released it.
            let now = self.clock.now;
            let released_at = if *released_at == 0 { now } else { (*released_at).min(now) };
            match release_lease(self.registry, *net, (&self.holder.node, lease), released_at).await {
                Ok(()) => response.returned.push(lease.clone()),
                Err(error) => response.error = Some(error.into()),
            }
        }
    }

    /// Leases what a request needs; asks other nodes if no address is known to be free.
    async fn lease(
        &self,
        kind: AllocationKind,
        context: RequestContext<'_>,
    ) -> Result<BlockLease, AllocationError> {
        let is_any = matches!(kind, AllocationKind::Any | AllocationKind::ForClaim(_));
        let mut listed = None;
        match self.lease_free(kind, context, &mut listed).await {
            Err(refusal) if is_any && refusal.may_be_free_elsewhere() => {
                self.lease_from_other_nodes(kind, context, refusal, listed).await
            }
            outcome => outcome,
        }
    }

    /// Leases what a request needs from what the registry knows to be free.
    pub(crate) async fn lease_free(
        &self,
        kind: AllocationKind,
        context: RequestContext<'_>,
        listed: &mut Listed,
    ) -> Result<BlockLease, AllocationError> {
        let lease = match kind {
            AllocationKind::Address(ip) | AllocationKind::AddressForClaim(ip) => {
                self.lease_address(ip, context).await
            }
            AllocationKind::Any if self.layout.has_blocks_for(self.filter.count()) => {
                self.lease_block_or_address(context, listed).await
            }
            AllocationKind::ForClaim(offer) => self.lease_any_address(offer, context, listed).await,
            AllocationKind::Any | AllocationKind::Nothing => {
                self.lease_any_address(None, context, listed).await
            }
        }?;
        if lease.single_owner { self.verify_single_address(lease).await } else { Ok(lease) }
    }
}

/// Held addresses of unconfirmed blocks.
fn unconfirmed_and_held(request: &LeaseRequest) -> impl Iterator<Item = &IpAddr> {
    let unconfirmed = request.blocks.iter().filter(|block| block.state == BlockState::Unconfirmed);
    unconfirmed.flat_map(|block| &block.held)
}

/// Whether an address lies in a block that was just confirmed.
fn is_in_confirmed_block(request: &LeaseRequest, response: &LeaseResponse, ip: IpAddr) -> bool {
    let mut around = request.blocks.iter().filter(|block| block.net.contains(&ip));
    around.any(|block| response.confirmed.iter().any(|(old, _)| *old == block.lease))
}
