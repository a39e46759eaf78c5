//! Comparison of the node's address stores with the IPBlocks that the node leases.
//!
//! ```text
//!   IPBlock of this node, `status.nodeLivenessProbe` ──watch──► the probe is removed: the node is alive
//!   address store ──► lease without an IPBlock ──► listed again ──► weft-cni marks it unconfirmed: no new address of it
//!                                                       └─► addresses are held, and no node leases it: leased again
//! ```
//!
//! A node loses a lease without a reboot if the IPBlock is deleted while the agent is away, or if an operator deletes
//! the IPBlock and the finalizer. Deleted IPBlocks that the finalizer keeps are in `deleted_blocks`.
//!
//! - Address stores are read without locks; only `weft-cni` changes them.
//! - The cluster is listed after the stores are read: otherwise a lease made in between would seem to be missing.
//! - A store that is locked or cannot be changed does not delay the others or the answer to a probe.
//! - Of several stores with one lease, all but the one named after the pool count as copies.
//! - Nothing is watched on a node that never requested an address.
//! - Stores in other directories cannot be read, so their leases are not compared, and probes are answered.
//!
//! Source: `docs/design/ipam.md#loss-of-a-lease`.

mod deleted_blocks;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipam::address_store::Block;
use ipam::{BlockState, Holder, IpBlock, Registry, RegistryError};
use ipnet::IpNet;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use tokio::sync::watch::Receiver;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::agent_state::AgentState;
use cli_support::background::run_on_thread;
use cli_support::failure::Failure;
use ipam_api::api_registry::{ApiRegistry, of_node};
use ipam_api::clock::now;
use ipam_api::ip_objects::{BlockObject, LayoutState, PoolObject, block_name};
use ipam_api::owned_block::OwnedBlock;
use kube_support::api_error;
use kube_support::cache::Cache;
use kube_support::lookup::ASK_MAX;
use node_support::address_store;
use node_support::address_store::{Held, ReadError};
use node_support::weft_cni::WeftCni;

/// Time for which changes are collected before a comparison.
const GATHER: Duration = Duration::from_millis(500);
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(5);
/// Pause while addresses are held in a block that another node leases or that was deleted: no event reports a release.
const RECHECK: Duration = Duration::from_secs(15);
/// Pause if nothing changes.
const IDLE: Duration = Duration::from_secs(300);

/// Lease network and identifier.
type Lease = (IpNet, String);

/// Lease in an address store that can be lost: an active block, or an unconfirmed one with held addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct StoredLease {
    store: String,
    lease: Lease,
    state: BlockState,
    /// Whether no other store contains the lease.
    is_unique: bool,
}

struct Leases {
    client: Client,
    node: String,
    store_dir: PathBuf,
    agent: Arc<AgentState>,
}

/// Runs until the agent ends. Probes are answered even if the address stores cannot be compared.
pub(crate) async fn follow(client: Client, node: String, store_dir: PathBuf, agent: Arc<AgentState>) {
    agent.block_provider.wait_until_used().await;
    let own = agent.block_provider.own_blocks();
    let leases = Leases { client, node, store_dir, agent };
    own.synced().await;
    tokio::join!(leases.answer_all(&own), leases.compare_all(&own), leases.return_deleted(&own));
}

/// Outcome of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Nothing is left to do.
    Done,
    /// Addresses are held in a block that another node leases or that was deleted: check again later.
    Pending,
    /// The cluster was restored: another node may return an earlier lease of a block any moment.
    Settling,
}

