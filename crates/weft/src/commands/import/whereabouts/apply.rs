//! Import of the addresses: creates the pools, and an object that keeps each address for its pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam::registry::{PoolState, create_object};
use ipam::{Holder, Registry, RegistryError};
use ipnet::IpNet;
use kube::{Api, Client};
use prometheus_client::metrics::counter::Counter;
use rpc::allocate::PoolReference;

use super::objects::Allocation;
use super::outcome::{Outcome, describe_holder, is_claim_of, outcome_by_owner, pool_name};
use super::{ClusterState, find_pod};
use cli_support::failure::Failure;
use ipam_api::api_registry::ApiRegistry;
use ipam_api::imported_claim::ImportedClaim;
use ipam_api::ip_objects::PoolObject;
use ipam_api::{cluster_snapshot, imported_addresses, pool_lookup};
use kube_support::api_error;

/// Number of attempts to change a pool that is changed concurrently.
const ATTEMPTS: usize = 5;

/// Creates the pools and an object for each address. Returns the outcome of each address.
pub(super) async fn import(client: &Client, state: &ClusterState) -> Result<Vec<Outcome>, Failure> {
    let mut pools: BTreeMap<(String, IpNet), pool_lookup::Pool> = BTreeMap::new();
    let mut outcomes = vec![Outcome::PodDeleted; state.addresses.len()];
    // Large ranges first, because a smaller range inside one belongs to the same pool.
    let mut order: Vec<usize> = (0..state.addresses.len()).collect();
    order.sort_by_key(|at| state.addresses[*at].allocation.range.prefix_len());
    for at in order {
        let one = &state.addresses[at];
        let Allocation { network_name, range, pod, address, .. } = &one.allocation;
        let key = (network_name.clone(), *range);
        if !pools.contains_key(&key) {
            let name = pool_name(network_name, *range);
            let reference =
                PoolReference { name, must_exist: false, network: network_name.clone(), range: *range };
            let pool = pool_lookup::resolve(client, &reference).await;
            pools.insert(key.clone(), pool.map_err(|why| Failure::new(why.to_string()))?);
        }
        outcomes[at] = match (outcome_by_owner(&state.snapshot, one), find_pod(&state.snapshot, pod)) {
            (Some(outcome), _) => outcome,
            (None, None) => Outcome::PodDeleted,
            (None, Some(holder)) => {
                let created = create_block(client, &pools[&key], &one.allocation, holder).await;
                created.map_err(|fault| Failure::new(format!("{address}: {fault}")))?
            }
        };
    }
    for pool in pools.values().map(|pool| pool.name.as_str()).collect::<BTreeSet<_>>() {
        let is_of_pool = |outcome: &&Outcome| **outcome == Outcome::Kept(pool.to_owned());
        if outcomes.iter().any(|outcome| is_of_pool(&outcome)) {
            label_pool(client, pool).await?;
        }
    }
    Ok(outcomes)
}

/// Labels a pool as one with imported addresses, so that the nodes ask for them.
async fn label_pool(client: &Client, name: &str) -> Result<(), Failure> {
    let pools: Api<PoolObject> = Api::all(client.clone());
    let failed = |error: &kube::Error| Failure::new(format!("pool {name}: {}", api_error::describe(error)));
    for _ in 0..ATTEMPTS {
        let pool = pools.get(name).await.map_err(|error| failed(&error))?;
        match imported_addresses::set_label(&pools, &pool, true).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => return other.map_err(|error| failed(&error)),
        }
    }
    Err(Failure::new(format!("pool {name}: it is changed concurrently")).next("run the command again"))
}

/// Creates the object of one address, unless it exists with another owner.
async fn create_block(
    client: &Client,
    pool: &pool_lookup::Pool,
    allocation: &Allocation,
    found: &cluster_snapshot::Holder,
) -> Result<Outcome, RegistryError> {
    let Allocation { address, pod, container, interface, .. } = allocation;
    let (namespace, name) = (found.namespace.clone(), found.name.clone());
    let pod_key = (namespace.clone(), name.clone());
    let (interface, node) = (interface.clone(), found.node.clone());
    let claim = ImportedClaim { namespace, pod: name, interface: interface.clone(), node }.name();
    let owner = format!("{}/{container}/{interface}", found.uid);
    let holder = Holder { owner, claim: claim.clone(), ..Holder::default() };
    let registry = ApiRegistry::new(client.clone(), pool, pod_key, Counter::default());
    let created = create_object(&registry, IpNet::from(*address), &holder).await;
    let is_new = created.is_ok();
    match created {
        // Distinguish an object of an earlier import from one with another owner.
        Err(RegistryError::Conflict) => match registry.read(IpNet::from(*address)).await? {
            // The pod may have been recreated, and the controller reclaims an object whose pod no longer exists.
            Some(mut existing) if is_claim_of(&existing.holder.claim, pod) => {
                let is_same = existing.holder.owner == holder.owner && existing.holder.claim == claim;
                if existing.holder.node.is_empty() && !is_same {
                    (existing.holder.owner, existing.holder.claim) = (holder.owner, claim);
                    match registry.replace(&existing).await {
                        Err(RegistryError::Conflict) => {
                            return Ok(Outcome::Refused(
                                "its object changed concurrently; run the command again".to_owned(),
                            ));
                        }
                        replaced => drop(replaced?),
                    }
                }
            }
            Some(other) => return Ok(Outcome::Refused(format!("it is {}", describe_holder(&other.holder)))),
            None => {
                return Ok(Outcome::Refused(
                    "its object was deleted concurrently; run the command again".to_owned(),
                ));
            }
        },
        created => drop(created?),
    }
    // A recreated pool may be split into other blocks.
    if registry.pool_state(IpNet::from(*address)).await? != PoolState::SingleAddressesPossible {
        if is_new {
            delete_kept(&registry, *address).await?;
        }
        return Ok(Outcome::Refused("its pool was changed concurrently; run the command again".to_owned()));
    }
    // A node that leased the enclosing block may allocate the address to another pod.
    if let Some(block) = pool.grid.block_of(*address).filter(|_| !pool.grid.has_single_addresses_only())
        && let Some(block) = registry.read(block).await?
        && !block.reserved.contains(address)
    {
        delete_kept(&registry, *address).await?;
        let node = block.holder.node;
        return Ok(Outcome::Refused(format!("node {node} has already leased its block {}", block.net)));
    }
    Ok(Outcome::Kept(pool.name.clone()))
}

/// Deletes the object that keeps an address, unless a node leases it: the pod would wait for an address that it cannot get.
async fn delete_kept(registry: &ApiRegistry, address: IpAddr) -> Result<(), RegistryError> {
    match registry.read(IpNet::from(address)).await? {
        Some(kept) if kept.holder.node.is_empty() => registry.delete(&kept).await,
        _ => Ok(()),
    }
}
