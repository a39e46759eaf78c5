//! Liveness: as long as one address is free anywhere in the cluster, a pod on any node gets one.
//!
//! All faults are repaired: every node and agent runs, and no pod's call is in progress. Then pods are created on random
//! nodes until no address is free, or many. Each gets an address in one call, or in
//! three if claims keep addresses of leased blocks. Nodes without a call serve as drained ones.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipam::give_up::{publish_reservations, unpublished_reservations};
use ipam::{AllocationKind, IpBlock};

use super::super::api_server::block_on;
use super::super::restore::Restorer;
use super::call::{Call, Verb};
use super::{Cluster, Owner, QUARANTINE};

/// Largest number of pods of one check.
const PODS_MAX: usize = 64;
/// Largest number of calls for a pod.
const ATTEMPTS: usize = 3;

impl Cluster {
    /// Repairs every fault, and checks that pods on random nodes get all free addresses.
    pub(super) fn check_any_node_gets_free_addresses(&mut self) {
        let trouble = std::mem::take(&mut self.api.server.lock().unwrap().trouble);
        self.calm_down();
        // Without that, the last addresses are allocated in quarantine.
        if self.random.once_in(2) {
            self.now += QUARANTINE * 2;
        }
        let (mut free, kept) = self.free_addresses();
        let mut filling = Vec::new();
        while !free.is_empty() && filling.len() < PODS_MAX {
            let index = self.pick();
            self.next += 1;
            let owner = Owner::of(format!("f{}/{index}", self.next));
            let mut got = None;
            // A node may give up an address that a claim keeps; then the runtime tries again.
            for _ in 0..ATTEMPTS {
                self.nodes[index].calls.push(Call::of(Verb::Add(owner.clone(), AllocationKind::Any)));
                self.finish_calls_of_all();
                got = self.nodes[index].pods.get(&owner).copied().flatten();
                if got.is_some() {
                    break;
                }
            }
            let Some(ip) = got else {
                panic!(
                    "seed {}, step {}: n{index} gets no address although {free:?} are free: {}",
                    self.seed,
                    self.steps,
                    self.objects_as_text()
                );
            };
            // An address whose claim waits for a transfer may be allocated by the node of the block.
            assert!(free.remove(&ip) || kept.contains(&ip), "seed {}: {ip} is not free", self.seed);
            self.counts.filled += 1;
            filling.push((index, owner));
        }
        for (index, owner) in filling {
            self.forget(index, &owner);
            self.nodes[index].calls.push(Call::of(Verb::Del(owner)));
            self.finish_calls_of_all();
        }
        self.api.server.lock().unwrap().trouble = trouble;
    }

    /// Repairs every fault, ends every call, and releases the addresses of killed calls.
    fn calm_down(&mut self) {
        self.api.server.lock().unwrap().down = false;
        for index in 0..self.nodes.len() {
            self.come_back(index);
            *self.nodes[index].api.partitioned.lock().unwrap() = false;
            self.nodes[index].restorer = Restorer::default();
        }
        self.finish_calls_of_all();
        self.controller = None;
        self.end_change();
        for index in 0..self.nodes.len() {
            let without: Vec<Owner> = self.nodes[index]
                .pods
                .iter()
                .filter(|(_, address)| address.is_none())
                .map(|(owner, _)| owner.clone())
                .collect();
            for owner in without {
                self.nodes[index].calls.push(Call::of(Verb::Del(owner)));
            }
            self.finish_calls_of_all();
            self.use_lost_leases(index);
            // A lease whose response was lost is returned by the agent.
            for _ in 0..2 {
                self.update_watch(index);
                self.nodes[index].calls.push(Call::of(Verb::Tidy(4)));
                self.finish_calls_of_all();
            }
            self.remove_restore_marks(index);
            self.publish_reservations(index);
        }
    }

    /// A block that was leased again around the held addresses is taken into use by the next request of its node.
    fn use_lost_leases(&mut self, index: usize) {
        let store = self.nodes[index].open_store();
        if store.blocks().any(|block| store.is_unconfirmed_and_used(&block)) {
            self.next += 1;
            let owner = Owner::of(format!("u{}/{index}", self.next));
            self.update_watch(index);
            let verbs = [Verb::Add(owner.clone(), AllocationKind::ForClaim(None)), Verb::Del(owner.clone())];
            for verb in verbs {
                self.nodes[index].calls.push(Call::of(verb));
                self.finish_calls_of_all();
                self.forget(index, &owner);
            }
        }
    }

    /// The agent writes reservations of its store into the registry if a process was killed before that.
    fn publish_reservations(&self, index: usize) {
        let node = &self.nodes[index];
        let server = node.api.server.lock().unwrap();
        let is_own = |object: &&IpBlock| object.holder.node == node.name;
        let own: Vec<IpBlock> = server.objects.values().filter(is_own).cloned().collect();
        drop(server);
        let store = node.open_store();
        for object in own {
            let addresses = unpublished_reservations(&store, &object, &[]);
            if !addresses.is_empty() {
                block_on(publish_reservations(&node.api, &object, addresses)).expect("no fault");
            }
        }
    }

    /// Addresses that no pod has and no claim keeps, and those that a claim keeps.
    fn free_addresses(&self) -> (BTreeSet<IpAddr>, BTreeSet<IpAddr>) {
        let server = self.api.server.lock().unwrap();
        let kept: BTreeSet<IpAddr> = server
            .objects
            .values()
            .filter(|object| !object.holder.claim.is_empty())
            .map(|object| object.net.addr())
            .collect();
        let all = self.filter.addresses(self.layout.subnet());
        (all.filter(|ip| !kept.contains(ip) && !self.holders.contains_key(ip)).collect(), kept)
    }

    /// Objects and stores, for the message of a failure.
    fn objects_as_text(&self) -> String {
        let mut text = format!("{:?}\n", self.last_refusal);
        for object in self.api.server.lock().unwrap().objects.values() {
            text.push_str(&format!("{} {:?} reserved {:?}\n", object.net, object.holder, object.reserved));
        }
        for node in &self.nodes {
            let store = node.open_store();
            for block in store.blocks() {
                let slots: Vec<_> = store.slots_of(&block).collect();
                text.push_str(&format!("{}: {:?} {} {slots:?}\n", node.name, block.state, block.net));
            }
        }
        text
    }

    /// Runs the calls of all nodes to their end, with the agents of all nodes.
    pub(super) fn finish_calls_of_all(&mut self) {
        for _ in 0..200_000 {
            let mut is_busy = false;
            for index in 0..self.nodes.len() {
                let now = self.clock(index).now;
                let node = &mut self.nodes[index];
                node.poll_agent();
                self.counts.transferred += node.transfers.step(true, &node.api, self.layout, &node.name, now);
                let tasks = node.transfers.store_tasks();
                node.calls.extend(tasks.map(|task| Call::of(Verb::Store(task))));
                // The request of a killed call may lease an address. It matters where few are free.
                is_busy |= self.shape.changes && !node.agent.is_empty();
                if !node.calls.is_empty() {
                    is_busy = true;
                    self.advance(index);
                }
            }
            if !is_busy {
                return;
            }
        }
        panic!("seed {}: a call does not end", self.seed);
    }
}
