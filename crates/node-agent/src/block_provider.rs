//! Provider of address blocks: answers requests from the node's address stores, and prefetches and returns blocks.
//!
//! ```text
//!   weft-ipam ── AllocateRequest ──► prefetched block of the store? ── yes ─────────────► AllocateResponse
//!                                      └─ no ─► BlockAllocator::serve ──► API server ──┘
//! ```
//!
//! An address that an IPAMClaim keeps is read from the claim and written to it: [`Claim`].
//!
//! - Requests for one store are answered one at a time, in order. A client holds the store lock, so the client behind
//!   an earlier request must be dead.
//! - A lease whose response was lost is found by the watch of this node's IPBlocks.
//! - An agent that is being replaced answers beside the new one. So a request ends when the client goes away
//!   ([`node_support::agent_server`]), and uses only objects that the watch showed while the client was connected.
//! - Before an object that the store does not contain is used, the client is probed ([`node_support::client_probe`]).
//! - A store outside the agent's `--address-stores` (`ipam.dataDir`) has a separate name. Two networks that use one
//!   pool with different directories have two independent stores.

mod imported;
mod last_address;
mod refused;
mod restored;

use std::collections::{BTreeMap, HashSet};
use std::fmt::Display;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use ipam::{
    AddressFilter, AllocationError, AllocationKind, BlockAllocator, BlockInfo, BlockLease, BlockState, Clock,
    Holder, IpBlock, LeaseRequest, LeaseResponse, PoolLayout, Registry, RegistryError, RequestContext,
    TransferRequest, release_lease,
};
use kube::api::ListParams;
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use npwg::metadata::Pod;
use rpc::allocate::{AllocateRequest, AllocateResponse, Operation};
use tokio::sync::watch::Sender;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use self::imported::ImportedPools;
use self::refused::{AGAIN, Refusal, RefusedNodes};
use ipam_api::api_registry::{ApiRegistry, TRANSFER_CHECKS, excluded_addresses, of_node};
use ipam_api::clock::now;
use ipam_api::cluster_history::ClusterHistory;
use ipam_api::ip_claim::Claim;
use ipam_api::ip_objects::BlockObject;
use ipam_api::owned_block::OwnedBlock;
use ipam_api::pool_lookup;
use ipam_api::pool_lookup::{Pool, Unusable};
use ipam_api::store_name::{name_in_directory, other_directory};
use ipam_api::virtual_machine::{MachineClaim, MachineError};
use kube_support::cache::{Cache, follow};
use kube_support::lookup::ASK_MAX;
use node_support::client_probe::{ClientProbe, Unconfirmed};
use node_support::metrics::Metrics;

/// Deadline for the watch of this node's IPBlocks to be filled, and for a pool to be read.
const SYNC_MAX: Duration = Duration::from_secs(5);
/// Time after which an unused prefetched block is returned.
const PREFETCH_MAX: Duration = Duration::from_secs(600);
/// Time for which another node's request waits for a request of the same store on this node.
const GIVE_UP_MAX: Duration = Duration::from_millis(200);
/// Time for which a pool is not read again, by requests that lease nothing for a waiting client.
const POOL_CACHE_MAX: Duration = Duration::from_secs(60);

/// Result of a request to give up a prefetched block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveUp {
    /// A block was returned.
    Done,
    /// There is none.
    Nothing,
    /// A request of the store is being served.
    Busy,
}

/// Provider of address blocks for this node's stores.
pub(crate) struct BlockProvider {
    client: Client,
    node: String,
    store_dir: PathBuf,
    own: Arc<Cache<Option<OwnedBlock>>>,
    own_followed: Once,
    imported: ImportedPools,
    /// Versions of the API server's responses.
    history: Arc<ClusterHistory>,
    /// Requests of other nodes that this node refused.
    pub(crate) refused: RefusedNodes,
    /// Whether this node has ever requested addresses.
    is_used: Sender<bool>,
    prefetched: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<PrefetchedBlocks>>>>,
    /// Longest quarantine by store.
    quarantines: Mutex<BTreeMap<String, u64>>,
}

