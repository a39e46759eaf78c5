//! Imports the addresses: creates the pools, and an object that keeps each address for the pod.

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
use super::{ClusterState, OwnedAddress, find_pod};
use ipam_api::api_registry::ApiRegistry;
use ipam_api::imported_claim::ImportedClaim;
use ipam_api::ip_objects::PoolObject;
use ipam_api::{cluster_snapshot, imported_addresses, pool_lookup};
use kube_support::api_error;

/// Number of failures in a row before no further address is tried: each may take a request's timeout.
const FAILURES_MAX: usize = 3;
/// Number of attempts to change a pool that is changed concurrently.
const ATTEMPTS: usize = 5;

/// Progress in one run.
struct ImportRun<'a> {
    client: &'a Client,
    state: &'a ClusterState,
    /// Pools for each network name and range, or why one is unusable.
    pools: BTreeMap<(String, IpNet), Result<pool_lookup::Pool, pool_lookup::Unusable>>,
    /// Pools in which an object may have been created.
    changed: BTreeSet<String>,
    /// For how many addresses in a row a request failed.
    failures: usize,
}

/// Creates the pools and an object for each address. Returns each address's outcome.
///
/// A failure does not end the import, because what was created is useful by itself, and a repeated run
/// continues.
pub(super) async fn import(client: &Client, state: &ClusterState) -> Vec<Outcome> {
    let mut run = ImportRun { client, state, pools: BTreeMap::new(), changed: BTreeSet::new(), failures: 0 };
    let mut outcomes = vec![Outcome::NotTried; state.addresses.len()];
    // Large ranges first, because a smaller range inside one belongs to the same pool.
    let mut order: Vec<usize> = (0..state.addresses.len()).collect();
    order.sort_by_key(|at| state.addresses[*at].allocation.range.prefix_len());
    for at in order {
        if run.failures < FAILURES_MAX {
            outcomes[at] = run.import(&state.addresses[at]).await;
        }
    }
    for pool in run.changed {
        let Err(error) = label_pool(client, &pool).await else { continue };
        let why = api_error::describe(&error);
        let why =
            format!("kept in pool {pool}, but nodes do not know yet that it has imported addresses: {why}");
        for outcome in outcomes.iter_mut().filter(|outcome| outcome.pool() == Some(pool.as_str())) {
            *outcome = Outcome::Failed(why.clone());
        }
    }
    outcomes
}

impl ImportRun<'_> {
    /// Creates the object for an address, and the pool.
    async fn import(&mut self, one: &OwnedAddress) -> Outcome {
        let Allocation { network_name, range, pod, .. } = &one.allocation;
        // A smaller range inside one belongs to the same pool, and must not get a pool of its own.
        if let Some((around, why)) = self.failed_around(network_name, *range) {
            return Outcome::Failed(format!("the pool of range {around} around it: {why}"));
        }
        let key = (network_name.clone(), *range);
        if !self.pools.contains_key(&key) {
            let name = pool_name(network_name, *range);
            let reference =
                PoolReference { name, must_exist: false, network: network_name.clone(), range: *range };
            let pool = pool_lookup::resolve(self.client, &reference).await;
            if matches!(pool, Err(pool_lookup::Unusable::Unknown(_))) {
                self.failures += 1;
            }
            self.pools.insert(key.clone(), pool);
        }
        let pool = match &self.pools[&key] {
            Ok(pool) => pool,
            Err(why) => return Outcome::Failed(why.to_string()),
        };
        if let Some(outcome) = outcome_by_owner(&self.state.snapshot, one) {
            return outcome;
        }
        let Some(holder) = find_pod(&self.state.snapshot, pod) else { return Outcome::PodDeleted };
        match create_block(self.client, pool, &one.allocation, holder).await {
            Ok(outcome) => {
                self.failures = 0;
                self.changed.extend(outcome.pool().map(str::to_owned));
                outcome
            }
            Err(fault) => {
                self.failures += 1;
                self.changed.insert(pool.name.clone());
                Outcome::Failed(fault.to_string())
            }
        }
    }

    /// Returns a range around this one in the network whose pool is unusable.
    fn failed_around(&self, network: &str, range: IpNet) -> Option<(IpNet, String)> {
        self.pools.iter().find_map(|((name, around), pool)| {
            let is_around = name == network && *around != range && around.contains(&range);
            pool.as_ref().err().filter(|_| is_around).map(|why| (*around, why.to_string()))
        })
    }
}

/// Labels a pool as one with imported addresses, so that the nodes ask for them.
async fn label_pool(client: &Client, name: &str) -> Result<(), kube::Error> {
    let pools: Api<PoolObject> = Api::all(client.clone());
    let mut attempt = 1;
    loop {
        let pool = pools.get(name).await?;
        match imported_addresses::set_label(&pools, &pool, true).await {
            Err(kube::Error::Api(status)) if status.code == 409 && attempt < ATTEMPTS => attempt += 1,
            set => return set,
        }
    }
}

/// Creates the object for one address, unless it exists with another owner.
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
