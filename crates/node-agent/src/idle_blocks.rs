//! Return of idle blocks: an address store returns blocks and addresses that it does not need, without a CNI call.
//! Reserved addresses that no single address uses any more become free in the block again: [`restoring`].
//!
//! ```text
//!   address store, read without its lock ──► idle or returning blocks? lease that the store does not contain?
//!       └─ yes ─► weft-cni release-address --idle ─► blocks marked as returning ─► returned ─► removed from the store
//! ```
//!
//! - `weft-cni` marks a block as returning, under the lock of the store; such a block never allocates again.
//! - A lease that no store contains belongs to a request whose client is dead. It was seen before the store was locked, so
//!   no call in progress is about to write it.
//! - A drained node has no calls; the blocks are returned like any others.
//!
//! Source: `docs/design/ipam.md#return-of-blocks`.

mod restoring;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipam::give_up::{self, ReturnMessage};
use ipam::{AddressStore, BlockInfo, BlockState, Clock, IDLE, IpBlock, RegistryError, release_lease};
use ipnet::IpNet;
use kube::{Api, Client};
use tokio::time::timeout;
use tracing::{info, warn};

use self::restoring::Looks;
use crate::agent_state::AgentState;
use cli_support::background::run_on_thread;
use ipam_api::api_registry::ApiRegistry;
use ipam_api::clock::now;
use ipam_api::ip_objects::PoolObject;
use ipam_api::owned_block::OwnedBlock;
use kube_support::api_error;
use kube_support::cache::Cache;
use kube_support::lookup::ASK_MAX;
use node_support::address_store;
use node_support::address_store::ReadError;
use node_support::weft_cni::WeftCni;

/// Pause between two rounds.
const EVERY: Duration = Duration::from_secs(15);
/// Pause between two rounds after a restore of the cluster.
const EVERY_SETTLING: Duration = Duration::from_secs(3);
/// Shortest quarantine that is assumed for a store whose networks are unknown since the agent started.
const QUARANTINE_MIN: u64 = IDLE;

struct IdleBlocks {
    client: Client,
    store_dir: PathBuf,
    node: String,
    agent: Arc<AgentState>,
    looks: Looks,
}

/// Reason why the blocks of a store were not returned.
#[derive(Debug, thiserror::Error)]
enum ReturnError {
    /// The address store could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The registry could not be read or changed.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The pool could not be read.
    #[error("pool {pool}: {reason}")]
    ReadPool {
        /// The pool.
        pool: String,
        /// Description of the API error.
        reason: String,
    },
    /// weft-cni failed.
    #[error("{reason}")]
    RunWeftCni {
        /// Message of the failure.
        reason: String,
    },
}

/// Returns idle blocks until the agent ends.
pub(crate) async fn follow(client: Client, node: String, store_dir: PathBuf, agent: Arc<AgentState>) {
    agent.block_provider.wait_until_used().await;
    let own = agent.block_provider.own_blocks();
    own.synced().await;
    let mut imported = agent.block_provider.imported_changes();
    let mut restorations = agent.block_provider.restorations();
    let mut idle = IdleBlocks { client, store_dir, node, agent, looks: Looks::default() };
    loop {
        imported.mark_unchanged();
        restorations.mark_unchanged();
        match address_store::all(&idle.store_dir) {
            Ok(stores) => {
                for (store, _) in stores {
                    if let Err(error) = idle.return_of(&store, &own).await {
                        warn!(store, %error, "failed to return idle blocks; the next round tries again");
                    }
                    if let Err(error) = idle.restore_addresses_of(&store, &own).await {
                        warn!(store, %error, "failed to restore reserved addresses; a later round tries again");
                    }
                }
            }
            Err(error) => warn!(%error, "failed to list the address stores"),
        }
        // After a restore another node may wait for a lease that this node does not need any more.
        let every = if idle.agent.block_provider.is_settling() { EVERY_SETTLING } else { EVERY };
        tokio::select! {
            _ = timeout(every, imported.changed()) => {}
            _ = restorations.changed() => own.synced().await,
        }
    }
}

