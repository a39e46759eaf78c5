//! What the agent does for other nodes: gives up addresses of this node's blocks that they ask for by name, if they are free.
//!
//! ```text
//!   IPBlock of one address, `transferRequestedFrom` this node ──watch──► leased ahead? ── yes ─► the block is given back
//!                                                          └─► weft-cni release-address ─► a hole in the ledger ─► in the block
//!                                                                             └─► held: its holder, in `transferRefusedBy`
//! ```
//!
//! Rules: the ledger is changed before the cluster hears of it, by the hands, under its lock ([`ipam::transfer`] says why that is
//! enough); one address at a time; what cannot be done now is tried again. Nothing is watched on a node that has no addresses of the cluster's.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipam::RegistryError;
use ipam::transfer::{self, TransferOutcome, TransferReply};
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::agent_state::AgentState;
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

/// How long until what could not be done is tried again.
const PAUSE: Duration = Duration::from_secs(2);
/// How long where there is nothing to do.
const LONG: Duration = Duration::from_secs(300);

struct TransferHandler {
    client: Client,
    node: String,
    ledgers: PathBuf,
    agent: Arc<AgentState>,
}

/// Gives up what is asked for, for ever.
pub(crate) async fn follow(client: Client, node: String, ledgers: PathBuf, agent: Arc<AgentState>) {
    agent.block_provider.was_asked().await;
    let asked: Arc<Cache<Option<OwnedBlock>>> = Arc::new(Cache::new("ipblocks that are asked for"));
    let selection = Config::default().labels(&asked_of(&node));
    tokio::spawn(fill(Api::<BlockObject>::all(client.clone()), selection, Arc::clone(&asked)));
    let giver = TransferHandler { client, node, ledgers, agent };
    let mut changes = asked.changes();
    loop {
        changes.mark_unchanged();
        let mut again = false;
        for owned in asked.all() {
            let Some(owned) = owned.as_ref().as_ref() else { continue };
            if owned.object.holder.transfer_requested_from == giver.node {
                again |= giver.serve(owned).await;
            }
        }
        let _ = timeout(if again { PAUSE } else { LONG }, changes.changed()).await;
    }
}

/// A reason why an address could not be given up yet.
#[derive(Debug, thiserror::Error)]
enum TransferError {
    /// The API server was asked, and there was no answer in time.
    #[error("the API server does not answer")]
    NoAnswer,
    /// The pool could not be read.
    #[error("{reason}")]
    ReadPool {
        /// The text of the error.
        reason: String,
    },
    /// The registry could not be read or changed.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// No thread ran weft-cni to the end.
    #[error("{reason}")]
    RunAside {
        /// The text of the error.
        reason: String,
    },
    /// weft-cni could not release the address.
    #[error("{reason}")]
    ReleaseAddress {
        /// The text of the failure.
        reason: String,
    },
}

impl TransferError {
    /// An error of the pool's object.
    fn read_pool(error: &dyn Display) -> TransferError {
        TransferError::ReadPool { reason: error.to_string() }
    }

    /// An error of the thread that runs weft-cni.
    fn run_aside(error: &dyn Display) -> TransferError {
        TransferError::RunAside { reason: error.to_string() }
    }
}

impl TransferHandler {
    /// Does what is asked; must it be tried again?
    async fn serve(&self, owned: &OwnedBlock) -> bool {
        let address = owned.object.net.addr();
        match self.give_up(owned).await {
            Ok(TransferOutcome::Transferred) => {
                info!(pool = owned.pool, %address, "given up for another node");
            }
            Ok(TransferOutcome::Refused) => {
                info!(pool = owned.pool, %address, "asked for by another node, and held");
            }
            Ok(TransferOutcome::Obsolete) => {}
            Ok(TransferOutcome::Pending) => return true,
            Err(error) => {
                let why = error.to_string();
                warn!(pool = owned.pool, %address, why, "asked for by another node, and not given up yet");
                return true;
            }
        }
        false
    }

    async fn give_up(&self, owned: &OwnedBlock) -> Result<TransferOutcome, TransferError> {
        let OwnedBlock { pool, object, .. } = owned;
        let pools = Api::<PoolObject>::all(self.client.clone());
        let found = timeout(PAUSE, pools.get_opt(pool)).await.map_err(|_| TransferError::NoAnswer)?;
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
        let ahead = self.agent.block_provider.give_back_ahead(&registry, &block).await;
        if ahead? {
            // Its block is nobody's now: the notice goes with the next look.
            return Ok(TransferOutcome::Pending);
        }
        let (ledgers, ledger) = (self.ledgers.clone(), block.holder.store.clone());
        let (lease, ip) = (block.lease_id(), object.net.addr());
        if let Some(directory) = other_directory(&ledger) {
            // Whether it is free there nobody can say.
            let by =
                format!("a ledger in {directory} (ipam.dataDir), which is not its agent's --address-stores,");
            let told =
                transfer::complete_transfer(&registry, object, block, TransferReply::InUse(by), now()).await;
            return Ok(told?);
        }
        let given = run_on_thread(move || {
            WeftCni::find().and_then(|weft_cni| weft_cni.release_address(&ledgers, &ledger, &lease, ip))
        });
        let given = given.await.map_err(|error| TransferError::run_aside(&error))?;
        let failed = |failure: Failure| TransferError::ReleaseAddress { reason: failure.to_string() };
        let given = given.map_err(failed)?;
        Ok(transfer::complete_transfer(&registry, object, block, given, now()).await?)
    }
}
