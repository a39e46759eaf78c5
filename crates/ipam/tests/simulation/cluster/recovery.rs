//! End of a simulation: after all faults are repaired and all pods deleted, every address can be allocated again.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam::AllocationKind;
use ipnet::IpNet;

use super::call::{Call, Verb};
use super::{Cluster, IDLE, Owner, QUARANTINE};

impl Cluster {
    /// Repairs every fault, deletes every pod, and checks that every address is available again.
    pub(crate) fn repair_and_empty(&mut self) {
        {
            let mut server = self.api.server.lock().unwrap();
            (server.trouble, server.down) = (0, false);
        }
        self.controller = None;
        self.present = self.nodes.len();
        self.end_change();
        self.set_whole_window();
        for index in 0..self.nodes.len() {
            self.come_back(index);
            *self.nodes[index].api.partitioned.lock().unwrap() = false;
            self.nodes[index].skew = 0;
            self.nodes[index].kill_agent();
            self.nodes[index].calls.clear();
            self.now += 1;
            for owner in self.nodes[index].pods.keys().cloned().collect::<Vec<_>>() {
                self.forget(index, &owner);
                self.call(index, Verb::Del(owner));
            }
        }
        self.now += QUARANTINE * 20 + IDLE * 20;
        self.check_every_address_is_available();
    }

    fn check_every_address_is_available(&mut self) {
        let seed = self.seed;
        for index in 0..self.nodes.len() {
            self.update_watch(index);
            // The first request adopts what the store does not contain, and its DEL returns it.
            self.next += 1;
            let probe = Owner::of(format!("probe{}/{index}", self.next));
            let ip = ipam::pool_layout::nth(self.layout.subnet(), 1);
            self.call(index, Verb::Add(probe.clone(), AllocationKind::Address(ip)));
            self.forget(index, &probe);
            self.call(index, Verb::Del(probe));
            self.now += QUARANTINE * 20 + IDLE * 20;
            // As a GC call does.
            self.call(index, Verb::Tidy(0));
            self.update_watch(index);
        }
        let leased: Vec<IpNet> = {
            let server = self.api.server.lock().unwrap();
            let leased = server.objects.values().filter(|object| !object.holder.node.is_empty());
            leased.map(|object| object.net).collect()
        };
        assert!(leased.is_empty(), "seed {seed}: still leased: {leased:?}");
        let kept: BTreeSet<IpAddr> = {
            let server = self.api.server.lock().unwrap();
            let kept = server.objects.values().filter(|object| !object.holder.claim.is_empty());
            kept.map(|object| object.net.addr()).collect()
        };
        self.now += QUARANTINE * 20;
        let mut allocated = BTreeSet::new();
        loop {
            self.next += 1;
            let owner = Owner::of(format!("last{}", self.next));
            match self.call(0, Verb::Add(owner, AllocationKind::Any)) {
                Some(ip) => assert!(allocated.insert(ip), "seed {seed}: {ip} twice"),
                None => break,
            }
        }
        let all: BTreeSet<IpAddr> =
            self.filter.addresses(self.layout.subnet()).filter(|ip| !kept.contains(ip)).collect();
        let missing: Vec<&IpAddr> = all.difference(&allocated).collect();
        assert!(missing.is_empty(), "seed {seed}: not available: {missing:?}; kept by claims: {kept:?}");
        assert_eq!(allocated, all, "seed {seed}: every address that no claim keeps");
    }

    /// Runs one call alone, and returns the address it allocated.
    fn call(&mut self, index: usize, verb: Verb) -> Option<IpAddr> {
        let owner = match &verb {
            Verb::Add(owner, _) => Some(owner.clone()),
            _ => None,
        };
        self.nodes[index].calls.push(Call::of(verb));
        self.finish_calls(index);
        owner.and_then(|owner| self.nodes[index].pods.get(&owner).copied().flatten())
    }

    /// Runs the calls of a node to their end, without other events.
    pub(super) fn finish_calls(&mut self, index: usize) {
        for _ in 0..100_000 {
            if self.nodes[index].calls.is_empty() {
                return;
            }
            self.nodes[index].poll_agent();
            self.advance(index);
        }
        panic!("seed {}: a call does not end", self.seed);
    }
}
