//! Actions of the nodes in a history.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Mutex;

use ipam::give_up::{complete_give_up, known_blocks, next_request};
use ipam::registry::create_object;
use ipam::restore::{RestoreMark, RestoreMessage, RestoreStep, restorable, withdraw_reservations};
use ipam::transfer::{self, Reservation, TransferReply};
use ipam::{
    AddressFilter, AddressSpan, AddressStore, AllocationError, AllocationKind, BlockAllocator, BlockLease,
    Clock, Holder, IpBlock, LeaseRequest, PoolLayout, Registry, RequestContext, TransferRequest,
};
use ipnet::IpNet;

use super::gate::{ENLARGED, Gate, POOLS, Pool, Server};

pub(super) type Task = Pin<Box<dyn Future<Output = Result<BlockLease, AllocationError>>>>;

/// Action of a node.
#[derive(Debug, Clone, Copy)]
pub(super) enum Action {
    /// Leases a block.
    Block,
    /// Leases an address that lies in a block.
    Address(&'static str),
    /// Leases a block from the beginning, and transfers this address when it is requested.
    Transfers(&'static str),
    /// Leases a block from the beginning, whose object contains a request for any address, and serves the request.
    GivesUp,
    /// Sends a request for any address, and a second one if the first has no result.
    Requests,
    /// Sends one request for this address.
    RequestsAddress(&'static str),
    /// Deletes the pool, recreates it with another block size, and sends a request for any address.
    RecreatesPool,
    /// Leases a block from the beginning, and restores this reserved address of it.
    Restores(&'static str),
    /// Leases this address of the block of the first node, which transfers it meanwhile.
    TransferredAddress(&'static str),
    /// Gives blocks to a pool without blocks, as for a larger range, and sends a request for any address.
    EnlargesPool,
}

impl Action {
    /// Runs the action of the node with this index.
    pub(super) async fn run(
        self,
        index: usize,
        gate: &Gate,
        filter: &AddressFilter,
        store: &Mutex<AddressStore>,
    ) -> Result<BlockLease, AllocationError> {
        let name = format!("n{index}");
        let layout = layout_of(gate.pool);
        let allocator = BlockAllocator {
            registry: gate,
            layout,
            filter,
            holder: Holder { node: name.clone(), store: "l".into(), owner: name, ..Holder::default() },
            shares_claim: false,
            clock: Clock { now: 1_000, quarantine: 10 },
            seed: 0,
            transfer_checks: 1,
            lists_first: false,
        };
        match self {
            Action::Block => allocator.lease_block(RequestContext::default()).await,
            Action::Address(ip) => {
                allocator.lease_address(ip.parse().unwrap(), RequestContext::default()).await
            }
            Action::Transfers(ip) => transfer_address(gate, layout, ip.parse().unwrap(), store).await,
            Action::GivesUp => give_up(gate, store).await,
            Action::Requests => send_two_requests(&allocator).await,
            Action::RequestsAddress(ip) => {
                send_request(&allocator, gate, &[], AllocationKind::Address(ip.parse().unwrap())).await
            }
            Action::Restores(ip) => restore(gate, ip.parse().unwrap(), 100 + index as u64, store).await,
            Action::TransferredAddress(ip) => lease_transferred(&allocator, ip.parse().unwrap(), store).await,
            Action::RecreatesPool => recreate_pool(&allocator).await,
            Action::EnlargesPool => enlarge_pool(&allocator).await,
        }
    }
}

/// Block that a transferring node leases from the beginning.
const OWN: &str = "10.0.0.0/30";

/// Server and store with that block.
pub(super) fn own() -> (Server, AddressStore) {
    let net: IpNet = OWN.parse().unwrap();
    let holder = Holder { node: "n0".into(), store: "l".into(), ..Holder::default() };
    let object = IpBlock { net, uid: "u0".into(), version: "0".into(), holder, reserved: Vec::new() };
    let mut store = AddressStore::new("b");
    let lease = BlockLease { net, id: object.lease_id(), single_owner: false, reserved: Vec::new() };
    let _ = store.add_block(&lease, 1);
    (Server { objects: vec![object], pool: Some(POOLS[0]), ..Server::default() }, store)
}

/// Server and store with that block, in which this address is reserved. With an object, it was a single address before.
pub(super) fn own_with_reserved(ip: IpAddr, has_object: bool) -> (Server, AddressStore) {
    let (mut server, mut store) = own();
    server.objects[0].reserved.push(ip);
    let id = store.find(ip).unwrap();
    let _ = store.reserve(id);
    if has_object {
        server.recorded.insert(ip.into());
        let holder = Holder { owner: "a pod before".into(), released_at: 1, ..Holder::default() };
        let (uid, version) = ("u1".into(), "1".into());
        server.objects.push(IpBlock { net: ip.into(), uid, version, holder, reserved: Vec::new() });
    }
    (server, store)
}

/// Request of the second node for any address of that block.
pub(super) fn request_for_any() -> TransferRequest {
    let addresses = vec![AddressSpan::parse("10.0.0.1-10.0.0.3").unwrap()];
    TransferRequest { node: "n1".into(), store: "l".into(), addresses, quarantine: 10, requested_at: 1_000 }
}

/// Serves a request for any address once.
async fn give_up(gate: &Gate, store: &Mutex<AddressStore>) -> Result<BlockLease, AllocationError> {
    let mut objects = gate.list().await?;
    objects.retain(|object| object.holder.node == "n0");
    let asked =
        objects.iter().find_map(|object| Some((object.clone(), next_request(object, 1_000)?.clone())));
    let Some((asked, request)) = asked else { return Err(AllocationError::Exhausted) };
    let given = store.lock().unwrap().give_up(1_000, &request, &known_blocks(&objects)).0;
    complete_give_up(gate, &objects, &asked, &request, given, 1_000).await?;
    Err(AllocationError::Exhausted)
}

/// Serves a transfer request once. In a cluster the agent repeats it after an error.
async fn transfer_address(
    gate: &Gate,
    layout: PoolLayout,
    ip: IpAddr,
    store: &Mutex<AddressStore>,
) -> Result<BlockLease, AllocationError> {
    let nothing = || Err(AllocationError::Exhausted);
    let requested =
        gate.read(ip.into()).await?.filter(|object| object.holder.transfer_requested_from == "n0");
    let Some(object) = requested else { return nothing() };
    let Some(block) = transfer::requested_block(gate, layout, "n0", &object, 1_000).await? else {
        return nothing();
    };
    let reply = match store.lock().unwrap().reserve_for_transfer(&block.lease_id(), ip) {
        Reservation::Reserved(_) => TransferReply::Reserved,
        Reservation::InUse(_) => TransferReply::InUse("blue/x".into()),
        Reservation::UnknownLease => TransferReply::UnknownLease,
    };
    transfer::complete_transfer(gate, &object, block, reply, 1_000).await?;
    nothing()
}

/// Restores an address, as an agent does. Both changes of the store may be late, and their replies may be lost.
async fn restore(
    gate: &Gate,
    ip: IpAddr,
    mark: RestoreMark,
    store: &Mutex<AddressStore>,
) -> Result<BlockLease, AllocationError> {
    let nothing = || Err(AllocationError::Exhausted);
    let clock = Clock { now: 1_000, quarantine: 10 };
    let block = gate.read(OWN.parse().unwrap()).await?;
    let Some(object) = block.filter(|object| object.holder.node == "n0") else { return nothing() };
    let wanted = restorable(gate, &object, &[], clock).await?;
    if !wanted.contains(&ip) {
        return nothing();
    }
    let change = |step, addresses| {
        let message = RestoreMessage { lease: object.lease_id(), mark, step, addresses };
        gate.request(move |_| Ok(store.lock().unwrap().restore(1_000, &message).0))
    };
    let marked = change(RestoreStep::Mark, vec![ip]).await?;
    let free = withdraw_reservations(gate, &object, &marked, clock).await.unwrap_or_default();
    change(RestoreStep::Free, free).await?;
    nothing()
}

/// Leases an address that lies in the block of the first node: requests it, lets that node transfer it once, and uses it if it
/// is reserved.
async fn lease_transferred(
    allocator: &BlockAllocator<'_, Gate>,
    ip: IpAddr,
    store: &Mutex<AddressStore>,
) -> Result<BlockLease, AllocationError> {
    let gate = allocator.registry;
    let object = create_object(gate, ip.into(), &allocator.holder).await?;
    let holder = Holder { transfer_requested_from: "n0".into(), ..object.holder.clone() };
    let object = gate.replace(&IpBlock { holder, ..object }).await?;
    let _ = transfer_address(gate, layout_of(gate.pool), ip, store).await;
    let current = gate.read(ip.into()).await?;
    let is_own = |current: &IpBlock| current.lease_id() == object.lease_id() && current.holder.node == "n1";
    if current.filter(is_own).is_none() {
        return Err(AllocationError::Contended);
    }
    match gate.read(OWN.parse().unwrap()).await? {
        Some(block) if !block.reserved.contains(&ip) => Err(AllocationError::Exhausted),
        _ => {
            Ok(BlockLease { net: ip.into(), id: object.lease_id(), single_owner: true, reserved: Vec::new() })
        }
    }
}

fn layout_of((_, bits): Pool) -> PoolLayout {
    PoolLayout::new("10.0.0.0/29".parse().unwrap(), bits)
}

/// Sends one request of an empty store.
async fn send_request(
    allocator: &BlockAllocator<'_, Gate>,
    gate: &Gate,
    seen: &[IpBlock],
    kind: AllocationKind,
) -> Result<BlockLease, AllocationError> {
    let (layout, filter, holder) = (layout_of(gate.pool), allocator.filter, allocator.holder.clone());
    let allocator = BlockAllocator { registry: gate, layout, filter, holder, ..*allocator };
    let request = LeaseRequest { blocks: Vec::new(), kind };
    let mut response = allocator.serve(&request, seen).await;
    assert!(response.leases.len() <= 1, "{response:?}");
    response.leases.pop().ok_or(response.error.unwrap_or(AllocationError::Exhausted))
}

/// Sends two requests; the second one finds a lease whose response was lost.
async fn send_two_requests(allocator: &BlockAllocator<'_, Gate>) -> Result<BlockLease, AllocationError> {
    let first = send_request(allocator, allocator.registry, &[], AllocationKind::Any).await;
    if first.is_ok() {
        return first;
    }
    let current = allocator.registry.request(|server| Ok((server.pool, server.objects.clone()))).await?;
    let (Some(pool), mut seen) = current else { return Err(AllocationError::Exhausted) };
    seen.retain(|object| object.holder.node == allocator.holder.node);
    send_request(allocator, &Gate { pool, ..allocator.registry.clone() }, &seen, AllocationKind::Any).await
}

/// Recreates the pool. It is split again only if no remaining object has another block size, as [`Registry`] requires.
async fn recreate_pool(allocator: &BlockAllocator<'_, Gate>) -> Result<BlockLease, AllocationError> {
    let (gate, pool) = (allocator.registry, POOLS[1]);
    gate.request(|server| {
        (server.pool, server.recorded) = (None, BTreeSet::new());
        Ok(())
    })
    .await?;
    let fits = |object: &IpBlock| layout_of(pool).block_of(object.net.addr()) == Some(object.net);
    if !gate.list().await?.iter().all(fits) {
        return Err(AllocationError::Exhausted);
    }
    gate.request(|server| {
        server.pool = Some(pool);
        Ok(())
    })
    .await?;
    send_request(allocator, &Gate { pool, ..gate.clone() }, &[], AllocationKind::Any).await
}

/// Fixes the layout again: pending, list of the leases, fixed with the record of the single addresses.
async fn enlarge_pool(allocator: &BlockAllocator<'_, Gate>) -> Result<BlockLease, AllocationError> {
    let (gate, pool) = (allocator.registry, ENLARGED[1]);
    gate.request(|server| {
        server.pool = None;
        Ok(())
    })
    .await?;
    let singles: BTreeSet<IpNet> = gate.list().await?.into_iter().map(|object| object.net).collect();
    gate.request(|server| {
        (server.pool, server.recorded) = (Some(pool), singles);
        Ok(())
    })
    .await?;
    send_request(allocator, &Gate { pool, ..gate.clone() }, &[], AllocationKind::Any).await
}
