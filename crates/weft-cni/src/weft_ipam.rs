//! `weft-ipam`: addresses that are unique in the cluster, given on the node. Also under the name `whereabouts`.
//!
//! ```text
//!   ADD   ledger (locked) ─► free? ─► owner signed, slot held ─► unlocked ─► on the disk ─► answer
//!                              └─► no: agent leases a block ─► written down ─┘
//! ```
//!
//! Rules:
//! - an attachment has one address of each set; a repeated ADD gives the same; two sets are given together or not at all;
//! - neither API server nor agent is needed while the node has a free address; a DEL needs neither, ever;
//! - what cannot be given back to the cluster now is given back with a later call; what cannot be written into a ledger,
//!   because it cannot be read, is written beside it: [`released`].
//!
//! Source: whereabouts 0.9 for names and meaning of options; `docs/plugins/weft-ipam.md`.

mod agent;
pub mod handover;
mod owners;
mod released;
mod rounds;
pub mod settings;
pub mod store;

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use cni::invocation::{Attach, Attachment, Call, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::{IpConfig, Success};
use cni::{Error, code};
use ipam::address_store::{SlotId, Usage};
use ipam::pool_layout::address_count;
use ipam::{Allocation, AllocationError, AllocationKind, BlockState, Clock, LeaseResponse};
use ipnet::IpNet;
use plugin_support::directory;
use plugin_support::log;
use rpc::exchange::addresses::{AllocateRequest, AllocateResponse, Operation};

use self::settings::{Pool, Set, Settings, Source};
use self::store::{Owner, Refused, SETS_MAX, Store, mark, now};

/// The plugin, under one of its names.
pub struct WeftIpam(pub &'static str);

/// Fewer free addresses than this, and the agent is told that more will be needed; of small blocks a quarter. A block of 256 is
/// enough for the 250 pods of a full node without another.
const LOW: usize = 4;
/// How long a block is idle before it is given back, in milliseconds.
const IDLE: u64 = 600_000;
/// Questions of one ADD: one for what the node was leased before, one for something new, one for bad luck.
const QUESTIONS: usize = 3;
/// How long the ledger is let go of for its agent, each time, in milliseconds.
const PAUSES: [u64; 6] = [50, 100, 200, 400, 800, 1600];

// === impl Plugin ===

impl Plugin for WeftIpam {
    fn name(&self) -> &'static str {
        self.0
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        let settings = Arc::new(Settings::read(&request.call, Some(&request.who))?);
        let all = (0..settings.sets.len()).map(|index| Arc::new(Who::of(&settings, request, index)));
        let (all, mut ips) = (all.collect::<Vec<_>>(), Vec::with_capacity(settings.sets.len()));
        for (set, who) in settings.sets.iter().zip(&all) {
            match give(&settings, set, who) {
                Ok(ip) => ips.push(ip),
                Err(error) => {
                    // Of several addresses all or none; what an earlier call gave may be that of a container that runs.
                    let new = all.iter().filter(|who| who.given.load(Relaxed)).map(|who| who.mark);
                    let _ = take_back(&settings, Gone::of(&request.call, &request.who, new.collect()));
                    return Err(error);
                }
            }
        }
        ips.extend(settings.fixed.iter().cloned());
        let (routes, dns) = (settings.routes.clone(), settings.dns.clone());
        Ok(Success { interfaces: Vec::new(), ips, routes, dns })
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        // With ranges that have changed or become wrong, the address is in one of the other ledgers that are there.
        let Ok(settings) = Settings::read(&request.call, None) else {
            return take_back_anywhere(&request.call, &request.who);
        };
        let gone = Gone::all(&request.call, &request.who, settings.sets.len());
        if !take_back(&Arc::new(settings), gone)?
            && let Err(error) = take_back_anywhere(&request.call, &request.who)
        {
            // The network's own ledgers have been read: another network's must not keep this pod from ending.
            log!("{}: {error}", self.0);
        }
        Ok(())
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let settings = Settings::read(&request.call, Some(&request.who))?;
        let results = request.call.config.prev_result()?.unwrap_or_default().ips;
        for (index, set) in settings.sets.iter().enumerate() {
            let who = Who::of(&settings, request, index);
            let mut held = None;
            for pool in &set.pools {
                let Some(store) = Store::find(&settings.directory, &pool.name)? else { continue };
                let (store, own) = store.held_by(&[who.mark])?;
                held = held.or(own.first().and_then(|place| store.ledger.address(*place)));
            }
            let Attachment { container, ifname } = &request.who;
            let Some(ip) = held else {
                let names: Vec<&str> = set.pools.iter().map(|pool| pool.name.as_str()).collect();
                let why = format!(
                    "container {container} holds no address for {ifname} in pool {}",
                    names.join(", ")
                );
                return Err(Error::internal(why));
            };
            if !results.is_empty() && !results.iter().any(|known| known.address.addr() == ip) {
                let why =
                    format!("container {container} holds {ip} for {ifname}, which prevResult does not have");
                return Err(Error::internal(why));
            }
        }
        Ok(())
    }

    fn gc(&self, request: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        let Some(valid) = request.valid()? else { return Ok(()) };
        let settings = Settings::written(&request.call, None)?;
        let network = request.call.config.name.as_str();
        let valid: HashSet<(&str, &str)> =
            valid.iter().map(|valid| (valid.container_id.as_str(), valid.ifname.as_str())).collect();
        let is_stale = |owner: &Owner| {
            owner.network == network && !valid.contains(&(owner.container.as_str(), owner.ifname.as_str()))
        };
        let mut errors = Vec::new();
        for pool in settings.pools() {
            let swept = Store::find(&settings.directory, &pool.name).map_err(Error::from).and_then(|found| {
                let Some(store) = found else { return Ok(()) };
                let held = store.ledger.held().map(|(place, ..)| place);
                let stale: Vec<SlotId> = held.filter(|place| is_stale(&store.owner(*place))).collect();
                release(&settings, store, pool, Demanded::Always, &stale).map(drop)
            });
            errors.extend(swept.err());
        }
        Error::join(errors).map_or(Ok(()), Err)
    }

    fn status(&self, request: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        let unavailable = |error: Error| Error { code: code::NOT_AVAILABLE, ..error };
        let settings = Settings::written(&request.call, None)?;
        directory::usable("ipam.dataDir", &settings.directory)?;
        for set in &settings.sets {
            let mut last = None;
            for pool in &set.pools {
                last = has_room(&settings, pool).err();
                if last.is_none() {
                    break;
                }
            }
            if let Some(error) = last {
                return Err(unavailable(error));
            }
        }
        Ok(())
    }
}

/// Whom an address is for.
struct Who {
    owner: Owner,
    /// One of 2⁶⁴; the same for every call of an attachment and a set.
    mark: u64,
    /// Its name in the registry.
    name: String,
    /// Did this call write an address down for it?
    given: AtomicBool,
}

impl Who {
    fn of(settings: &Settings, request: &Attach, index: usize) -> Who {
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

// === ADD ===

/// One address of a set: the one that is held, else of the first pool that has one.
fn give(settings: &Arc<Settings>, set: &Set, who: &Arc<Who>) -> Result<IpConfig, Error> {
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
fn low(store: &Store) -> usize {
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
        agent::hint(&settings.socket, &demand);
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
    agent::ask(&settings.socket, &demand)
        .map_err(|error| Error { msg: format!("pool {}: {}", pool.name, error.msg), ..error })
}

/// Who holds an address of the ledger.
fn holder(store: &Store, ip: IpAddr) -> Option<Owner> {
    store.ledger.find_held(ip).map(|place| store.owner(place))
}

// === DEL, GC ===

/// When the agent is asked although nothing was given back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Demanded {
    /// Only if something is to be given back, and when nobody waits for the ledger: DEL.
    IfNeeded,
    /// Always: GC, which finds what nobody knows of.
    Always,
}

/// Gives back what an attachment holds; was there anything?
fn take_back(settings: &Arc<Settings>, gone: Gone) -> Result<bool, Error> {
    let gone = Arc::new(gone);
    let (mut found, mut errors) = (false, Vec::new());
    for pool in settings.pools() {
        let (own, from, gone) = (Arc::clone(settings), Arc::clone(pool), Arc::clone(&gone));
        let turn = move |opened: Result<Store, Refused>| {
            let (store, held) = match opened.and_then(|store| store.held_by(&gone.marks)) {
                Ok(found) => found,
                Err(refused) => {
                    return gone.put_off(&own.directory.join(&from.name), refused).map(|()| (false, None));
                }
            };
            release(&own, store, &from, Demanded::IfNeeded, &held).map(|demand| (!held.is_empty(), demand))
        };
        match Store::with(&settings.directory, &pool.name, turn) {
            Ok(was) => {
                let (was, demand) = was.unwrap_or_default();
                found |= was;
                if let Some(demand) = demand {
                    errors.extend(give_back(settings, pool, &demand).err());
                }
            }
            Err(error) => errors.push(error),
        }
    }
    Error::join(errors).map_or(Ok(found), Err)
}

/// The same in every ledger; the cluster hears of it with a later call.
fn take_back_anywhere(call: &Call, who: &Attachment) -> Result<(), Error> {
    let directory = settings::directory(call)?;
    let gone = Gone::all(call, who, SETS_MAX);
    let mut errors = Vec::new();
    let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        let found = Store::find(&directory, &name);
        match found.and_then(|found| found.map(|store| store.held_by(&gone.marks)).transpose()) {
            Ok(Some((mut store, held))) => {
                let edits = store.ledger.release_slots(now(), &held);
                errors.extend(store.write(&edits).err());
            }
            Ok(None) => {}
            Err(refused) => errors.extend(gone.put_off(&directory.join(&name), refused).err()),
        }
    }
    Error::join(errors).map_or(Ok(()), Err)
}

/// An attachment that is gone; or, of one that is not, what a failed ADD gave it.
struct Gone {
    network: String,
    who: Attachment,
    marks: Vec<u64>,
    is_whole: bool,
}

impl Gone {
    fn of(call: &Call, who: &Attachment, marks: Vec<u64>) -> Gone {
        Gone { network: call.config.name.to_string(), who: who.clone(), marks, is_whole: false }
    }

    fn all(call: &Call, who: &Attachment, sets: usize) -> Gone {
        let (network, Attachment { container, ifname }) = (call.config.name.as_str(), who);
        let marks = (0..sets).map(|set| mark(network, container.as_str(), ifname.as_str(), set));
        Gone { is_whole: true, ..Gone::of(call, who, marks.collect()) }
    }

    /// A ledger that cannot be read keeps no pod from ending: that this one has is written beside it.
    fn put_off(&self, directory: &Path, refused: Refused) -> Result<(), Error> {
        let (error, _lock) = match refused {
            Refused::Unreadable(error, lock) => (error, lock),
            Refused::Other(error) => return Err(error),
        };
        // That would be all that it holds.
        if !self.is_whole {
            return Err(error);
        }
        match released::remember(directory, &self.network, &self.who) {
            Ok(()) => {
                log!("{}: given back when the ledger can be read again: {error}", directory.display());
                Ok(())
            }
            Err(cause) => Err(error.also([Error::io(directory.display(), cause)])),
        }
    }
}

/// Has the cluster told what is given back, while nobody waits for the ledger: an agent that is silent delays this call alone.
fn give_back(settings: &Settings, pool: &Pool, demand: &AllocateRequest) -> Result<(), Error> {
    // Without an agent it goes with a later call: this one has done what concerns its pod.
    let Ok(answer) = agent::ask(&settings.socket, demand) else { return Ok(()) };
    let clock = Clock { now: now(), quarantine: settings.rest };
    let turn = move |opened: Result<Store, Refused>| {
        let Ok(mut store) = opened else { return Ok(()) };
        let edits = store.ledger.apply_response(clock, 0, &answer.lease);
        store.write(&edits)?;
        store.settle()
    };
    Store::with(&settings.directory, &pool.name, turn).map(drop)
}

/// Frees what is held at these places; what the agent is to be asked for then.
fn release(
    settings: &Settings,
    mut store: Store,
    pool: &Pool,
    demanded: Demanded,
    stale: &[SlotId],
) -> Result<Option<AllocateRequest>, Error> {
    let clock = Clock { now: now(), quarantine: settings.rest };
    let edits = store.ledger.release_slots(clock.now, stale);
    store.write(&edits)?;
    if settings.source == Source::File {
        return store.settle().map(|()| None);
    }
    // GC gives the last block back, too: where it is called there may be no pod any more.
    let keep = if demanded == Demanded::Always { 0 } else { low(&store) as u64 };
    let edits = store.ledger.release_idle_blocks(clock, IDLE, keep);
    store.write(&edits)?;
    if demanded == Demanded::IfNeeded {
        let returning = store.ledger.blocks().any(|block| block.state == BlockState::Returning);
        let demand = returning.then(|| agent::demand(settings, pool, &store.ledger, Operation::Return, ""));
        return store.settle().map(|()| demand);
    }
    let demand =
        agent::demand(settings, pool, &store.ledger, Operation::Allocate(AllocationKind::Nothing), "");
    // Without an agent it goes with a later call.
    if let Ok(answer) = agent::ask(&settings.socket, &demand) {
        let edits = store.ledger.apply_response(clock, 0, &answer.lease);
        store.write(&edits)?;
    }
    store.settle().map(|()| None)
}

// === STATUS ===

fn has_room(settings: &Settings, pool: &Pool) -> Result<(), Error> {
    let clock = Clock { now: now(), quarantine: settings.rest };
    let store = Store::find(&settings.directory, &pool.name)?;
    let none = ipam::AddressStore::new("");
    let ledger = store.as_ref().map_or(&none, |store| &store.ledger);
    let has_free = ledger.has_free(clock, |ip| pool.filter.admits(ip), 1);
    let Usage { held, quarantined, free } = match has_free {
        true => return Ok(()),
        false => ledger.usage(clock, |ip| pool.filter.admits(ip)),
    };
    store.as_ref().map_or(Ok(()), Store::trusted)?;
    let said = match settings.source {
        Source::File => {
            let supply = agent::supply_alone(pool, ledger, AllocationKind::Any);
            (supply.leases.is_empty() && supply.confirmed.is_empty()).then(|| "no address is free".to_owned())
        }
        Source::Cluster => {
            let demand = agent::demand(settings, pool, ledger, Operation::CheckCapacity, "");
            // Nobody waits for the agent but we.
            drop(store);
            let asked = agent::ask(&settings.socket, &demand);
            let asked = asked
                .map_err(|error| Error { msg: format!("pool {}: {}", pool.name, error.msg), ..error })?;
            asked.error()
        }
    };
    let Some(why) = said else { return Ok(()) };
    let details =
        format!("in the blocks of this node {held} are held, {quarantined} in quarantine, {free} free");
    Err(Error::new(code::NOT_AVAILABLE, format!("pool {}: {}: {why}", pool.name, pool.filter.range))
        .details(details))
}
