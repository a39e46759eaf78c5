//! Lost state: an address store that is removed under its pods, and a database that is restored to an earlier state.

use std::collections::{BTreeMap, BTreeSet};

use ipam::address_store::Block;
use ipam::{AddressStore, BlockState, IpBlock, LeaseSource, release_lease};
use ipnet::IpNet;

use super::super::api_server::block_on;
use super::Cluster;
use super::node::{Disk, Node};

/// Rounds of the agents after a restore, before anything is leased.
const ROUNDS: usize = 3;

/// Objects of the pool at an earlier time, and its record of single addresses.
pub(super) struct Backup {
    objects: BTreeMap<IpNet, IpBlock>,
    recorded: BTreeSet<IpNet>,
}

impl Cluster {
    /// The directory of a node's store is removed. The next call creates the store, with the addresses of living pods.
    pub(super) fn remove_store(&mut self, index: usize) {
        let node = &self.nodes[index];
        if !node.alive || !node.calls.is_empty() || node.open_store().boot_id() != node.boot_id() {
            return;
        }
        let mut store = AddressStore::new(&node.boot_id());
        for (owner, ip) in &node.pods {
            let Some(ip) = ip else { continue };
            drop(store.regain(*ip, self.now, owner.tag(), LeaseSource::Cluster));
        }
        let node = &mut self.nodes[index];
        node.synced = store.to_bytes();
        node.disk = Disk::of(node.synced.clone());
        self.counts.stores_removed += 1;
        // The start of a quarantine was in the store.
        self.released.clear();
        self.deleted.push(self.layout.subnet());
    }

    /// Copies the database.
    pub(super) fn back_up(&mut self) {
        let server = self.api.server.lock().unwrap();
        self.backup = Some(Backup { objects: server.objects.clone(), recorded: server.recorded.clone() });
    }

    /// Restores the copy. Every agent notices it, and leases nothing until each one has leased again what its pods hold.
    pub(super) fn restore_backup(&mut self) {
        let is_ready = |node: &Node| {
            let is_connected = node.alive && !*node.api.partitioned.lock().unwrap();
            is_connected && node.calls.is_empty() && node.open_store().boot_id() == node.boot_id()
        };
        if !self.nodes.iter().all(is_ready) || self.api.server.lock().unwrap().down {
            return;
        }
        let Some(Backup { objects, recorded }) = self.backup.take() else { return };
        self.controller = None;
        let trouble = {
            let mut server = self.api.server.lock().unwrap();
            (server.objects, server.recorded) = (objects, recorded);
            std::mem::take(&mut server.trouble)
        };
        self.released.clear();
        self.deleted.push(self.layout.subnet());
        self.counts.backups += 1;
        for index in 0..self.nodes.len() {
            self.nodes[index].kill_agent();
        }
        for _ in 0..ROUNDS {
            for index in 0..self.nodes.len() {
                self.compare_leases(index);
                self.update_watch(index);
            }
        }
        self.api.server.lock().unwrap().trouble = trouble;
    }

    /// A node leases again what its pods hold, and returns what its store does not need.
    fn compare_leases(&mut self, index: usize) {
        let name = self.nodes[index].name.clone();
        let own = || -> Vec<IpBlock> {
            let server = self.api.server.lock().unwrap();
            server.objects.values().filter(|object| object.holder.node == name).cloned().collect()
        };
        let leased = own();
        let mut store = self.nodes[index].open_store();
        let is_lost = |block: &Block| !leased.iter().any(|object| object.lease_id() == block.lease);
        let active = store.blocks().filter(|block| block.state == BlockState::Active);
        let lost: Vec<Block> = active.filter(is_lost).collect();
        for block in &lost {
            self.write_unconfirmed(index, &mut store, &block.lease);
        }
        // The object of a single address may name an earlier owner.
        let is_leased =
            |block: &Block| !block.single_owner && leased.iter().any(|object| object.net == block.net);
        let held: Vec<Block> = store
            .blocks()
            .filter(|block| store.is_unconfirmed_and_used(block) && !is_leased(block))
            .collect();
        for block in &held {
            self.lease_again(index, &store, block);
        }
        for object in leased {
            let is_stored = store.blocks().any(|block| block.lease == object.lease_id());
            if !is_stored && !store.needs_object(&object) {
                let api = self.nodes[index].api.clone();
                block_on(release_lease(&api, object.net, (&name, &object.lease_id()), self.now))
                    .expect("no fault");
            }
        }
    }
}