/// Reason why a request for addresses could not be served at all.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    /// The pool could not be found or created.
    #[error("{0}")]
    FindPool(Unusable),
    /// The registry could not be read or changed.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The client did not confirm that it is connected.
    #[error(transparent)]
    Confirm(#[from] Unconfirmed),
    /// The IPAMClaim, or an address in it, could not be read.
    #[error("{reason}")]
    ReadClaim {
        /// Message of the error.
        reason: String,
    },
    /// The pod does not run the virtual machine whose address it needs.
    #[error(transparent)]
    VirtualMachine(#[from] MachineError),
    /// The network may not allocate the address of the IPAMClaim.
    #[error("{claim}: status.ips: {address}: the network does not allocate this address")]
    AllocateClaimed {
        /// Name of the IPAMClaim.
        claim: String,
        /// The address.
        address: IpAddr,
    },
    /// The pool excludes the address: another pool may allocate it.
    #[error("pool {pool}: {address} is excluded from the pool: request another address")]
    AllocateExcluded {
        /// Name of the pool.
        pool: String,
        /// The address.
        address: IpAddr,
    },
    /// The pod requests another address than that of the IPAMClaim.
    #[error("{claim}: status.ips: {address}: the pod requests {requested}")]
    AllocateRequested {
        /// Name of the IPAMClaim.
        claim: String,
        /// Address of the IPAMClaim.
        address: IpAddr,
        /// Address that the pod requests.
        requested: IpAddr,
    },
}

impl ServeError {
    /// Returns an error of an IPAMClaim.
    fn read_claim(error: &dyn Display) -> ServeError {
        ServeError::ReadClaim { reason: error.to_string() }
    }
}

/// State of one address store: the pool when last read, and prefetched blocks.
#[derive(Default)]
struct PrefetchedBlocks {
    pool: Option<(Instant, Pool)>,
    ready: Vec<(Instant, IpBlock)>,
    /// Whether the last request for a block found none free.
    is_full: bool,
    /// Last request that every other node refused.
    refusal: Option<Refusal>,
}

impl BlockProvider {
    /// Returns the provider of a node whose address stores are in `store_dir`.
    pub(crate) fn new(client: Client, node: &str, store_dir: &Path) -> BlockProvider {
        BlockProvider {
            client,
            node: node.to_owned(),
            store_dir: store_dir.to_owned(),
            own: Arc::new(Cache::new("ipblocks")),
            own_followed: Once::new(),
            imported: ImportedPools::default(),
            history: Arc::default(),
            refused: RefusedNodes::default(),
            is_used: Sender::new(false),
            prefetched: Mutex::default(),
            quarantines: Mutex::default(),
        }
    }

    /// Answers an address store's request. `pod` is the requesting pod, if the agent knows it.
    pub(crate) async fn allocate(
        &self,
        request: &AllocateRequest,
        probe: &ClientProbe<'_>,
        pod: Option<&Pod>,
        metrics: &Metrics,
    ) -> AllocateResponse {
        self.is_used.send_replace(true);
        let is_here = Path::new(&request.directory) == self.store_dir;
        let store = if is_here {
            request.store.clone()
        } else {
            name_in_directory(&request.store, &request.directory)
        };
        let request = &AllocateRequest { store, ..request.clone() };
        if request.operation == Operation::FindImported {
            return self.find_imported(request, pod, metrics).await;
        }
        if request.operation == Operation::Freed {
            self.refused.note_free(&request.store);
            return AllocateResponse::default();
        }
        self.note_quarantine(request);
        let prefetched = self.prefetched_of(&request.store);
        let mut prefetched = prefetched.lock().await;
        let answered = self.try_allocate((request, probe, pod), &mut prefetched, metrics).await;
        let outcome = match &answered {
            Ok(response) if response.error.is_some() => "refused",
            Ok(_) => "allocated",
            Err(_) => "failed",
        };
        metrics.allocated(outcome);
        match answered {
            Ok(lease) => self.with_hint(request, AllocateResponse { lease, ..AllocateResponse::default() }),
            Err(error) => {
                warn!(pool = request.pool.name, %error, "failed to serve a request for addresses");
                self.with_hint(request, AllocateResponse::unavailable(error.to_string()))
            }
        }
    }

    fn note_quarantine(&self, request: &AllocateRequest) {
        let mut quarantines = self.quarantines.lock().unwrap_or_else(PoisonError::into_inner);
        let longest = quarantines.entry(request.store.clone()).or_default();
        *longest = (*longest).max(request.quarantine);
    }

    /// Adds a hint to the response if the store is in another directory than the agent's: free addresses of the node
    /// may be in the stores there.
    fn with_hint(&self, request: &AllocateRequest, mut response: AllocateResponse) -> AllocateResponse {
        let Some(directory) = other_directory(&request.store) else { return response };
        let stores = self.store_dir.display();
        let hint = format!(
            "ipam.dataDir {directory} is not the agent's --address-stores {stores}: free addresses in the stores \
             there are not available to this network"
        );
        // The agent transfers no address out of a store in another directory.
        if let Some(own @ AllocationError::InOwnBlock { .. }) = response.lease.error {
            response.lease.error = Some(AllocationError::Unavailable(own.to_string()));
        }
        AllocateResponse { hint: Some(hint), ..response }
    }

    fn prefetched_of(&self, store: &str) -> Arc<tokio::sync::Mutex<PrefetchedBlocks>> {
        let mut all = self.prefetched.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(store.to_owned()).or_default())
    }

    /// Detects at the start whether this node has requested addresses before: it has an address store or, as stores may
    /// be in other directories, an IPBlock. The API server is asked once if there is no IPBlock.
    pub(crate) async fn detect_use(&self) {
        let has_none = match std::fs::read_dir(&self.store_dir) {
            Ok(mut entries) => entries.next().is_none(),
            // A directory that cannot be read may contain stores.
            Err(cause) => cause.kind() == std::io::ErrorKind::NotFound,
        };
        if !has_none {
            self.is_used.send_replace(true);
            return;
        }
        let blocks = Api::<BlockObject>::all(self.client.clone());
        let one = ListParams::default().labels(&of_node(&self.node)).limit(1);
        while !*self.is_used.borrow() {
            match timeout(ASK_MAX, blocks.list_metadata(&one)).await {
                Ok(Ok(found)) if found.items.is_empty() => return,
                Ok(Ok(_)) => drop(self.is_used.send_replace(true)),
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => return,
                // The permission may be granted later.
                Ok(Err(kube::Error::Api(status))) if status.code == 403 => sleep(PREFETCH_MAX).await,
                _ => sleep(SYNC_MAX).await,
            }
        }
    }

    /// Waits until this node has requested addresses, now or before.
    pub(crate) async fn wait_until_used(&self) {
        // It cannot fail: `self` keeps the sender.
        let _ = self.is_used.subscribe().wait_for(|used| *used).await;
    }

    /// Returns a block to the cluster if it is a prefetched one. The result is whether it was.
    ///
    /// # Errors
    /// The error of the registry.
    pub(crate) async fn return_prefetched(
        &self,
        registry: &ApiRegistry,
        block: &IpBlock,
    ) -> Result<bool, RegistryError> {
        let prefetched = self.prefetched_of(&block.holder.store);
        let mut prefetched = prefetched.lock().await;
        let lease = block.lease_id();
        let Some(at) = prefetched.ready.iter().position(|(_, ready)| ready.lease_id() == lease) else {
            return Ok(false);
        };
        prefetched.ready.remove(at);
        release_lease(registry, block.net, (&self.node, &lease), now()).await?;
        Ok(true)
    }

    /// Gives a prefetched block to another node, if there is one that it may use. Does not wait long for a request from
    /// the same store that is being served: that one may itself wait for other nodes.
    ///
    /// # Errors
    /// The error of the registry.
    pub(crate) async fn give_up_prefetched(
        &self,
        registry: &ApiRegistry,
        store: &str,
        request: &TransferRequest,
    ) -> Result<GiveUp, RegistryError> {
        let prefetched = self.prefetched_of(store);
        let Ok(mut prefetched) = timeout(GIVE_UP_MAX, prefetched.lock()).await else {
            return Ok(GiveUp::Busy);
        };
        let is_wanted = |block: &IpBlock| {
            let addresses = 0..ipam::pool_layout::address_count(block.net);
            let mut free = addresses.map(|offset| ipam::pool_layout::nth(block.net, offset));
            free.any(|ip| request.admits(ip) && !block.reserved.contains(&ip))
        };
        let Some(at) = prefetched.ready.iter().position(|(_, ready)| is_wanted(ready)) else {
            return Ok(GiveUp::Nothing);
        };
        let (_, block) = prefetched.ready.remove(at);
        release_lease(registry, block.net, (&self.node, &block.lease_id()), now()).await?;
        Ok(GiveUp::Done)
    }

    /// Returns prefetched blocks that were not used in time; then the leases for those that are still ready.
    ///
    /// # Errors
    /// The error of the registry.
    pub(crate) async fn ready_blocks(
        &self,
        registry: &ApiRegistry,
        store: &str,
    ) -> Result<HashSet<String>, RegistryError> {
        let prefetched = self.prefetched_of(store);
        let mut prefetched = prefetched.lock().await;
        return_unused(registry, &mut prefetched, now()).await?;
        Ok(prefetched.ready.iter().map(|(_, ready)| ready.lease_id()).collect())
    }

    /// Longest quarantine that a network has requested of a store since the agent started, in milliseconds.
    pub(crate) fn quarantine_of(&self, store: &str) -> u64 {
        let quarantines = self.quarantines.lock().unwrap_or_else(PoisonError::into_inner);
        quarantines.get(store).copied().unwrap_or(0)
    }

    async fn try_allocate(
        &self,
        (request, probe, pod): (&AllocateRequest, &ClientProbe<'_>, Option<&Pod>),
        prefetched: &mut PrefetchedBlocks,
        metrics: &Metrics,
    ) -> Result<LeaseResponse, ServeError> {
        if let Some(claim) = MachineClaim::parse(&request.claim).filter(|_| request.operation.needs_address())
        {
            claim.verify(&self.client, request, pod).await?;
        }
        let pool = self.pool(request, prefetched).await?;
        let filter = filter(request, &pool);
        let registry = ApiRegistry::new(
            self.client.clone(),
            &pool,
            (request.pod.namespace.clone(), request.pod.name.clone()),
            metrics.address_requests.clone(),
        );
        let registry = registry.with_history(&self.history);
        refuse_excluded(&registry, &pool, request).await?;
        // The address that a claim keeps may have to be transferred.
        let is_any = request.operation == Operation::Allocate(AllocationKind::Any);
        let known_refusal = prefetched.refusal.clone().filter(|refusal| is_any && refusal.covers(request));
        let transfer_checks = if known_refusal.is_some() { 0 } else { TRANSFER_CHECKS };
        let mut allocator = self.allocator(request, &registry, pool.grid, &filter, transfer_checks);
        allocator.lists_first = prefetched.is_full;
        if request.operation.leases() && self.history.settles_for().is_some() {
            let call = (request, probe);
            return self.return_and_confirm(&allocator, &pool.name, call, prefetched).await;
        }
        let response = match request.operation {
            Operation::Prefetch => self.prefetch(&allocator, &request.blocks, prefetched).await,
            Operation::FindImported | Operation::Freed => Ok(LeaseResponse::default()),
            Operation::CheckCapacity => {
                let error = allocator.check_capacity(&request.blocks).await.err();
                Ok(LeaseResponse { error, ..LeaseResponse::default() })
            }
            Operation::Return => {
                return_unused(&registry, prefetched, allocator.clock.now).await?;
                let ask = LeaseRequest { blocks: request.blocks.clone(), kind: AllocationKind::Nothing };
                let mut response = LeaseResponse::default();
                allocator.return_blocks(&ask, &mut response).await;
                Ok(response)
            }
            Operation::Allocate(kind) => {
                self.lease_or_refuse(
                    &allocator,
                    &pool.name,
                    (request, probe),
                    kind,
                    (prefetched, known_refusal),
                )
                .await
            }
        }?;
        if is_any && pool.grid.has_blocks_for(filter.count()) {
            prefetched.is_full = has_no_block(&response).unwrap_or(prefetched.is_full);
        }
        if response.error == Some(AllocationError::PoolChanged) {
            prefetched.pool = None;
        }
        Ok(reserve_excluded(response, &pool.exclude))
    }

    fn allocator<'a>(
        &self,
        request: &AllocateRequest,
        registry: &'a ApiRegistry,
        layout: PoolLayout,
        filter: &'a AddressFilter,
        transfer_checks: u32,
    ) -> BlockAllocator<'a, ApiRegistry> {
        BlockAllocator {
            registry,
            layout,
            filter,
            holder: Holder {
                node: self.node.clone(),
                store: request.store.clone(),
                owner: request.owner.clone(),
                claim: request.claim.clone(),
                ..Holder::default()
            },
            shares_claim: request.shares_claim,
            clock: Clock { now: now(), quarantine: request.quarantine },
            seed: self.seed(request),
            transfer_checks,
            lists_first: false,
        }
    }

    /// Leases an address. If every other node refused the same request a moment ago, none is asked again: a node that has a
    /// free address since makes it known.
    async fn lease_or_refuse(
        &self,
        allocator: &BlockAllocator<'_, ApiRegistry>,
        pool: &str,
        call: (&AllocateRequest, &ClientProbe<'_>),
        kind: AllocationKind,
        (prefetched, known_refusal): (&mut PrefetchedBlocks, Option<Refusal>),
    ) -> Result<LeaseResponse, ServeError> {
        let mut response = self.lease_once(allocator, pool, call, kind, prefetched).await?;
        if let Some(refusal) = known_refusal {
            // A caller with a quarantine asks again without it.
            if is_exhausted(&response) && refusal.is_last_of(call.0) {
                sleep(AGAIN).await;
                response = self.lease_once(allocator, pool, call, kind, prefetched).await?;
            }
            if is_exhausted(&response) {
                response.error = Some(refusal.error);
                return Ok(response);
            }
        }
        prefetched.refusal = match &response.error {
            Some(error @ AllocationError::NoneElsewhere { .. }) => {
                Some(Refusal::after(prefetched.refusal.take(), call.0, error.clone()))
            }
            Some(_) => prefetched.refusal.take(),
            None => None,
        };
        Ok(response)
    }

    async fn lease_once(
        &self,
        allocator: &BlockAllocator<'_, ApiRegistry>,
        pool: &str,
        call: (&AllocateRequest, &ClientProbe<'_>),
        kind: AllocationKind,
        prefetched: &mut PrefetchedBlocks,
    ) -> Result<LeaseResponse, ServeError> {
        match kind {
            AllocationKind::ForClaim(_) | AllocationKind::AddressForClaim(_) => {
                let response = self.serve_claim(allocator, pool, call, kind, prefetched).await?;
                last_address::keep(allocator, &response);
                Ok(response)
            }
            _ => self.serve(allocator, pool, call, (kind, kind), prefetched).await,
        }
    }

    /// Returns the pool. A request that leases for a waiting client reads it, so that a changed or recreated pool is
    /// noticed before anything is leased. Other requests use the last state for a while.
    async fn pool(
        &self,
        request: &AllocateRequest,
        prefetched: &mut PrefetchedBlocks,
    ) -> Result<Pool, ServeError> {
        let may_be_old = match request.operation {
            Operation::Allocate(AllocationKind::Any) => !prefetched.ready.is_empty(),
            operation => !operation.needs_address(),
        };
        if let Some((since, pool)) = &prefetched.pool
            && may_be_old
            && since.elapsed() < POOL_CACHE_MAX
        {
            return Ok(pool.clone());
        }
        let lookup =
            pool_lookup::resolve_for(&self.client, &request.pool, request.filter.count(), &self.history);
        let resolved = timeout(SYNC_MAX, lookup).await;
        let no_answer = |_| Err(Unusable::Unknown("the API server does not answer".to_owned()));
        match (resolved.unwrap_or_else(no_answer), &prefetched.pool) {
            (Ok(pool), _) => {
                prefetched.pool = Some((Instant::now(), pool.clone()));
                Ok(pool)
            }
            // The API server does not answer; the last state of the pool is used.
            (Err(Unusable::Unknown(_)), Some((_, pool))) => Ok(pool.clone()),
            (Err(why), _) => Err(ServeError::FindPool(why)),
        }
    }

    /// Returns the seed for the block search: different for each node and store, and for each further block.
    fn seed(&self, request: &AllocateRequest) -> u64 {
        let text = format!("{}/{}/{}", self.node, request.store, request.blocks.len());
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    async fn prefetch(
        &self,
        allocator: &BlockAllocator<'_, ApiRegistry>,
        known: &[BlockInfo],
        prefetched: &mut PrefetchedBlocks,
    ) -> Result<LeaseResponse, ServeError> {
        if allocator.layout.has_blocks_for(allocator.filter.count()) && prefetched.ready.is_empty() {
            match allocator.prefetch_block(RequestContext { blocks: known, seen: &[] }).await {
                Ok(object) => {
                    info!(block = %object.net, "prefetched block");
                    prefetched.ready.push((Instant::now(), object));
                }
                Err(error) => return Ok(LeaseResponse { error: Some(error), ..LeaseResponse::default() }),
            }
        }
        Ok(LeaseResponse::default())
    }

    /// Leases an address for a claim. An address in the IPAMClaim takes precedence; the outcome is written to the IPAMClaim.
    async fn serve_claim(
        &self,
        allocator: &BlockAllocator<'_, ApiRegistry>,
        pool: &str,
        (request, probe): (&AllocateRequest, &ClientProbe<'_>),
        wanted: AllocationKind,
        prefetched: &mut PrefetchedBlocks,
    ) -> Result<LeaseResponse, ServeError> {
        let Some(claim) =
            Claim::of(&self.client, request).await.map_err(|error| ServeError::read_claim(&error))?
        else {
            return self.serve(allocator, pool, (request, probe), (wanted, wanted), prefetched).await;
        };
        let range = request.pool.range;
        let kind = match self.kind_for_claim(&claim, allocator.filter, request, wanted).await {
            Ok(kind) => kind,
            Err(error) => {
                claim.update_status(range, &request.pod.name, Err(&error.to_string())).await;
                return Err(error);
            }
        };
        let response = self.serve(allocator, pool, (request, probe), (wanted, kind), prefetched).await?;
        let refusal = response.error.as_ref().map(ToString::to_string);
        match (response.leases.iter().find(|lease| lease.single_owner), &refusal) {
            // The client repeats the request.
            _ if matches!(
                response.error,
                Some(AllocationError::InOwnBlock { .. } | AllocationError::OfferTaken(_))
            ) => {}
            (Some(lease), _) => claim.update_status(range, &request.pod.name, Ok(lease.net.addr())).await,
            (None, Some(why)) => claim.update_status(range, &request.pod.name, Err(why)).await,
            // The client repeats the request.
            (None, None) => {}
        }
        Ok(response)
    }

    /// Returns the address that a claim gets from the claim's status, if there is one.
    async fn kind_for_claim(
        &self,
        claim: &Claim,
        filter: &AddressFilter,
        request: &AllocateRequest,
        wanted: AllocationKind,
    ) -> Result<AllocationKind, ServeError> {
        let failed = |error: &dyn Display| ServeError::read_claim(error);
        let kept = claim.address(request.pool.range).map_err(|error| failed(&error))?;
        let foreign = match kept {
            Some(_) => None,
            None => claim.foreign_address(&self.client, request).await.map_err(|error| failed(&error))?,
        };
        match (kept, wanted) {
            (Some(address), _) if !filter.admits(address) => {
                Err(ServeError::AllocateClaimed { claim: claim.name(), address })
            }
            (Some(address), AllocationKind::AddressForClaim(requested)) if address != requested => {
                Err(ServeError::AllocateRequested { claim: claim.name(), address, requested })
            }
            (Some(ip), _) => Ok(AllocationKind::AddressForClaim(ip)),
            (None, wanted) => match foreign {
                Some(address) => Err(ServeError::AllocateClaimed { claim: claim.name(), address }),
                None => Ok(wanted),
            },
        }
    }

    async fn serve(
        &self,
        allocator: &BlockAllocator<'_, ApiRegistry>,
        pool: &str,
        (request, probe): (&AllocateRequest, &ClientProbe<'_>),
        (wanted, kind): (AllocationKind, AllocationKind),
        prefetched: &mut PrefetchedBlocks,
    ) -> Result<LeaseResponse, ServeError> {
        let unconfirmed = request.blocks.iter().any(|known| known.state == BlockState::Unconfirmed);
        if wanted == AllocationKind::Nothing {
            return_unused(allocator.registry, prefetched, allocator.clock.now).await?;
        }
        if (!unconfirmed || wanted != AllocationKind::Any)
            && let Some(lease) = take_prefetched(allocator, wanted, prefetched).await?
        {
            return Ok(LeaseResponse { leases: vec![lease], ..LeaseResponse::default() });
        }
        let ahead: HashSet<String> = prefetched.ready.iter().map(|(_, ready)| ready.lease_id()).collect();
        let mut seen = self.blocks_of_store(pool, &request.store).await;
        seen.retain(|object| !ahead.contains(&object.lease_id()));
        let ask = LeaseRequest { blocks: request.blocks.clone(), kind };
        // Such an object may belong to the next request, whose client has the store locked by now.
        let is_known = |object: &IpBlock| ask.blocks.iter().any(|known| known.lease == object.lease_id());
        if !seen.iter().all(is_known) {
            probe.confirm().await?;
        }
        let mut response = allocator.serve(&ask, &seen).await;
        let wanted = match (wanted, &response.error) {
            // An address of a block can be kept, too, if no single address is available.
            (
                AllocationKind::ForClaim(None),
                Some(
                    AllocationError::Exhausted
                    | AllocationError::Quarantined(_)
                    | AllocationError::NoneElsewhere { .. },
                ),
            ) => AllocationKind::Any,
            (wanted, _) => wanted,
        };
        if response.leases.is_empty()
            && response.confirmed.is_empty()
            && let Some(lease) = take_prefetched(allocator, wanted, prefetched).await?
        {
            response = LeaseResponse { leases: vec![lease], error: None, ..response };
        }
        for lease in &response.leases {
            info!(pool, block = %lease.net, "leased block");
        }
        for lease in &response.returned {
            info!(pool, lease, "returned block");
        }
        Ok(response)
    }

    /// Returns the cache of this node's IPBlocks. The first call starts the watch.
    pub(super) fn own_blocks(&self) -> Arc<Cache<Option<OwnedBlock>>> {
        self.own_followed.call_once(|| {
            let own = Config::default().labels(&of_node(&self.node));
            let all = Api::<BlockObject>::all;
            tokio::spawn(follow(self.client.clone(), all, own, Arc::clone(&self.own)));
        });
        Arc::clone(&self.own)
    }

    /// Returns the IPBlocks of one address store.
    async fn blocks_of_store(&self, pool: &str, store: &str) -> Vec<IpBlock> {
        let own = self.own_blocks();
        let _ = timeout(SYNC_MAX, own.synced()).await;
        let own = own.all().into_iter().filter_map(|owned| Option::clone(&owned));
        let own = own.filter(|owned| owned.pool == pool && owned.object.holder.node == self.node);
        own.map(|owned| owned.object).filter(|object| object.holder.store == store).collect()
    }
}

/// Whether a response has no address because none is free.
fn is_exhausted(response: &LeaseResponse) -> bool {
    let is_refusal =
        matches!(response.error, Some(AllocationError::Exhausted | AllocationError::Quarantined(_)));
    is_refusal && response.leases.is_empty() && response.confirmed.is_empty()
}

/// Whether a response to a request for any address shows that no block is free; `None` if it shows neither.
fn has_no_block(response: &LeaseResponse) -> Option<bool> {
    match (response.leases.last(), &response.error) {
        (Some(lease), _) => Some(lease.single_owner),
        (
            None,
            Some(
                AllocationError::Exhausted
                | AllocationError::Quarantined(_)
                | AllocationError::NoneElsewhere { .. },
            ),
        ) => Some(true),
        (None, _) => None,
    }
}

/// Returns prefetched blocks that were not used in time.
async fn return_unused(
    registry: &ApiRegistry,
    prefetched: &mut PrefetchedBlocks,
    now: u64,
) -> Result<(), RegistryError> {
    for (_, ready) in prefetched.ready.extract_if(.., |(since, _)| since.elapsed() > PREFETCH_MAX) {
        release_lease(registry, ready.net, (&ready.holder.node, &ready.lease_id()), now).await?;
    }
    Ok(())
}

/// Refuses a named address that the pool excludes, unless an object keeps it for the claim of the request.
async fn refuse_excluded(
    registry: &ApiRegistry,
    pool: &Pool,
    request: &AllocateRequest,
) -> Result<(), ServeError> {
    let Operation::Allocate(AllocationKind::Address(address) | AllocationKind::AddressForClaim(address)) =
        request.operation
    else {
        return Ok(());
    };
    if !pool.exclude.iter().any(|net| net.contains(&address)) {
        return Ok(());
    }
    let kept = registry.read(ipnet::IpNet::from(address)).await?;
    if kept.is_some_and(|object| !request.claim.is_empty() && object.holder.claim == request.claim) {
        return Ok(());
    }
    Err(ServeError::AllocateExcluded { pool: pool.name.clone(), address })
}

/// Marks the addresses that the pool excludes as reserved in the leased blocks.
fn reserve_excluded(mut response: LeaseResponse, exclude: &[ipnet::IpNet]) -> LeaseResponse {
    for lease in response.leases.iter_mut().filter(|lease| !lease.single_owner) {
        let excluded = excluded_addresses(lease.net, exclude).filter(|ip| !lease.reserved.contains(ip));
        let excluded: Vec<IpAddr> = excluded.collect();
        lease.reserved.extend(excluded);
    }
    response
}

/// Takes a suitable prefetched block, if this node still leases it: it may have lost it while the agent was stopped.
/// The block gets a new generation, so that a component that read it before cannot take it.
async fn take_prefetched(
    allocator: &BlockAllocator<'_, ApiRegistry>,
    kind: AllocationKind,
    prefetched: &mut PrefetchedBlocks,
) -> Result<Option<BlockLease>, ServeError> {
    let suits = |ready: &IpBlock| match kind {
        AllocationKind::Any => allocator.filter.addresses(ready.net).any(|ip| !ready.reserved.contains(&ip)),
        // This node leases the block already, so no other node needs to be asked for the address.
        AllocationKind::Address(ip) => ready.net.contains(&ip) && !ready.reserved.contains(&ip),
        _ => false,
    };
    while let Some(at) = prefetched.ready.iter().position(|(_, ready)| suits(ready)) {
        // If the response is lost, the watch finds the block.
        let (_, ready) = prefetched.ready.remove(at);
        match allocator.use_prefetched(&ready).await? {
            Some(lease) => return Ok(Some(lease)),
            None => info!(block = %ready.net, "prefetched block is no longer leased by this node"),
        }
    }
    Ok(None)
}

/// Returns the addresses of the network without those that the pool excludes.
fn filter(request: &AllocateRequest, pool: &Pool) -> AddressFilter {
    request.filter.without(&pool.exclude)
}
