//! `host-local`: allocates addresses from ranges and stores the reservations in files on this host.
//!
//! The files have the reference plugin's format, and each plugin can read the other's; see [`store`]. An
//! attachment gets one address from each range set.
//!
//! Rules beyond the reference plugin's:
//! - GC and STATUS are implemented.
//! - One lock covers a whole call, so all sets are allocated or none. A failed ADD releases what it
//!   allocated, and nothing that the attachment held before.
//! - A reservation whose file is incomplete is free. One from an earlier boot is free if ADD would fail
//!   otherwise ([`boot`] lists the evidence).
//! - DEL reads only where the files are from the configuration.
//!
//! As in the reference plugin, a second ADD for an attachment that holds an address is refused (plugins#328).
//!
//! Source: containernetworking/plugins `plugins/ipam/host-local` v1.9.1.

pub mod boot;
pub mod index;
mod lock_holder;
pub mod owner;
pub mod resolv_conf;
pub mod store;

use std::net::IpAddr;

use cni::invocation::{Attach, Attachment, Call, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::{Dns, IpConfig, Success};
use cni::{Error, code};
use ipam::{Assignment, RangeSet};
use plugin_support::directory;

use self::owner::{Content, Owner};
use self::store::{Reservation, Store};
use plugin_config::addresses::Request;
use plugin_config::host_local::{Network, Source, StoreLocation};

/// Plugin `host-local`.
pub struct HostLocal;

const NAME: &str = "host-local";

/// Number of addresses that are tried one by one before the directory is read.
const TRIES: usize = 16;

// === impl Plugin ===

impl Plugin for HostLocal {
    fn name(&self) -> &'static str {
        NAME
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        let network = Network::read(&request.call)?;
        let dns = match &network.resolv_conf {
            Some(path) => resolv_conf::read(path)?,
            None => Dns::default(),
        };
        let mut store = Store::create(&network.location)?;
        let allocated = allocate(&mut store, &network, &request.who);
        store.save_index();
        let ips = allocated?.into_iter().map(|Assignment { address, gateway }| IpConfig {
            interface: None,
            address,
            gateway,
        });
        Ok(Success { interfaces: Vec::new(), ips: ips.collect(), routes: network.routes, dns })
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        let Some(mut store) = Store::find(&StoreLocation::for_removal(&request.call)?)? else {
            return Ok(());
        };
        let released = release(&mut store, &request.who, &request.call);
        store.save_index();
        released
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let Network { location, sources: _, routes: _, resolv_conf: _ } = Network::read(&request.call)?;
        if let Some(mut store) = Store::find(&location)? {
            for owner in owners(&request.who) {
                if !store.held_by(&owner)?.is_empty() {
                    return Ok(());
                }
            }
        }
        let Attachment { container, ifname } = &request.who;
        let location = location.directory.display();
        Err(Error::internal(format!("container {container} holds no address for {ifname} in {location}")))
    }

    fn gc(&self, request: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        let Some(valid) = request.valid()? else { return Ok(()) };
        let Some(mut store) = Store::find(&StoreLocation::for_removal(&request.call)?)? else {
            return Ok(());
        };
        let swept = store.sweep(|content| match content {
            Content::Owned(owner) => !owner.is_among(&valid),
            Content::Unfinished => true,
            Content::Foreign | Content::Unreadable => false,
        });
        store.save_index();
        swept
    }

    fn status(&self, request: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        let network = Network::written(&request.call)?;
        let unavailable = |error: Error| Error { code: code::NOT_AVAILABLE, ..error };
        if let Some(path) = &network.resolv_conf {
            resolv_conf::read(path).map_err(unavailable)?;
        }
        inspect(&network).map_err(unavailable)
    }
}

// === ADD ===

/// Allocates one address from each set, or none.
fn allocate(store: &mut Store, network: &Network, who: &Attachment) -> Result<Vec<Assignment>, Error> {
    let mut allocated = Vec::with_capacity(network.sources.len());
    let outcome = allocate_each(store, network, who, &mut allocated);
    let Err(error) = outcome else { return Ok(allocated) };
    let undone = allocated.iter().filter_map(|assignment| {
        let reservation = Reservation::of(assignment.address.addr());
        store.release(&reservation).err()
    });
    Err(error.also(undone))
}

fn allocate_each(
    store: &mut Store,
    network: &Network,
    who: &Attachment,
    allocated: &mut Vec<Assignment>,
) -> Result<(), Error> {
    for (index, Source { set, request }) in network.sources.iter().enumerate() {
        let assignment = match request {
            Some(request) => allocate_requested(store, set, request, who)?,
            None => allocate_next(store, index, set, who)?,
        };
        allocated.push(assignment);
        store.set_last_reserved(index, assignment.address.addr())?;
    }
    Ok(())
}

/// Allocates the requested address if it is free.
fn allocate_requested(
    store: &mut Store,
    set: &RangeSet,
    request: &Request,
    who: &Attachment,
) -> Result<Assignment, Error> {
    let Request { key, ip, prefixed: _ } = request;
    let Some(assignment) = set.assign(*ip) else {
        return Err(Error::key(key, ip, "the gateway's address"));
    };
    let owner = Owner::of(who);
    if store.reserve(*ip, &owner)? {
        return Ok(assignment);
    }
    if reclaim(store, |held| held == *ip)? > 0 && store.reserve(*ip, &owner)? {
        return Ok(assignment);
    }
    let own = store.held_by(&owner)?.iter().any(|reservation| reservation.ip == *ip);
    match own {
        true => Err(duplicate(*ip, who)),
        false => {
            let why = format!("not available in range set {set}: it is held by another attachment");
            Err(Error::new(code::TRY_AGAIN_LATER, format!("{key}: {ip}: {why}")))
        }
    }
}

