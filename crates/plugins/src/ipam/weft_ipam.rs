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
mod released;
pub mod settings;
pub mod store;

use std::cell::Cell;
use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;

use cni::invocation::{Attach, Attachment, Call, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::{IpConfig, Success};
use cni::{Error, code};
use ipam::ledger::{Clock, Count, Place};
use ipam::turn::{self, Turn, Wish};
use ipnet::IpNet;
use npwg::exchange::addresses::{KnownState, Want};

use self::settings::{Pool, Set, Settings, Source};
use self::store::{Owner, Refused, SETS_MAX, Store, mark, now};
use crate::directory;

/// The plugin, under one of its names.
pub struct WeftIpam(pub &'static str);

/// Fewer free addresses than this, and the agent is told that more will be needed. A block of 256 is enough for the
/// 250 pods of a full node without another.
const LOW: usize = 4;
/// How long a block is idle before it is given back, in milliseconds.
const IDLE: u64 = 600_000;
/// Questions of one ADD: one for what the node was leased before, one for something new, one for bad luck.
const QUESTIONS: usize = 3;

// === impl Plugin ===

impl Plugin for WeftIpam {
    fn name(&self) -> &'static str {
        self.0
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        let settings = Settings::read(&request.call, Some(&request.who))?;
        let mut ips = Vec::with_capacity(settings.sets.len());
        for (index, set) in settings.sets.iter().enumerate() {
            match give(&settings, set, &Who::of(&settings, request, index)) {
                Ok(ip) => ips.push(ip),
                Err(error) => {
                    // Of several addresses all or none; what was held before this call is found again by the next.
                    let _ = take_back(&settings, &request.call, &request.who);
                    return Err(error);
                }
            }
        }
        ips.extend(settings.fixed.iter().cloned());
        Ok(Success { interfaces: Vec::new(), ips, routes: settings.routes, dns: settings.dns })
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        // With ranges that have changed or become wrong, the address is in one of the other ledgers that are there.
        let Ok(settings) = Settings::read(&request.call, None) else {
            return take_back_anywhere(&request.call, &request.who);
        };
        if !take_back(&settings, &request.call, &request.who)?
            && let Err(error) = take_back_anywhere(&request.call, &request.who)
        {
            // The network's own ledgers have been read: another network's must not keep this pod from ending.
            eprintln!("{}: {error}", self.0);
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
                let place = store.ledger.held_by(who.mark).next();
                held = held.or(place.and_then(|place| store.ledger.address(place)));
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
        let settings = Settings::read(&request.call, None)?;
        let network = request.call.config.name.as_str();
        let valid: HashSet<(&str, &str)> =
            valid.iter().map(|valid| (valid.container_id.as_str(), valid.ifname.as_str())).collect();
        let is_stale = |owner: &Owner| {
            owner.network == network && !valid.contains(&(owner.container.as_str(), owner.ifname.as_str()))
        };
        each_pool(&settings, |pool, opened| {
            let store = opened?;
            let held = store.ledger.held().map(|(place, ..)| place);
            let stale: Vec<Place> = held.filter(|place| is_stale(&store.owner(*place))).collect();
            release(&settings, store, pool, Demanded::Always, &stale)
        })
    }

    fn status(&self, request: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        let unavailable = |error: Error| Error { code: code::NOT_AVAILABLE, ..error };
        let settings = Settings::read(&request.call, None)?;
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
}

impl Who {
    fn of(settings: &Settings, request: &Attach, index: usize) -> Who {
        let Attachment { container, ifname } = &request.who;
        let network = request.call.config.name.as_str();
        let pod = [settings.pod.uid.clone(), settings.pod.namespace.clone(), settings.pod.name.clone()];
        Who {
            mark: mark(network, container.as_str(), ifname.as_str(), index),
            name: format!("{}/{container}/{ifname}", pod[0]),
            owner: Owner {
                container: container.to_string(),
                ifname: ifname.to_string(),
                network: network.to_owned(),
                pod,
            },
        }
    }
}

// === ADD ===

/// One address of a set: of the first pool that has one.
fn give(settings: &Settings, set: &Set, who: &Who) -> Result<IpConfig, Error> {
    let mut last = None;
    for pool in &set.pools {
        if let Some(request) = &set.request
            && !pool.filter.admits(request.ip)
        {
            continue;
        }
        let wish = match &set.request {
            Some(request) => Wish::Address(request.ip),
            None if settings.claim.name.is_empty() => Wish::Any,
            None => Wish::Kept,
        };
        match give_from(settings, pool, wish, who) {
            Ok(ip) => {
                let address = IpNet::new(ip, pool.range.prefix_len()).unwrap_or(IpNet::from(ip));
                return Ok(IpConfig { interface: None, address, gateway: pool.gateway });
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| Error::config("ipam.ranges: none may give the address that is asked for")))
}

fn give_from(settings: &Settings, pool: &Pool, wish: Wish, who: &Who) -> Result<IpAddr, Error> {
    let mut store = Store::create(&settings.directory, &pool.name)?;
    let refused = |why: &dyn std::fmt::Display| {
        let why = match wish {
            Wish::Address(ip) => format!("pool {}: {ip}: {why}", pool.name),
            _ => format!("pool {}: {}: {why}", pool.name, pool.filter.range),
        };
        Error::new(code::TRY_AGAIN_LATER, why)
    };
    let mut refusal = None;
    for _ in 0..=QUESTIONS {
        let clock = Clock { now: now(), rest: settings.rest };
        let wanted = match turn::give(&mut store.ledger, clock, &pool.filter, who.mark, wish) {
            // A repeated ADD: it is on the disk already, and nobody else's.
            Turn::Given(_, ip, edits) if edits.is_empty() => return Ok(ip),
            Turn::Given(place, ip, edits) => {
                store.sign(place, &who.owner)?;
                store.write(&edits)?;
                let low = settings.source == Source::Cluster
                    && !store.ledger.has_free(clock, |ip| pool.filter.admits(ip), LOW);
                let demand =
                    low.then(|| agent::demand(settings, pool, &store.ledger, Want::Ahead, &who.name));
                store.settle()?;
                if let Some(demand) = demand {
                    agent::hint(&settings.socket, &demand);
                }
                return Ok(ip);
            }
            Turn::Refused(why) => return Err(refused(&why)),
            Turn::Ask(wanted, why) => {
                if let Some(why) = refusal {
                    return Err(refused(&why));
                }
                refusal = why.map(|why| why.to_string());
                wanted
            }
        };
        let (supply, said) = match settings.source {
            Source::File => (agent::supply_alone(pool, &store.ledger, wanted), None),
            Source::Cluster => {
                let demand = agent::demand(settings, pool, &store.ledger, want(wanted), &who.name);
                agent::ask(&settings.socket, &demand)
                    .map_err(|error| Error { msg: format!("pool {}: {}", pool.name, error.msg), ..error })?
            }
        };
        let edits = turn::receive(&mut store.ledger, clock, who.mark, &supply);
        // An address of our own is held as soon as it is written.
        if let Some(place) = store.ledger.held_by(who.mark).next() {
            store.sign(place, &who.owner)?;
        }
        store.write(&edits)?;
        let got = !supply.leases.is_empty() || !supply.confirmed.is_empty();
        refusal = match got {
            true => None,
            false => Some(said.or(refusal).unwrap_or_else(|| "no address is free".to_owned())),
        };
    }
    Err(refused(&refusal.unwrap_or_else(|| "no address is free".to_owned())))
}

fn want(wish: Wish) -> Want {
    match wish {
        Wish::Nothing => Want::Nothing,
        Wish::Any => Want::Any,
        Wish::Kept => Want::Kept,
        Wish::Address(ip) => Want::Address(ip),
    }
}

// === DEL, GC ===

/// When the agent is asked although nothing was given back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Demanded {
    /// Never: DEL.
    IfNeeded,
    /// Always: GC, which finds what nobody knows of.
    Always,
}

/// Gives back what an attachment holds; was there anything?
fn take_back(settings: &Settings, call: &Call, who: &Attachment) -> Result<bool, Error> {
    let marks = marks(call, who, settings.sets.len());
    let found = Cell::new(false);
    each_pool(settings, |pool, opened| {
        let store = match opened {
            Ok(store) => store,
            Err(refused) => return put_off(&settings.directory.join(&pool.name), call, who, refused),
        };
        let own: Vec<Place> = marks.iter().flat_map(|mark| store.ledger.held_by(*mark)).collect();
        found.set(found.get() || !own.is_empty());
        release(settings, store, pool, Demanded::IfNeeded, &own)
    })?;
    Ok(found.get())
}

/// The same in every ledger; the cluster hears of it with a later call.
fn take_back_anywhere(call: &Call, who: &Attachment) -> Result<(), Error> {
    let directory = settings::directory(call)?;
    let marks = marks(call, who, SETS_MAX);
    let mut errors = Vec::new();
    let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        match Store::find(&directory, &name) {
            Ok(Some(mut store)) => {
                let edits = turn::take_back(&mut store.ledger, now(), &marks);
                errors.extend(store.write(&edits).err());
            }
            Ok(None) => {}
            Err(refused) => errors.extend(put_off(&directory.join(&name), call, who, refused).err()),
        }
    }
    Error::join(errors).map_or(Ok(()), Err)
}

/// A ledger that cannot be read keeps no pod from ending: that this one has is written beside it.
fn put_off(directory: &Path, call: &Call, who: &Attachment, refused: Refused) -> Result<(), Error> {
    let (error, _lock) = match refused {
        Refused::Unreadable(error, lock) => (error, lock),
        Refused::Other(error) => return Err(error),
    };
    match released::remember(directory, call.config.name.as_str(), who) {
        Ok(()) => {
            eprintln!("{}: given back when the ledger can be read again: {error}", directory.display());
            Ok(())
        }
        Err(cause) => Err(error.also([Error::io(directory.display(), cause)])),
    }
}

fn marks(call: &Call, who: &Attachment, sets: usize) -> Vec<u64> {
    let (network, Attachment { container, ifname }) = (call.config.name.as_str(), who);
    (0..sets).map(|set| mark(network, container.as_str(), ifname.as_str(), set)).collect()
}

/// Does it for every ledger there is; failures are collected.
fn each_pool(
    settings: &Settings,
    act: impl Fn(&Pool, Result<Store, Refused>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut seen: Vec<&str> = Vec::new();
    let mut errors = Vec::new();
    for pool in settings.sets.iter().flat_map(|set| &set.pools) {
        if seen.contains(&pool.name.as_str()) {
            continue;
        }
        seen.push(&pool.name);
        if let Some(opened) = Store::find(&settings.directory, &pool.name).transpose() {
            errors.extend(act(pool, opened).err());
        }
    }
    Error::join(errors).map_or(Ok(()), Err)
}

fn release(
    settings: &Settings,
    mut store: Store,
    pool: &Pool,
    demanded: Demanded,
    stale: &[Place],
) -> Result<(), Error> {
    let clock = Clock { now: now(), rest: settings.rest };
    let edits = turn::free(&mut store.ledger, clock.now, stale);
    store.write(&edits)?;
    if settings.source == Source::File {
        return store.settle();
    }
    let edits = turn::tidy(&mut store.ledger, clock, IDLE, LOW as u64);
    store.write(&edits)?;
    let demand = agent::demand(settings, pool, &store.ledger, Want::Nothing, "");
    let returning = demand.known.iter().any(|known| known.state == KnownState::Returning);
    if returning || demanded == Demanded::Always {
        // Without an agent it goes with a later call: this one has done what concerns its pod.
        if let Ok((supply, _)) = agent::ask(&settings.socket, &demand) {
            let edits = turn::receive(&mut store.ledger, clock, 0, &supply);
            store.write(&edits)?;
        }
    }
    store.settle()
}

// === STATUS ===

fn has_room(settings: &Settings, pool: &Pool) -> Result<(), Error> {
    let clock = Clock { now: now(), rest: settings.rest };
    let store = Store::find(&settings.directory, &pool.name)?;
    if store.as_ref().is_some_and(|store| store.ledger.has_free(clock, |ip| pool.filter.admits(ip), 1)) {
        return Ok(());
    }
    let ledger = store.map_or_else(|| ipam::Ledger::new(""), |store| store.ledger);
    let said = match settings.source {
        Source::File => {
            let supply = agent::supply_alone(pool, &ledger, Wish::Any);
            (supply.leases.is_empty() && supply.confirmed.is_empty()).then(|| "no address is free".to_owned())
        }
        Source::Cluster => {
            let demand = agent::demand(settings, pool, &ledger, Want::Room, "");
            let asked = agent::ask(&settings.socket, &demand);
            asked.map_err(|error| Error { msg: format!("pool {}: {}", pool.name, error.msg), ..error })?.1
        }
    };
    let Some(why) = said else { return Ok(()) };
    let Count { held, resting, free } = ledger.count(clock, |ip| pool.filter.admits(ip));
    let details = format!("in the blocks of this node {held} are held, {resting} rest, {free} are free");
    Err(Error::new(code::NOT_AVAILABLE, format!("pool {}: {}: {why}", pool.name, pool.filter.range))
        .details(details))
}