/// Reason why the leases of the address stores could not be compared or changed.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    /// The API server did not answer in time.
    #[error("the API server does not answer")]
    NoAnswer,
    /// The API server rejected a request.
    #[error("{request}: {reason}")]
    Request {
        /// The request text, or an object.
        request: String,
        /// Description of the API error.
        reason: String,
    },
    /// The registry could not be read or changed.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A lease could not be created again.
    #[error("lease {net} again: {cause}")]
    Recreate {
        /// The block.
        net: IpNet,
        /// The error of the registry.
        cause: RegistryError,
    },
    /// An address store could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The thread that runs weft-cni failed.
    #[error("{reason}")]
    RunOnThread {
        /// Message of the error.
        reason: String,
    },
    /// weft-cni failed to mark a lease as unconfirmed.
    #[error("{reason}")]
    MarkUnconfirmed {
        /// Message of the failure.
        reason: String,
    },
    /// A deleted block could not be returned.
    #[error("block {block}: {cause}")]
    ReturnBlock {
        /// Network of the block.
        block: IpNet,
        /// Reason of the failure.
        cause: Box<LeaseError>,
    },
    /// The leases of some address stores could not be compared.
    #[error("{}", joined(.0))]
    Compare(Vec<(String, LeaseError)>),
}

/// Joins errors from several address stores, each with the store name.
fn joined(failed: &[(String, LeaseError)]) -> String {
    let lines: Vec<String> =
        failed.iter().map(|(store, error)| format!("address store {store}: {error}")).collect();
    lines.join("; ")
}

impl LeaseError {
    /// Returns the error of a thread that ran weft-cni.
    fn run_on_thread(error: &dyn Display) -> LeaseError {
        LeaseError::RunOnThread { reason: error.to_string() }
    }

    /// Returns the error of an API request.
    fn request(request: impl Into<String>, error: &kube::Error) -> LeaseError {
        LeaseError::Request { request: request.into(), reason: api_error::describe(error) }
    }
}

/// Waits until an IPBlock changes, or the pause of the outcome is over.
async fn wait(changes: &mut Receiver<u64>, done: Result<Outcome, LeaseError>) {
    if let Err(error) = &done {
        warn!(
            error = error.to_string(),
            "failed to compare the address stores with the IPBlocks of this node"
        );
    }
    let wait = match done {
        Ok(Outcome::Done) => IDLE,
        Ok(Outcome::Pending) => RECHECK,
        Ok(Outcome::Settling) => RETRY,
        Err(_) => RETRY,
    };
    let _ = timeout(wait, changes.changed()).await;
    sleep(GATHER).await;
}

impl Leases {
    async fn answer_all(&self, own: &Cache<Option<OwnedBlock>>) {
        let mut changes = own.changes();
        loop {
            changes.mark_unchanged();
            let mut done = Ok(());
            for owned in all(own).iter().filter(|owned| owned.is_probed) {
                done = done.and(self.answer(&block_name(&owned.pool, owned.object.net)).await);
            }
            wait(&mut changes, done.map(|()| Outcome::Done)).await;
        }
    }

    async fn compare_all(&self, own: &Cache<Option<OwnedBlock>>) {
        let mut changes = own.changes();
        let mut restorations = self.agent.block_provider.restorations();
        loop {
            changes.mark_unchanged();
            restorations.mark_unchanged();
            // After a restore the watch may show leases that the cluster does not have.
            let known = match self.agent.block_provider.is_settling() {
                true => BTreeSet::new(),
                false => all(own).iter().map(|owned| (owned.object.net, owned.object.lease_id())).collect(),
            };
            let done = self.compare(&known).await;
            let done = match self.agent.block_provider.is_settling() {
                true => done.map(|_| Outcome::Settling),
                false => done,
            };
            tokio::select! {
                () = wait(&mut changes, done) => {}
                _ = restorations.changed() => {}
            }
        }
    }

    async fn return_deleted(&self, own: &Cache<Option<OwnedBlock>>) {
        let mut changes = own.changes();
        loop {
            changes.mark_unchanged();
            let mut done = Ok(Outcome::Done);
            for owned in all(own).iter().filter(|owned| owned.is_deleted && !owned.object.is_single_address())
            {
                let block = &owned.object.net;
                done = match self.return_block(owned).await {
                    Ok(Outcome::Done) => done,
                    Ok(others) => done.and(Ok(others)),
                    Err(error) => Err(LeaseError::ReturnBlock { block: *block, cause: Box::new(error) }),
                };
            }
            wait(&mut changes, done).await;
        }
    }

