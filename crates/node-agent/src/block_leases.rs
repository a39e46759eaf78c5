//! What the agent does so that its node gives only what is its node's: says that the node is there where somebody believes it is
//! gone, and finds in the ledgers what is not the node's any more.
//!
//! ```text
//!   IPBlock of this node, `status.nodeLivenessProbe` ──watch──► the probe is removed: the node is alive
//!   ledgers ──► a lease that no IPBlock of this node is ──► asked once more ──► weft-cni release-address: nothing new of it
//!                                                                  something in it is held, and it is nobody's ──► leased again
//! ```
//!
//! A boot is not needed for a node to lose what it has: its object is deleted while its agent is away, or a hand deletes an
//! IPBlock and what keeps it there (what is deleted and kept: `deleted`). What becomes of a lease in doubt: `docs/design/ipam.md#loss-of-a-lease`.
//!
//! Rules: the ledgers are read here, without their locks, and changed by the hands alone; the cluster is asked after a
//! ledger was read, so that a lease that is missing is not one that is about to be told; a ledger that cannot be changed, or is
//! locked, keeps neither the others nor an answer waiting longer than that. Of several ledgers with one lease all but the one
//! that is called after the pool are copies. Nothing is watched on a node that has no addresses of the cluster's. A ledger in
//! another directory nobody sees: its leases are not compared, and are answered for.

mod deleted_blocks;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipam::address_store::Block;
use ipam::{BlockState, Holder, Registry, RegistryError};
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

/// How long changes are gathered.
const GATHER: Duration = Duration::from_millis(500);
/// How long until what could not be done is tried again.
const PAUSE: Duration = Duration::from_secs(5);
/// How long until it is looked again whether what is another's, and held here as well, is nobody's by now, and whether what was
/// deleted is held still: of that nothing is watched.
const AGAIN: Duration = Duration::from_secs(15);
/// How long where nothing changes.
const LONG: Duration = Duration::from_secs(300);

/// A lease: its addresses and its name.
type Lease = (IpNet, String);

/// A lease of a ledger that has something to lose.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Written {
    ledger: String,
    lease: Lease,
    state: BlockState,
    /// Does no other ledger have it?
    alone: bool,
}

struct Leases {
    client: Client,
    node: String,
    ledgers: PathBuf,
    agent: Arc<AgentState>,
}

/// Does so for ever: whoever is asked whether it is there answers, whatever becomes of its ledgers.
pub(crate) async fn follow(client: Client, node: String, ledgers: PathBuf, agent: Arc<AgentState>) {
    agent.block_provider.was_asked().await;
    let own = agent.block_provider.own();
    let leases = Leases { client, node, ledgers, agent };
    own.synced().await;
    tokio::join!(leases.answer_all(&own), leases.compare_all(&own), leases.empty_all(&own));
}

/// What came of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    /// Nothing is left to do.
    All,
    /// Something is held here: what is another's, or was deleted.
    Others,
}

/// A reason why the leases of this node's address stores could not be brought up to date.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    /// The API server was asked, and there was no answer in time.
    #[error("the API server does not answer")]
    NoAnswer,
    /// The API server refused a request.
    #[error("{request}: {reason}")]
    Request {
        /// The request, or its object.
        request: String,
        /// The text of the error of the API.
        reason: String,
    },
    /// The registry could not be read or changed.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A lease could not be made again.
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
    /// A lease could not be marked as unconfirmed: no thread ran weft-cni to the end.
    #[error("{reason}")]
    RunAside {
        /// The text of the error.
        reason: String,
    },
    /// A lease could not be marked as unconfirmed: weft-cni failed.
    #[error("{reason}")]
    MarkUnconfirmed {
        /// The text of the failure.
        reason: String,
    },
    /// A block that was deleted could not be given back.
    #[error("block {block}: {cause}")]
    GiveBack {
        /// The block.
        block: IpNet,
        /// The reason.
        cause: Box<LeaseError>,
    },
    /// Leases of some address stores could not be compared.
    #[error("{}", joined(.0))]
    Compare(Vec<(String, LeaseError)>),
}

