//! STATUS: whether a pool has a free address, on this node or in the cluster.

use cni::{Error, code};
use ipam::address_store::Usage;
use ipam::{AllocationKind, Clock};
use rpc::allocate::Operation;

use super::agent;
use super::settings::{Pool, Settings, Source};
use super::store::{Store, now};

pub(super) fn has_room(settings: &Settings, pool: &Pool) -> Result<(), Error> {
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
            let asked = agent::ask(&settings.socket, demand);
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
