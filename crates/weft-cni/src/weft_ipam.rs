//! `weft-ipam`: IPAM plugin whose addresses are unique in the cluster. It can also be called as `whereabouts`.
//!
//! ```text
//!   ADD   address store (locked) ─► free? ─► owner recorded, slot held ─► unlocked ─► on the disk ─► answer
//!                                     └─► no: agent leases a block ─► recorded ─┘
//! ```
//!
//! - An attachment has one address of each range set. A repeated ADD returns the same. Two sets succeed or fail together.
//! - While the node has a free address, an ADD needs neither API server nor agent. A DEL never needs them.
//! - A block that cannot be returned to the cluster now is returned by a later call. A release that cannot be written to
//!   an unreadable store is written to a file beside it: [`deferred_releases`].
//!
//! Source: whereabouts 0.9 for names and meaning of options; `docs/plugins/weft-ipam.md`.

mod agent;
mod allocation;
mod capacity;
mod deferred_releases;
mod earlier_sandbox;
mod imported;
mod overlap;
mod owners;
mod release;
pub mod store;
mod sync_rounds;
pub mod transfer;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cni::invocation::{Attach, Attachment, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::{Dns, Success};
use cni::{Error, code};
use ipam::address_store::SlotId;
use plugin_config::weft_ipam::{Pool, Settings};
use plugin_support::directory;
use plugin_support::log;
use plugins::ipam::host_local::resolv_conf;

use self::allocation::{Claimant, allocate};
use self::capacity::has_room;
use self::release::{
    Found, Released, ReturnPolicy, release, release_in_all_stores, release_slots, sweep_other_stores,
};
use self::store::{Owner, Store};

/// Plugin, under one of the two names.
pub struct WeftIpam(pub &'static str);

// === impl Plugin ===

impl Plugin for WeftIpam {
    fn name(&self) -> &'static str {
        self.0
    }

    fn replaces_state(&self) -> bool {
        self.0 == "whereabouts"
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        let settings = Arc::new(Settings::read(&request.call, Some(&request.who))?);
        let dns = dns(&settings)?;
        let all = (0..settings.sets.len()).map(|index| Arc::new(Claimant::of(&settings, request, index)));
        let (all, mut ips) = (all.collect::<Vec<_>>(), Vec::with_capacity(settings.sets.len()));
        for (set, who) in settings.sets.iter().zip(&all) {
            match allocate(&settings, set, who) {
                Ok(ip) => ips.push(ip),
                Err(error) => {
                    // All sets or none. Addresses of an earlier call may belong to a running container and are kept.
                    // Only their stores are locked again: another one may be locked by a process that does not end.
                    let new =
                        || all.iter().zip(&settings.sets).filter(|(who, _)| who.allocated.load(Relaxed));
                    let pools: Vec<&Arc<Pool>> = new().flat_map(|(_, set)| &set.pools).collect();
                    let tags = new().map(|(who, _)| who.tag).collect();
                    let _ = release(&settings, &pools, Released::of(&request.call, &request.who, tags));
                    return Err(error);
                }
            }
        }
        ips.extend(settings.fixed.iter().cloned());
        let routes = settings.routes.clone();
        Ok(Success { interfaces: Vec::new(), ips, routes, dns })
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        // If the ranges have changed or become invalid, the address is in another address store.
        let Ok(settings) = Settings::read(&request.call, None) else {
            return release_in_all_stores(&request.call, &request.who);
        };
        let released = Released::all(&request.call, &request.who, settings.sets.len());
        let settings = Arc::new(settings);
        if release(&settings, &settings.pools(), released)? != Found::All
            && let Err(error) = release_in_all_stores(&request.call, &request.who)
        {
            // The stores of this network have been read. A fault in another network's store must not fail this DEL.
            log!("{}: {error}", self.0);
        }
        Ok(())
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let settings = Settings::read(&request.call, Some(&request.who))?;
        let results = request.call.config.prev_result()?.unwrap_or_default().ips;
        for (index, set) in settings.sets.iter().enumerate() {
            let who = Claimant::of(&settings, request, index);
            let mut held = None;
            for pool in &set.pools {
                let Some(store) = Store::find(&settings.directory, &pool.name)? else { continue };
                let (store, own) = store.held_by(&[who.tag])?;
                held = held.or(own.first().and_then(|slot| store.addresses.address(*slot)));
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
                let held = store.addresses.held().map(|(slot, ..)| slot);
                let stale: Vec<SlotId> = held.filter(|slot| is_stale(&store.owner(*slot))).collect();
                release_slots(&settings, store, pool, ReturnPolicy::Always, &stale).map(drop)
            });
            errors.extend(swept.err());
        }
        errors.extend(sweep_other_stores(&settings, is_stale).err());
        Error::join(errors).map_or(Ok(()), Err)
    }

    fn status(&self, request: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        let unavailable = |error: Error| Error { code: code::NOT_AVAILABLE, ..error };
        let settings = Settings::written(&request.call, None)?;
        dns(&settings)?;
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

/// Returns the DNS settings of the result.
fn dns(settings: &Settings) -> Result<Dns, Error> {
    settings.resolv_conf.as_deref().map_or_else(|| Ok(settings.dns.clone()), resolv_conf::read)
}
