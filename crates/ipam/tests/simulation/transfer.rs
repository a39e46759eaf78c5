//! Transfer of addresses in a simulated agent: it finds a request, has `weft-cni` reserve the address in a call of its
//! own, and informs the server. Each of the three may be killed on the way.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use ipam::give_up::{GiveUpOutcome, GivenUp, KnownBlock, complete_give_up, known_blocks, next_request};
use ipam::restore::RestoreMessage;
use ipam::transfer::{TransferOutcome, TransferReply, complete_transfer, requested_block};
use ipam::{AllocationError, IpBlock, PoolLayout, TransferRequest};

use super::api_server::{Api, Task};

/// Reply of a call to the agent; it never comes if the call is killed.
pub(crate) struct Reply<T>(Arc<Mutex<Option<T>>>);

/// Change of the store that a call must make for the agent, and the place for the reply.
#[derive(Clone)]
pub(crate) enum StoreTask {
    /// Reserves an address of a lease.
    Reserve(String, IpAddr, Reply<TransferReply>),
    /// Gives up a block or some addresses.
    GiveUp(TransferRequest, Vec<KnownBlock>, Reply<GivenUp>),
    /// Marks or frees reserved addresses.
    Restore(RestoreMessage, Reply<Vec<IpAddr>>),
}

/// The agent's handler of transfer requests.
#[derive(Default)]
pub(crate) struct TransferHandler {
    task: Option<Task<Option<TransferOutcome>>>,
    store_tasks: Arc<Mutex<Vec<StoreTask>>>,
    /// Current time.
    now: Arc<AtomicU64>,
}

impl<T> Clone for Reply<T> {
    fn clone(&self) -> Reply<T> {
        Reply(Arc::clone(&self.0))
    }
}

impl<T> Default for Reply<T> {
    fn default() -> Reply<T> {
        Reply(Arc::default())
    }
}

impl<T> Reply<T> {
    pub(crate) fn put(&self, reply: T) {
        *self.0.lock().unwrap() = Some(reply);
    }
}

impl Reply<TransferReply> {
    /// Records the outcome of a call.
    pub(crate) fn send(&self, outcome: &Result<Option<IpAddr>, AllocationError>) {
        let reply = match outcome {
            Ok(_) => TransferReply::Reserved,
            Err(AllocationError::HeldOnThisNode(_)) => TransferReply::InUse("a pod".into()),
            Err(_) => TransferReply::UnknownLease,
        };
        self.put(reply);
    }
}

impl<T> Future for Reply<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<T>> {
        match self.0.lock().unwrap().take() {
            Some(reply) => Poll::Ready(Some(reply)),
            // The call was killed.
            None if Arc::strong_count(&self.0) == 1 => Poll::Ready(None),
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
            let own: Vec<IpBlock> =
                server.objects.values().filter(|object| object.holder.node == node).cloned().collect();
            drop(server);
            let asked =
                own.iter().find_map(|object| Some((object.clone(), next_request(object, now)?.clone())));
            let (api, tasks, time) = (api.clone(), Arc::clone(&self.store_tasks), Arc::clone(&self.now));
            let task: Option<Task<Option<TransferOutcome>>> = match (requested, asked) {
                (Some(object), _) => {
                    Some(Box::pin(transfer(api, layout, node.to_owned(), object, time, tasks)))
                }
                (None, Some((asked, request))) => {
                    Some(Box::pin(give_up(api, own, asked, request, time, tasks)))
                }
                (None, None) => None,
            };
            self.task = task;
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

    /// Takes the changes of the store that calls must make.
    pub(crate) fn store_tasks(&self) -> std::vec::IntoIter<StoreTask> {
        std::mem::take(&mut *self.store_tasks.lock().unwrap()).into_iter()
    }
}

async fn transfer(
    api: Api,
    layout: PoolLayout,
    node: String,
    object: IpBlock,
    now: Arc<AtomicU64>,
    store_tasks: Arc<Mutex<Vec<StoreTask>>>,
) -> Option<TransferOutcome> {
    let block = requested_block(&api, layout, &node, &object, now.load(Relaxed)).await.ok()??;
    let reply = Reply::default();
    store_tasks.lock().unwrap().push(StoreTask::Reserve(block.lease_id(), object.net.addr(), reply.clone()));
    let reply = reply.await.unwrap_or(TransferReply::UnknownLease);
    complete_transfer(&api, &object, block, reply, now.load(Relaxed)).await.ok()
}

/// Serves a request for any address. The objects were read before the store gives up anything.
async fn give_up(
    api: Api,
    objects: Vec<IpBlock>,
    asked: IpBlock,
    request: TransferRequest,
    now: Arc<AtomicU64>,
    store_tasks: Arc<Mutex<Vec<StoreTask>>>,
) -> Option<TransferOutcome> {
    let reply = Reply::default();
    store_tasks.lock().unwrap().push(StoreTask::GiveUp(
        request.clone(),
        known_blocks(&objects),
        reply.clone(),
    ));
    let given = reply.await?;
    let done = complete_give_up(&api, &objects, &asked, &request, given, now.load(Relaxed)).await.ok()?;
    Some(if done == GiveUpOutcome::GivenUp { TransferOutcome::Transferred } else { TransferOutcome::Refused })
}
