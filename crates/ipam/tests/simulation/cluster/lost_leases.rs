//! A node that is taken for dead and lives: what it has is given to others, and its ledger goes on when it is heard of again, in the
//! same boot. No call is at work in the meantime; its pods are ended by then, and their DELs come later or never.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ipam::lease::give_back;
use ipam::ledger::{Block, Slot, State};
use ipam::registry::Holder;
use ipam::{Ledger, confirm, turn};
use ipnet::IpNet;

use super::super::transfer::Giver;
use super::{Cluster, Owner, REST, mark};

fn wait<T>(task: impl Future<Output = T>) -> T {
    let mut task = pin!(task);
    loop {
        if let Poll::Ready(done) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
    }
}

impl Cluster {
    /// It is not heard of any more, and said to be gone.
    pub(super) fn lose_sight(&mut self, index: usize) {
        if !self.nodes[index].alive {
            return;
        }
        let owners: Vec<Owner> = self.nodes[index].pods.keys().cloned().collect();
        for owner in owners {
            self.forget(index, &owner);
            self.api.server.lock().unwrap().gone.insert(owner.name);
        }
        self.freed.clear();
        let node = &mut self.nodes[index];
        node.calls.clear();
        node.agent.clear();
        node.giver = Giver::default();
        node.seen.clear();
        (node.alive, node.lives) = (false, true);
        self.api.server.lock().unwrap().dead.insert(node.name.clone());
    }

    /// A hand deletes an object of a node under its pods, which go on. Its agent has the ledger doubt it, and leases it again, if
    /// something in it is held, before anybody else comes but pods of its own, where it is late.
    pub(super) fn lose_object(&mut self, index: usize) {
        let node = &self.nodes[index];
        if !node.alive || !node.calls.is_empty() || *node.api.partitioned.lock().unwrap() {
            return;
        }
        let mut ledger = Ledger::open(Arc::new(node.disk.clone())).unwrap().expect("a ledger");
        if ledger.boot() != format!("b{}", node.boot) {
            return;
        }
        let active: Vec<_> = ledger.blocks().filter(|block| block.state == State::Active).collect();
        if active.is_empty() {
            return;
        }
        let block = &active[self.random.below(active.len() as u64) as usize];
        let trouble = {
            let mut server = self.api.server.lock().unwrap();
            let is_it = server.objects.get(&block.net).is_some_and(|object| object.lease_id() == block.uid);
            // Somebody who is leasing the block around it has not looked yet: he may have the address before it is leased again.
            let is_open = |object: &&ipam::registry::Object| {
                object.net != block.net
                    && object.net.contains(&block.net)
                    && !object.holes.contains(&block.net.addr())
            };
            if server.down || !is_it || server.objects.values().find(is_open).is_some() {
                return;
            }
            let is_claimed =
                server.objects.get(&block.net).is_some_and(|object| !object.holder.claim.is_empty());
            if self.shape.shared && is_claimed {
                assert!(server.delete_by_hand(block.net));
                return;
            }
            // A hand has taken away what keeps it as well, or an earlier release did not write that.
            server.objects.remove(&block.net);
            std::mem::take(&mut server.trouble)
        };
        // Since when what is free in it rests is written in the ledger alone.
        self.freed.clear();
        self.deleted.push(block.net);
        if self.shape.late {
            ledger = self.meanwhile(index);
        }
        self.write_doubt(index, &mut ledger, &block.uid);
        // Something in it may be held in the page of an earlier lease alone, which is compared as well.
        let held: Vec<_> = ledger
            .blocks()
            .filter(|known| known.net == block.net && turn::is_held_in_doubt(&ledger, known))
            .collect();
        for doubted in held {
            self.lease_again(index, &ledger, &doubted);
        }
        self.api.server.lock().unwrap().trouble = trouble;
    }

