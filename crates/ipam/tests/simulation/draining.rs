//! Draining: how many blocks a node keeps while its pods are replaced, on a real address store.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam::{
    AddressFilter, AddressStore, Allocation, AllocationKind, BlockLease, BlockState, Clock, LeaseResponse,
    Range,
};
use ipnet::IpNet;

use super::api_server::Random;

/// Length of the quarantine in milliseconds.
const QUARANTINE: u64 = 60_000;
/// Time after which an idle block is returned, in milliseconds.
const IDLE: u64 = 600_000;
/// Number of addresses that remain free elsewhere, as in the plugin.
const KEEP: u64 = 4;

/// Node with a pool that never runs out of blocks.
struct Node {
    store: AddressStore,
    filter: AddressFilter,
    now: u64,
    leased: u64,
    returned: u64,
    holders: BTreeSet<(IpAddr, u64)>,
}

impl Node {
    fn new() -> Node {
        let range = Range::between("10.0.0.0/16".parse().unwrap(), None, None).unwrap();
        let filter = AddressFilter::new(range, &[]);
        let (store, holders) = (AddressStore::new("b"), BTreeSet::new());
        Node { store, filter, now: 1_000_000, leased: 0, returned: 0, holders }
    }

    fn clock(&self) -> Clock {
        Clock { now: self.now, quarantine: QUARANTINE }
    }

    fn add(&mut self, owner: u64) -> IpAddr {
        loop {
            let clock = self.clock();
            match self.store.allocate(clock, &self.filter, owner, AllocationKind::Any) {
                Allocation::Allocated(_, ip, _) => {
                    assert!(self.holders.iter().all(|(other, _)| *other != ip), "{ip} twice");
                    self.holders.insert((ip, owner));
                    return ip;
                }
                Allocation::NeedsLease(..) => {
                    let net: IpNet = format!("10.0.{}.0/24", self.leased).parse().unwrap();
                    self.leased += 1;
                    let lease =
                        BlockLease { net, id: net.to_string(), single_owner: false, reserved: Vec::new() };
                    let response = LeaseResponse { leases: vec![lease], ..LeaseResponse::default() };
                    let _ = self.store.apply_response(clock, owner, &response);
                }
                Allocation::Refused(error) => panic!("{error}"),
            }
        }
    }

    fn del(&mut self, owner: u64) {
        self.holders.retain(|(_, other)| *other != owner);
        let clock = self.clock();
        let _ = self.store.release_owners(clock, &[owner]);
        let _ = self.store.release_idle_blocks(clock, IDLE, KEEP);
        let returning: Vec<_> =
            self.store.blocks().filter(|block| block.state == BlockState::Returning).collect();
        for block in &returning {
            assert_eq!(self.store.held().filter(|(place, ..)| place.page == block.page).count(), 0);
        }
        self.returned += returning.len() as u64;
        let returned = returning.into_iter().map(|block| block.lease).collect();
        let _ = self.store.apply_response(clock, 0, &LeaseResponse { returned, ..LeaseResponse::default() });
    }

    fn blocks(&self) -> usize {
        self.store.blocks().count()
    }

    /// Replaces pods one at a time; their number stays the same.
    fn replace_pods(&mut self, pods: &mut Vec<u64>, random: &mut Random, rounds: u64) {
        for round in 0..rounds {
            self.now += 10_000;
            let deleted = pods.swap_remove(random.below(pods.len() as u64) as usize);
            self.del(deleted);
            let new = 1_000_000 + self.now + round;
            self.add(new);
            pods.push(new);
        }
    }
}

#[test]
fn draining_returns_blocks_a_smaller_node_does_not_need() {
    for seed in 1..20 {
        let (mut node, mut random) = (Node::new(), Random(seed));
        let mut pods: Vec<u64> = (1..=1500).collect();
        for pod in &pods {
            node.add(*pod);
        }
        assert_eq!(node.blocks(), 6);
        // Nine of ten pods are deleted at random: every block still holds addresses.
        while pods.len() > 150 {
            let deleted = pods.swap_remove(random.below(pods.len() as u64) as usize);
            node.del(deleted);
        }
        assert_eq!(node.blocks(), 6, "seed {seed}: remaining pods keep their addresses");
        node.now += 2 * QUARANTINE;
        node.replace_pods(&mut pods, &mut random, 1_500);
        assert_eq!(node.blocks(), 1, "seed {seed}: 150 pods");
        assert_eq!((node.holders.len(), node.store.held().count()), (150, 150));
        assert_eq!(node.leased, 6, "seed {seed}: no further block was leased");
    }
}

#[test]
fn draining_does_not_alternate_with_leasing() {
    let (mut node, mut random) = (Node::new(), Random(7));
    let mut pods: Vec<u64> = (1..=250).collect();
    for pod in &pods {
        node.add(*pod);
    }
    // Thirty pods more, then thirty less, a hundred times.
    for wave in 0..100_u64 {
        for pod in 0..30 {
            node.now += 10_000;
            pods.push(10_000 + wave * 100 + pod);
            node.add(10_000 + wave * 100 + pod);
        }
        for _ in 0..30 {
            node.now += 10_000;
            let deleted = pods.swap_remove(random.below(pods.len() as u64) as usize);
            node.del(deleted);
        }
    }
    // 3,000 addresses were allocated. A lease costs two requests, its return as many.
    println!("{} leased, {} returned", node.leased, node.returned);
    assert!(node.leased <= 4, "{} blocks leased for {} pods", node.leased, pods.len());
}
