//! The end of a simulation: with every fault healed and every pod gone, every address can be given again.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam::turn::Wish;
use ipnet::IpNet;

use super::super::transfer::Giver;
use super::{Call, Cluster, IDLE, Owner, REST, Verb};

impl Cluster {
    /// With every fault gone and every pod deleted, every address can be given once more.
    pub(crate) fn heal_and_empty(&mut self) {
        {
            let mut server = self.api.server.lock().unwrap();
            (server.trouble, server.down) = (0, false);
        }
        self.controller = None;
        for index in 0..self.nodes.len() {
            self.come_back(index);
            *self.nodes[index].api.partitioned.lock().unwrap() = false;
            self.nodes[index].skew = 0;
            self.nodes[index].agent.clear();
            self.nodes[index].giver = Giver::default();
            self.nodes[index].calls.clear();
            self.now += 1;
            for owner in self.nodes[index].pods.keys().cloned().collect::<Vec<_>>() {
                self.forget(index, &owner);
                self.call(index, Verb::Del(owner));
            }
        }
        self.now += REST * 20 + IDLE * 20;
        self.check_everything_comes_back();
    }

    fn check_everything_comes_back(&mut self) {
        let seed = self.seed;
        for index in 0..self.nodes.len() {
            self.look(index);
            // What the node does not know of is adopted by the first who asks, and goes with what it has.
            self.next += 1;
            let probe = Owner::of(format!("probe{}/{index}", self.next));
            self.call(index, Verb::Add(probe.clone(), Wish::Address(ipam::grid::nth(self.grid.subnet(), 1))));
            self.forget(index, &probe);
            self.call(index, Verb::Del(probe));
            self.now += REST * 20 + IDLE * 20;
            // As GC does.
            self.call(index, Verb::Tidy(0));
            self.look(index);
        }
        let left: Vec<IpNet> = {
            let server = self.api.server.lock().unwrap();
            server
                .objects
                .values()
                .filter(|object| !object.holder.node.is_empty())
                .map(|object| object.net)
                .collect()
        };
        assert!(left.is_empty(), "seed {seed}: still leased: {left:?}");
        let kept: BTreeSet<IpAddr> = {
            let server = self.api.server.lock().unwrap();
            let kept = server.objects.values().filter(|object| !object.holder.claim.is_empty());
            kept.map(|object| object.net.addr()).collect()
        };
        self.now += REST * 20;
        let mut given = BTreeSet::new();
        loop {
            self.next += 1;
            let owner = Owner::of(format!("last{}", self.next));
            match self.call(0, Verb::Add(owner, Wish::Any)) {
                Some(ip) => assert!(given.insert(ip), "seed {seed}: {ip} twice"),
                None => break,
            }
        }
        let all: BTreeSet<IpAddr> =
            self.filter.addresses(self.grid.subnet()).filter(|ip| !kept.contains(ip)).collect();
        let missing: Vec<&IpAddr> = all.difference(&given).collect();
        assert!(missing.is_empty(), "seed {seed}: never to be given again: {missing:?}; {kept:?} are kept");
        assert_eq!(given, all, "seed {seed}: every address that nobody keeps");
    }

    /// One call from beginning to end, alone; the address it was told.
    fn call(&mut self, index: usize, verb: Verb) -> Option<IpAddr> {
        let owner = match &verb {
            Verb::Add(owner, _) => Some(owner.clone()),
            _ => None,
        };
        self.nodes[index].calls.push(Call::of(verb));
        self.finish(index);
        owner.and_then(|owner| self.nodes[index].pods.get(&owner).copied().flatten())
    }

    /// The calls of a node come to their end, while nothing else happens.
    pub(super) fn finish(&mut self, index: usize) {
        for _ in 0..100_000 {
            if self.nodes[index].calls.is_empty() {
                return;
            }
            self.nodes[index].go_on();
            self.advance(index);
        }
        panic!("seed {}: a call does not end", self.seed);
    }
}
