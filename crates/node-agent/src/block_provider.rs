//! What the agent does for the node's ledgers of addresses: leases blocks, ahead of need, and gives back what is idle.
//!
//! ```text
//!   weft-ipam ── AllocateRequest ──► shelf of the ledger ──► a block leased ahead? ──► AllocateResponse
//!                                 └──► BlockAllocator::serve ──► API server ──┘
//! ```
//!
//! An address that an IPAMClaim keeps is looked up there first, and written there: [`Claim`].
//!
//! A ledger that is not where the agent believes ledgers to be (`ipam.dataDir` is not `--address-stores`) has a name of its own: two
//! networks of one pool with different directories have two ledgers, which know nothing of each other.
//!
//! Rules: one question of a ledger at a time, in the order they came: whoever asks has the ledger locked, and the one
//! before is dead; what is ours and on no disk (an answer that nobody heard) is found by a watch. An agent that is being replaced
//! answers beside its successor: so a question ends with whoever asked it ([`node_support::agent_server`]), and takes or gives back nothing of
//! its node's but what the watch showed while he was there, which he is asked ([`node_support::client_probe`]) where it shows something that his
//! ledger does not have.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Display;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use ipam::{
    AddressFilter, AllocationError, AllocationKind, BlockAllocator, BlockInfo, BlockLease, BlockState, Clock,
    Holder, IpBlock, LeaseRequest, LeaseResponse, RegistryError, RequestContext, release_lease,
};
use kube::api::ListParams;
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use rpc::allocate::{AllocateRequest, AllocateResponse, Operation};
use tokio::sync::watch::Sender;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use ipam_api::api_registry::{ApiRegistry, TRANSFER_CHECKS, of_node};
use ipam_api::clock::now;
use ipam_api::ip_claim::Claim;
use ipam_api::ip_objects::BlockObject;
use ipam_api::owned_block::OwnedBlock;
use ipam_api::pool_lookup;
use ipam_api::pool_lookup::{Pool, Unusable};
use ipam_api::store_name::{name_in_directory, other_directory};
use kube_support::cache::{Cache, follow};
use kube_support::lookup::ASK_MAX;
use node_support::client_probe::{ClientProbe, Unconfirmed};
use node_support::metrics::Metrics;

/// How long the watch of our blocks is waited for.
const SYNC_MAX: Duration = Duration::from_secs(5);
/// How long a block that was leased ahead is kept for a need that does not come.
const AHEAD_MAX: Duration = Duration::from_secs(600);
/// How long it is believed that a pool is as it was, by who makes nothing of it.
const POOL_MAX: Duration = Duration::from_secs(60);

/// Who supplies.
pub(crate) struct BlockProvider {
    client: Client,
    node: String,
    ledgers: PathBuf,
    own: Arc<Cache<Option<OwnedBlock>>>,
    wanted: Once,
    asked: Sender<bool>,
    shelves: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<PrefetchedBlocks>>>>,
}

/// A reason why a request for addresses could not be served at all.
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
        /// The text of the error.
        reason: String,
    },
    /// The address of the IPAMClaim is not one of the network's.
    #[error("{claim}: status.ips: {address}: the network may not give it")]
    AllocateClaimed {
        /// The name of the IPAMClaim.
        claim: String,
        /// The address.
        address: IpAddr,
    },
    /// The pod asks for another address than that of the IPAMClaim.
    #[error("{claim}: status.ips: {address}: the pod asks for {requested}")]
    AllocateRequested {
        /// The name of the IPAMClaim.
        claim: String,
        /// The address of the IPAMClaim.
        address: IpAddr,
        /// The address that the pod asks for.
        requested: IpAddr,
    },
}

impl ServeError {
    /// An error of an IPAMClaim.
    fn read_claim(error: &dyn Display) -> ServeError {
        ServeError::ReadClaim { reason: error.to_string() }
    }
}

/// What there is for one ledger.
#[derive(Default)]
struct PrefetchedBlocks {
    pool: Option<(Instant, Pool)>,
    ready: Vec<(Instant, IpBlock)>,
}

