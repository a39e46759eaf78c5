//! Transfer handler: transfers addresses out of this node's blocks to nodes that request them.
//!
//! ```text
//!   IPBlock of this node, `transferRequests` ──watch──► prefetched block? ── yes ─► block returned
//!           └─ no ─► weft-cni release-address --any ─► block returned, or addresses reserved in the store, then in the IPBlock
//!   IPBlock of one address, `transferRequestedFrom` this node ──watch──► in a prefetched block? ── yes ─► block returned
//!           └─ no ─► weft-cni release-address ─► free: reserved in the store, then in the block's IPBlock
//!                                             └─► held: its holder is written to `transferRefusedBy`
//! ```
//!
//! - `weft-cni` changes the store, under the store's lock, before the cluster is updated; [`ipam::transfer`] explains
//!   why that is safe.
//! - Addresses are handled one at a time. A failed transfer is tried again.
//! - An address in a store outside of `--address-stores` is refused: the agent cannot tell whether it is free.
//! - Nothing is watched on a node that never requested an address.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipam::address_store::is_valid_name;
use ipam::give_up::{self, GiveUpMessage, GiveUpOutcome};
use ipam::transfer::{self, TransferOutcome, TransferReply};
use ipam::{IpBlock, RegistryError, TransferRequest};
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::agent_state::AgentState;
use crate::block_provider::GiveUp;
use cli_support::background::run_on_thread;
use cli_support::failure::Failure;
use ipam_api::api_registry::{ApiRegistry, asked_of};
use ipam_api::clock::now;
use ipam_api::ip_objects::{BlockObject, PoolObject};
use ipam_api::owned_block::OwnedBlock;
use ipam_api::store_name::other_directory;
use kube_support::api_error;
use kube_support::cache::{Cache, follow as fill};
use node_support::weft_cni::WeftCni;

/// Pause before an unfinished transfer is tried again, and deadline for the pool to be read.
const RETRY: Duration = Duration::from_secs(2);
/// Pause if there is nothing to do.
const IDLE: Duration = Duration::from_secs(300);

struct TransferHandler {
    client: Client,
    node: String,
    store_dir: PathBuf,
    agent: Arc<AgentState>,
}

/// Serves transfer requests until the agent ends.
pub(crate) async fn follow(client: Client, node: String, store_dir: PathBuf, agent: Arc<AgentState>) {
    agent.block_provider.wait_until_used().await;
    let requested: Arc<Cache<Option<OwnedBlock>>> = Arc::new(Cache::new("ipblocks with a transfer request"));
    let selection = Config::default().labels(&asked_of(&node));
    tokio::spawn(fill(client.clone(), Api::<BlockObject>::all, selection, Arc::clone(&requested)));
    let handler = TransferHandler { client, node, store_dir, agent };
    let own = handler.agent.block_provider.own_blocks();
    let (mut changes, mut own_changes) = (requested.changes(), own.changes());
    let mut freed = handler.agent.block_provider.refused.changes();
    loop {
        changes.mark_unchanged();
        own_changes.mark_unchanged();
        freed.mark_unchanged();
        let mut again = false;
        // Another node needed an address, and one is free now.
        for refused in handler.agent.block_provider.refused.take_due() {
            if handler.give_up(&own, &refused.asked, &refused.request).await {
                handler.agent.block_provider.refused.try_again(refused);
                again = true;
            }
        }
        for owned in own.all() {
            let Some(owned) = owned.as_ref().as_ref() else { continue };
            if let Some(request) = give_up::next_request(&owned.object, now()) {
                again |= handler.give_up(&own, owned, request).await;
            }
        }
        for owned in requested.all() {
            let Some(owned) = owned.as_ref().as_ref() else { continue };
            if owned.object.holder.transfer_requested_from == handler.node {
                again |= handler.serve(owned).await;
            }
        }
        let changed = async {
            tokio::select! {
                changed = changes.changed() => changed,
                changed = own_changes.changed() => changed,
                changed = freed.changed() => changed,
            }
        };
        let _ = timeout(if again { RETRY } else { IDLE }, changed).await;
    }
}

