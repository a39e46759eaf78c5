//! ADD: one address of each set, from the address store of this node or through its agent.
//!
//! The store is unlocked while the agent needs it, and the attachment is tried again then.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use cni::invocation::{Attach, Attachment};
use cni::result::IpConfig;
use cni::{Error, code};
use ipam::pool_layout::address_count;
use ipam::{Allocation, AllocationError, AllocationKind, Clock, LeaseResponse};
use ipnet::IpNet;
use rpc::allocate::{AllocateResponse, Operation};

use super::agent;
use super::settings::{Pool, Set, Settings, Source};
use super::store::{Owner, Store, mark, now};

/// Fewer free addresses than this, and the agent is told that more will be needed; of small blocks a quarter. A block of 256 is
/// enough for the 250 pods of a full node without another.
const LOW: usize = 4;
/// Questions of one ADD: one for what the node was leased before, one for something new, one for bad luck.
const QUESTIONS: usize = 3;
/// How long the ledger is let go of for its agent, each time, in milliseconds.
const PAUSES: [u64; 6] = [50, 100, 200, 400, 800, 1600];

/// Whom an address is for.
pub(super) struct Who {
    pub(super) owner: Owner,
    /// One of 2⁶⁴; the same for every call of an attachment and a set.
    pub(super) mark: u64,
    /// Its name in the registry.
    pub(super) name: String,
    /// Did this call write an address down for it?
    pub(super) given: AtomicBool,
}

impl Who {
    pub(super) fn of(settings: &Settings, request: &Attach, index: usize) -> Who {
        let Attachment { container, ifname } = &request.who;
        let network = request.call.config.name.as_str();
        let pod = [settings.pod.uid.clone(), settings.pod.namespace.clone(), settings.pod.name.clone()];
        Who {
            mark: mark(network, container.as_str(), ifname.as_str(), index),
            name: format!("{}/{container}/{ifname}", pod[0]),
            given: AtomicBool::new(false),
            owner: Owner {
                container: container.to_string(),
                ifname: ifname.to_string(),
                network: network.to_owned(),
                pod,
                claim: settings.claim.name.clone(),
            },
        }
    }
}

