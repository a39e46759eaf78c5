//! A node that is taken for dead and lives: what it has is given to others, and its ledger goes on when it is heard of again, in the
//! same boot. No call is at work in the meantime; its pods are ended by then, and their DELs come later or never.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ipam::ledger::State;
use ipam::registry::Holder;
use ipam::{Ledger, confirm, turn};

use super::super::handover::Giver;
use super::{Cluster, Owner, REST};

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
            // For whom else it was kept, and who else has it, was in the object alone.
            let mut holders = self.told.get(&block.net.addr()).into_iter().flatten();
            let is_shared = self.shape.shared && block.bound && holders.any(|(node, _)| *node != index);
            if server.down || !is_it || is_shared || server.objects.values().find(is_open).is_some() {
                return;
            }
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
            let node = &self.nodes[index];
            let of = |told: &Option<std::net::IpAddr>| block.bound && *told == Some(block.net.addr());
            let owner = node.pods.iter().find(|(_, told)| of(told)).map(|(owner, _)| owner.name.clone());
            let holder = Holder {
                node: node.name.clone(),
                ledger: "pool".into(),
                owner: owner.unwrap_or_default(),
                ..Holder::default()
            };
            let task = confirm::lease_again(&node.api, self.grid, doubted.net, &holder, self.now);
            let mut task = pin!(task);
            let had = loop {
                if let Poll::Ready(had) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    break had;
                }
            };
            self.again += u64::from(had.expect("nothing goes wrong"));
        }
        self.api.server.lock().unwrap().trouble = trouble;
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
