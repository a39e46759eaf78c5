//! Cost of allocation in a large cluster: `cargo run --release -p ipam --example scale`.
//!
//! First the address store alone: the time of one ADD and one DEL in a store that holds many addresses. Then clusters:
//! nodes start one after the other and allocate addresses to all pods, from a registry in memory that counts requests.
//! At the end a tenth of the nodes dies, and the blocks are reclaimed. Last, small windows: single addresses.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::panic,
    reason = "it prints its figures, and fails by panicking"
)]

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use ipam::registry::PoolState;
use ipam::{
    AddressFilter, AddressStore, Allocation, AllocationKind, BlockAllocator, BlockLease, Clock, Holder,
    IpBlock, PoolLayout, Range, Registry, RegistryError, reclaim,
};
use ipnet::IpNet;

#[derive(Default)]
struct Memory {
    objects: Mutex<BTreeMap<IpNet, IpBlock>>,
    requests: Mutex<BTreeMap<&'static str, u64>>,
    /// Number of objects in the responses to lists of the pool.
    listed: Mutex<u64>,
}

impl Memory {
    fn request<T>(&self, what: &'static str, work: impl FnOnce(&mut BTreeMap<IpNet, IpBlock>) -> T) -> T {
        *self.requests.lock().expect("no panic before").entry(what).or_default() += 1;
        work(&mut self.objects.lock().expect("no panic before"))
    }
}

impl Registry for Memory {
    async fn create(&self, net: IpNet, holder: &Holder) -> Result<IpBlock, RegistryError> {
        self.request("create", |objects| {
            if objects.contains_key(&net) {
                return Err(RegistryError::Conflict);
            }
            let (uid, version) = (net.to_string(), "1".to_owned());
            let object = IpBlock { net, uid, version, holder: holder.clone(), reserved: Vec::new() };
            objects.insert(net, object.clone());
            Ok(object)
        })
    }

    async fn read(&self, net: IpNet) -> Result<Option<IpBlock>, RegistryError> {
        self.request("get", |objects| Ok(objects.get(&net).cloned()))
    }

    async fn single_addresses_in(&self, block: IpNet) -> Result<Vec<IpBlock>, RegistryError> {
        self.request("list of a block", |objects| {
            let inside = objects.range(block..).take_while(|(net, _)| block.contains(*net));
            Ok(inside.filter(|(net, _)| **net != block).map(|(_, object)| object.clone()).collect())
        })
    }

    async fn list(&self) -> Result<Vec<IpBlock>, RegistryError> {
        let all: Vec<IpBlock> =
            self.request("list of the pool", |objects| objects.values().cloned().collect());
        *self.listed.lock().expect("no panic before") += all.len() as u64;
        Ok(all)
    }

    async fn list_of_store(&self, node: &str, _: &str) -> Result<Vec<IpBlock>, RegistryError> {
        self.request("list of a node", |objects| {
            Ok(objects.values().filter(|object| object.holder.node == node).cloned().collect())
        })
    }

    async fn list_of_claim(&self, _: &str) -> Result<Vec<IpBlock>, RegistryError> {
        Ok(Vec::new())
    }

    async fn replace(&self, object: &IpBlock) -> Result<IpBlock, RegistryError> {
        self.request("update", |objects| {
            objects.insert(object.net, object.clone());
            Ok(object.clone())
        })
    }

    async fn replace_requests(&self, object: &IpBlock) -> Result<IpBlock, RegistryError> {
        self.replace(object).await
    }

    async fn delete(&self, object: &IpBlock) -> Result<(), RegistryError> {
        self.request("delete", |objects| objects.remove(&object.net));
        Ok(())
    }

    async fn pool_state(&self, net: IpNet) -> Result<PoolState, RegistryError> {
        Ok(self.request("get of the pool", |_| match net.prefix_len() == net.max_prefix_len() {
            true => PoolState::SingleAddressesPossible,
            false => PoolState::NoSingleAddresses,
        }))
    }

    async fn record_single_address(&self, _: IpNet) -> Result<(), RegistryError> {
        Ok(())
    }

