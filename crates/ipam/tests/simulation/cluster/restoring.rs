//! Restoring of reserved addresses: the agents begin it at any moment, with objects that they saw late.

use ipam::give_up::unpublished_reservations;
use ipam::restore::{RestoreMessage, RestoreStep};
use ipam::{Clock, IpBlock};

use super::super::restore::Attempt;
use super::super::transfer::{Reply, StoreTask};
use super::Cluster;
use super::call::{Call, Verb};

impl Cluster {
    /// Lets the agent of a node restore reserved addresses, or publish reservations of its store.
    pub(super) fn step_restorer(&mut self, index: usize, clock: Clock) {
        if self.restore_random.once_in(10) && self.nodes[index].restorer.is_idle() {
            self.begin_restore(index, clock);
        }
        let node = &mut self.nodes[index];
        self.counts.restored += node.restorer.step();
        let tasks = node.restorer.store_tasks();
        node.calls.extend(tasks.map(|task| Call::of(Verb::Store(task))));
    }

    fn begin_restore(&mut self, index: usize, clock: Clock) {
        // The watch may be late. The store is read after the objects.
        let is_late = self.restore_random.once_in(2);
        let node = &self.nodes[index];
        let own = if is_late {
            node.seen.clone()
        } else {
            let server = node.api.server.lock().unwrap();
            server.objects.values().filter(|object| object.holder.node == node.name).cloned().collect()
        };
        let store = node.open_store();
        let attempt = |object: IpBlock| Attempt {
            unpublished: unpublished_reservations(&store, &object, &[]),
            has_marks: store.has_restore_marks(&object.lease_id()),
            object,
            mark: 0,
            clock,
        };
        let mut attempts: Vec<Attempt> =
            own.into_iter().filter(|object| !object.is_single_address()).map(attempt).collect();
        attempts
            .retain(|one| !one.object.reserved.is_empty() || one.has_marks || !one.unpublished.is_empty());
        if attempts.is_empty() {
            return;
        }
        let at = self.restore_random.below(attempts.len() as u64) as usize;
        let mark = self.restore_random.below(u64::MAX) | 1;
        let node = &mut self.nodes[index];
        let api = if self.shape.changes { node.api.with_layout(self.layout) } else { node.api.clone() };
        node.restorer.begin(api, Attempt { mark, ..attempts.swap_remove(at) });
    }

    /// Removes the marks of attempts that were not ended. The server must have no faults.
    pub(super) fn remove_restore_marks(&mut self, index: usize) {
        let store = self.nodes[index].open_store();
        let leases = store.blocks().map(|block| block.lease).filter(|lease| store.has_restore_marks(lease));
        for lease in leases.collect::<Vec<_>>() {
            let message = RestoreMessage { lease, mark: 1, step: RestoreStep::Mark, addresses: Vec::new() };
            let task = StoreTask::Restore(message, Reply::default());
            self.nodes[index].calls.push(Call::of(Verb::Store(task)));
        }
        self.finish_calls_of_all();
    }
}
