//! What addresses cost a large cluster: `cargo run --release -p ipam --example scale`.
//!
//! Nodes come up one after the other and give all their pods addresses, with the real leasing and the real ledgers, from a
//! registry in memory that counts requests; then a tenth of them dies, and what they had is taken back. The last lines
//! are the allocator alone: a ledger that holds many addresses gives and takes one.

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

use ipam::lease::{Counter, reclaim};
use ipam::ledger::{Clock, Lease, Ledger};
use ipam::registry::{Fault, Holder, Object, Registry, Standing};
use ipam::turn::{self, Turn, Wish};
use ipam::{Filter, Grid, Range};
use ipnet::IpNet;

#[derive(Default)]
struct Memory {
    objects: Mutex<BTreeMap<IpNet, Object>>,
    requests: Mutex<BTreeMap<&'static str, u64>>,
}

impl Memory {
    fn request<T>(&self, what: &'static str, work: impl FnOnce(&mut BTreeMap<IpNet, Object>) -> T) -> T {
        *self.requests.lock().expect("no panic before").entry(what).or_default() += 1;
        work(&mut self.objects.lock().expect("no panic before"))
    }
}

impl Registry for Memory {
    async fn create(&self, net: IpNet, holder: &Holder) -> Result<Object, Fault> {
        self.request("create", |objects| {
            if objects.contains_key(&net) {
                return Err(Fault::Conflict);
            }
            let (uid, version) = (net.to_string(), "1".to_owned());
            let object = Object { net, uid, version, holder: holder.clone(), holes: Vec::new() };
            objects.insert(net, object.clone());
            Ok(object)
        })
    }

    async fn read(&self, net: IpNet) -> Result<Option<Object>, Fault> {
        self.request("get", |objects| Ok(objects.get(&net).cloned()))
    }

    async fn inside(&self, block: IpNet) -> Result<Vec<Object>, Fault> {
        self.request("list of a block", |objects| {
            let inside = objects.range(block..).take_while(|(net, _)| block.contains(*net));
            Ok(inside.filter(|(net, _)| **net != block).map(|(_, object)| object.clone()).collect())
        })
    }

    async fn all(&self) -> Result<Vec<Object>, Fault> {
        self.request("list of the pool", |objects| Ok(objects.values().cloned().collect()))
    }

    async fn of(&self, node: &str, _: &str) -> Result<Vec<Object>, Fault> {
        self.request("list of a node", |objects| {
            Ok(objects.values().filter(|object| object.holder.node == node).cloned().collect())
        })
    }

    async fn claimed(&self, _: &str) -> Result<Vec<Object>, Fault> {
        Ok(Vec::new())
    }

    async fn replace(&self, object: &Object) -> Result<Object, Fault> {
        self.request("update", |objects| {
            objects.insert(object.net, object.clone());
            Ok(object.clone())
        })
    }

    async fn delete(&self, object: &Object) -> Result<(), Fault> {
        self.request("delete", |objects| objects.remove(&object.net));
        Ok(())
    }

    async fn standing(&self, _: IpNet) -> Result<Standing, Fault> {
        Ok(self.request("get of the pool", |_| Standing::Whole))
    }

    async fn tell(&self, _: IpNet) -> Result<(), Fault> {
        Ok(())
    }

    async fn is_gone(&self, _: &str) -> Result<bool, Fault> {
        Ok(false)
    }

    async fn pause(&self, _: u32) {}
}

/// Nothing here ever waits.
fn now<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("it waits"),
    }
}

fn cluster(nodes: u64, pods: u64, range: &str) {
    let subnet: IpNet = range.parse().expect("a network");
    let grid = Grid::for_nodes(subnet, nodes);
    let filter = Filter { range: Range::between(subnet, None, None).expect("a range"), exclude: Vec::new() };
    let clock = Clock { now: 1_000_000, rest: 60_000 };
    let registry = Memory::default();
    let started = Instant::now();
    for node in 0..nodes {
        let mut ledger = Ledger::new("boot");
        let holder = Holder { node: format!("node-{node}"), ledger: "pool".into(), ..Holder::default() };
        for pod in 0..pods {
            loop {
                match turn::give(&mut ledger, clock, &filter, pod + 1, Wish::Any) {
                    Turn::Given(..) => break,
                    Turn::Refused(why) => panic!("{why}"),
                    Turn::Ask(wish, _) => {
                        let seed =
                            (node << 16 | ledger.blocks().count() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                        let holder = holder.clone();
                        let counter = Counter {
                            registry: &registry,
                            grid,
                            filter: &filter,
                            holder,
                            shares_claim: false,
                            clock,
                            seed,
                            looks: 0,
                        };
                        let supply = now(turn::serve(&counter, &turn::ask(&ledger, wish), &[]));
                        assert!(supply.refusal.is_none(), "{:?}", supply.refusal);
                        let _ = turn::receive(&mut ledger, clock, pod + 1, &supply);
                    }
                }
            }
        }
    }
    let took = started.elapsed();
    let requests = registry.requests.lock().expect("no panic before").clone();
    let all: u64 = requests.values().sum();
    let addresses = nodes * pods;
    println!("{nodes} nodes x {pods} pods from {range}: blocks of {}, {addresses} addresses", grid.size());
    println!("  requests {all}: one for {:.1} addresses; {requests:?}", addresses as f64 / all as f64);
    println!("  if all nodes start within a minute: {:.0} requests/s", all as f64 / 60.0);
    println!(
        "  objects {}; the whole simulated in {:.1} s",
        registry.objects.lock().expect("no panic before").len(),
        took.as_secs_f64()
    );
    let dead: Vec<Object> = registry.objects.lock().expect("no panic before").values().cloned().collect();
    let is_dead = |object: &Object| object.holder.node.ends_with('7');
    let (mut taken, before) =
        (0_u64, registry.requests.lock().expect("no panic before").values().sum::<u64>());
    for object in dead.into_iter().filter(is_dead) {
        now(reclaim(&registry, object, clock.now)).expect("it is as it was");
        taken += 1;
    }
    let after: u64 = registry.requests.lock().expect("no panic before").values().sum();
    println!("  a tenth of the nodes dies: {taken} blocks taken back with {} requests", after - before);
}

fn allocator(held: u64) {
    let mut ledger = Ledger::new("boot");
    let subnet: IpNet = "10.0.0.0/8".parse().expect("a network");
    let grid = Grid::new(subnet, 8);
    let filter = Filter { range: Range::between(subnet, None, None).expect("a range"), exclude: Vec::new() };
    let rounds = 2_000;
    let blocks = (held + rounds) / 256 + 1;
    for index in 0..blocks {
        let net = grid.block(u128::from(index)).expect("a block");
        let _ = ledger.add(&Lease { net, uid: index.to_string(), bound: false, holes: Vec::new() }, 1);
    }
    let clock = Clock { now: 1_000_000, rest: 0 };
    for mark in 0..held {
        let Turn::Given(..) = turn::give(&mut ledger, clock, &filter, mark + 1, Wish::Any) else {
            panic!("full")
        };
    }
    let marks = || (0..rounds).map(|round| u64::MAX - round);
    let started = Instant::now();
    for mark in marks() {
        let Turn::Given(..) = turn::give(&mut ledger, clock, &filter, mark, Wish::Any) else {
            panic!("full")
        };
    }
    let given = started.elapsed();
    for mark in marks() {
        let _ = turn::take_back(&mut ledger, clock.now, &[mark]);
    }
    let [add, del] = [given, started.elapsed() - given].map(|took| took.as_secs_f64() / rounds as f64);
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
}
