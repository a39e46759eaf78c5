//! Events: new calls, killed calls and agents, loss of power, dead nodes, network partitions, the controller.

use ipam::{AddressStore, AllocationKind, Registry};

use super::super::api_server::Task;
use super::super::transfer::StoreTask;
use super::call::{Call, Verb};
use super::node::{Disk, Node};
use super::{Cluster, Owner};

impl Cluster {
    /// Lets an event happen, sometimes.
    pub(super) fn random_event(&mut self, node: usize) {
        let deletes = self.shape.shared || self.shape.deleted;
        match self.random.below(3_000) {
            0..20 => self.kill_call(node),
            20..30 => self.nodes[node].kill_agent(),
            30..34 => self.lose_power(node),
            34..36 => self.die(node),
            36..60 => self.come_back(node),
            60..64 => {
                let down = self.random.once_in(2);
                self.api.server.lock().unwrap().down = down;
            }
            64..72 => {
                let partitioned = self.random.once_in(2);
                *self.nodes[node].api.partitioned.lock().unwrap() = partitioned;
            }
            72..74 if self.seed % 2 == 1 => {
                self.nodes[node].skew = self.random.below(4_000) as i64 - 2_000;
                self.nodes[node].clock_moved = true;
                self.released.clear();
            }
            74..94 => self.update_watch(node),
            94..96 => self.isolate(node),
            96..104 => self.lose_object(node),
            104..150 if self.shape.late => self.lose_object(node),
            150..170 if deletes => self.delete_any_object(),
            170..190 if deletes => self.return_deleted_blocks(node),
            190..230 if self.shape.losses => self.remove_store(node),
            230..240 if self.shape.losses => self.back_up(),
            240..320 if self.shape.losses => self.restore_backup(),
            _ => {}
        }
    }

    /// Begins a call on a node.
    pub(super) fn begin_call(&mut self, index: usize) {
        let is_busy = |node: &Node, owner: &Owner| {
            node.calls.iter().any(|call| match &call.verb {
                Verb::Add(other, _) | Verb::Del(other) => other == owner,
                Verb::Tidy(_) | Verb::Store(_) => false,
            })
        };
        let known: Vec<Owner> = self.nodes[index].pods.keys().cloned().collect();
        let old = (!known.is_empty()).then(|| known[self.random.below(known.len() as u64) as usize].clone());
        let verb = match (self.random.below(10), old) {
            (0..4, Some(owner)) if !is_busy(&self.nodes[index], &owner) => Verb::Del(owner),
            // A repeated ADD. There is none for a pod that was deleted from the cluster.
            (4, Some(owner)) if !is_busy(&self.nodes[index], &owner) && !self.is_deleted(&owner) => {
                let kind = self.nodes[index].kinds.get(&owner).copied().unwrap_or(AllocationKind::Any);
                Verb::Add(owner, kind)
            }
            (5, _) => Verb::Tidy(4),
            _ if self.nodes[index].is_drained => return,
            _ => self.new_pod(index),
        };
        if let Verb::Add(owner, kind) = &verb {
            self.nodes[index].kinds.insert(owner.clone(), *kind);
            self.nodes[index].pods.entry(owner.clone()).or_insert(None);
        }
        if let Verb::Del(owner) = &verb {
            // The pod does not use the address from here on.
            self.forget(index, owner);
        }
        self.nodes[index].calls.push(Call::of(verb));
    }

    fn new_pod(&mut self, index: usize) -> Verb {
        self.next += 1;
        let mut owner = Owner::of(format!("p{}/{index}", self.next));
        let mut kind = AllocationKind::Any;
        if self.shape.claims > 0 {
            let size = ipam::pool_layout::address_count(self.layout.subnet());
            let host = self.random.below(60) + 1;
            let nth =
                |host: u64| ipam::pool_layout::nth(self.layout.subnet(), u128::from(host) % (size - 2) + 1);
            if self.shape.changes && self.random.once_in(8) {
                owner.claim = format!("i{}", self.random.below(self.shape.claims));
                return Verb::Add(owner, AllocationKind::ForClaim(None));
            }
            match self.random.below(4) {
                0 => kind = AllocationKind::Address(nth(host)),
                1 => {
                    let claim = self.random.below(self.shape.claims);
                    owner.claim = format!("c{claim}");
                    owner.restored = (claim % 2 == 1).then(|| nth(claim * 8 + 5));
                    kind = AllocationKind::ForClaim(None);
                }
                2 if self.random.below(4) == 0 => {
                    owner.claim = format!("n{host}");
                    kind = AllocationKind::AddressForClaim(nth(host));
                }
                _ => {}
            }
        }
        Verb::Add(owner, kind)
    }