impl IdleBlocks {
    /// Returns the blocks of a store that it does not need.
    async fn return_of(&self, store: &str, own: &Cache<Option<OwnedBlock>>) -> Result<(), ReturnError> {
        let path = self.store_dir.join(store);
        let objects = self.objects_of(store, own);
        // The objects are older than what is read now.
        let Some(addresses) = address_store::read(&path)? else { return Ok(()) };
        let quarantine = self.quarantine_of(store);
        let reserved: Vec<OwnedBlock> =
            objects.iter().filter(|owned| has_unpublished(&addresses, owned)).cloned().collect();
        let has_work = has_work(addresses, &objects, Clock { now: now(), quarantine });
        let pool = objects.first().map_or(store, |owned| owned.pool.as_str());
        let is_marked = address_store::is_marked_imported(&path);
        let has_imported = self.agent.block_provider.has_imported(pool).unwrap_or(is_marked);
        for owned in reserved {
            self.publish_reservations(&path, &owned).await?;
        }
        if !has_work && has_imported == is_marked {
            return Ok(());
        }
        let found = self.find_pool(pool).await?;
        let registry = found.as_ref().and_then(|pool| self.registry_of(pool));
        if found.is_some() && registry.is_none() {
            return Ok(());
        }
        let blocks =
            self.change(store, ReturnMessage { quarantine, returned: Vec::new(), has_imported }).await?;
        let mut returned = Vec::new();
        for block in blocks.iter().filter(|block| block.state == BlockState::Returning) {
            let BlockInfo { net, lease, released_at, .. } = block;
            let released_at = if *released_at == 0 { now() } else { *released_at };
            let registry = self.registry_for(registry.as_ref(), pool, *net);
            release_lease(&registry, *net, (&self.node, lease), released_at).await?;
            info!(pool, block = %net, "returned block that this node does not need");
            returned.push(lease.clone());
        }
        let ready = match &registry {
            Some(registry) => self.agent.block_provider.ready_blocks(registry, store).await?,
            None => HashSet::new(),
        };
        let Some(stored) = address_store::read(&path)? else { return Ok(()) };
        for object in unneeded(&objects, &stored).filter(|object| !ready.contains(&object.lease_id())) {
            let registry = self.registry_for(registry.as_ref(), pool, object.net);
            release_lease(&registry, object.net, (&self.node, &object.lease_id()), now()).await?;
            info!(pool, block = %object.net, "returned block that no address store contains");
        }
        if !returned.is_empty() {
            self.change(store, ReturnMessage { quarantine, returned, has_imported }).await?;
        }
        Ok(())
    }

    /// Returns the objects of a store, as the agent knows them.
    fn objects_of(&self, store: &str, own: &Cache<Option<OwnedBlock>>) -> Vec<OwnedBlock> {
        let is_of_store =
            |owned: &OwnedBlock| owned.object.holder.node == self.node && owned.object.holder.store == store;
        let objects = own.all().into_iter().filter_map(|owned| Option::clone(&owned));
        objects.filter(is_of_store).collect()
    }

    /// Longest quarantine among the networks that use a store, as far as it is known.
    fn quarantine_of(&self, store: &str) -> u64 {
        self.agent.block_provider.quarantine_of(store).max(QUARANTINE_MIN)
    }

    /// Writes reservations of the store into the cluster if a process was killed before that.
    async fn publish_reservations(&self, store: &Path, owned: &OwnedBlock) -> Result<(), ReturnError> {
        let Some((registry, excluded)) = self.registry_and_excluded(&owned.pool).await? else {
            return Ok(());
        };
        let addresses = match address_store::read(store)? {
            Some(store) => give_up::unpublished_reservations(&store, &owned.object, &excluded),
            None => Vec::new(),
        };
        let count = addresses.len();
        if count > 0 && give_up::publish_reservations(&registry, &owned.object, addresses).await? {
            info!(pool = owned.pool, block = %owned.object.net, count, "published reserved addresses for other nodes");
        }
        Ok(())
    }

    /// Asks `weft-cni` to change the store; returns the store's blocks.
    async fn change(&self, store: &str, message: ReturnMessage) -> Result<Vec<BlockInfo>, ReturnError> {
        let (store_dir, name) = (self.store_dir.clone(), store.to_owned());
        let changed = run_on_thread(move || {
            WeftCni::find().and_then(|weft_cni| weft_cni.return_idle(&store_dir, &name, &message))
        });
        let changed = changed.await.map_err(|error| ReturnError::RunWeftCni { reason: error.to_string() })?;
        changed.map_err(|failure| ReturnError::RunWeftCni { reason: failure.to_string() })
    }