    /// A hand deletes an object, whosever it is.
    pub(super) fn delete_by_hand(&mut self) {
        let mut server = self.api.server.lock().unwrap();
        let all: Vec<IpNet> = server.objects.keys().copied().collect();
        if all.is_empty() || server.down {
            return;
        }
        let net = all[self.random.below(all.len() as u64) as usize];
        self.doomed += u64::from(server.delete_by_hand(net));
        drop(server);
        // Since when it rests goes with the object.
        self.freed.clear();
        self.deleted.push(net);
    }

    /// A node's agent gives back what a hand has deleted, if nothing in it is held.
    pub(super) fn give_back_deleted(&mut self, index: usize) {
        let node = &self.nodes[index];
        if !node.alive || !node.calls.is_empty() {
            return;
        }
        let mut ledger = Ledger::open(Arc::new(node.disk.clone())).unwrap().expect("a ledger");
        if ledger.boot() != format!("b{}", node.boot) {
            return;
        }
        let doomed = self.api.server.lock().unwrap().doomed_of(&node.name);
        for object in doomed {
            let lease = object.lease_id();
            if confirm::is_held_inside(&ledger, object.net) {
                continue;
            }
            self.write_doubt(index, &mut ledger, &lease);
            if confirm::is_over(&ledger, &lease) {
                let api = self.nodes[index].api.clone();
                // If it does not succeed it is tried again.
                let given = give_back(&api, object.net, &lease, self.now);
                self.emptied += u64::from(wait(given).is_ok());
            }
        }
    }

    /// As the agent does: for whom a single address is held, and what keeps it, is written beside the ledger.
    fn lease_again(&mut self, index: usize, ledger: &Ledger, doubted: &Block) {
        let node = &self.nodes[index];
        let held = ledger.slots_of(doubted).next().filter(|_| doubted.bound);
        let is_his = |owner: &&Owner| matches!(held, Some(Slot::Held(_, own)) if own == mark(owner));
        let owner = node.pods.keys().find(is_his).cloned().unwrap_or_else(|| Owner::of(String::new()));
        let holder = Holder {
            node: node.name.clone(),
            ledger: "pool".into(),
            owner: owner.name,
            claim: owner.claim,
            ..Holder::default()
        };
        let task = confirm::lease_again(&node.api, self.grid, doubted.net, &holder, self.now);
        self.again += u64::from(wait(task).expect("nothing goes wrong"));
    }

    /// What its pods ask for before its agent has seen it; the ledger then.
    fn meanwhile(&mut self, index: usize) -> Ledger {
        for _ in 0..self.random.below(8) {
            self.now += REST / 2;
            self.begin(index);
            self.finish(index);
        }
        Ledger::open(Arc::new(self.nodes[index].disk.clone())).unwrap().expect("a ledger")
    }

    fn write_doubt(&self, index: usize, ledger: &mut Ledger, lease: &str) {
        // In doubt since it was leased anew, or not there any more.
        let Some(edit) = confirm::doubt(ledger, lease) else { return };
        let offset = usize::try_from(edit.offset).unwrap();
        let disk = &self.nodes[index].disk;
        disk.0.lock().unwrap()[offset..offset + edit.bytes.len()].copy_from_slice(&edit.bytes);
    }

    /// Its agent says that it is there, and has its ledger doubt what the server says is not its own.
    pub(super) fn be_seen(&mut self, index: usize) {
        let name = self.nodes[index].name.clone();
        let leases = self.api.server.lock().unwrap().answered_by(&name);
        let node = &mut self.nodes[index];
        (node.alive, node.lives) = (true, false);
        let mut ledger = Ledger::open(Arc::new(node.disk.clone())).unwrap().expect("a ledger");
        let lost: Vec<String> = ledger
            .blocks()
            .filter(|block| block.state == State::Active && !leases.contains(&block.uid))
            .map(|block| block.uid)
            .collect();
        self.doubted += lost.len() as u64;
        for lease in lost {
            self.write_doubt(index, &mut ledger, &lease);
        }
        let node = &mut self.nodes[index];
        node.synced.clone_from(&node.disk.0.lock().unwrap());
        self.api.server.lock().unwrap().dead.remove(&name);
    }
}
