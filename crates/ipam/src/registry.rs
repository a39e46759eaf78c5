//! Registry: the cluster-wide list of blocks and single addresses leased from one pool.
//!
//! The Kubernetes API is one implementation, the simulation another. The allocator relies on these
//! guarantees:
//!
//! - A name can be created once. A change succeeds only if the object was not changed since it was read.
//! - A read sees every change that was acknowledged before the read began.
//! - A manually deleted object remains as long as it is in use ([`IpBlock::is_in_use`]), because the holder continues
//!   to allocate.
//! - A deleted pool is split again only if no remaining object has another block size.
//!
//! See `docs/design/ipam.md#objects`.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::ip_block::{Holder, IpBlock, TransferRequest};
use crate::pool_layout::{PoolLayout, is_single_address};

/// Why a registry request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryError {
    /// The name exists already, or the object was changed since it was read.
    Conflict,
    /// The request failed or was not answered; the change may have been made.
    Unknown(String),
}

/// State of the pool, read after an object was created in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolState {
    /// The pool was deleted, recreated or split into other blocks since it was read.
    Changed,
    /// The pool is unchanged; the block may contain single-address objects.
    SingleAddressesPossible,
    /// The pool is unchanged; no single-address object was ever created in the block.
    NoSingleAddresses,
}

/// Objects in one pool.
pub trait Registry: Sync {
    /// Creates an object, if the name is free.
    fn create(
        &self,
        net: IpNet,
        holder: &Holder,
    ) -> impl Future<Output = Result<IpBlock, RegistryError>> + Send;

    /// Creates the object for a block from which this node holds nothing, if the name is free. Addresses that the pool
    /// excludes are reserved in it.
    fn create_block(
        &self,
        net: IpNet,
        holder: &Holder,
    ) -> impl Future<Output = Result<IpBlock, RegistryError>> + Send {
        self.create(net, holder)
    }

    /// Returns the object with this name.
    fn read(&self, net: IpNet) -> impl Future<Output = Result<Option<IpBlock>, RegistryError>> + Send;

    /// Returns the single-address objects inside a block.
    fn single_addresses_in(
        &self,
        block: IpNet,
    ) -> impl Future<Output = Result<Vec<IpBlock>, RegistryError>> + Send;

    /// Returns every object in the pool.
    fn list(&self) -> impl Future<Output = Result<Vec<IpBlock>, RegistryError>> + Send;

    /// Returns the objects that a node's address store leases.
    fn list_of_store(
        &self,
        node: &str,
        store: &str,
    ) -> impl Future<Output = Result<Vec<IpBlock>, RegistryError>> + Send;

    /// Returns the single addresses that a claim keeps.
    fn list_of_claim(&self, claim: &str) -> impl Future<Output = Result<Vec<IpBlock>, RegistryError>> + Send;

    /// Replaces an object, if it was not changed since `object` was read. A manually deleted object that is free after
    /// the change is removed.
    fn replace(&self, object: &IpBlock) -> impl Future<Output = Result<IpBlock, RegistryError>> + Send;

    /// Replaces the transfer requests in an object, if it was not changed since `object` was read. This is
    /// the only change that a node makes which is not the holder; it does not answer a liveness probe to the
    /// holder.
    fn replace_requests(
        &self,
        object: &IpBlock,
    ) -> impl Future<Output = Result<IpBlock, RegistryError>> + Send;

    /// Deletes an object, if it was not changed since `object` was read. Deleting a missing object succeeds.
    fn delete(&self, object: &IpBlock) -> impl Future<Output = Result<(), RegistryError>> + Send;

    /// Returns what the pool is like with respect to a block or single address that was just created.
    fn pool_state(&self, net: IpNet) -> impl Future<Output = Result<PoolState, RegistryError>> + Send;

    /// Records in the pool, permanently, that the block around a single address may contain single-address objects.
    fn record_single_address(&self, net: IpNet) -> impl Future<Output = Result<(), RegistryError>> + Send;

    /// Whether an owner's pod is known to be deleted.
    fn is_pod_deleted(&self, owner: &str) -> impl Future<Output = Result<bool, RegistryError>> + Send;

    /// Waits before the check number `check` whether a transfer request was answered; later checks wait
    /// longer.
    fn wait_for_transfer(&self, check: u32) -> impl Future<Output = ()> + Send;

    /// Waits like [`Registry::wait_for_transfer`], or until one of the objects in `nets` seems to have an
    /// answer for `node`.
    fn wait_for_answer(&self, check: u32, _nets: Vec<IpNet>, _node: &str) -> impl Future<Output = ()> + Send {
        self.wait_for_transfer(check)
    }

    /// Removes requests from the objects, if they are still there. May return before it is done; a failure is ignored,
    /// because a request expires.
    fn end_requests(&self, requests: Vec<(IpNet, TransferRequest)>) -> impl Future<Output = ()> + Send
    where
        Self: Sized,
    {
        async move { end_each(self, requests).await }
    }
}

/// Removes a request from an object, if it is still there.
///
/// # Errors
/// What the registry reports.
pub async fn end_request<R: Registry>(
    registry: &R,
    asked: &IpBlock,
    request: &TransferRequest,
) -> Result<(), RegistryError> {
    let mut object = asked.clone();
    loop {
        let before = object.holder.transfer_requests.len();
        object.holder.transfer_requests.retain(|other| other != request);
        if object.holder.transfer_requests.len() == before {
            return Ok(());
        }
        match registry.replace_requests(&object).await {
            Ok(_) => return Ok(()),
            Err(RegistryError::Conflict) => {}
            Err(error) => return Err(error),
        }
        match registry.read(asked.net).await? {
            Some(current) => object = current,
            None => return Ok(()),
        }
    }
}

/// Removes requests from the objects one after the other. A failure is ignored.
pub async fn end_each<R: Registry>(registry: &R, requests: Vec<(IpNet, TransferRequest)>) {
    for (net, request) in requests {
        if let Ok(Some(object)) = registry.read(net).await {
            let _ = end_request(registry, &object, &request).await;
        }
    }
}

/// Creates an object, if the name is free. For a single address the pool records it first, because a node that leases
/// the block around it reads the block's single addresses only if the pool has such a record.
///
/// # Errors
/// What the registry reports.
pub async fn create_object<R: Registry>(
    registry: &R,
    net: IpNet,
    holder: &Holder,
) -> Result<IpBlock, RegistryError> {
    if is_single_address(net) {
        registry.record_single_address(net).await?;
    }
    registry.create(net, holder).await
}

/// Returns the leased block around an address, unless the address is reserved in it.
pub(crate) async fn block_around<R: Registry>(
    registry: &R,
    layout: PoolLayout,
    ip: IpAddr,
) -> Result<Option<IpBlock>, RegistryError> {
    match layout.block_of(ip).filter(|_| !layout.has_single_addresses_only()) {
        Some(net) => Ok(registry.read(net).await?.filter(|block| !block.reserved.contains(&ip))),
        None => Ok(None),
    }
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegistryError::Conflict => f.write_str("the object was changed concurrently"),
            RegistryError::Unknown(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for RegistryError {}
