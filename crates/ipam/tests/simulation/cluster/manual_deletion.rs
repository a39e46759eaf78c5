//! Manual deletion: any object may be deleted at any moment. It remains until it is free.

use ipam::release_lease;
use ipnet::IpNet;

use super::super::api_server::block_on;
use super::Cluster;

impl Cluster {
    /// Deletes a random object.
    pub(super) fn delete_any_object(&mut self) {
        let mut server = self.api.server.lock().unwrap();
        let all: Vec<IpNet> = server.objects.keys().copied().collect();
        if all.is_empty() || server.down {
            return;
        }
        let net = all[self.random.below(all.len() as u64) as usize];
        self.counts.deleted += u64::from(server.delete_manually(net));
        drop(server);
        // The start of the quarantine is lost with the object.
        self.forget_quarantine(net);
    }

    /// The agent of a node returns deleted blocks in which nothing is held.
    pub(super) fn return_deleted_blocks(&mut self, index: usize) {
        let node = &self.nodes[index];
        if !node.alive || !node.calls.is_empty() {
            return;
        }
        let mut store = node.open_store();
        if store.boot_id() != node.boot_id() {
            return;
        }
        let deleted = self.api.server.lock().unwrap().deleted_blocks_of(&node.name);
        for object in deleted {
            let lease = object.lease_id();
            if store.is_held_inside(object.net) {
                continue;
            }
            self.write_unconfirmed(index, &mut store, &lease);
            if store.is_unconfirmed_and_unused(&lease) {
                let api = self.nodes[index].api.clone();
                // A failed attempt is repeated later.
                let released = release_lease(&api, object.net, (&object.holder.node, &lease), self.now);
                self.counts.returned += u64::from(block_on(released).is_ok());
            }
        }
    }
}
