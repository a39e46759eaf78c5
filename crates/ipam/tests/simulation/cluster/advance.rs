//! Progress of the call that holds the lock of its node's store.

use std::net::IpAddr;
use std::sync::Arc;

use ipam::address_store::{Edit, WriteOrder};
use ipam::give_up::GivenUp;
use ipam::{
    AddressFilter, AllocationError, AllocationKind, BlockAllocator, Clock, Holder, IpBlock, LeaseRequest,
    LeaseResponse, PoolLayout, TransferRequest,
};

use super::super::api_server::Api;
use super::super::transfer::StoreTask;
use super::call::{Answer, Call, Verb};
use super::{Cluster, Owner};

/// Number of checks whether an address was transferred.
const TRANSFER_CHECKS: u32 = 4;

impl Cluster {
    /// Lets the call that has the lock do one thing.
    pub(super) fn advance(&mut self, index: usize) {
        let clock = self.clock(index);
        let node = &mut self.nodes[index];
        let call = &mut node.calls[0];
        if !call.unwritten.is_empty() {
            let Edit { offset, bytes, order } = call.unwritten.remove(0);
            let offset = usize::try_from(offset).unwrap();
            let mut disk = node.disk.0.lock().unwrap();
            if order == WriteOrder::AfterSync {
                node.synced.clone_from(&disk);
            }
            let length = disk.len().max(offset + bytes.len());
            disk.resize(length, 0);
            disk[offset..offset + bytes.len()].copy_from_slice(&bytes);
            return;
        }
        if let Some(outcome) = call.outcome.take() {
            node.synced.clone_from(&node.disk.0.lock().unwrap());
            let call = node.calls.remove(0);
            self.counts.drained += call.drained;
            self.counts.own_block += u64::from(call.unlocks > 0 && matches!(outcome, Ok(Some(_))));
            return self.end_call(index, &call, outcome);
        }
        if call.store.is_none() && call.unlocks > call.restarts {
            call.restarts = call.unlocks;
            // Other calls get the lock in the order in which they came.
            return node.calls.rotate_left(1);
        }
        if call.store.is_none() {
            call.filter.get_or_insert_with(|| Arc::clone(&self.filter));
            let boot = format!("b{}", node.boot);
            let mut store =
                ipam::AddressStore::open(Arc::new(node.disk.clone())).unwrap().expect("a valid store");
            if store.boot_id() != boot {
                call.unwritten = store.begin_boot(&boot, clock.now);
            }
            call.store = Some(store);
            return;
        }
        if call.answer.is_some() {
            return call.receive(clock, node.agent.is_empty());
        }
        let filter = call.filter.clone().unwrap_or_else(|| Arc::clone(&self.filter));
        if let Some(kind) = call.work(clock, &filter) {
            self.send_request(index, clock, kind);
        }
    }

    /// Sends the request of the call that has the lock to the agent.
    fn send_request(&mut self, index: usize, clock: Clock, kind: AllocationKind) {
        let node = &mut self.nodes[index];
        let call = &mut node.calls[0];
        let Some(mut request) = call.request(kind) else { return };
        let owner = call.owner();
        if let (AllocationKind::ForClaim(_), Some(ip)) = (kind, owner.restored) {
            request.kind = AllocationKind::AddressForClaim(ip);
        }
        let clock = call.clock(clock);
        let answer = Answer::default();
        call.answer = Some(Arc::clone(&answer));
        let holder = Holder {
            node: node.name.clone(),
            store: "pool".into(),
            owner: owner.name.clone(),
            claim: owner.claim,
            ..Holder::default()
        };
        let api = if self.shape.changes { node.api.with_layout(self.layout) } else { node.api.clone() };
        let agent = Agent {
            api: api.with_quarantine(clock.quarantine),
            layout: self.layout,
            filter: call.filter.clone().unwrap_or_else(|| Arc::clone(&self.filter)),
            holder,
            shares_claim: self.shape.shared,
            clock,
            seed: Owner::of(node.name.clone()).tag(),
        };
        node.agent.push((Box::pin(agent.serve(request, node.seen.clone())), answer));
    }

    fn end_call(&mut self, index: usize, call: &Call, outcome: Result<Option<IpAddr>, AllocationError>) {
        match (&call.verb, outcome) {
            (Verb::Add(owner, kind), Ok(Some(ip))) => {
                if call.ignores_quarantine {
                    self.counts.in_quarantine += 1;
                    self.released.remove(&ip);
                }
                self.record_allocation(index, owner, *kind, ip);
            }
            (Verb::Add(_, kind), Err(error)) => {
                self.counts.refused += 1;
                self.last_refusal = Some(error.clone());
                if let (
                    AllocationKind::Address(ip) | AllocationKind::AddressForClaim(ip),
                    AllocationError::Held { net, .. } | AllocationError::NotTransferred { net, .. },
                ) = (kind, error)
                {
                    assert!(net.contains(ip), "seed {}: {ip} is not in {net}", self.seed);
                    self.counts.refused_by_name += 1;
                }
            }
            (Verb::Del(owner), _) => {
                // A DEL always succeeds on the node; a later request tells the agent.
                self.nodes[index].pods.remove(owner);
            }
            (Verb::Store(StoreTask::Reserve(_, _, reply)), outcome) => reply.send(&outcome),
            (Verb::Store(StoreTask::Restore(_, reply)), _) => reply.put(call.restored.clone()),
            (Verb::Store(StoreTask::GiveUp(request, _, reply)), _) => {
                let given = call.given.clone().expect("the store was asked");
                self.forget_quarantine_of(request, &given);
                reply.put(given);
            }
            _ => {}
        }
    }

    /// The requester takes an address in quarantine, or another node does before it.
    pub(super) fn forget_quarantine_of(&mut self, request: &TransferRequest, given: &GivenUp) {
        match given {
            GivenUp::Addresses { addresses, .. } if request.quarantine == 0 => {
                self.released.retain(|ip, _| !addresses.contains(ip));
            }
            GivenUp::Block { net, .. } if request.quarantine == 0 => {
                self.released.retain(|ip, _| !net.contains(ip));
            }
            _ => {}
        }
    }
}

/// Values that the task of an agent owns.
struct Agent {
    api: Api,
    layout: PoolLayout,
    filter: Arc<AddressFilter>,
    holder: Holder,
    shares_claim: bool,
    clock: Clock,
    seed: u64,
}

impl Agent {
    async fn serve(self, request: LeaseRequest, seen: Vec<IpBlock>) -> LeaseResponse {
        let Agent { api, layout, filter, holder, shares_claim, clock, seed } = self;
        let (registry, filter, transfer_checks) = (&api, &*filter, TRANSFER_CHECKS);
        let allocator = BlockAllocator {
            registry,
            layout,
            filter,
            holder,
            shares_claim,
            clock,
            seed,
            transfer_checks,
            // As an agent whose last request found a full pool.
            lists_first: clock.now % 2 == 0,
        };
        allocator.serve(&request, &seen).await
    }
}