impl BlockProvider {
    /// For the ledgers of a node, which are believed to be in this directory.
    pub(crate) fn new(client: Client, node: &str, ledgers: &Path) -> BlockProvider {
        let own = Arc::new(Cache::new("ipblocks"));
        let (node, ledgers, asked) = (node.to_owned(), ledgers.to_owned(), Sender::new(false));
        BlockProvider { client, node, ledgers, own, wanted: Once::new(), asked, shelves: Mutex::default() }
    }

    /// Answers a demand.
    pub(crate) async fn deliver(
        &self,
        demand: &AllocateRequest,
        probe: &ClientProbe<'_>,
        metrics: &Metrics,
    ) -> AllocateResponse {
        let refused = |why: String| AllocateResponse::unavailable(why);
        self.asked.send_replace(true);
        let is_here = Path::new(&demand.directory) == self.ledgers;
        let store =
            if is_here { demand.store.clone() } else { name_in_directory(&demand.store, &demand.directory) };
        let demand = &AllocateRequest { store, ..demand.clone() };
        let shelf = self.shelf(&demand.store);
        let mut shelf = shelf.lock().await;
        let answered = self.answer((demand, probe), &mut shelf, metrics).await;
        let outcome = match &answered {
            Ok(supply) if supply.error.is_some() => "refused",
            Ok(_) => "allocated",
            Err(_) => "failed",
        };
        metrics.allocated(outcome);
        match answered {
            Ok(lease) => self.explained(demand, AllocateResponse { lease, ..AllocateResponse::default() }),
            Err(why) => {
                warn!(pool = demand.pool.name, %why, "addresses");
                self.explained(demand, refused(why.to_string()))
            }
        }
    }

    /// A refusal says where the ledger is if that is not where it should be: blocks of the node may be in another.
    fn explained(&self, demand: &AllocateRequest, mut delivery: AllocateResponse) -> AllocateResponse {
        let Some(directory) = other_directory(&demand.store) else { return delivery };
        let hint = {
            let ledgers = self.ledgers.display();
            format!(
                "ipam.dataDir {directory} is not its agent's --address-stores {ledgers}: what is free in a ledger \
                 there is not given to this network"
            )
        };
        // No agent gives anything up there.
        if let Some(own @ AllocationError::InOwnBlock { .. }) = delivery.lease.error {
            delivery.lease.error = Some(AllocationError::Unavailable(own.to_string()));
        }
        AllocateResponse { hint: Some(hint), ..delivery }
    }

    fn shelf(&self, ledger: &str) -> Arc<tokio::sync::Mutex<PrefetchedBlocks>> {
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(shelves.entry(ledger.to_owned()).or_default())
    }

    /// Looks, when the agent begins, whether somebody has asked for addresses before: the node has a ledger, or, as a ledger may be
    /// where nobody sees it, something of its own in the cluster. A cluster without such objects is asked once.
    pub(crate) async fn remember(&self) {
        let has_none = match std::fs::read_dir(&self.ledgers) {
            Ok(mut entries) => entries.next().is_none(),
            // What cannot be looked at may hold some.
            Err(cause) => cause.kind() == std::io::ErrorKind::NotFound,
        };
        if !has_none {
            self.asked.send_replace(true);
            return;
        }
        let blocks = Api::<BlockObject>::all(self.client.clone());
        let one = ListParams::default().labels(&of_node(&self.node)).limit(1);
        while !*self.asked.borrow() {
            match timeout(ASK_MAX, blocks.list_metadata(&one)).await {
                Ok(Ok(found)) if found.items.is_empty() => return,
                Ok(Ok(_)) => drop(self.asked.send_replace(true)),
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => return,
                // Who may not ask may be allowed to later.
                Ok(Err(kube::Error::Api(status))) if status.code == 403 => sleep(AHEAD_MAX).await,
                _ => sleep(SYNC_MAX).await,
            }
        }
    }

    /// Waits until somebody has asked for addresses, or is known to have.
    pub(crate) async fn was_asked(&self) {
        // The sender lives as long as we do.
        let _ = self.asked.subscribe().wait_for(|asked| *asked).await;
    }