/// The errors of several address stores, each with the name of its store.
fn joined(failed: &[(String, LeaseError)]) -> String {
    let lines: Vec<String> = failed.iter().map(|(store, error)| format!("ledger {store}: {error}")).collect();
    lines.join("; ")
}

impl LeaseError {
    /// An error of the thread that runs weft-cni.
    fn run_aside(error: &dyn Display) -> LeaseError {
        LeaseError::RunAside { reason: error.to_string() }
    }

    /// An error of the API about a request.
    fn request(request: impl Into<String>, error: &kube::Error) -> LeaseError {
        LeaseError::Request { request: request.into(), reason: api_error::describe(error) }
    }
}

/// Waits until something changes, or it is time to try again.
async fn wait(changes: &mut Receiver<u64>, done: Result<Done, LeaseError>) {
    if let Err(error) = &done {
        warn!(
            why = error.to_string(),
            "whose the leases of this node's ledgers are could not be asked, or not be written down"
        );
    }
    let wait = match done {
        Ok(Done::All) => LONG,
        Ok(Done::Others) => AGAIN,
        Err(_) => PAUSE,
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
            wait(&mut changes, done.map(|()| Done::All)).await;
        }
    }

    async fn compare_all(&self, own: &Cache<Option<OwnedBlock>>) {
        let mut changes = own.changes();
        loop {
            changes.mark_unchanged();
            let known = all(own).iter().map(|owned| (owned.object.net, owned.object.lease_id())).collect();
            wait(&mut changes, self.compare(&known).await).await;
        }
    }

    async fn empty_all(&self, own: &Cache<Option<OwnedBlock>>) {
        let mut changes = own.changes();
        loop {
            changes.mark_unchanged();
            let mut done = Ok(Done::All);
            for owned in all(own).iter().filter(|owned| owned.is_deleted && !owned.object.is_single_address())
            {
                let block = &owned.object.net;
                done = match self.give_back(owned).await {
                    Ok(Done::All) => done,
                    Ok(others) => done.and(Ok(others)),
                    Err(error) => Err(LeaseError::GiveBack { block: *block, cause: Box::new(error) }),
                };
            }
            wait(&mut changes, done).await;
        }
    }

    /// Says that this node is there.
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
        info!(block = name, "the cluster took this node for gone: it was told otherwise");
        Ok(())
    }

    /// Looks for leases that the ledgers have and the cluster does not.
    async fn compare(&self, known: &BTreeSet<Lease>) -> Result<Done, LeaseError> {
        let mut missing = in_ledgers(&self.ledgers)?;
        missing.retain(|written| !known.contains(&written.lease));
        if missing.is_empty() {
            return Ok(Done::All);
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
        let (mut failed, mut outcome) = (Vec::new(), Done::All);
        for written in missing {
            // What is wrong with one ledger is nothing to the others.
            let mut done = match written.state {
                BlockState::Active => self.doubt(&written.ledger, written.lease.clone()).await,
                _ => Ok(()),
            };
            if done.is_ok() && !leased.iter().any(|(net, _)| *net == written.lease.0) {
                done = match self.lease_again(&written).await {
                    Ok(Done::All) => Ok(()),
                    Ok(Done::Others) => {
                        outcome = Done::Others;
                        Ok(())
                    }
                    Err(why) => Err(why),
                };
            }
            failed.extend(done.err().map(|error| (written.ledger, error)));
        }
        if failed.is_empty() { Ok(outcome) } else { Err(LeaseError::Compare(failed)) }
    }

    /// Has nothing new given of a lease.
    async fn doubt(&self, ledger: &str, (net, lease): Lease) -> Result<(), LeaseError> {
        let (ledgers, name) = (self.ledgers.clone(), ledger.to_owned());
        let doubted = run_on_thread(move || {
            WeftCni::find().and_then(|weft_cni| weft_cni.mark_unconfirmed(&ledgers, &name, &lease))
        });
        let doubted = doubted.await.map_err(|error| LeaseError::run_aside(&error))?;
        let failed = |failure: Failure| LeaseError::MarkUnconfirmed { reason: failure.to_string() };
        if doubted.map_err(failed)? {
            warn!(ledger, block = %net, "not this node's any more: nothing new is given of it");
        }
        Ok(())
    }

    /// Leases what is in doubt and held, if it is nobody's: the next question of its ledger finds it. For whom a single address is
    /// held, and what keeps it for others, is written beside the ledger.
    async fn lease_again(&self, missing: &Written) -> Result<Done, LeaseError> {
        let Written { ledger, lease: (net, lease), state: _, alone: _ } = missing;
        let place = self.ledgers.join(ledger);
        let Some(written) = address_store::read(&place)? else { return Ok(Done::All) };
        let is_held = |block: &Block| block.lease == *lease && written.is_unconfirmed_and_used(block);
        let Some(block) = written.blocks().find(is_held) else { return Ok(Done::All) };
        let Some(registry) = self.pool_of(missing).await? else { return Ok(Done::All) };
        let failed = |cause| LeaseError::Recreate { net: *net, cause };
        let known = registry.read(*net).await.map_err(failed)?;
        if known.is_some_and(|known| !known.holder.node.is_empty()) {
            return Ok(Done::Others);
        }
        let mut holder = Holder { node: self.node.clone(), store: ledger.clone(), ..Holder::default() };
        if block.single_owner {
            let held = address_store::held(&place, &written)?.into_iter().find(|held| held.ip == net.addr());
            let Some(Held { owner, .. }) = held else { return Ok(Done::All) };
            holder.owner = format!("{}/{}/{}", owner.uid, owner.container, owner.ifname);
            holder.claim = owner.claim;
        }
        let leased = ipam::recreate_lease(&registry, registry.grid, *net, &holder, now()).await;
        if leased.map_err(failed)? {
            info!(block = %net, "something in it is held: leased again");
            return Ok(Done::All);
        }
        Ok(Done::Others)
    }

    /// The pool that has this block: the one that the ledger is called after, or that alone can be meant. A ledger that is
    /// not called so may be a copy of the one that is.
    async fn pool_of(&self, missing: &Written) -> Result<Option<ApiRegistry>, LeaseError> {
        let Written { ledger, lease: (net, _), state: _, alone } = missing;
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
        let named = having.iter().find(|pool| pool.metadata.name.as_deref() == Some(ledger.as_str()));
        if named.is_none() && !alone {
            warn!(ledger, block = %net, "a copy of another ledger, it seems: nothing is leased for it; move it elsewhere");
            return Ok(None);
        }
        let pool = named.or(having.first().filter(|_| having.len() == 1));
        Ok(pool.and_then(|pool| ApiRegistry::of(&self.client, pool, &self.agent.metrics.address_requests)))
    }
}