    /// Removes the liveness probe of a block: this node is alive.
    async fn answer(&self, name: &str) -> Result<(), LeaseError> {
        let blocks = Api::<BlockObject>::all(self.client.clone());
        let work = async {
            let Some(mut object) = blocks.get_opt(name).await? else { return Ok(()) };
            if !object.is_probed() || object.spec.node != self.node {
                return Ok(());
            }
            object.remove_probe();
            match blocks.replace(name, &PostParams::default(), &object).await {
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
                other => other.map(drop),
            }
        };
        let done = timeout(ASK_MAX, work).await.map_err(|_| LeaseError::NoAnswer)?;
        done.map_err(|error| LeaseError::request(format!("ipblock {name}"), &error))?;
        info!(block = name, "answered the liveness probe of an IPBlock: this node is alive");
        Ok(())
    }

    /// Finds leases in the address stores that the cluster does not have, and handles them.
    async fn compare(&self, known: &BTreeSet<Lease>) -> Result<Outcome, LeaseError> {
        let mut missing = stored_leases(&self.store_dir)?;
        missing.retain(|written| !known.contains(&written.lease));
        if missing.is_empty() {
            return Ok(Outcome::Done);
        }
        let blocks = Api::<BlockObject>::all(self.client.clone());
        let own = ListParams::default().labels(&of_node(&self.node));
        let found = timeout(ASK_MAX, blocks.list(&own)).await;
        let found = found.map_err(|_| LeaseError::NoAnswer)?;
        let found = found.map_err(|error| LeaseError::request("list ipblocks", &error))?.items;
        let of_node = found.iter().filter(|block| block.spec.node == self.node);
        let leased: BTreeSet<Lease> =
            of_node.filter_map(BlockObject::object).map(|object| (object.net, object.lease_id())).collect();
        missing.retain(|written| !leased.contains(&written.lease));
        let (mut failed, mut outcome) = (Vec::new(), Outcome::Done);
        for written in missing {
            // A failure of one store does not affect the others.
            let mut done = match written.state {
                BlockState::Active => self.mark_unconfirmed(&written.store, written.lease.clone()).await,
                _ => Ok(()),
            };
            let net = written.lease.0;
            // The object of a single address may name an earlier owner.
            let is_single = net.prefix_len() == net.max_prefix_len();
            if done.is_ok() && (is_single || !leased.iter().any(|(leased, _)| *leased == net)) {
                done = self.lease_again(&written).await.map(|done| {
                    if done != Outcome::Done {
                        outcome = Outcome::Pending;
                    }
                });
            }
            failed.extend(done.err().map(|error| (written.store, error)));
        }
        if failed.is_empty() { Ok(outcome) } else { Err(LeaseError::Compare(failed)) }
    }

    /// Marks a lease as unconfirmed: no new address of it is allocated.
    async fn mark_unconfirmed(&self, store: &str, (net, lease): Lease) -> Result<(), LeaseError> {
        let (store_dir, name) = (self.store_dir.clone(), store.to_owned());
        let marked = run_on_thread(move || {
            WeftCni::find().and_then(|weft_cni| weft_cni.mark_unconfirmed(&store_dir, &name, &lease))
        });
        let marked = marked.await.map_err(|error| LeaseError::run_on_thread(&error))?;
        let failed = |failure: Failure| LeaseError::MarkUnconfirmed { reason: failure.to_string() };
        if marked.map_err(failed)? {
            warn!(store, block = %net, "block lease is not in the cluster; no new address of the block is allocated");
        }
        Ok(())
    }

