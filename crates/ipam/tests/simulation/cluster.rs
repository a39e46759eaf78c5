//! Simulated cluster: its nodes, the expected owner of each address, and the events of each step.

mod advance;
mod call;
mod changes;
mod check;
mod events;
mod liveness;
mod lost_leases;
mod lost_state;
mod manual_deletion;
mod node;
mod recovery;
mod restoring;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::ops::Add;
use std::sync::Arc;
use std::task::{Context, Waker};

use ipam::{AddressFilter, AllocationError, Clock, PoolLayout, Range};
use ipnet::IpNet;

use self::call::{Call, Verb};
use self::lost_state::Backup;
use self::node::Node;
use super::api_server::{Api, Random, Task};

/// Length of the quarantine in steps of the simulation.
const QUARANTINE: u64 = 300;
/// Time after which an idle block is returned.
const IDLE: u64 = 600;
/// Largest number of concurrent calls on a node.
const CALLS: usize = 3;

/// Parameters of a simulation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) subnet: &'static str,
    pub(crate) bits: u8,
    pub(crate) nodes: usize,
    pub(crate) steps: u64,
    /// Number of claims that keep addresses; with 0 no pod names an address either.
    pub(crate) claims: u64,
    /// Whether pods may ask a node for addresses before its agent has seen that an object was deleted.
    pub(crate) late: bool,
    /// Whether several pods may hold a claim's address at a time.
    pub(crate) shared: bool,
    /// Whether any object may be deleted manually. Objects of shared addresses always may.
    pub(crate) deleted: bool,
    /// Whether range, window and number of nodes change, nodes are drained, and addresses of claims are imported.
    pub(crate) changes: bool,
    /// Whether reserved addresses are restored.
    pub(crate) restores: bool,
    /// Whether address stores are removed and the database is restored to an earlier state.
    pub(crate) losses: bool,
}

/// Interface of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Owner {
    name: String,
    claim: String,
    /// Address with which the claim was restored; only the agent knows it.
    restored: Option<IpAddr>,
}

/// Events of one simulation, or of several.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) allocated: u64,
    pub(crate) refused: u64,
    /// Refused because another owner holds the named address.
    pub(crate) refused_by_name: u64,
    pub(crate) kills: u64,
    /// Blocks that were drained and returned.
    pub(crate) drained: u64,
    /// Addresses transferred to another node.
    pub(crate) transferred: u64,
    /// Addresses obtained in one call although they lay in a block of the same node.
    pub(crate) own_block: u64,
    /// Addresses that were allocated in quarantine, because no other was free.
    pub(crate) in_quarantine: u64,
    /// Addresses allocated to all free ones in a check that every node gets one.
    pub(crate) filled: u64,
    /// Leases lost by a node that was taken for dead.
    pub(crate) unconfirmed: u64,
    /// Leases created again under the pods that held addresses in them.
    pub(crate) leased_again: u64,
    /// Objects deleted manually while they were in use.
    pub(crate) deleted: u64,
    /// Blocks returned by their node because they were deleted manually.
    pub(crate) returned: u64,
    /// Changes of the range that were begun.
    pub(crate) enlarged: u64,
    /// Pods that got an imported address.
    pub(crate) imported: u64,
    /// Reserved addresses that became free in their block again.
    pub(crate) restored: u64,
    /// Address stores that were removed under their pods.
    pub(crate) stores_removed: u64,
    /// Backups of the database that were restored.
    pub(crate) backups: u64,
}

/// Simulated cluster.
pub(crate) struct Cluster {
    seed: u64,
    shape: Shape,
    layout: PoolLayout,
    filter: Arc<AddressFilter>,
    random: Random,
    /// Random numbers of the restored addresses. So the other events of a seed do not depend on them.
    restore_random: Random,
    api: Api,
    nodes: Vec<Node>,
    now: u64,
    /// Owners that got each address, with their nodes.
    holders: BTreeMap<IpAddr, BTreeSet<(usize, Owner)>>,
    /// Networks of deleted objects; the start of the quarantine of their addresses is lost.
    deleted: Vec<IpNet>,
    /// Time of release, end of the quarantine, and last owner of each address, while no clock was moved.
    released: BTreeMap<IpAddr, (u64, u64, Owner)>,
    /// Time at which each pod got its address.
    since: BTreeMap<(usize, Owner), u64>,
    controller: Option<Task<()>>,
    /// Number of nodes that exist.
    present: usize,
    /// Change of the pool's layout, and import of an address.
    operator: Option<Task<()>>,
    last_refusal: Option<AllocationError>,
    backup: Option<Backup>,
    next: u64,
    pub(crate) steps: u64,
    pub(crate) counts: Counts,
}

impl Add for Counts {
    type Output = Counts;