/// One address of a set: the one that is held, else of the first pool that has one.
pub(super) fn give(settings: &Arc<Settings>, set: &Set, who: &Arc<Who>) -> Result<IpConfig, Error> {
    let mut last = None;
    let mut pools: Vec<&Arc<Pool>> = set.pools.iter().collect();
    if pools.len() > 1 {
        pools.sort_by_cached_key(|pool| !holds(settings, pool, who.mark));
    }
    for pool in pools {
        if let Some(request) = &set.request
            && !pool.filter.admits(request.ip)
        {
            continue;
        }
        let wish = match (&set.request, settings.claim.name.is_empty()) {
            (Some(request), true) => AllocationKind::Address(request.ip),
            (Some(request), false) => AllocationKind::AddressForClaim(request.ip),
            (None, true) => AllocationKind::Any,
            (None, false) => AllocationKind::ForClaim(None),
        };
        let (own, from, whom) = (Arc::clone(settings), Arc::clone(pool), Arc::clone(who));
        let turn = move |wish: AllocationKind| {
            let (own, from, whom) = (Arc::clone(&own), Arc::clone(&from), Arc::clone(&whom));
            Store::create(&settings.directory, &pool.name, move |store| {
                give_from(&own, &from, wish, &whom, store)
            })
        };
        match in_turns(wish, turn) {
            Ok(ip) => {
                let address = IpNet::new(ip, pool.range.prefix_len()).unwrap_or(IpNet::from(ip));
                return Ok(IpConfig { interface: None, address, gateway: pool.gateway });
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| Error::config("ipam.ranges: none may give the address that is asked for")))
}

/// Has the owner with this mark an address of the pool? A ledger that cannot be read is told of when it is asked.
fn holds(settings: &Settings, pool: &Pool, mark: u64) -> bool {
    let found = Store::find(&settings.directory, &pool.name).ok().flatten();
    found.is_some_and(|store| store.ledger.held_by(mark).next().is_some())
}

/// How a turn ended.
enum Ended {
    /// With this address.
    Given(IpAddr),
    /// The agent needs the ledger for this address; why it is not there yet.
    LetGo(IpAddr, Error),
}

/// As many turns as it takes until the agent has given up what is wanted, within a few seconds.
fn in_turns(
    mut wish: AllocationKind,
    turn: impl Fn(AllocationKind) -> Result<Ended, Error>,
) -> Result<IpAddr, Error> {
    let mut pauses = PAUSES.iter();
    loop {
        match (turn(wish)?, pauses.next()) {
            (Ended::Given(ip), _) => return Ok(ip),
            (Ended::LetGo(ip, _), Some(pause)) => {
                if matches!(wish, AllocationKind::ForClaim(_)) {
                    wish = AllocationKind::ForClaim(Some(ip));
                }
                std::thread::sleep(Duration::from_millis(*pause));
            }
            (Ended::LetGo(_, error), None) => return Err(error),
        }
    }
}

fn give_from(
    settings: &Settings,
    pool: &Pool,
    wish: AllocationKind,
    who: &Who,
    mut store: Store,
) -> Result<Ended, Error> {
    let refused = |why: &dyn fmt::Display| refusal(pool, wish, why);
    let (mut refusal, mut tried) = (None, Vec::new());
    for _ in 0..=QUESTIONS {
        let clock = Clock { now: now(), quarantine: settings.rest };
        let turn = store.ledger.allocate(clock, &pool.filter, who.mark, wish);
        store.trusted()?;
        let wanted = match turn {
            // Written before: by a call that perhaps did not live until it was on the disk, or just now, for this owner alone.
            Allocation::Allocated(_, ip, edits) if edits.is_empty() => {
                return store.settle().map(|()| Ended::Given(ip));
            }
            Allocation::Allocated(place, ip, edits) => {
                who.given.store(true, Relaxed);
                store.sign(place, &who.owner)?;
                store.write(&edits)?;
                return settled(settings, pool, who, clock, store).map(|()| Ended::Given(ip));
            }
            Allocation::Refused(why) => {
                let owner =
                    if let AllocationError::HeldOnThisNode(ip) = why { holder(&store, ip) } else { None };
                return Err(
                    owner.map_or_else(|| refused(&why), |owner| refused(&format!("{owner} holds it")))
                );
            }
            Allocation::NeedsLease(wanted, why) => {
                if let Some(why) = refusal {
                    return Err(refused(&why));
                }
                refusal = why.map(|why| why.to_string());
                wanted
            }
        };
        let wanted = if let AllocationKind::ForClaim(named) = wanted {
            let offer = store.ledger.offer_for_claim(clock, &pool.filter, who.mark, named, &tried);
            AllocationKind::ForClaim(offer)
        } else {
            wanted
        };
        let answer = ask(settings, pool, &store, wanted, who)?;
        let (why, supply) = (answer.error(), answer.lease);
        receive(&mut store, clock, who, &supply)?;
        match supply.error {
            Some(why @ AllocationError::InOwnBlock { ip, .. }) => {
                return match holder(&store, ip) {
                    Some(owner) => Err(refused(&format!("{owner} holds {ip}"))),
                    None => Ok(Ended::LetGo(ip, refused(&format!("{ip}: {why}")))),
                };
            }
            Some(AllocationError::OfferTaken(ip)) if tried.len() < QUESTIONS => {
                tried.push(ip);
                continue;
            }
            _ => {}
        }
        refusal = if supply.leases.is_empty() && supply.confirmed.is_empty() {
            Some(why.or(refusal).unwrap_or_else(|| "no address is free".to_owned()))
        } else {
            None
        };
    }
    Err(refused(&refusal.unwrap_or_else(|| "no address is free".to_owned())))
}

/// Says of what it is that there is no address.
fn refusal(pool: &Pool, wish: AllocationKind, why: &dyn fmt::Display) -> Error {
    let why = match wish {
        AllocationKind::Address(ip) | AllocationKind::AddressForClaim(ip) => {
            format!("pool {}: {ip}: {why}", pool.name)
        }
        _ => format!("pool {}: {}: {why}", pool.name, pool.filter.range),
    };
    Error::new(code::TRY_AGAIN_LATER, why)
}

/// Writes an answer down. An address of our own is held as soon as it is written.
fn receive(store: &mut Store, clock: Clock, who: &Who, supply: &LeaseResponse) -> Result<(), Error> {
    let edits = store.ledger.apply_response(clock, who.mark, supply);
    if let Some(place) = store.ledger.held_by(who.mark).next() {
        who.given.store(true, Relaxed);
        store.sign(place, &who.owner)?;
    }
    store.write(&edits)
}

/// How many free addresses are few.
pub(super) fn low(store: &Store) -> usize {
    let size =
        store.ledger.blocks().find(|block| !block.single_owner).map_or(0, |block| address_count(block.net));
    usize::try_from(size / 4).unwrap_or(LOW).clamp(1, LOW)
}

/// Waits for the disk, and tells the agent if few addresses are left.
fn settled(settings: &Settings, pool: &Pool, who: &Who, clock: Clock, store: Store) -> Result<(), Error> {
    let low = settings.source == Source::Cluster
        && !store.ledger.has_free(clock, |ip| pool.filter.admits(ip), low(&store));
    let demand = low.then(|| agent::demand(settings, pool, &store.ledger, Operation::Prefetch, &who.name));
    store.settle()?;
    if let Some(demand) = demand {
        agent::hint(&settings.socket, demand);
    }
    Ok(())
}

/// Asks for what the ledger lacks.
fn ask(
    settings: &Settings,
    pool: &Pool,
    store: &Store,
    wanted: AllocationKind,
    who: &Who,
) -> Result<AllocateResponse, Error> {
    if settings.source == Source::File {
        let lease = agent::supply_alone(pool, &store.ledger, wanted);
        return Ok(AllocateResponse { lease, ..AllocateResponse::default() });
    }
    let demand = agent::demand(settings, pool, &store.ledger, Operation::Allocate(wanted), &who.name);
    agent::ask(&settings.socket, demand)
        .map_err(|error| Error { msg: format!("pool {}: {}", pool.name, error.msg), ..error })
}

/// Who holds an address of the ledger.
fn holder(store: &Store, ip: IpAddr) -> Option<Owner> {
    store.ledger.find_held(ip).map(|place| store.owner(place))
}