/// Reason why an address could not be transferred yet.
#[derive(Debug, thiserror::Error)]
enum TransferError {
    /// The API server did not answer in time.
    #[error("the API server does not answer")]
    NoAnswer,
    /// The pool could not be read.
    #[error("{reason}")]
    ReadPool {
        /// Message of the error.
        reason: String,
    },
    /// The registry could not be read or changed.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The thread that runs weft-cni failed.
    #[error("{reason}")]
    RunOnThread {
        /// Message of the error.
        reason: String,
    },
    /// weft-cni could not release the address.
    #[error("{reason}")]
    ReleaseAddress {
        /// Message of the failure.
        reason: String,
    },
}

impl TransferError {
    /// Returns an error of the pool's object.
    fn read_pool(error: &dyn Display) -> TransferError {
        TransferError::ReadPool { reason: error.to_string() }
    }

    /// Returns the error of the thread that ran weft-cni.
    fn run_on_thread(error: &dyn Display) -> TransferError {
        TransferError::RunOnThread { reason: error.to_string() }
    }
}

impl TransferHandler {
    /// Serves a request for any address. The result is whether it must be tried again.
    async fn give_up(
        &self,
        own: &Cache<Option<OwnedBlock>>,
        asked: &OwnedBlock,
        request: &TransferRequest,
    ) -> bool {
        let (pool, node) = (&asked.pool, &request.node);
        match self.try_give_up(own, asked, request).await {
            Ok(GiveUpOutcome::GivenUp) => {
                info!(pool, node, "gave up free addresses to another node");
            }
            Ok(GiveUpOutcome::Refused) => self.agent.block_provider.refused.remember(asked, request),
            // The change of the object is about to be seen.
            Ok(GiveUpOutcome::Pending) => return true,
            Err(error) => {
                let error = error.to_string();
                warn!(pool, node, error, "failed to give up addresses to another node; will try again");
                return true;
            }
        }
        false
    }

    async fn try_give_up(
        &self,
        own: &Cache<Option<OwnedBlock>>,
        asked: &OwnedBlock,
        request: &TransferRequest,
    ) -> Result<GiveUpOutcome, TransferError> {
        let OwnedBlock { pool, object, .. } = asked;
        let store = &object.holder.store;
        let is_of_store = |owned: &OwnedBlock| {
            let holder = &owned.object.holder;
            owned.pool == *pool && holder.node == self.node && holder.store == *store
        };
        // The objects are read before the store gives up anything.
        let objects = own.all().into_iter().filter_map(|owned| Option::clone(&owned));
        let objects: Vec<IpBlock> = objects.filter(is_of_store).map(|owned| owned.object).collect();
        let Some(registry) = self.registry(pool).await? else { return Ok(GiveUpOutcome::Refused) };
        // The agent cannot read a store in another directory. The name becomes part of a path.
        if !is_valid_name(store) {
            give_up::end_request(&registry, object, request).await?;
            return Ok(GiveUpOutcome::Refused);
        }
        match self.agent.block_provider.give_up_prefetched(&registry, store, request).await? {
            GiveUp::Done => {
                give_up::end_request(&registry, object, request).await?;
                return Ok(GiveUpOutcome::GivenUp);
            }
            // A call of this node waits for an address itself and keeps the store locked.
            GiveUp::Busy => {
                give_up::end_request(&registry, object, request).await?;
                return Ok(GiveUpOutcome::Refused);
            }
            GiveUp::Nothing => {}
        }
        let message = GiveUpMessage { request: request.clone(), known: give_up::known_blocks(&objects) };
        let (store_dir, store) = (self.store_dir.clone(), store.clone());
        let given = run_on_thread(move || {
            WeftCni::find().and_then(|weft_cni| weft_cni.give_up(&store_dir, &store, &message))
        });
        let given = given.await.map_err(|error| TransferError::run_on_thread(&error))?;
        let failed = |failure: Failure| TransferError::ReleaseAddress { reason: failure.to_string() };
        let given = given.map_err(failed)?;
        Ok(give_up::complete_give_up(&registry, &objects, object, request, given, now()).await?)
    }

