//! Confirmation of unconfirmed blocks with the registry, in the node agent.
//!
//! A block whose object is still the node's becomes active under a new lease. A block whose object is gone, but in
//! which something is held, is leased again. See `docs/design/ipam.md#loss-of-a-lease`.

use ipnet::IpNet;

use crate::allocation_error::AllocationError;
use crate::allocator::BlockAllocator;
use crate::block_lease::{BlockInfo, BlockState};
use crate::ip_block::{Holder, IpBlock};
use crate::lease_message::{LeaseRequest, LeaseResponse};
use crate::pool_layout::{PoolLayout, is_single_address};
use crate::reclaim::release_lease;
use crate::registry::{PoolState, Registry, RegistryError, block_around, create_object};

/// Confirms the unconfirmed blocks of a request.
pub(crate) async fn confirm_blocks<R: Registry>(
    allocator: &BlockAllocator<'_, R>,
    request: &LeaseRequest,
    seen: &[IpBlock],
    response: &mut LeaseResponse,
) -> Result<(), AllocationError> {
    let Holder { node, store, .. } = &allocator.holder;
    let own = allocator.registry.list_of_store(node, store).await?;
    for block in request.blocks.iter().filter(|block| block.state == BlockState::Unconfirmed) {
        let BlockInfo { net, lease, .. } = block;
        let is_block = |object: &IpBlock| object.net == *net && object.lease_id() == *lease;
        let found = match own.iter().find(|object| is_block(object)) {
            Some(object) => Some(object.clone()),
            // The store may have had another name when the block was leased.
            None => {
                let object = allocator.registry.read(*net).await?;
                object.filter(|object| is_block(object) && object.holder.node == *node)
            }
        };
        let Some(object) = found else {
            response.lost.push(lease.clone());
            let is_other_lease = |other: &BlockInfo| other.net == *net && other.lease != *lease;
            if !block.held.is_empty() && !request.blocks.iter().any(is_other_lease) {
                lease_held_block(allocator, (request, seen), block, response).await?;
            }
            continue;
        };
        // If the object was changed concurrently, the next request reads its new holder.
        if let Some(confirmed) = allocator.confirm(&object).await? {
            response.confirmed.push((lease.clone(), confirmed));
        }
    }
    Ok(())
}

/// Leases a block or single address whose object is gone although this node holds something in it.
async fn lease_held_block<R: Registry>(
    allocator: &BlockAllocator<'_, R>,
    (request, seen): (&LeaseRequest, &[IpBlock]),
    block: &BlockInfo,
    response: &mut LeaseResponse,
) -> Result<(), AllocationError> {
    // The pool may have been split into other blocks since.
    if !is_single_address(block.net) && allocator.layout.block_of(block.net.addr()) != Some(block.net) {
        return Ok(());
    }
    let Holder { node, store, .. } = allocator.holder.clone();
    if is_single_address(block.net)
        && let Some(around) = allocator.block_around(block.net.addr()).await?
        && (&around.holder.node, &around.holder.store) == (&node, &store)
    {
        // The store contained the address in this block, and takes it over when it has the block again.
        return Ok(());
    }
    let holder = Holder { node, store, ..Holder::default() };
    let Some(object) = create_or_take(allocator.registry, block.net, &holder, seen).await? else {
        return Ok(());
    };
    if !object.is_single_address() {
        response.leases.push(allocator.with_reserved(object, &request.blocks).await?.block_lease());
    } else if allocator.block_around(object.net.addr()).await?.is_some() {
        // The object remains and the block stays unconfirmed. The node that leases the block around it finds the object
        // and reserves the address, before this store asks again.
    } else if allocator.registry.pool_state(object.net).await? != PoolState::SingleAddressesPossible {
        allocator.release(&object).await?;
    } else {
        response.lost.retain(|lease| *lease != block.lease);
        response.confirmed.push((block.lease.clone(), object.lease_id()));
    }
    Ok(())
}

/// Creates an object, or takes a free single address, or one that this holder leased again before the request (`seen`).
/// A claim continues to keep a single address. `None` if the object belongs to another holder.
async fn create_or_take<R: Registry>(
    registry: &R,
    net: IpNet,
    holder: &Holder,
    seen: &[IpBlock],
) -> Result<Option<IpBlock>, RegistryError> {
    match create_object(registry, net, holder).await {
        Err(RegistryError::Conflict) => {}
        other => return other.map(Some),
    }
    let is_own = |object: &IpBlock| {
        (&object.holder.node, &object.holder.store) == (&holder.node, &holder.store) && object.is_among(seen)
    };
    // The object of a single address outlives its lease.
    let is_available = |object: &IpBlock| {
        let is_free = object.holder.node.is_empty() || is_own(object) || names_earlier_owner(object, holder);
        object.is_single_address() && is_free
    };
    let Some(object) = registry.read(net).await?.filter(is_available) else { return Ok(None) };
    let Holder { owner, claim, generation, .. } = object.holder.clone();
    let is_earlier = owner.is_empty() || names_earlier_owner(&object, holder);
    let owner = if is_earlier { holder.owner.clone() } else { owner };
    let holder = Holder { owner, claim, generation: generation + 1, ..holder.clone() };
    match registry.replace(&IpBlock { holder, ..object }).await {
        Err(RegistryError::Conflict) => Ok(None),
        other => other.map(Some),
    }
}

/// Whether the holder's store names another owner for a single address than the one that holds it, as it happens when
/// the cluster's database was restored. If that owner were deleted, a pod with the same claim would take the address.
pub fn names_earlier_owner(object: &IpBlock, holder: &Holder) -> bool {
    let Holder { node, store, owner, .. } = &object.holder;
    let is_own = (node, store) == (&holder.node, &holder.store);
    object.is_single_address() && is_own && !holder.owner.is_empty() && *owner != holder.owner
}

/// Leases an unconfirmed block again in which something is held, before the store requests it; returns whether the
/// block was available. The store's next request finds the new lease.
///
/// # Errors
/// Error of the registry.
pub async fn recreate_lease<R: Registry>(
    registry: &R,
    layout: PoolLayout,
    net: IpNet,
    holder: &Holder,
    now: u64,
) -> Result<bool, RegistryError> {
    let Some(object) = create_or_take(registry, net, holder, &[]).await? else { return Ok(false) };
    let is_valid = match registry.pool_state(net).await? {
        PoolState::Changed => false,
        PoolState::SingleAddressesPossible => true,
        // The pool would have a record of a single address.
        PoolState::NoSingleAddresses => !object.is_single_address(),
    };
    if !is_valid {
        release_lease(registry, net, (&holder.node, &object.lease_id()), now).await?;
        return Ok(false);
    }
    // A single address inside a leased block stays unconfirmed. Its object remains, because the node that leases the
    // block may have read it.
    Ok(!object.is_single_address() || block_around(registry, layout, net.addr()).await?.is_none())
}