    /// Leases an unconfirmed block with held addresses again, if no node leases it. The store's next request adopts it.
    ///
    /// The owner and the claim of a single address are read from the file beside the store.
    async fn lease_again(&self, missing: &StoredLease) -> Result<Outcome, LeaseError> {
        let StoredLease { store, lease: (net, lease), state: _, is_unique: _ } = missing;
        let path = self.store_dir.join(store);
        let Some(written) = address_store::read(&path)? else { return Ok(Outcome::Done) };
        let is_held = |block: &Block| block.lease == *lease && written.is_unconfirmed_and_used(block);
        let Some(block) = written.blocks().find(is_held) else { return Ok(Outcome::Done) };
        let Some(registry) = self.pool_of(missing).await? else { return Ok(Outcome::Done) };
        let failed = |cause| LeaseError::Recreate { net: *net, cause };
        let mut holder = Holder { node: self.node.clone(), store: store.clone(), ..Holder::default() };
        let mut owners = Vec::new();
        if block.single_owner {
            let held = address_store::held(&path, &written)?.into_iter().filter(|held| held.ip == net.addr());
            let held: Vec<Held> = held.collect();
            let name =
                |held: &Held| format!("{}/{}/{}", held.owner.uid, held.owner.container, held.owner.ifname);
            owners.extend(held.iter().map(name));
            let Some(Held { owner, .. }) = held.into_iter().next() else { return Ok(Outcome::Done) };
            holder.owner = format!("{}/{}/{}", owner.uid, owner.container, owner.ifname);
            holder.claim = owner.claim;
        }
        let known = registry.read(*net).await.map_err(failed)?;
        let leasing = known.filter(|known| !known.holder.node.is_empty());
        // Of several pods that share the address, the object names one.
        let is_current = |known: &IpBlock| owners.contains(&known.holder.owner);
        let is_kept = |known: &IpBlock| is_current(known) || !ipam::names_earlier_owner(known, &holder);
        if let Some(known) = leasing.filter(is_kept) {
            let is_own = (&known.holder.node, &known.holder.store) == (&holder.node, &holder.store);
            return Ok(if is_own { Outcome::Done } else { Outcome::Pending });
        }
        let leased = ipam::recreate_lease(&registry, registry.grid, *net, &holder, now()).await;
        if leased.map_err(failed)? {
            info!(block = %net, "leased block again because addresses in it are held");
            return Ok(Outcome::Done);
        }
        Ok(Outcome::Pending)
    }

    /// Returns the pool that contains the block: the pool that the store is named after, or the only candidate.
    ///
    /// A store with another name may be a copy of the one named after the pool.
    async fn pool_of(&self, missing: &StoredLease) -> Result<Option<ApiRegistry>, LeaseError> {
        let StoredLease { store, lease: (net, _), state: _, is_unique } = missing;
        let pools = Api::<PoolObject>::all(self.client.clone());
        let found = timeout(ASK_MAX, pools.list(&ListParams::default())).await;
        let found = found.map_err(|_| LeaseError::NoAnswer)?;
        let found = found.map_err(|error| LeaseError::request("list ippools", &error))?.items;
        let has = |pool: &&PoolObject| {
            let grid = pool.grid().ok().flatten().filter(|_| pool.layout_state() == Ok(LayoutState::Fixed));
            let is_single = net.prefix_len() == net.max_prefix_len();
            grid.and_then(|grid| grid.block_of(net.addr())).is_some_and(|block| is_single || block == *net)
        };
        let having: Vec<&PoolObject> = found.iter().filter(has).collect();
        let named = having.iter().find(|pool| pool.metadata.name.as_deref() == Some(store.as_str()));
        if named.is_none() && !is_unique {
            warn!(store, block = %net, "address store seems to be a copy of another one, so its block is not leased again; move it to another directory");
            return Ok(None);
        }
        let requests = &self.agent.metrics.address_requests;
        let is_missing = !found.iter().any(|pool| pool.metadata.name.as_deref() == Some(store.as_str()));
        if having.is_empty() && is_missing && *is_unique {
            // The object keeps the addresses from any pool that is created.
            return Ok(Some(ApiRegistry::of_missing_pool(&self.client, store, *net, requests)));
        }
        let pool = named.or(having.first().filter(|_| having.len() == 1));
        Ok(pool.and_then(|pool| ApiRegistry::of(&self.client, pool, requests)))
    }
}

fn all(own: &Cache<Option<OwnedBlock>>) -> Vec<OwnedBlock> {
    own.all().into_iter().filter_map(|owned| Option::clone(&owned)).collect()
}

