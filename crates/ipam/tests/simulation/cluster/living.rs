//! A node that is taken for dead and lives: what it has is given to others, and its ledger goes on when it is heard of again, in the
//! same boot. No call is at work in the meantime; its pods are ended by then, and their DELs come later or never.

use std::sync::Arc;

use ipam::Ledger;
use ipam::confirm;
use ipam::ledger::State;

use super::super::handover::Giver;
use super::{Cluster, Owner};

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
            let edit = confirm::doubt(&mut ledger, &lease).expect("it is active");
            let offset = usize::try_from(edit.offset).unwrap();
            node.disk.0.lock().unwrap()[offset..offset + edit.bytes.len()].copy_from_slice(&edit.bytes);
        }
        node.synced.clone_from(&node.disk.0.lock().unwrap());
        self.api.server.lock().unwrap().dead.remove(&name);
    }
}