fn all(own: &Cache<Option<OwnedBlock>>) -> Vec<OwnedBlock> {
    own.all().into_iter().filter_map(|owned| Option::clone(&owned)).collect()
}

/// The leases from which the ledgers below a directory give, and those in doubt of which something is held. What lies beside
/// them is no ledger; a copy under a name that one may have is.
fn in_ledgers(directory: &Path) -> Result<Vec<Written>, ReadError> {
    let mut leases = Vec::new();
    let mut holders: BTreeMap<Lease, usize> = BTreeMap::new();
    for (name, place) in address_store::all(directory)? {
        // What cannot be read now gives nothing.
        let Ok(Some(ledger)) = address_store::read(&place) else { continue };
        for block in ledger.blocks() {
            *holders.entry((block.net, block.lease)).or_default() += 1;
        }
        let can_lose =
            |block: &Block| block.state == BlockState::Active || ledger.is_unconfirmed_and_used(block);
        // Without a cluster a block's lease is its network.
        let own = ledger.blocks().filter(|block| can_lose(block) && block.lease != block.net.to_string());
        leases.extend(own.map(|block| Written {
            ledger: name.clone(),
            lease: (block.net, block.lease),
            state: block.state,
            alone: true,
        }));
    }
    for written in &mut leases {
        written.alone = holders.get(&written.lease) == Some(&1);
    }
    Ok(leases)
}

