//! Return of objects to the pool: by the holder, by the controller, and when a claim ends.

use ipnet::IpNet;

use crate::address_filter::AddressFilter;
use crate::ip_block::{Holder, IpBlock};
use crate::registry::{Registry, RegistryError};

/// Number of attempts to release an object that is changed concurrently.
const ATTEMPTS: usize = 2;

/// Releases a lease of a node. A lease that is not current any more was released before.
///
/// A single address keeps the object, because it records when the quarantine began. After a restore of the cluster's
/// database, another node may have a lease with the same identifier, which is not released.
///
/// # Errors
/// Error of the registry, or concurrent changes.
pub async fn release_lease<R: Registry>(
    registry: &R,
    net: IpNet,
    (node, lease): (&str, &str),
    now: u64,
) -> Result<(), RegistryError> {
    for _ in 0..ATTEMPTS {
        let Some(object) = registry.read(net).await? else { return Ok(()) };
        if object.lease_id() != lease || object.holder.node.is_empty() || object.holder.node != node {
            return Ok(());
        }
        match reclaim(registry, object, now).await {
            // Another change came first, for example a liveness probe of the node.
            Err(RegistryError::Conflict) => {}
            other => return other,
        }
    }
    Err(RegistryError::Unknown("the object is changed concurrently".to_owned()))
}

/// Takes an object away from the node, if it was not changed since `object` was read.
///
/// The caller reads the object, then makes sure that the node is gone, then reclaims: a node that came back in between
/// has changed the objects.
///
/// # Errors
/// Error of the registry.
pub async fn reclaim<R: Registry>(registry: &R, mut object: IpBlock, now: u64) -> Result<(), RegistryError> {
    if object.is_single_address() {
        let Holder { claim, generation, owner, .. } = object.holder;
        // The same interface of the same pod may have the address again at once.
        let owner = if claim.is_empty() { owner } else { String::new() };
        object.holder = Holder { claim, generation, owner, released_at: now, ..Holder::default() };
        return registry.replace(&object).await.map(drop);
    }
    registry.delete(&object).await
}

/// Ends the claim on an address, if the object was not changed since it was read. The quarantine begins.
///
/// # Errors
/// Error of the registry.
pub async fn end_claim<R: Registry>(registry: &R, object: IpBlock, now: u64) -> Result<(), RegistryError> {
    // Several pods may have shared the address, and the last one may have been deleted only now.
    let holder = Holder { claim: String::new(), released_at: now, ..object.holder };
    registry.replace(&IpBlock { holder, ..object }).await.map(drop)
}

/// Ends a claim on addresses that earlier pods had: only `leased`, which the claim's last pod has, stays. Addresses
/// that a node leases, or that the network may not allocate, are left alone.
///
/// # Errors
/// Error of the registry.
pub async fn end_earlier_claims<R: Registry>(
    registry: &R,
    filter: &AddressFilter,
    claim: &str,
    leased: IpNet,
    now: u64,
) -> Result<(), RegistryError> {
    for object in registry.list_of_claim(claim).await? {
        let is_earlier = object.net != leased && object.holder.node.is_empty();
        if !is_earlier || !filter.admits(object.net.addr()) {
            continue;
        }
        match end_claim(registry, object, now).await {
            // A pod of the claim may be about to lease it.
            Ok(()) | Err(RegistryError::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