    /// Returns the pool's registry, or one for an object whose pool does not exist.
    fn registry_for(&self, registry: Option<&ApiRegistry>, pool: &str, net: IpNet) -> ApiRegistry {
        let requests = &self.agent.metrics.address_requests;
        registry.cloned().unwrap_or_else(|| ApiRegistry::of_missing_pool(&self.client, pool, net, requests))
    }

    fn registry_of(&self, pool: &PoolObject) -> Option<ApiRegistry> {
        ApiRegistry::of(&self.client, pool, &self.agent.metrics.address_requests)
    }

    async fn find_pool(&self, pool: &str) -> Result<Option<PoolObject>, ReturnError> {
        let failed = |reason: String| ReturnError::ReadPool { pool: pool.to_owned(), reason };
        let pools = Api::<PoolObject>::all(self.client.clone());
        let found = timeout(ASK_MAX, pools.get_opt(pool)).await;
        let found = found.map_err(|_| failed("the API server does not answer".to_owned()))?;
        found.map_err(|error| failed(api_error::describe(&error)))
    }

    /// Returns the registry of a pool and the addresses that the pool excludes; `None` if it does not exist or is invalid.
    async fn registry_and_excluded(
        &self,
        pool: &str,
    ) -> Result<Option<(ApiRegistry, Vec<IpNet>)>, ReturnError> {
        let found = self.find_pool(pool).await?;
        Ok(found.and_then(|pool| Some((self.registry_of(&pool)?, pool.exclude().ok()?))))
    }
}

/// Whether the store has reserved addresses of a block that are not reserved in the cluster.
fn has_unpublished(addresses: &AddressStore, owned: &OwnedBlock) -> bool {
    !give_up::unpublished_reservations(addresses, &owned.object, &[]).is_empty()
}

/// Whether a store has blocks to return, or the cluster has leases of it that it does not contain.
fn has_work(mut addresses: AddressStore, objects: &[OwnedBlock], clock: Clock) -> bool {
    // A store without a cluster uses the network as the lease's identifier, and returns nothing.
    if addresses.blocks().any(|block| block.lease == block.net.to_string()) {
        return false;
    }
    let stored: Vec<BlockInfo> = addresses.lease_request(ipam::AllocationKind::Nothing).blocks;
    stored.iter().any(|block| block.state == BlockState::Returning)
        || unneeded(objects, &addresses).next().is_some()
        || !addresses.return_idle_blocks(clock, IDLE).is_empty()
}

/// Leases that a store does not contain, without those that keep held addresses from other nodes.
fn unneeded<'a>(objects: &'a [OwnedBlock], addresses: &AddressStore) -> impl Iterator<Item = &'a IpBlock> {
    let known: HashSet<String> = addresses.blocks().map(|block| block.lease).collect();
    let unknown =
        objects.iter().map(|owned| &owned.object).filter(|object| !known.contains(&object.lease_id()));
    unknown.filter(|object| !addresses.needs_object(object)).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use ipam::{BlockLease, Holder};

    use super::*;

    fn store(net: &str) -> AddressStore {
        let mut store = AddressStore::new("b");
        let lease = BlockLease {
            net: net.parse().unwrap(),
            id: "u.0".into(),
            single_owner: false,
            reserved: Vec::new(),
        };
        let _ = store.add_block(&lease, 1);
        store
    }

    #[test]
    fn idle_block_is_returned_without_a_call_and_not_before() {
        let clock = |now| Clock { now, quarantine: QUARANTINE_MIN };
        assert!(!has_work(store("10.0.0.0/30"), &[], clock(IDLE)));
        assert!(has_work(store("10.0.0.0/30"), &[], clock(IDLE + 1)));
        let mut held = store("10.0.0.0/30");
        let id = held.find("10.0.0.1".parse().unwrap()).unwrap();
        let _ = held.hold(id, 1, 7);
        assert!(!has_work(held, &[], clock(10 * IDLE)));
    }

    #[test]
    fn idle_block_that_no_address_store_contains_is_returned() {
        let net = "10.0.0.4/30".parse().unwrap();
        let object = IpBlock {
            net,
            uid: "v".into(),
            version: "1".into(),
            holder: Holder { node: "n".into(), store: "p".into(), ..Holder::default() },
            reserved: Vec::new(),
        };
        let owned = OwnedBlock { pool: "p".into(), object, is_probed: false, is_deleted: false };
        let clock = Clock { now: 5, quarantine: QUARANTINE_MIN };
        assert!(has_work(store("10.0.0.0/30"), &[owned], clock));
    }
}
