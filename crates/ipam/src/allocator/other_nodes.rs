//! Any address from another node, if none is known to be free: requests are written into the objects for
//! other nodes' blocks.
//!
//! The other node's part is in [`crate::give_up`]; the protocol is in
//! `docs/design/ipam.md#any-address-of-another-node`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::single_address::BlockConflict;
use super::{BlockAllocator, Listed, RequestContext, SEED_STEP, UNLISTED_ATTEMPTS};
use crate::address_filter::mix;
use crate::address_span::AddressSpan;
use crate::allocation_error::AllocationError;
use crate::block_lease::BlockLease;
use crate::ip_block::{IpBlock, REQUESTS_MAX, SPANS_MAX, TransferRequest};
use crate::join::join_all;
use crate::lease_message::AllocationKind;
use crate::registry::{Registry, RegistryError};

/// Number of requests that wait for an answer at a time.
const WAVE: usize = 4;
/// Number of objects that are read at the same time.
const READS: usize = 2 * WAVE;
/// Number of checks during which a request without an answer may delay others.
const PATIENT_CHECKS: u32 = 2;
/// Total number of checks.
const CHECKS_MAX: u32 = 64;

/// Blocks in whose objects a request is written, with the addresses in each request.
type AskedBlocks<'a> = Vec<(&'a IpBlock, Vec<AddressSpan>)>;

/// Best answer to some requests.
#[derive(PartialEq, Eq)]
enum Answer {
    /// There is none yet.
    None,
    /// Requests were removed. These addresses were reserved in the blocks with the requests; others may be in other blocks.
    Addresses(Vec<IpAddr>),
    /// A block is free.
    Block,
}

/// Requests that wait for an answer.
#[derive(Default)]
struct Waiting {
    /// Blocks with a request, and the request.
    posted: Vec<(IpNet, TransferRequest)>,
    /// The same for nodes that did not answer in time.
    slow: Vec<(IpNet, TransferRequest)>,
}

