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
//!   because it cannot be read, is written beside it: [`deferred_releases`].
//!
//! Source: whereabouts 0.9 for names and meaning of options; `docs/plugins/weft-ipam.md`.

mod agent;
mod allocation;
mod capacity;
mod deferred_releases;
mod owners;
mod release;
mod rounds;
pub mod settings;
pub mod store;
pub mod transfer;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cni::invocation::{Attach, Attachment, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::Success;
use cni::{Error, code};
use ipam::address_store::SlotId;
use plugin_support::directory;
use plugin_support::log;

use self::allocation::{Who, give};
use self::capacity::has_room;
use self::release::{Demanded, Gone, release, take_back, take_back_anywhere};
use self::settings::Settings;
use self::store::{Owner, Store};

/// The plugin, under one of its names.
pub struct WeftIpam(pub &'static str);

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