    /// Gives a block back that was leased ahead, if that is what it is.
    ///
    /// # Errors
    /// The registry's.
    pub(crate) async fn give_back_ahead(
        &self,
        registry: &ApiRegistry,
        block: &IpBlock,
    ) -> Result<bool, RegistryError> {
        let shelf = self.shelf(&block.holder.store);
        let mut shelf = shelf.lock().await;
        let lease = block.lease_id();
        let Some(at) = shelf.ready.iter().position(|(_, ready)| ready.lease_id() == lease) else {
            return Ok(false);
        };
        shelf.ready.remove(at);
        release_lease(registry, block.net, &lease, now()).await?;
        Ok(true)
    }

    async fn answer(
        &self,
        (demand, probe): (&AllocateRequest, &ClientProbe<'_>),
        shelf: &mut PrefetchedBlocks,
        metrics: &Metrics,
    ) -> Result<LeaseResponse, ServeError> {
        let pool = self.pool(demand, shelf).await?;
        let filter = filter(demand, &pool);
        let registry = ApiRegistry::new(
            self.client.clone(),
            &pool,
            (demand.pod.namespace.clone(), demand.pod.name.clone()),
            metrics.address_requests.clone(),
        );
        let counter = BlockAllocator {
            registry: &registry,
            layout: pool.grid,
            filter: &filter,
            holder: Holder {
                node: self.node.clone(),
                store: demand.store.clone(),
                owner: demand.owner.clone(),
                claim: demand.claim.clone(),
                ..Holder::default()
            },
            shares_claim: demand.shares_claim,
            clock: Clock { now: now(), quarantine: demand.quarantine },
            seed: self.seed(demand),
            transfer_checks: TRANSFER_CHECKS,
        };
        let supply = match demand.operation {
            Operation::Prefetch => self.lease_ahead(&counter, &demand.blocks, shelf).await,
            Operation::CheckCapacity => {
                let error = counter.check_capacity(&demand.blocks).await.err();
                Ok(LeaseResponse { error, ..LeaseResponse::default() })
            }
            Operation::Return => {
                self.give_back_old(&counter, shelf).await?;
                let ask = LeaseRequest { blocks: demand.blocks.clone(), kind: AllocationKind::Nothing };
                let mut supply = LeaseResponse::default();
                counter.return_blocks(&ask, &mut supply).await;
                Ok(supply)
            }
            Operation::Allocate(
                kind @ (AllocationKind::ForClaim(_) | AllocationKind::AddressForClaim(_)),
            ) => self.serve_claim(&counter, &pool.name, (demand, probe), kind, shelf).await,
            Operation::Allocate(kind) => {
                self.serve(&counter, &pool.name, (demand, probe), (kind, kind), shelf).await
            }
        }?;
        if supply.error == Some(AllocationError::PoolChanged) {
            shelf.pool = None;
        }
        Ok(without(supply, &pool.exclude))
    }

    /// The pool, as it is if something may be made of it for who waits: one that was edited, or deleted and made anew, is told
    /// apart here, and is found not to stand where it was not. Ahead of need, and where there is something ready, it is as it was.
    async fn pool(&self, demand: &AllocateRequest, shelf: &mut PrefetchedBlocks) -> Result<Pool, ServeError> {
        let may_be_old = match demand.operation {
            Operation::Allocate(AllocationKind::Any) => !shelf.ready.is_empty(),
            operation => !operation.needs_address(),
        };
        if let Some((since, pool)) = &shelf.pool
            && may_be_old
            && since.elapsed() < POOL_MAX
        {
            return Ok(pool.clone());
        }
        let resolved = timeout(SYNC_MAX, pool_lookup::resolve(&self.client, &demand.pool)).await;
        let silent = |_| Err(Unusable::Unknown("the API server does not answer".to_owned()));
        match (resolved.unwrap_or_else(silent), &shelf.pool) {
            (Ok(pool), _) => {
                shelf.pool = Some((Instant::now(), pool.clone()));
                Ok(pool)
            }
            // It was there a while ago.
            (Err(Unusable::Unknown(_)), Some((_, pool))) => Ok(pool.clone()),
            (Err(why), _) => Err(ServeError::FindPool(why)),
        }
    }

    /// Each node begins elsewhere, and each ledger where it has nothing yet.
    fn seed(&self, demand: &AllocateRequest) -> u64 {
        let text = format!("{}/{}/{}", self.node, demand.store, demand.blocks.len());
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    async fn lease_ahead(
        &self,
        counter: &BlockAllocator<'_, ApiRegistry>,
        known: &[BlockInfo],
        shelf: &mut PrefetchedBlocks,
    ) -> Result<LeaseResponse, ServeError> {
        if !counter.layout.has_single_addresses_only() && shelf.ready.is_empty() {
            match counter.prefetch_block(RequestContext { blocks: known, seen: &[] }).await {
                Ok(object) => {
                    info!(block = %object.net, "leased ahead");
                    shelf.ready.push((Instant::now(), object));
                }
                Err(error) => return Ok(LeaseResponse { error: Some(error), ..LeaseResponse::default() }),
            }
        }
        Ok(LeaseResponse::default())
    }

    /// What was leased ahead of a need that did not come.
    async fn give_back_old(
        &self,
        counter: &BlockAllocator<'_, ApiRegistry>,
        shelf: &mut PrefetchedBlocks,
    ) -> Result<(), ServeError> {
        for (_, ready) in shelf.ready.extract_if(.., |(since, _)| since.elapsed() > AHEAD_MAX) {
            let (net, lease, now) = (ready.net, ready.lease_id(), counter.clock.now);
            release_lease(counter.registry, net, &lease, now).await?;
        }
        Ok(())
    }

    /// What a claim keeps; an IPAMClaim has its say before, and hears of it after.
    async fn serve_claim(
        &self,
        counter: &BlockAllocator<'_, ApiRegistry>,
        pool: &str,
        (demand, probe): (&AllocateRequest, &ClientProbe<'_>),
        wanted: AllocationKind,
        shelf: &mut PrefetchedBlocks,
    ) -> Result<LeaseResponse, ServeError> {
        let Some(claim) =
            Claim::of(&self.client, demand).await.map_err(|error| ServeError::read_claim(&error))?
        else {
            return self.serve(counter, pool, (demand, probe), (wanted, wanted), shelf).await;
        };
        let range = demand.pool.range;
        let kept = claim.address(range).map_err(|error| ServeError::read_claim(&error))?;
        let kind = match (kept, wanted) {
            (Some(ip), _) if !counter.filter.admits(ip) => {
                return Err(ServeError::AllocateClaimed { claim: claim.name(), address: ip });
            }
            (Some(ip), AllocationKind::AddressForClaim(named)) if ip != named => {
                return Err(ServeError::AllocateRequested {
                    claim: claim.name(),
                    address: ip,
                    requested: named,
                });
            }
            (Some(ip), _) => AllocationKind::AddressForClaim(ip),
            (None, wanted) => wanted,
        };
        let supply = self.serve(counter, pool, (demand, probe), (wanted, kind), shelf).await?;
        let refusal = supply.error.as_ref().map(ToString::to_string);
        match (supply.leases.iter().find(|lease| lease.single_owner), &refusal) {
            // It is asked again.
            _ if matches!(
                supply.error,
                Some(AllocationError::InOwnBlock { .. } | AllocationError::OfferTaken(_))
            ) => {}
            (Some(lease), _) => claim.update_status(range, &demand.pod.name, Ok(lease.net.addr())).await,
            (None, Some(why)) => claim.update_status(range, &demand.pod.name, Err(why)).await,
            // It is asked again.
            (None, None) => {}
        }
        Ok(supply)
    }

    async fn serve(
        &self,
        counter: &BlockAllocator<'_, ApiRegistry>,
        pool: &str,
        (demand, probe): (&AllocateRequest, &ClientProbe<'_>),
        (wanted, kind): (AllocationKind, AllocationKind),
        shelf: &mut PrefetchedBlocks,
    ) -> Result<LeaseResponse, ServeError> {
        let unconfirmed = demand.blocks.iter().any(|known| known.state == BlockState::Unconfirmed);
        if wanted == AllocationKind::Nothing {
            self.give_back_old(counter, shelf).await?;
        }
        if (!unconfirmed || wanted != AllocationKind::Any)
            && let Some(lease) = ready(counter, wanted, shelf).await?
        {
            return Ok(LeaseResponse { leases: vec![lease], ..LeaseResponse::default() });
        }
        let ahead: HashSet<String> = shelf.ready.iter().map(|(_, ready)| ready.lease_id()).collect();
        let mut seen = self.seen(pool, &demand.store).await;
        seen.retain(|object| !ahead.contains(&object.lease_id()));
        let ask = LeaseRequest { blocks: demand.blocks.clone(), kind };
        // It may be the next one's, who has the ledger by now.
        let is_known = |object: &IpBlock| ask.blocks.iter().any(|known| known.lease == object.lease_id());
        if !seen.iter().all(is_known) {
            probe.confirm().await?;
        }
        let mut supply = counter.serve(&ask, &seen).await;
        let wanted = match (wanted, &supply.error) {
            // One of a block may be kept, too, where there is nothing else.
            (
                AllocationKind::ForClaim(None),
                Some(AllocationError::Exhausted | AllocationError::Quarantined(_)),
            ) => AllocationKind::Any,
            (wanted, _) => wanted,
        };
        if supply.leases.is_empty()
            && supply.confirmed.is_empty()
            && let Some(lease) = ready(counter, wanted, shelf).await?
        {
            supply = LeaseResponse { leases: vec![lease], error: None, ..supply };
        }
        for lease in &supply.leases {
            info!(pool, block = %lease.net, "leased");
        }
        for lease in &supply.returned {
            info!(pool, lease, "given back");
        }
        Ok(supply)
    }

    /// What the cluster knows to be this node's. It is watched from when it is first needed on.
    pub(super) fn own(&self) -> Arc<Cache<Option<OwnedBlock>>> {
        self.wanted.call_once(|| {
            let all = Api::<BlockObject>::all(self.client.clone());
            let own = Config::default().labels(&of_node(&self.node));
            tokio::spawn(follow(all, own, Arc::clone(&self.own)));
        });
        Arc::clone(&self.own)
    }

    /// What of it is this ledger's.
    async fn seen(&self, pool: &str, ledger: &str) -> Vec<IpBlock> {
        let own = self.own();
        let _ = timeout(SYNC_MAX, own.synced()).await;
        let own = own.all().into_iter().filter_map(|owned| Option::clone(&owned));
        let own = own.filter(|owned| owned.pool == pool && owned.object.holder.node == self.node);
        own.map(|owned| owned.object).filter(|object| object.holder.store == ledger).collect()
    }
}

/// What a pool leaves out is not its node's, in a block that has more than that.
fn without(mut supply: LeaseResponse, exclude: &[ipnet::IpNet]) -> LeaseResponse {
    for lease in supply.leases.iter_mut().filter(|lease| !lease.single_owner) {
        let first = 0..ipam::pool_layout::address_count(lease.net);
        let all = first.map(|offset| ipam::pool_layout::nth(lease.net, offset));
        let left_out = |ip: &IpAddr| exclude.iter().any(|net| net.contains(ip));
        let holes: Vec<_> = all.filter(|ip| left_out(ip) && !lease.reserved.contains(ip)).collect();
        lease.reserved.extend(holes);
    }
    supply
}

/// Takes what was leased ahead, if it is what is wanted and still this node's: while the agent was silent it may have been taken
/// from it. It is changed, so that nobody takes it who looked before.
async fn ready(
    counter: &BlockAllocator<'_, ApiRegistry>,
    want: AllocationKind,
    shelf: &mut PrefetchedBlocks,
) -> Result<Option<BlockLease>, ServeError> {
    let suits = |ready: &IpBlock| match want {
        AllocationKind::Any => counter.filter.addresses(ready.net).any(|ip| !ready.reserved.contains(&ip)),
        // It is this node's already, though not in the ledger yet: nobody else need be asked for it.
        AllocationKind::Address(ip) => ready.net.contains(&ip) && !ready.reserved.contains(&ip),
        _ => false,
    };
    while let Some(at) = shelf.ready.iter().position(|(_, ready)| suits(ready)) {
        // Should the answer be lost, it is found by the watch.
        let (_, ready) = shelf.ready.remove(at);
        match counter.use_prefetched(&ready).await? {
            Some(lease) => return Ok(Some(lease)),
            None => info!(block = %ready.net, "leased ahead, and not this node's any more"),
        }
    }
    Ok(None)
}

/// The network's addresses, less what the pool excludes.
fn filter(demand: &AllocateRequest, pool: &Pool) -> AddressFilter {
    demand.filter.without(&pool.exclude)
}
