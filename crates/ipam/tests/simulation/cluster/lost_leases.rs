//! Lost leases: a node that the cluster takes for dead and that continues in the same boot, and an object that is
//! deleted while pods hold addresses of it.

use std::sync::Arc;

use ipam::address_store::{Block, Slot};
use ipam::{AddressStore, BlockState, Holder, IpBlock, recreate_lease};
use ipnet::IpNet;

use super::super::api_server::block_on;
use super::{Cluster, Owner, QUARANTINE};

impl Cluster {
    /// The cluster loses sight of a node and takes it for dead. No call runs meanwhile. Its pods have ended by then;
    /// their DELs come later or never.
    pub(super) fn isolate(&mut self, index: usize) {
        if !self.nodes[index].alive {
            return;
        }
        let owners: Vec<Owner> = self.nodes[index].pods.keys().cloned().collect();
        for owner in owners {
            self.forget(index, &owner);
            self.api.server.lock().unwrap().deleted_pods.insert(owner.name);
        }
        self.released.clear();
        let node = &mut self.nodes[index];
        node.calls.clear();
        node.kill_agent();
        node.seen.clear();
        (node.alive, node.isolated) = (false, true);
        self.api.server.lock().unwrap().dead.insert(node.name.clone());
    }

    /// The node's agent answers again, and marks the leases that the server does not list as unconfirmed.
    pub(super) fn end_isolation(&mut self, index: usize) {
        let name = self.nodes[index].name.clone();
        let leases = self.api.server.lock().unwrap().answer_probe(&name);
        let node = &mut self.nodes[index];
        (node.alive, node.isolated) = (true, false);
        let mut store = node.open_store();
        let lost: Vec<String> = store
            .blocks()
            .filter(|block| block.state == BlockState::Active && !leases.contains(&block.lease))
            .map(|block| block.lease)
            .collect();
        self.counts.unconfirmed += lost.len() as u64;
        for lease in lost {
            self.write_unconfirmed(index, &mut store, &lease);
        }
        let node = &mut self.nodes[index];
        node.synced.clone_from(&node.disk.0.lock().unwrap());
        self.api.server.lock().unwrap().dead.remove(&name);
    }

    /// An object of a node is removed under its pods, which continue. The agent marks the lease as unconfirmed, and
    /// leases it again if something in it is held. Only pods of the same node may come before, if the agent is late.
    pub(super) fn lose_object(&mut self, index: usize) {
        let node = &self.nodes[index];
        if !node.alive || !node.calls.is_empty() || *node.api.partitioned.lock().unwrap() {
            return;
        }
        let mut store = node.open_store();
        if store.boot_id() != node.boot_id() {
            return;
        }
        let active: Vec<_> = store.blocks().filter(|block| block.state == BlockState::Active).collect();
        if active.is_empty() {
            return;
        }
        let block = &active[self.random.below(active.len() as u64) as usize];
        let Some(trouble) = self.remove_object(block) else { return };
        // The start of a quarantine is known in the store alone.
        self.forget_quarantine(block.net);
        if self.shape.late {
            store = self.run_late_calls(index);
        }
        self.write_unconfirmed(index, &mut store, &block.lease);
        // Something may be held under an earlier lease alone, which is compared as well.
        let held: Vec<_> = store
            .blocks()
            .filter(|known| known.net == block.net && store.is_unconfirmed_and_used(known))
            .collect();
        for unconfirmed in held {
            self.lease_again(index, &store, &unconfirmed);
        }
        self.api.server.lock().unwrap().trouble = trouble;
    }

    /// Removes the object of a block and makes the server free of faults; returns the fault rate before. `None` if the
    /// object is left alone.
    fn remove_object(&mut self, block: &Block) -> Option<u64> {
        let mut server = self.api.server.lock().unwrap();
        let object = server.objects.get(&block.net);
        let is_current = object.is_some_and(|object| object.lease_id() == block.lease);
        // Another node is leasing the block around the address and has not read its single addresses yet: it might
        // allocate the address before it is leased again.
        let is_around = |object: &&IpBlock| {
            object.net != block.net
                && object.net.contains(&block.net)
                && !object.reserved.contains(&block.net.addr())
        };
        if server.down || !is_current || server.objects.values().any(|object| is_around(&object)) {
            return None;
        }
        let has_claim = server.objects.get(&block.net).is_some_and(|object| !object.holder.claim.is_empty());
        if self.shape.shared && has_claim {
            assert!(server.delete_manually(block.net));
            return None;
        }
        // The finalizer was removed manually as well.
        server.objects.remove(&block.net);
        Some(std::mem::take(&mut server.trouble))
    }

    /// Leases a block again, as the agent does. The owner of a single address and its claim are recorded beside the
    /// store.
    pub(super) fn lease_again(&mut self, index: usize, store: &AddressStore, unconfirmed: &Block) {
        let node = &self.nodes[index];
        let held = store.slots_of(unconfirmed).next().filter(|_| unconfirmed.single_owner);
        let is_owner = |pod: &&Owner| matches!(held, Some(Slot::Held { owner, .. }) if owner == pod.tag());
        let owner = node.pods.keys().find(is_owner).cloned().unwrap_or_else(|| Owner::of(String::new()));
        let holder = Holder {
            node: node.name.clone(),
            store: "pool".into(),
            owner: owner.name,
            claim: owner.claim,
            ..Holder::default()
        };
        let api = if self.shape.changes { node.api.with_layout(self.layout) } else { node.api.clone() };
        let task = recreate_lease(&api, self.layout, unconfirmed.net, &holder, self.now);
        self.counts.leased_again += u64::from(block_on(task).expect("no fault"));
    }

    /// Runs calls of pods before the agent has seen the deletion, and returns the store after them.
    fn run_late_calls(&mut self, index: usize) -> AddressStore {
        for _ in 0..self.random.below(8) {
            self.now += QUARANTINE / 2;
            self.begin_call(index);
            self.finish_calls(index);
        }
        self.nodes[index].open_store()
    }

    /// Marks a lease as unconfirmed on the disk.
    pub(super) fn write_unconfirmed(&self, index: usize, store: &mut AddressStore, lease: &str) {
        // No edit if the lease is unconfirmed or gone.
        let Some(edit) = store.mark_unconfirmed(lease) else { return };
        let offset = usize::try_from(edit.offset).unwrap();
        let disk = Arc::clone(&self.nodes[index].disk.0);
        disk.lock().unwrap()[offset..offset + edit.bytes.len()].copy_from_slice(&edit.bytes);
    }

    /// Records that the start of the quarantine of a network is lost.
    pub(super) fn forget_quarantine(&mut self, net: IpNet) {
        self.released.clear();
        self.deleted.push(net);
    }
}