#[cfg(test)]
mod tests {
    use ipam::{AddressStore, BlockLease};

    use super::*;

    #[test]
    fn only_what_a_cluster_leased_and_may_be_given_is_compared() {
        let directory = std::env::temp_dir().join(format!("weft-leases-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("p")).unwrap();
        let mut ledger = AddressStore::new("b");
        for (net, uid) in [
            ("10.0.0.0/24", "u.0"),
            ("10.0.1.0/24", "10.0.1.0/24"),
            ("10.0.2.0/24", "v.1"),
            ("10.0.3.0/24", "w.1"),
        ] {
            let net: IpNet = net.parse().unwrap();
            let lease = BlockLease { net, id: uid.into(), single_owner: false, reserved: Vec::new() };
            let _ = ledger.add_block(&lease, 1);
        }
        let _ = ledger.mark_unconfirmed("v.1").unwrap();
        let held = ledger.find("10.0.3.1".parse().unwrap()).unwrap();
        let _ = ledger.hold(held, 1, 7);
        let _ = ledger.mark_unconfirmed("w.1").unwrap();
        std::fs::write(directory.join("p/ledger"), ledger.to_bytes()).unwrap();
        std::fs::create_dir_all(directory.join("Old_copy")).unwrap();
        std::fs::write(directory.join("Old_copy/ledger"), ledger.to_bytes()).unwrap();
        let found = in_ledgers(&directory).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        let written = |net: &str, uid: &str, state| Written {
            ledger: "p".to_owned(),
            lease: (net.parse().unwrap(), uid.to_owned()),
            state,
            alone: true,
        };
        let held = written("10.0.3.0/24", "w.1", BlockState::Unconfirmed);
        assert_eq!(found, [written("10.0.0.0/24", "u.0", BlockState::Active), held]);
    }

    #[test]
    fn what_a_copy_of_a_ledger_has_too_is_not_one_ledgers_alone_even_if_the_other_cannot_lose_it() {
        let directory = std::env::temp_dir().join(format!("weft-leases-copy-{}", std::process::id()));
        let mut ledger = AddressStore::new("b");
        for (net, uid) in [("10.0.0.0/24", "u.0"), ("10.0.1.0/24", "v.0")] {
            let lease = BlockLease {
                net: net.parse().unwrap(),
                id: uid.into(),
                single_owner: false,
                reserved: Vec::new(),
            };
            let _ = ledger.add_block(&lease, 1);
        }
        let mut old = AddressStore::new("b");
        let (net, uid) = ("10.0.0.0/24".parse().unwrap(), "u.0".into());
        let _ = old.add_block(&BlockLease { net, id: uid, single_owner: false, reserved: Vec::new() }, 1);
        let _ = old.mark_unconfirmed("u.0").unwrap();
        for (name, ledger) in [("p", ledger), ("p.bak", old)] {
            std::fs::create_dir_all(directory.join(name)).unwrap();
            std::fs::write(directory.join(name).join("ledger"), ledger.to_bytes()).unwrap();
        }
        let found = in_ledgers(&directory).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        let alone: Vec<_> =
            found.iter().map(|written| (written.ledger.as_str(), &*written.lease.1, written.alone)).collect();
        assert_eq!(alone, [("p", "u.0", false), ("p", "v.0", true)]);
    }
}
