//! A node whose pods have come and gone: how many blocks it keeps for those that are left, turn by turn on the real ledger.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam::ledger::{Clock, Lease, Ledger, State};
use ipam::turn::{self, Supply, Turn, Wish};
use ipam::{Filter, Range};
use ipnet::IpNet;

use super::api_server::Random;

/// How long an address rests, and a block is idle, in milliseconds.
const REST: u64 = 60_000;
const IDLE: u64 = 600_000;
/// As the plugin has it.
const KEEP: u64 = 4;

/// A node, and a pool that has as many blocks as it asks for.
struct Node {
    ledger: Ledger,
    filter: Filter,
    now: u64,
    leased: u64,
    given_back: u64,
    told: BTreeSet<(IpAddr, u64)>,
}

impl Node {
    fn new() -> Node {
        let range = Range::between("10.0.0.0/16".parse().unwrap(), None, None).unwrap();
        let filter = Filter { range, exclude: Vec::new() };
        let (ledger, told) = (Ledger::new("b"), BTreeSet::new());
        Node { ledger, filter, now: 1_000_000, leased: 0, given_back: 0, told }
    }

    fn clock(&self) -> Clock {
        Clock { now: self.now, rest: REST }
    }

    fn add(&mut self, mark: u64) -> IpAddr {
        loop {
            let clock = self.clock();
            match turn::give(&mut self.ledger, clock, &self.filter, mark, Wish::Any) {
                Turn::Given(_, ip, _) => {
                    assert!(self.told.iter().all(|(other, _)| *other != ip), "{ip} twice");
                    self.told.insert((ip, mark));
                    return ip;
                }
                Turn::Ask(..) => {
                    let net: IpNet = format!("10.0.{}.0/24", self.leased).parse().unwrap();
                    self.leased += 1;
                    let lease = Lease { net, uid: net.to_string(), bound: false, holes: Vec::new() };
                    let supply = Supply { leases: vec![lease], ..Supply::default() };
                    let _ = turn::receive(&mut self.ledger, clock, mark, &supply);
                }
                Turn::Refused(why) => panic!("{why}"),
            }
        }
    }

    fn del(&mut self, mark: u64) {
        self.told.retain(|(_, other)| *other != mark);
        let clock = self.clock();
        let _ = turn::take_back(&mut self.ledger, clock.now, &[mark]);
        let _ = turn::tidy(&mut self.ledger, clock, IDLE, KEEP);
        let returning: Vec<_> =
            self.ledger.blocks().filter(|block| block.state == State::Returning).collect();
        for block in &returning {
            assert_eq!(self.ledger.held().filter(|(place, ..)| place.page == block.page).count(), 0);
        }
        self.given_back += returning.len() as u64;
        let gone = returning.into_iter().map(|block| block.uid).collect();
        let _ = turn::receive(&mut self.ledger, clock, 0, &Supply { gone, ..Supply::default() });
    }

    fn blocks(&self) -> usize {
        self.ledger.blocks().count()
    }

    /// Pods come and go, one at a time, the number of them staying as it is.
    fn churn(&mut self, pods: &mut Vec<u64>, random: &mut Random, rounds: u64) {
        for round in 0..rounds {
            self.now += 10_000;
            let gone = pods.swap_remove(random.below(pods.len() as u64) as usize);
            self.del(gone);
            let new = 1_000_000 + self.now + round;
            self.add(new);
            pods.push(new);
        }
    }
}

#[test]
fn a_node_whose_pods_are_fewer_gives_back_all_blocks_but_those_it_needs() {
    for seed in 1..20 {
        let (mut node, mut random) = (Node::new(), Random(seed));
        let mut pods: Vec<u64> = (1..=1500).collect();
        for pod in &pods {
            node.add(*pod);
        }
        assert_eq!(node.blocks(), 6);
        // Nine of ten go, whichever they are: what is left is in every block.
        while pods.len() > 150 {
            let gone = pods.swap_remove(random.below(pods.len() as u64) as usize);
            node.del(gone);
        }
        assert_eq!(node.blocks(), 6, "seed {seed}: those that are left keep theirs");
        node.now += 2 * REST;
        node.churn(&mut pods, &mut random, 1_500);
        assert_eq!(node.blocks(), 1, "seed {seed}: 150 pods");
        assert_eq!((node.told.len(), node.ledger.held().count()), (150, 150));
        assert_eq!(node.leased, 6, "seed {seed}: nothing was leased for it");
    }
}

#[test]
fn a_node_about_the_size_of_a_block_does_not_lease_and_give_back_again_and_again() {
    let (mut node, mut random) = (Node::new(), Random(7));
    let mut pods: Vec<u64> = (1..=250).collect();
    for pod in &pods {
        node.add(*pod);
    }
    // Up and down by thirty pods, a hundred times.
    for wave in 0..100_u64 {
        for up in 0..30 {
            node.now += 10_000;
            pods.push(10_000 + wave * 100 + up);
            node.add(10_000 + wave * 100 + up);
        }
        for _ in 0..30 {
            node.now += 10_000;
            let gone = pods.swap_remove(random.below(pods.len() as u64) as usize);
            node.del(gone);
        }
    }
    // 3,000 addresses were given; a lease costs two requests, to give back one more of each.
    println!("{} leased, {} given back", node.leased, node.given_back);
    assert!(node.leased <= 4, "{} blocks leased for {} pods", node.leased, pods.len());
}
