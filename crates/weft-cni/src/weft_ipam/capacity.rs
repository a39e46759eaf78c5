//! STATUS: whether a pool has a free address, on this node or in the cluster.

use cni::{Error, code};
use ipam::address_store::Usage;
use ipam::{AllocationKind, Clock};
use rpc::allocate::Operation;

use super::agent;
use super::store::{Store, now};
use plugin_config::weft_ipam::{Pool, Settings, Source};

pub(super) fn has_room(settings: &Settings, pool: &Pool) -> Result<(), Error> {
    let clock = Clock { now: now(), quarantine: settings.quarantine };
    let store = Store::find(&settings.directory, &pool.name)?;
    let none = ipam::AddressStore::new("");
    let addresses = store.as_ref().map_or(&none, |store| &store.addresses);
    let has_free = addresses.has_free(clock, |ip| pool.filter.admits(ip), 1);
    let Usage { held, quarantined, free } = match has_free {
        true => return Ok(()),
        false => addresses.usage(clock, |ip| pool.filter.admits(ip)),
    };
    store.as_ref().map_or(Ok(()), Store::require_readable)?;
    let refusal = match settings.source {
        Source::File => {
            let lease = agent::allocate_locally(pool, addresses, AllocationKind::Any);
            (lease.leases.is_empty() && lease.confirmed.is_empty()).then(|| "no address is free".to_owned())
        }
        Source::Cluster => {
            let request = agent::allocate_request(settings, pool, addresses, Operation::CheckCapacity, "");
            // Other calls must not wait for the agent.
            drop(store);
            let asked = agent::ask(&settings.socket, request);
            let asked = asked
                .map_err(|error| Error { msg: format!("pool {}: {}", pool.name, error.msg), ..error })?;
            asked.error()
        }
    };
    let Some(why) = refusal else { return Ok(()) };
    let details =
        format!("in the blocks of this node {held} are held, {quarantined} in quarantine, {free} free");
    Err(Error::new(code::NOT_AVAILABLE, format!("pool {}: {}: {why}", pool.name, pool.filter.range))
        .details(details))
}