/// Returns the leases of the stores below a directory that can be lost: active ones, and unconfirmed ones with held
/// addresses. Files that are no store are ignored. A copy whose name is valid for a store counts as a store.
fn stored_leases(directory: &Path) -> Result<Vec<StoredLease>, ReadError> {
    let mut leases = Vec::new();
    let mut holders: BTreeMap<Lease, usize> = BTreeMap::new();
    for (name, path) in address_store::all(directory)? {
        // A store that cannot be read now allocates nothing.
        let Ok(Some(store)) = address_store::read(&path) else { continue };
        for block in store.blocks() {
            *holders.entry((block.net, block.lease)).or_default() += 1;
        }
        let can_lose =
            |block: &Block| block.state == BlockState::Active || store.is_unconfirmed_and_used(block);
        // A store without a cluster uses the network as the lease's identifier.
        let own = store.blocks().filter(|block| can_lose(block) && block.lease != block.net.to_string());
        leases.extend(own.map(|block| StoredLease {
            store: name.clone(),
            lease: (block.net, block.lease),
            state: block.state,
            is_unique: true,
        }));
    }
    for written in &mut leases {
        written.is_unique = holders.get(&written.lease) == Some(&1);
    }
    Ok(leases)
}

#[cfg(test)]
mod tests {
    use ipam::{AddressStore, BlockLease};

    use super::*;

    #[test]
    fn address_store_comparison_covers_leases_that_can_be_lost() {
        let directory = std::env::temp_dir().join(format!("weft-leases-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("p")).unwrap();
        let mut store = AddressStore::new("b");
        for (net, uid) in [
            ("10.0.0.0/24", "u.0"),
            ("10.0.1.0/24", "10.0.1.0/24"),
            ("10.0.2.0/24", "v.1"),
            ("10.0.3.0/24", "w.1"),
        ] {
            let net: IpNet = net.parse().unwrap();
            let lease = BlockLease { net, id: uid.into(), single_owner: false, reserved: Vec::new() };
            let _ = store.add_block(&lease, 1);
        }
        let _ = store.mark_unconfirmed("v.1").unwrap();
        let held = store.find("10.0.3.1".parse().unwrap()).unwrap();
        let _ = store.hold(held, 1, 7);
        let _ = store.mark_unconfirmed("w.1").unwrap();
        std::fs::write(directory.join("p/ledger"), store.to_bytes()).unwrap();
        std::fs::create_dir_all(directory.join("Old_copy")).unwrap();
        std::fs::write(directory.join("Old_copy/ledger"), store.to_bytes()).unwrap();
        let found = stored_leases(&directory).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        let written = |net: &str, uid: &str, state| StoredLease {
            store: "p".to_owned(),
            lease: (net.parse().unwrap(), uid.to_owned()),
            state,
            is_unique: true,
        };
        let held = written("10.0.3.0/24", "w.1", BlockState::Unconfirmed);
        assert_eq!(found, [written("10.0.0.0/24", "u.0", BlockState::Active), held]);
    }

    #[test]
    fn address_store_copy_makes_its_leases_ambiguous() {
        let directory = std::env::temp_dir().join(format!("weft-leases-copy-{}", std::process::id()));
        let mut store = AddressStore::new("b");
        for (net, uid) in [("10.0.0.0/24", "u.0"), ("10.0.1.0/24", "v.0")] {
            let lease = BlockLease {
                net: net.parse().unwrap(),
                id: uid.into(),
                single_owner: false,
                reserved: Vec::new(),
            };
            let _ = store.add_block(&lease, 1);
        }
        let mut old = AddressStore::new("b");
        let (net, uid) = ("10.0.0.0/24".parse().unwrap(), "u.0".into());
        let _ = old.add_block(&BlockLease { net, id: uid, single_owner: false, reserved: Vec::new() }, 1);
        let _ = old.mark_unconfirmed("u.0").unwrap();
        for (name, store) in [("p", store), ("p.bak", old)] {
            std::fs::create_dir_all(directory.join(name)).unwrap();
            std::fs::write(directory.join(name).join("ledger"), store.to_bytes()).unwrap();
        }
        let found = stored_leases(&directory).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        let unique: Vec<_> = found
            .iter()
            .map(|written| (written.store.as_str(), &*written.lease.1, written.is_unique))
            .collect();
        assert_eq!(unique, [("p", "u.0", false), ("p", "v.0", true)]);
    }
}