    /// Kills the call that has the lock; the runtime will send a DEL.
    fn kill_call(&mut self, index: usize) {
        if !self.nodes[index].calls.is_empty() {
            let killed = self.nodes[index].calls.remove(0);
            self.counts.kills += 1;
            // A later call may complete what this one has given up.
            if let (Verb::Store(StoreTask::GiveUp(request, ..)), Some(given)) = (&killed.verb, &killed.given)
            {
                self.forget_quarantine_of(request, given);
            }
        }
    }

    /// A node loses power and starts again.
    fn lose_power(&mut self, index: usize) {
        if !self.nodes[index].alive {
            return;
        }
        self.end_processes(index);
        let loses_writes = self.random.once_in(2);
        let node = &mut self.nodes[index];
        if loses_writes {
            node.disk = Disk::of(node.synced.clone());
        }
        node.synced.clone_from(&node.disk.0.lock().unwrap());
        node.boot += 1;
    }

    /// A node dies; its disk may survive.
    fn die(&mut self, index: usize) {
        if self.nodes[index].alive {
            self.lose_power(index);
            self.nodes[index].alive = false;
            self.api.server.lock().unwrap().dead.insert(self.nodes[index].name.clone());
        }
    }

    /// A node starts again, or is seen again.
    pub(super) fn come_back(&mut self, index: usize) {
        if self.nodes[index].isolated {
            return self.end_isolation(index);
        }
        let is_wiped = self.random.once_in(3);
        let node = &mut self.nodes[index];
        if node.alive {
            return;
        }
        node.alive = true;
        self.api.server.lock().unwrap().dead.remove(&node.name);
        if is_wiped {
            node.synced = AddressStore::new(&node.boot_id()).to_bytes();
            node.disk = Disk::of(node.synced.clone());
        }
    }

    /// Ends all processes and pods of a node.
    fn end_processes(&mut self, index: usize) {
        let owners: Vec<Owner> = self.nodes[index].pods.keys().cloned().collect();
        for owner in owners {
            self.forget(index, &owner);
        }
        // The start of a quarantine is on the node's disk, and may be lost with it.
        self.released.clear();
        let node = &mut self.nodes[index];
        node.pods.clear();
        node.calls.clear();
        node.kill_agent();
    }

    /// The agent's watch catches up.
    pub(super) fn update_watch(&mut self, index: usize) {
        let name = self.nodes[index].name.clone();
        let server = self.api.server.lock().unwrap();
        self.nodes[index].seen =
            server.objects.values().filter(|object| object.holder.node == name).cloned().collect();
    }

    /// The controller reclaims the objects of dead nodes: it reads them, makes sure that the node is dead, then
    /// reclaims. It ends one claim.
    pub(super) fn reclaim(&self) -> Task<()> {
        let (api, now, shared) = (self.api.clone(), self.now, self.shape.shared);
        let ended = format!("c{}", now % self.shape.claims.max(1));
        Box::pin(async move {
            let Ok(all) = api.list().await else { return };
            let Ok(dead) = api.dead().await else { return };
            for object in all {
                if dead.contains(&object.holder.node) {
                    let _ = ipam::reclaim(&api, object, now).await;
                } else if object.holder.node.is_empty() && object.holder.claim == ended {
                    // Of several pods that shared the address one may still have it.
                    if !shared || api.shows(object.net.addr()).await == Ok(false) {
                        let _ = ipam::end_claim(&api, object, now).await;
                    }
                }
            }
        })
    }
}
