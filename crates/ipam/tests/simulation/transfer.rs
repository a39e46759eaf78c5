//! Transfer of addresses in a simulated agent: it finds a request, has `weft-cni` reserve the address in a call of its
//! own, and informs the server. Each of the three may be killed on the way.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use ipam::transfer::{TransferOutcome, TransferReply, complete_transfer, requested_block};
use ipam::{AllocationError, IpBlock, PoolLayout};

use super::api_server::{Api, Task};

/// Reply of a call to the agent; it never comes if the call is killed.
#[derive(Clone, Default)]
pub(crate) struct Reply(Arc<Mutex<Option<TransferReply>>>);

/// Reservation that a call must make: lease, address, and the place for the reply.
type ReservationTask = (String, IpAddr, Reply);

/// The agent's handler of transfer requests.
#[derive(Default)]
pub(crate) struct TransferHandler {
    task: Option<Task<Option<TransferOutcome>>>,
    reservations: Arc<Mutex<Vec<ReservationTask>>>,
    /// Current time.
    now: Arc<AtomicU64>,
}

impl Reply {
    /// Records the outcome of a call.
    pub(crate) fn send(&self, outcome: &Result<Option<IpAddr>, AllocationError>) {
        let reply = match outcome {
            Ok(_) => TransferReply::Reserved,
            Err(AllocationError::HeldOnThisNode(_)) => TransferReply::InUse("a pod".into()),
            Err(_) => TransferReply::UnknownLease,
        };
        *self.0.lock().unwrap() = Some(reply);
    }
}

impl Future for Reply {
    type Output = TransferReply;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<TransferReply> {
        match self.0.lock().unwrap().take() {
            Some(reply) => Poll::Ready(reply),
            // The call was killed.
            None if Arc::strong_count(&self.0) == 1 => Poll::Ready(TransferReply::UnknownLease),
            None => Poll::Pending,
        }
    }
}

impl TransferHandler {
    /// Makes one step and returns the number of addresses transferred by it.
    pub(crate) fn step(&mut self, begins: bool, api: &Api, layout: PoolLayout, node: &str, now: u64) -> u64 {
        self.now.store(now, Relaxed);
        if begins && self.task.is_none() {
            let server = api.server.lock().unwrap();
            let is_requested = |object: &&IpBlock| object.holder.transfer_requested_from == node;
            let requested = server.objects.values().find(is_requested).cloned();
            drop(server);
            self.task = requested.map(|object| {
                let (api, reservations) = (api.clone(), Arc::clone(&self.reservations));
                let node = node.to_owned();
                Box::pin(transfer(api, layout, node, object, Arc::clone(&self.now), reservations))
                    as Task<Option<TransferOutcome>>
            });
        }
        let Some(task) = &mut self.task else { return 0 };
        match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => {
                self.task = None;
                u64::from(outcome == Some(TransferOutcome::Transferred))
            }
            Poll::Pending => 0,
        }
    }

    /// Takes the reservations that calls must make.
    pub(crate) fn reservations(&self) -> std::vec::IntoIter<ReservationTask> {
        std::mem::take(&mut *self.reservations.lock().unwrap()).into_iter()
    }
}

async fn transfer(
    api: Api,
    layout: PoolLayout,
    node: String,
    object: IpBlock,
    now: Arc<AtomicU64>,
    reservations: Arc<Mutex<Vec<ReservationTask>>>,
) -> Option<TransferOutcome> {
    let block = requested_block(&api, layout, &node, &object, now.load(Relaxed)).await.ok()??;
    let reply = Reply::default();
    reservations.lock().unwrap().push((block.lease_id(), object.net.addr(), reply.clone()));
    let reply = reply.await;
    complete_transfer(&api, &object, block, reply, now.load(Relaxed)).await.ok()
}