/// Allocates the next address in a set.
fn allocate_next(
    store: &mut Store,
    index: usize,
    set: &RangeSet,
    who: &Attachment,
) -> Result<Assignment, Error> {
    refuse_second(store, set, who)?;
    let owner = Owner::of(who);
    let last = store.last_reserved(index);
    for assignment in set.after(last).take(TRIES) {
        let ip = assignment.address.addr();
        if store.reserve(ip, &owner)? {
            return Ok(assignment);
        }
        if store.is_empty(ip) {
            store.release(&Reservation::of(ip))?;
            if store.reserve(ip, &owner)? {
                return Ok(assignment);
            }
        }
    }
    if let Some(assignment) = allocate_free(store, set, last, &owner)? {
        return Ok(assignment);
    }
    if reclaim(store, |ip| set.contains(ip))? > 0
        && let Some(assignment) = allocate_free(store, set, last, &owner)?
    {
        return Ok(assignment);
    }
    Err(exhausted(set))
}

/// Allocates the first address without a file.
fn allocate_free(
    store: &mut Store,
    set: &RangeSet,
    last: Option<IpAddr>,
    owner: &Owner,
) -> Result<Option<Assignment>, Error> {
    let held = store.held()?;
    match set.choose(last, &held) {
        Some(assignment) if store.reserve(assignment.address.addr(), owner)? => Ok(Some(assignment)),
        _ => Ok(None),
    }
}

/// Fails if the attachment has an address in the set.
///
/// Releases reservations from an earlier boot: the container lost those addresses with the interface.
fn refuse_second(store: &mut Store, set: &RangeSet, who: &Attachment) -> Result<(), Error> {
    for owner in owners(who) {
        let mut own = store.held_by(&owner)?;
        own.retain(|reservation| set.contains(reservation.ip));
        if own.is_empty() {
            continue;
        }
        let lost = store.abandoned(|ip| own.iter().any(|reservation| reservation.ip == ip))?;
        for reservation in own {
            match lost.contains(&reservation) {
                true => store.release(&reservation)?,
                false => return Err(duplicate(reservation.ip, who)),
            }
        }
    }
    Ok(())
}

/// Releases reservations that no attachment can hold; returns how many.
fn reclaim(store: &mut Store, among: impl Fn(IpAddr) -> bool) -> Result<usize, Error> {
    let abandoned = store.abandoned(among)?;
    for reservation in &abandoned {
        store.release(reservation)?;
    }
    Ok(abandoned.len())
}

fn duplicate(ip: IpAddr, who: &Attachment) -> Error {
    let Attachment { container, ifname } = who;
    Error::new(
        code::INVALID_ENVIRONMENT,
        format!(
            "CNI_CONTAINERID: {container}: {ip} has been allocated to its {ifname}, duplicate allocation is \
             not allowed; DEL releases it"
        ),
    )
}

fn exhausted(set: &RangeSet) -> Error {
    Error::new(code::TRY_AGAIN_LATER, format!("no IP addresses available in range set: {set}"))
}

// === DEL ===

/// Releases the attachment's addresses; reservations in the old format only if there are no others.
///
/// # Errors
/// Also if one of the addresses has a reservation that cannot be read. `prevResult` has the addresses; without it, any
/// such reservation may be the attachment's.
fn release(store: &mut Store, who: &Attachment, call: &Call) -> Result<(), Error> {
    let mut any = false;
    for owner in owners(who) {
        let own = store.held_by(&owner)?;
        let errors: Vec<Error> =
            own.iter().filter_map(|reservation| store.release(reservation).err()).collect();
        if let Some(error) = Error::join(errors) {
            return Err(error);
        }
        if !own.is_empty() {
            any = true;
            break;
        }
    }
    let known = call.config.prev_result().ok().flatten();
    let known: Option<Vec<IpAddr>> =
        known.map(|result| result.ips.iter().map(|ip| ip.address.addr().to_canonical()).collect());
    match known {
        None if any => Ok(()),
        known => store.require_readable(known.as_deref()),
    }
}

/// Returns the owners that the attachment has in files, in search order.
fn owners(who: &Attachment) -> [Owner; 2] {
    [Owner::of(who), Owner::without_interface(who)]
}

// === STATUS ===

/// Fails if ADD would fail: the directory is not writable, or a set has no free address.
fn inspect(network: &Network) -> Result<(), Error> {
    let Network { location, sources, routes: _, resolv_conf: _ } = network;
    directory::usable("ipam.dataDir", &location.directory)?;
    let Some(store) = Store::find(location)? else { return Ok(()) };
    let held = store.held()?;
    let sets = sources.iter().map(|source| &source.set);
    for set in sets.filter(|set| set.choose(None, &held).is_none()) {
        if store.abandoned(|ip| set.contains(ip))?.is_empty() {
            return Err(exhausted(set));
        }
    }
    Ok(())
}
