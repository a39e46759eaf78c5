//! ADD: one address from each set, taken from this node's address store or through the agent.
//!
//! If the agent must change the address store itself, the store is unlocked for a while and the allocation is tried again.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cni::invocation::{Attach, Attachment};
use cni::result::IpConfig;
use cni::{Error, code};
use ipam::address_store::{Edit, OwnerTag, SlotId};
use ipam::pool_layout::address_count;
use ipam::{Allocation, AllocationError, AllocationKind, Clock, LeaseResponse};
use ipnet::IpNet;
use plugin_support::log;
use rpc::allocate::{AllocateRequest, AllocateResponse, ClaimedAddress, Operation};

use super::overlap::{lock_all, overlapping_stores};
use super::store::{OpenError, Owner, Store, now, owner_tag, spread, window};
use super::{agent, earlier_sandbox, imported};
use plugin_config::weft_ipam::{Pool, Set, Settings, Source};

/// Number of free addresses below which the agent is notified to prefetch a block; for small blocks a quarter of the
/// block. With this number, a block with 256 addresses suffices for the 250 pods on a full node.
const LOW: usize = 4;
/// Maximum number of further requests in one ADD: one for a block with an earlier lease, one for a new block, one for a
/// conflict.
const REQUESTS_MAX: usize = 3;
/// Maximum number of offered addresses that other owners may take before an ADD fails. Each was allocated to a
/// concurrent ADD, so as many other pods on the node get an address first.
const OFFERS_MAX: usize = 32;
/// Maximum number of attempts in one allocation that find new stores for overlapping ranges.
const LISTS_MAX: usize = 16;
/// Time after which no further pool is tried: the longest wait for a locked store.
const WAIT_MAX: Duration = Duration::from_secs(25);
/// Pauses in which the store is unlocked for the agent, in milliseconds.
const PAUSES: [u64; 6] = [50, 100, 200, 400, 800, 1600];

/// Attachment that an address is allocated to.
pub(super) struct Claimant {
    pub(super) owner: Owner,
    /// Owner tag: equal for every call of an attachment and a range set.
    pub(super) tag: OwnerTag,
    /// Name of the owner in the cluster's IPAM objects.
    pub(super) name: String,
    /// Whether this call wrote an address for it into the store.
    pub(super) allocated: Arc<AtomicBool>,
}

impl Claimant {
    pub(super) fn of(settings: &Settings, request: &Attach, index: usize) -> Claimant {
        let Attachment { container, ifname } = &request.who;
        let network = request.call.config.name.as_str();
        let pod = [settings.pod.uid.clone(), settings.pod.namespace.clone(), settings.pod.name.clone()];
        Claimant {
            tag: owner_tag(network, container.as_str(), ifname.as_str(), index),
            name: format!("{}/{container}/{ifname}", pod[0]),
            allocated: Arc::default(),
            owner: Owner {
                container: container.to_string(),
                ifname: ifname.to_string(),
                network: network.to_owned(),
                pod,
                claim: settings.claim.name.clone(),
                spread: spread(settings),
            },
        }
    }

    /// Returns the same attachment, whose address another claim keeps.
    fn with_claim(&self, claim: String) -> Claimant {
        let Claimant { owner, tag, name, allocated } = self;
        let owner = Owner { claim, ..owner.clone() };
        Claimant { owner, tag: *tag, name: name.clone(), allocated: Arc::clone(allocated) }
    }
}