    async fn is_pod_deleted(&self, _: &str) -> Result<bool, RegistryError> {
        Ok(false)
    }

    async fn wait_for_transfer(&self, _: u32) {}
}

/// Runs a task that never waits.
fn run<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("the task waits"),
    }
}

fn cluster(nodes: u64, pods: u64, range: &str) {
    let subnet: IpNet = range.parse().expect("a network");
    let filter = AddressFilter::new(Range::between(subnet, None, None).expect("a range"), &[]);
    let layout = PoolLayout::for_window(subnet, filter.count(), nodes);
    let clock = Clock { now: 1_000_000, quarantine: 60_000 };
    let registry = Memory::default();
    let started = Instant::now();
    for node in 0..nodes {
        let mut store = AddressStore::new("boot");
        let holder = Holder { node: format!("node-{node}"), store: "pool".into(), ..Holder::default() };
        for pod in 0..pods {
            loop {
                match store.allocate(clock, &filter, pod + 1, AllocationKind::Any) {
                    Allocation::Allocated(..) => break,
                    Allocation::Refused(why) => panic!("{why}"),
                    Allocation::NeedsLease(kind, _) => {
                        let seed =
                            (node << 16 | store.blocks().count() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                        let holder = holder.clone();
                        let allocator = BlockAllocator {
                            registry: &registry,
                            layout,
                            filter: &filter,
                            holder,
                            shares_claim: false,
                            clock,
                            seed,
                            transfer_checks: 0,
                            lists_first: false,
                        };
                        let response = run(allocator.serve(&store.lease_request(kind), &[]));
                        assert!(response.error.is_none(), "{:?}", response.error);
                        let _ = store.apply_response(clock, pod + 1, &response);
                    }
                }
            }
        }
    }
    let took = started.elapsed();
    let requests = registry.requests.lock().expect("no panic before").clone();
    let all: u64 = requests.values().sum();
    let addresses = nodes * pods;
    println!(
        "{nodes} nodes x {pods} pods from {range}: blocks of {}, {addresses} addresses",
        layout.block_size()
    );
    println!("  requests {all}: one for {:.1} addresses; {requests:?}", addresses as f64 / all as f64);
    println!("  if all nodes start within a minute: {:.0} requests/s", all as f64 / 60.0);
    println!(
        "  objects {}; the whole simulated in {:.1} s",
        registry.objects.lock().expect("no panic before").len(),
        took.as_secs_f64()
    );
    reclaim_tenth(&registry, clock.now);
}

/// Reclaims the objects that a tenth of the nodes has.
fn reclaim_tenth(registry: &Memory, now: u64) {
    let dead: Vec<IpBlock> = registry.objects.lock().expect("no panic before").values().cloned().collect();
    let is_dead = |object: &IpBlock| object.holder.node.ends_with('7');
    let (mut taken, before) =
        (0_u64, registry.requests.lock().expect("no panic before").values().sum::<u64>());
    for object in dead.into_iter().filter(is_dead) {
        run(reclaim(registry, object, now)).expect("the object is unchanged");
        taken += 1;
    }
    let after: u64 = registry.requests.lock().expect("no panic before").values().sum();
    println!("  a tenth of the nodes dies: {taken} blocks reclaimed with {} requests", after - before);
}

/// Fills a window of single addresses from nodes in turn, and empties it again.
fn small_window(nodes: usize, range: &str) {
    let subnet: IpNet = range.parse().expect("a network");
    let filter = AddressFilter::new(Range::between(subnet, None, None).expect("a range"), &[]);
    let layout = PoolLayout::for_window(subnet, filter.count(), nodes as u64);
    assert!(layout.has_single_addresses_only(), "{range} has blocks on {nodes} nodes");
    let (registry, count) = (Memory::default(), filter.count() as u64);
    let mut stores: Vec<AddressStore> = (0..nodes).map(|_| AddressStore::new("boot")).collect();
    let serve = |store: &mut AddressStore, node: usize, owner: u64, now: u64, kind: AllocationKind| {
        let clock = Clock { now, quarantine: 60_000 };
        let (node, owner_name) = (format!("node-{node}"), format!("uid-{owner}/c/net1"));
        let holder = Holder { node, store: "pool".into(), owner: owner_name, ..Holder::default() };
        let (registry, filter) = (&registry, &filter);
        let allocator = BlockAllocator {
            registry,
            layout,
            filter,
            holder,
            shares_claim: false,
            clock,
            seed: owner,
            transfer_checks: 0,
            lists_first: false,
        };
        let response = run(allocator.serve(&store.lease_request(kind), &[]));
        assert!(response.error.is_none(), "{:?}", response.error);
        let _ = store.apply_response(clock, owner, &response);
    };
    let totals = || {
        let requests = registry.requests.lock().expect("no panic before").values().sum::<u64>();
        (requests, *registry.listed.lock().expect("no panic before"))
    };
    // An object outlives its address, so that the second time the objects exist.
    for (round, now) in [("first", 1_000_000), ("second", 9_000_000)] {
        let before = totals();
        for pod in 0..count {
            let node = pod as usize % nodes;
            serve(&mut stores[node], node, pod + 1, now, AllocationKind::Any);
        }
        let added = totals();
        for pod in 0..count {
            let node = pod as usize % nodes;
            let clock = Clock { now: now + 70_000, quarantine: 60_000 };
            let _ = stores[node].release_owners(clock, &[pod + 1]);
            serve(&mut stores[node], node, pod + 1, clock.now, AllocationKind::Nothing);
        }
        let deleted = totals();
        let each = |one: u64, other: u64| (other - one) as f64 / count as f64;
        println!(
            "{count} single addresses of {range} on {nodes} nodes, {round} time: {:.1} requests and the read of the pool for an \
             ADD, {:.0} objects listed; {:.1} requests for a DEL",
            each(before.0, added.0),
            each(before.1, added.1),
            each(added.0, deleted.0)
        );
    }
}

fn allocator(held: u64) {
    let mut store = AddressStore::new("boot");
    let subnet: IpNet = "10.0.0.0/8".parse().expect("a network");
    let layout = PoolLayout::new(subnet, 8);
    let filter = AddressFilter::new(Range::between(subnet, None, None).expect("a range"), &[]);
    let rounds = 2_000;
    let blocks = (held + rounds) / 256 + 1;
    for index in 0..blocks {
        let net = layout.block(u128::from(index)).expect("a block");
        let _ = store.add_block(
            &BlockLease { net, id: index.to_string(), single_owner: false, reserved: Vec::new() },
            1,
        );
    }
    let clock = Clock { now: 1_000_000, quarantine: 0 };
    for owner in 0..held {
        let Allocation::Allocated(..) = store.allocate(clock, &filter, owner + 1, AllocationKind::Any) else {
            panic!("full")
        };
    }
    let owners = || (0..rounds).map(|round| u64::MAX - round);
    let started = Instant::now();
    for owner in owners() {
        let Allocation::Allocated(..) = store.allocate(clock, &filter, owner, AllocationKind::Any) else {
            panic!("full")
        };
    }
    let allocated = started.elapsed();
    for owner in owners() {
        let _ = store.release_owners(clock, &[owner]);
    }
    let [add, del] =
        [allocated, started.elapsed() - allocated].map(|took| took.as_secs_f64() / rounds as f64);
    println!(
        "allocator, {held} held: {:.1} us for one ADD, {:.0} a second; {:.1} us for one DEL",
        add * 1e6,
        1.0 / add,
        del * 1e6,
    );
}

fn main() {
    for held in [0, 250, 1_000, 10_000, 50_000] {
        allocator(held);
    }
    cluster(100, 110, "10.0.0.0/16");
    cluster(1_000, 250, "10.0.0.0/10");
    cluster(10_000, 100, "10.0.0.0/8");
    for (nodes, range) in [(3, "10.0.0.0/29"), (6, "10.0.0.0/27"), (20, "10.0.0.0/24"), (80, "10.0.0.0/22")] {
        small_window(nodes, range);
    }
}