    fn add(self, other: Counts) -> Counts {
        Counts {
            allocated: self.allocated + other.allocated,
            refused: self.refused + other.refused,
            refused_by_name: self.refused_by_name + other.refused_by_name,
            kills: self.kills + other.kills,
            drained: self.drained + other.drained,
            transferred: self.transferred + other.transferred,
            own_block: self.own_block + other.own_block,
            in_quarantine: self.in_quarantine + other.in_quarantine,
            filled: self.filled + other.filled,
            unconfirmed: self.unconfirmed + other.unconfirmed,
            leased_again: self.leased_again + other.leased_again,
            deleted: self.deleted + other.deleted,
            returned: self.returned + other.returned,
            enlarged: self.enlarged + other.enlarged,
            imported: self.imported + other.imported,
            restored: self.restored + other.restored,
            stores_removed: self.stores_removed + other.stores_removed,
            backups: self.backups + other.backups,
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            allocated,
            refused,
            refused_by_name,
            kills,
            drained,
            transferred,
            own_block,
            in_quarantine,
            filled,
            ..
        } = self;
        write!(
            f,
            "{allocated} allocated, {refused} refused, {refused_by_name} by name, {kills} kills, \
             {drained} blocks drained, {transferred} transferred, {own_block} of an own block, {in_quarantine} in \
             quarantine, {filled} of all free ones"
        )
    }
}

impl Owner {
    fn of(name: String) -> Owner {
        Owner { name, claim: String::new(), restored: None }
    }

    /// Owner tag in the address store.
    fn tag(&self) -> u64 {
        self.name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    }
}

impl Cluster {
    pub(crate) fn new(seed: u64, shape: Shape) -> Cluster {
        let subnet: IpNet = shape.subnet.parse().unwrap();
        let range = Range::between(subnet, None, None).unwrap();
        let api = Api::new(seed);
        let layout = PoolLayout::new(subnet, shape.bits);
        {
            let mut server = api.server.lock().unwrap();
            (server.protects, server.layout) = (shape.shared || shape.deleted, Some(layout));
        }
        Cluster {
            seed,
            shape,
            layout,
            filter: Arc::new(AddressFilter::new(range, &[])),
            random: Random(
                seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407),
            ),
            restore_random: Random(
                seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(88_172_645_463_325_253),
            ),
            nodes: (0..shape.nodes).map(|index| Node::new(index, &api)).collect(),
            api,
            now: 1_000_000,
            holders: BTreeMap::new(),
            deleted: Vec::new(),
            released: BTreeMap::new(),
            since: BTreeMap::new(),
            controller: None,
            present: if shape.changes { 1 } else { shape.nodes },
            operator: None,
            last_refusal: None,
            backup: None,
            next: 0,
            steps: 0,
            counts: Counts::default(),
        }
    }

    /// Runs the cluster with all events for this number of steps. Several times all faults are repaired, and it is checked
    /// that any node gets any free address.
    pub(crate) fn run(&mut self, steps: u64) {
        for step in 0..steps {
            if step % (steps / 4) == steps / 4 - 1 {
                self.check_any_node_gets_free_addresses();
            }
            self.step();
            let node = self.pick();
            self.random_event(node);
            if self.shape.changes {
                self.random_change(node);
            }
        }
    }

    /// Number of new blocks whose single addresses were read, and of those that were not.
    pub(crate) fn pool_states(&self) -> [u64; 2] {
        self.api.server.lock().unwrap().pool_states
    }

    fn pick(&mut self) -> usize {
        self.random.below(self.present as u64) as usize
    }

    /// Lets one node make progress.
    fn step(&mut self) {
        self.steps += 1;
        self.now += 1;
        let index = self.pick();
        if self.random.once_in(200) && self.controller.is_none() {
            self.controller = Some(self.reclaim());
        }
        poll(&mut self.controller);
        poll(&mut self.operator);
        self.read_layout();
        if !self.nodes[index].alive {
            return;
        }
        if self.nodes[index].calls.len() < CALLS && self.random.once_in(6) {
            self.begin_call(index);
        }
        let clock = self.clock(index);
        self.nodes[index].poll_agent();
        let begins = self.random.once_in(8);
        let node = &mut self.nodes[index];
        self.counts.transferred += node.transfers.step(begins, &node.api, self.layout, &node.name, clock.now);
        let tasks = node.transfers.store_tasks();
        node.calls.extend(tasks.map(|task| Call::of(Verb::Store(task))));
        if self.shape.restores {
            self.step_restorer(index, clock);
        }
        // The first call has the lock.
        if !self.nodes[index].calls.is_empty() {
            self.advance(index);
        }
    }

    fn is_deleted(&self, owner: &Owner) -> bool {
        self.api.server.lock().unwrap().deleted_pods.contains(&owner.name)
    }

    fn clock(&self, index: usize) -> Clock {
        Clock { now: self.now.saturating_add_signed(self.nodes[index].skew), quarantine: QUARANTINE }
    }
}

fn poll(task: &mut Option<Task<()>>) {
    let ended = task
        .as_mut()
        .is_some_and(|task| task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    if ended {
        *task = None;
    }
}