/// Returns one address from a set: the one that the attachment holds, else one from the first pool with a free address.
pub(super) fn allocate(settings: &Arc<Settings>, set: &Set, who: &Arc<Claimant>) -> Result<IpConfig, Error> {
    let mut last = None;
    let began = Instant::now();
    let mut pools = Vec::with_capacity(set.pools.len());
    for pool in &set.pools {
        let holds = set.pools.len() > 1 && holds(settings, pool, who.tag)?;
        pools.push((holds, imported::find(settings, pool, set, &who.name)?, pool));
    }
    pools.sort_by_key(|(holds, imported, _)| (!holds, imported.is_none()));
    for (_, imported, pool) in pools {
        // A store that another process keeps locked has taken the time of the whole call.
        if last.is_some() && began.elapsed() >= WAIT_MAX {
            break;
        }
        if let Some(request) = &set.request
            && !pool.filter.admits(request.ip)
        {
            continue;
        }
        let kind = match (&set.request, settings.claim.name.is_empty()) {
            (Some(request), true) => AllocationKind::Address(request.ip),
            (Some(request), false) => AllocationKind::AddressForClaim(request.ip),
            (None, true) => AllocationKind::Any,
            (None, false) => AllocationKind::ForClaim(None),
        };
        let (kind, whom) = match imported {
            None => (kind, Arc::clone(who)),
            Some(ClaimedAddress { address, claim }) => {
                (AllocationKind::AddressForClaim(address), Arc::new(who.with_claim(claim)))
            }
        };
        let attempt = |kind| repeat_while_stores_appear(settings, pool, &whom, kind);
        match retry_while_transferring(kind, attempt) {
            Ok(ip) => {
                let address = IpNet::new(ip, pool.range.prefix_len()).unwrap_or(IpNet::from(ip));
                return Ok(IpConfig { interface: None, address, gateway: pool.gateway });
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| Error::config("ipam.ranges: the requested address is in none of the ranges")))
}

/// Allocates, and begins again if another network's call has created a store for an overlapping range meanwhile: that
/// call may not know this pool's store.
fn repeat_while_stores_appear(
    settings: &Arc<Settings>,
    pool: &Arc<Pool>,
    who: &Arc<Claimant>,
    kind: AllocationKind,
) -> Result<Attempt, Error> {
    for _ in 0..LISTS_MAX {
        if let Some(done) = attempt(settings, pool, who, kind)? {
            return Ok(done);
        }
    }
    let why = format!("pool {}: stores of overlapping ranges are being created: try again", pool.name);
    Err(Error::new(code::TRY_AGAIN_LATER, why))
}

/// Locks the pool's store, and allocates; `None` if the stores for overlapping ranges are not those that were listed
/// before.
fn attempt(
    settings: &Arc<Settings>,
    pool: &Arc<Pool>,
    who: &Arc<Claimant>,
    kind: AllocationKind,
) -> Result<Option<Attempt>, Error> {
    let others = overlapping_stores(settings, pool);
    if !others.is_empty() {
        let (mut store, rest) = lock_all(&settings.directory, pool, &others, kind)?;
        if overlapping_stores(settings, pool) != others {
            return Ok(None);
        }
        store.set_window(window(settings, pool));
        return allocate_from(settings, &rest, kind, who, store).map(Some);
    }
    let (own, from, whom) = (Arc::clone(settings), Arc::clone(pool), Arc::clone(who));
    Store::create(&settings.directory, &pool.name, settings.source, move |mut store| {
        if !overlapping_stores(&own, &from).is_empty() {
            return Ok(None);
        }
        store.set_window(window(&own, &from));
        allocate_from(&own, &from, kind, &whom, store).map(Some)
    })
}

/// Whether the owner with this tag has an address of the pool. A store that cannot be read is reported by the allocation.
///
/// # Errors
/// The store cannot be opened or locked.
fn holds(settings: &Settings, pool: &Pool, tag: OwnerTag) -> Result<bool, Error> {
    match Store::find(&settings.directory, &pool.name) {
        Ok(found) => Ok(found.is_some_and(|store| store.addresses.held_by(tag).next().is_some())),
        Err(OpenError::Unreadable(..)) => Ok(false),
        Err(OpenError::Other(error)) => Err(error),
    }
}

/// Result of one attempt.
enum Attempt {
    /// The allocated address.
    Allocated(IpAddr),
    /// The agent needs the store to transfer this address; the error if it does not do so in time.
    Transferring(IpAddr, Error),
}

/// Repeats an attempt until the agent has transferred the requested address, for a few seconds.
fn retry_while_transferring(
    mut kind: AllocationKind,
    attempt: impl Fn(AllocationKind) -> Result<Attempt, Error>,
) -> Result<IpAddr, Error> {
    let mut pauses = PAUSES.iter();
    loop {
        match (attempt(kind)?, pauses.next()) {
            (Attempt::Allocated(ip), _) => return Ok(ip),
            (Attempt::Transferring(ip, _), Some(pause)) => {
                if matches!(kind, AllocationKind::ForClaim(_)) {
                    kind = AllocationKind::ForClaim(Some(ip));
                }
                std::thread::sleep(Duration::from_millis(*pause));
            }
            (Attempt::Transferring(_, error), None) => return Err(error),
        }
    }
}

/// State of one call's attempts.
struct Progress {
    /// Reason why the last request to the agent was refused.
    refusal: Option<String>,
    /// Offered addresses that other owners took.
    tried: Vec<IpAddr>,
    /// Length of the quarantine; 0 before a refusal.
    quarantine: u64,
}

/// Next step of an attempt.
enum Step {
    /// The address is recorded already: from the response of the agent, or by an earlier call, which may have been killed
    /// before the disk was synchronized.
    Known(IpAddr),
    /// This address is recorded.
    Allocated(IpAddr),
    /// The store has changed, or the quarantine is ignored from now on.
    Again,
    /// The agent must be asked.
    Ask(AllocationKind),
}

fn allocate_from(
    settings: &Settings,
    pool: &Pool,
    kind: AllocationKind,
    who: &Claimant,
    mut store: Store,
) -> Result<Attempt, Error> {
    let refused = |why: &dyn fmt::Display| refusal(pool, kind, why);
    let mut progress = Progress { refusal: None, tried: Vec::new(), quarantine: settings.quarantine };
    for _ in 0..=2 * REQUESTS_MAX + OFFERS_MAX {
        let clock = Clock { now: now(), quarantine: progress.quarantine };
        let wanted = match from_store(pool, kind, who, &mut store, clock, &mut progress)? {
            Step::Known(ip) => return store.settle().map(|()| Attempt::Allocated(ip)),
            Step::Allocated(ip) => {
                if progress.quarantine < settings.quarantine {
                    log!("pool {}: {ip} is allocated in quarantine: no other address is free", pool.name);
                }
                return settle_and_hint(settings, pool, who, clock, store).map(|()| Attempt::Allocated(ip));
            }
            Step::Again => continue,
            Step::Ask(wanted) => wanted,
        };
        let answer = request_lease(settings, pool, &store, wanted, who, progress.quarantine)?;
        let (why, lease) = (answer.error(), answer.lease);
        apply(&mut store, clock, who, &lease)?;
        match lease.error {
            Some(why @ AllocationError::InOwnBlock { ip, .. }) => {
                return match holder(&store, ip) {
                    Some(owner) => Err(refused(&format!("{owner} holds {ip}"))),
                    None => Ok(Attempt::Transferring(ip, refused(&format!("{ip}: {why}")))),
                };
            }
            Some(AllocationError::OfferTaken(ip)) if progress.tried.len() < OFFERS_MAX => {
                progress.tried.push(ip);
                continue;
            }
            _ => {}
        }
        let is_refused = lease.leases.is_empty() && lease.confirmed.is_empty();
        progress.refusal = is_refused.then(|| why.or(progress.refusal.take()).unwrap_or_else(no_address));
    }
    Err(refused(&progress.refusal.unwrap_or_else(no_address)))
}

/// Allocates from the store, if it has an address.
fn from_store(
    pool: &Pool,
    kind: AllocationKind,
    who: &Claimant,
    store: &mut Store,
    clock: Clock,
    progress: &mut Progress,
) -> Result<Step, Error> {
    let refused = |why: &dyn fmt::Display| refusal(pool, kind, why);
    let allocation = store.addresses.allocate(clock, &pool.filter, who.tag, kind);
    store.require_readable()?;
    let wanted = match allocation {
        Allocation::Allocated(_, ip, edits) if edits.is_empty() => return Ok(Step::Known(ip)),
        Allocation::Allocated(slot, ip, edits) => {
            return record(store, who, slot, &edits).map(|()| Step::Allocated(ip));
        }
        Allocation::Refused(why) => {
            let AllocationError::HeldOnThisNode(ip) = why else { return Err(refused(&why)) };
            if let Some(slot) = earlier_sandbox::slot(store, pool, &who.owner, Some(ip)) {
                return take(store, clock, who, slot);
            }
            let owner = holder(store, ip).map(|owner| refused(&format!("{owner} holds it")));
            return Err(owner.unwrap_or_else(|| refused(&why)));
        }
        Allocation::NeedsLease(AllocationKind::Any, Some(AllocationError::Quarantined(_)))
            if let Some(slot) = released_by(store, clock, pool, &who.owner) =>
        {
            return take(store, clock, who, slot);
        }
        // The claim keeps the address for each sandbox of the pod.
        Allocation::NeedsLease(AllocationKind::ForClaim(_), _)
            if let Some(slot) = earlier_sandbox::slot(store, pool, &who.owner, None) =>
        {
            return take(store, clock, who, slot);
        }
        Allocation::NeedsLease(wanted, why) => {
            if let Some(why) = progress.refusal.take() {
                // Before a refusal, the address that waits longest is allocated.
                if progress.quarantine == 0 || !is_any(kind) {
                    return match earlier_sandbox::slot(store, pool, &who.owner, None).filter(|_| is_any(kind))
                    {
                        Some(slot) => take(store, clock, who, slot),
                        None => Err(refused(&why)),
                    };
                }
                progress.quarantine = 0;
                return Ok(Step::Again);
            }
            progress.refusal = why.map(|why| why.to_string());
            wanted
        }
    };
    let AllocationKind::ForClaim(named) = wanted else { return Ok(Step::Ask(wanted)) };
    let offer = store.addresses.offer_for_claim(clock, &pool.filter, who.tag, named, &progress.tried);
    Ok(Step::Ask(AllocationKind::ForClaim(offer)))
}

fn no_address() -> String {
    "no address is free".to_owned()
}

/// Gives an address of the store to this owner. The next step finds it.
fn take(store: &mut Store, clock: Clock, who: &Claimant, slot: SlotId) -> Result<Step, Error> {
    let edits = store.addresses.hold(slot, clock.now, who.tag);
    record(store, who, slot, &edits).map(|()| Step::Again)
}

/// Records the owner of a slot, then that it is held.
fn record(store: &Store, who: &Claimant, slot: SlotId, edits: &[Edit]) -> Result<(), Error> {
    who.allocated.store(true, Relaxed);
    store.record_owner(slot, &who.owner)?;
    store.write(edits)
}

/// Returns an address in quarantine that the same interface of the same pod held before.
fn released_by(store: &Store, clock: Clock, pool: &Pool, owner: &Owner) -> Option<SlotId> {
    let interface = |owner: &Owner| (owner.network.clone(), owner.ifname.clone(), owner.pod.clone());
    if owner.pod[0].is_empty() {
        return None;
    }
    let mut waiting = store.addresses.in_quarantine(clock, |ip| pool.filter.admits(ip)).into_iter();
    waiting.find(|slot| interface(&store.owner(*slot)) == interface(owner))
}

/// Whether any address suffices.
fn is_any(kind: AllocationKind) -> bool {
    matches!(kind, AllocationKind::Any | AllocationKind::ForClaim(_))
}

/// Returns the error of an allocation; it names the requested address, or the pool's range.
fn refusal(pool: &Pool, kind: AllocationKind, why: &dyn fmt::Display) -> Error {
    let why = match kind {
        AllocationKind::Address(ip) | AllocationKind::AddressForClaim(ip) => {
            format!("pool {}: {ip}: {why}", pool.name)
        }
        _ => format!("pool {}: {}: {why}", pool.name, pool.filter.range),
    };
    Error::new(code::TRY_AGAIN_LATER, why)
}

/// Applies a response to the store. A claimed address in it is held as soon as it is written.
fn apply(store: &mut Store, clock: Clock, who: &Claimant, lease: &LeaseResponse) -> Result<(), Error> {
    let regained: Vec<_> = store.addresses.regained().collect();
    let regained: Vec<_> = regained.into_iter().map(|(slot, tag)| (slot, tag, store.owner(slot))).collect();
    let edits = store.addresses.apply_response(clock, who.tag, lease);
    // A new block takes over the regained addresses in it.
    for (before, tag, owner) in regained {
        for slot in store.addresses.held_by(tag).filter(|slot| *slot != before) {
            store.record_owner(slot, &owner)?;
        }
    }
    if let Some(slot) = store.addresses.held_by(who.tag).next() {
        who.allocated.store(true, Relaxed);
        store.record_owner(slot, &who.owner)?;
    }
    store.write(&edits)
}

/// Returns the number of free addresses below which a block is prefetched.
pub(super) fn low(store: &Store) -> usize {
    let size = store
        .addresses
        .blocks()
        .find(|block| !block.single_owner)
        .map_or(0, |block| address_count(block.net));
    usize::try_from(size / 4).unwrap_or(LOW).clamp(1, LOW)
}

/// Waits for the disk, and notifies the agent if few addresses are free.
fn settle_and_hint(
    settings: &Settings,
    pool: &Pool,
    who: &Claimant,
    clock: Clock,
    store: Store,
) -> Result<(), Error> {
    let low = settings.source == Source::Cluster
        && !store.addresses.has_free(clock, |ip| pool.filter.admits(ip), low(&store));
    let request = low
        .then(|| agent::allocate_request(settings, pool, &store.addresses, Operation::Prefetch, &who.name));
    store.settle()?;
    if let Some(request) = request {
        agent::hint(&settings.socket, request);
    }
    Ok(())
}

/// Requests a lease for an allocation that the store cannot serve.
fn request_lease(
    settings: &Settings,
    pool: &Pool,
    store: &Store,
    wanted: AllocationKind,
    who: &Claimant,
    quarantine: u64,
) -> Result<AllocateResponse, Error> {
    if settings.source == Source::File {
        let lease = agent::allocate_locally(pool, &store.addresses, wanted);
        return Ok(AllocateResponse { lease, ..AllocateResponse::default() });
    }
    let operation = Operation::Allocate(wanted);
    let request = agent::allocate_request(settings, pool, &store.addresses, operation, &who.name);
    let claim = who.owner.claim.clone();
    let shares_claim = request.shares_claim && claim == request.claim;
    let request = AllocateRequest { quarantine, claim, shares_claim, ..request };
    agent::ask(&settings.socket, request)
        .map_err(|error| Error { msg: format!("pool {}: {}", pool.name, error.msg), ..error })
}

/// Returns the owner of an address in the store.
fn holder(store: &Store, ip: IpAddr) -> Option<Owner> {
    store.addresses.find_held(ip).map(|slot| store.owner(slot))
}