    /// Returns the registry of a pool; `None` if it does not exist or is invalid.
    async fn registry(&self, pool: &str) -> Result<Option<ApiRegistry>, TransferError> {
        let pools = Api::<PoolObject>::all(self.client.clone());
        let found = timeout(RETRY, pools.get_opt(pool)).await.map_err(|_| TransferError::NoAnswer)?;
        let found = found.map_err(|error| TransferError::ReadPool { reason: api_error::describe(&error) })?;
        Ok(found.and_then(|pool| ApiRegistry::of(&self.client, &pool, &self.agent.metrics.address_requests)))
    }

    /// Serves a transfer request. The result is whether it must be tried again.
    async fn serve(&self, owned: &OwnedBlock) -> bool {
        let address = owned.object.net.addr();
        match self.transfer(owned).await {
            Ok(TransferOutcome::Transferred) => {
                info!(pool = owned.pool, %address, "transferred address to another node");
            }
            Ok(TransferOutcome::Refused) => {
                info!(pool = owned.pool, %address, "refused to transfer address to another node: it is in use");
            }
            Ok(TransferOutcome::Obsolete) => {}
            Ok(TransferOutcome::Pending) => return true,
            Err(error) => {
                let error = error.to_string();
                warn!(pool = owned.pool, %address, error, "failed to transfer address to another node; will try again");
                return true;
            }
        }
        false
    }

    async fn transfer(&self, owned: &OwnedBlock) -> Result<TransferOutcome, TransferError> {
        let OwnedBlock { pool, object, .. } = owned;
        let pools = Api::<PoolObject>::all(self.client.clone());
        let found = timeout(RETRY, pools.get_opt(pool)).await.map_err(|_| TransferError::NoAnswer)?;
        let found = found.map_err(|error| TransferError::ReadPool { reason: api_error::describe(&error) })?;
        let grid = found.as_ref().map(PoolObject::grid).transpose();
        let grid = grid.map_err(|error| TransferError::read_pool(&error))?.flatten();
        let cluster = found
            .as_ref()
            .and_then(|pool| ApiRegistry::of(&self.client, pool, &self.agent.metrics.address_requests));
        let Some((grid, registry)) = grid.zip(cluster) else { return Ok(TransferOutcome::Obsolete) };
        let wanted = transfer::requested_block(&registry, grid, &self.node, object, now()).await;
        let Some(block) = wanted? else {
            return Ok(TransferOutcome::Obsolete);
        };
        let ahead = self.agent.block_provider.return_prefetched(&registry, &block).await;
        if ahead? {
            // The block is free now; the request is answered in the next round.
            return Ok(TransferOutcome::Pending);
        }
        let (store_dir, store) = (self.store_dir.clone(), block.holder.store.clone());
        let (lease, ip) = (block.lease_id(), object.net.addr());
        if let Some(directory) = other_directory(&store) {
            // The agent cannot tell whether the address is free there.
            let by = format!(
                "an address store in {directory} (ipam.dataDir), which is not the agent's --address-stores,"
            );
            let reply = TransferReply::InUse(by);
            let outcome = transfer::complete_transfer(&registry, object, block, reply, now()).await;
            return Ok(outcome?);
        }
        let released = run_on_thread(move || {
            WeftCni::find().and_then(|weft_cni| weft_cni.release_address(&store_dir, &store, &lease, ip))
        });
        let released = released.await.map_err(|error| TransferError::run_on_thread(&error))?;
        let failed = |failure: Failure| TransferError::ReleaseAddress { reason: failure.to_string() };
        let reply = released.map_err(failed)?;
        Ok(transfer::complete_transfer(&registry, object, block, reply, now()).await?)
    }
}