impl<R: Registry> BlockAllocator<'_, R> {
    /// Asks the nodes that lease other blocks for an address, some at a time, until one is leased or all have
    /// answered.
    pub(crate) async fn lease_from_other_nodes(
        &self,
        kind: AllocationKind,
        context: RequestContext<'_>,
        mut refusal: AllocationError,
        listed: Listed,
    ) -> Result<BlockLease, AllocationError> {
        if self.transfer_checks == 0 {
            return Err(refusal);
        }
        let objects = match listed {
            Some(objects) => objects,
            None => self.registry.list().await?,
        };
        let all = self.requests_for_any(&objects);
        let asked: BTreeSet<String> = all.iter().map(|(object, _)| object.holder.node.clone()).collect();
        let nodes: BTreeMap<IpNet, String> =
            all.iter().map(|(object, _)| (object.net, object.holder.node.clone())).collect();
        let mut queue = all.into_iter();
        let (mut waiting, mut check, mut checks) = (Waiting::default(), 0, 0);
        while check < self.transfer_checks && checks < CHECKS_MAX {
            if let Err(error) = self.post_some(&mut queue, &mut waiting).await {
                self.withdraw(waiting).await;
                return Err(error.into());
            }
            if waiting.posted.is_empty() && waiting.slow.is_empty() {
                break;
            }
            // A wait for many silent nodes would cost a watch for each; all answers are read below.
            let nets = waiting.posted.iter().chain(&waiting.slow).take(READS).map(|(net, _)| *net).collect();
            self.registry.wait_for_answer(check, nets, &self.holder.node).await;
            (check, checks) = (check + 1, checks + 1);
            let answer = match self.answer(&mut waiting).await {
                Ok(answer) => answer,
                Err(error) => {
                    self.withdraw(waiting).await;
                    return Err(error.into());
                }
            };
            if answer != Answer::None {
                check = 0;
                match self.lease_given(kind, &answer, context).await {
                    Err(error) if error.may_be_free_elsewhere() => refusal = error,
                    outcome => {
                        self.withdraw(waiting).await;
                        return outcome;
                    }
                }
            }
            if check >= PATIENT_CHECKS && !queue.as_slice().is_empty() {
                waiting.slow.append(&mut waiting.posted);
                check = 0;
            }
        }
        if asked.is_empty() {
            return Err(refusal);
        }
        let pending = waiting.posted.iter().chain(&waiting.slow).map(|(net, _)| *net);
        let pending = pending.chain(queue.map(|(object, _)| object.net));
        let silent: BTreeSet<String> = pending.filter_map(|net| nodes.get(&net).cloned()).collect();
        let full = asked.difference(&silent).cloned().collect();
        Err(AllocationError::none_elsewhere(self.filter.count(), &full, &silent))
    }

    /// Returns a request for each node with addresses that may be free, in an order that differs for each request.
    fn requests_for_any(&self, all: &[IpBlock]) -> Vec<(IpBlock, TransferRequest)> {
        let own = &self.holder;
        let is_other = |object: &&IpBlock| {
            let (node, store) = (&object.holder.node, &object.holder.store);
            !object.is_single_address() && !node.is_empty() && (node, store) != (&own.node, &own.store)
        };
        let mut requests: BTreeMap<(&str, &str), AskedBlocks<'_>> = BTreeMap::new();
        for object in all.iter().filter(is_other) {
            let spans = AddressSpan::of_block(self.filter, object);
            if spans.is_empty() {
                continue;
            }
            let of_store = requests.entry((&object.holder.node, &object.holder.store)).or_default();
            match of_store.last_mut() {
                Some((_, known)) if known.len() + spans.len() <= SPANS_MAX => known.extend(spans),
                _ => of_store.push((object, spans)),
            }
        }
        let mut requests: AskedBlocks<'_> = requests.into_values().flatten().collect();
        let order = self.seed ^ self.clock.now.wrapping_mul(SEED_STEP);
        requests.sort_by_cached_key(|(object, _)| {
            let name = format!("{}/{}", object.holder.node, object.net);
            mix(name.bytes().fold(order, |hash, byte| mix(hash ^ u64::from(byte))))
        });
        let request = |addresses| TransferRequest {
            node: own.node.clone(),
            store: own.store.clone(),
            addresses,
            quarantine: self.clock.quarantine,
            requested_at: self.clock.now,
        };
        requests.into_iter().map(|(object, spans)| (object.clone(), request(spans))).collect()
    }

    /// Writes the next requests at the same time, until enough wait for an answer.
    async fn post_some(
        &self,
        queue: &mut std::vec::IntoIter<(IpBlock, TransferRequest)>,
        waiting: &mut Waiting,
    ) -> Result<(), RegistryError> {
        while waiting.posted.len() < WAVE && !queue.as_slice().is_empty() {
            let wave: Vec<(IpBlock, TransferRequest)> =
                queue.by_ref().take(WAVE - waiting.posted.len()).collect();
            let posted = join_all(wave.iter().map(|(object, request)| self.post(object, request))).await;
            let mut failed = None;
            for ((object, request), posted) in wave.into_iter().zip(posted) {
                // A request without a response may have been written.
                if !matches!(posted, Ok(false)) {
                    waiting.posted.push((object.net, request));
                }
                failed = failed.or(posted.err());
            }
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Writes a request into an object, in place of an earlier one from this store; returns whether it waits
    /// for an answer.
    async fn post(&self, object: &IpBlock, request: &TransferRequest) -> Result<bool, RegistryError> {
        let holder = &object.holder;
        let mut object = object.clone();
        for _ in 0..2 {
            let requests = &mut object.holder.transfer_requests;
            requests.retain(|other| !other.is_of_store(request) && !other.has_expired(self.clock.now));
            if requests.len() >= REQUESTS_MAX {
                return Ok(false);
            }
            requests.push(request.clone());
            match self.registry.replace_requests(&object).await {
                Ok(_) => return Ok(true),
                Err(RegistryError::Conflict) => {}
                Err(error) => return Err(error),
            }
            match self.registry.read(object.net).await? {
                Some(current) if current.holder.node == holder.node => object = current,
                // The block is free: the next attempt may lease it.
                _ => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Leases what other nodes gave up.
    async fn lease_given(
        &self,
        kind: AllocationKind,
        answer: &Answer,
        context: RequestContext<'_>,
    ) -> Result<BlockLease, AllocationError> {
        match (kind, answer) {
            // No block is free, so none is tried.
            (AllocationKind::Any, Answer::Addresses(given)) => {
                let lease = match self.lease_one_of(given, context).await? {
                    Some(lease) => lease,
                    None => self.lease_any_address(None, context, &mut None).await?,
                };
                self.verify_single_address(lease).await
            }
            _ => self.lease_free(kind, context, &mut None).await,
        }
    }

    /// Leases one among some addresses that were just reserved; `None` if other nodes are faster.
    async fn lease_one_of(
        &self,
        given: &[IpAddr],
        context: RequestContext<'_>,
    ) -> Result<Option<BlockLease>, AllocationError> {
        // Other requesters see the same addresses, so each begins elsewhere.
        let begin = usize::try_from(self.seed % given.len().max(1) as u64).unwrap_or_default();
        for ip in given.iter().cycle().skip(begin).take(given.len().min(UNLISTED_ATTEMPTS)) {
            match self.lease_address_at(*ip, self.clock, BlockConflict::Yield, context).await {
                Ok(lease) => return Ok(Some(lease)),
                Err(
                    AllocationError::Held { .. }
                    | AllocationError::HeldOnThisNode(_)
                    | AllocationError::Quarantined(_)
                    | AllocationError::Contended,
                ) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Removes the answered requests; returns the best answer. After an error, the requests without a known answer remain.
    async fn answer(&self, waiting: &mut Waiting) -> Result<Answer, RegistryError> {
        let (mut has_answer, mut has_block, mut given) = (false, false, Vec::new());
        let mut failed = None;
        for requests in [&mut waiting.posted, &mut waiting.slow] {
            let mut asked = std::mem::take(requests).into_iter();
            while !asked.as_slice().is_empty() {
                let some: Vec<(IpNet, TransferRequest)> = asked.by_ref().take(READS).collect();
                let objects = join_all(some.iter().map(|(net, _)| self.registry.read(*net))).await;
                for ((net, request), object) in some.into_iter().zip(objects) {
                    let object = match object {
                        Ok(object) => object,
                        Err(error) => {
                            requests.push((net, request));
                            failed = Some(error);
                            continue;
                        }
                    };
                    match object {
                        Some(object) if object.holder.transfer_requests.contains(&request) => {
                            requests.push((net, request));
                        }
                        // The request admits no address that was reserved before.
                        Some(object) => {
                            has_answer = true;
                            given.extend(object.reserved.into_iter().filter(|ip| request.admits(*ip)));
                        }
                        None => has_block = true,
                    }
                }
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        Ok(match (has_block, has_answer) {
            (true, _) => Answer::Block,
            (_, true) => Answer::Addresses(given),
            _ => Answer::None,
        })
    }

    /// Removes requests that are no longer needed. One that remains makes the node give up an address in vain.
    async fn withdraw(&self, waiting: Waiting) {
        let requests: Vec<_> = waiting.posted.into_iter().chain(waiting.slow).collect();
        if !requests.is_empty() {
            self.registry.end_requests(requests).await;
        }
    }
}
