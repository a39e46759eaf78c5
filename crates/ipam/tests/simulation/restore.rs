//! Restoring of reserved addresses in a simulated agent: marked in the store, withdrawn from the object of the block, freed
//! in the store. Agent and calls may be killed on the way.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use ipam::give_up::publish_reservations;
use ipam::restore::{RestoreMark, RestoreMessage, RestoreStep, restorable, withdraw_reservations};
use ipam::{Clock, IpBlock};

use super::api_server::{Api, Task};
use super::transfer::{Reply, StoreTask};

type StoreTasks = Arc<Mutex<Vec<StoreTask>>>;

/// The agent's task that restores reserved addresses of one block at a time.
#[derive(Default)]
pub(crate) struct Restorer {
    task: Option<Task<Option<usize>>>,
    store_tasks: StoreTasks,
}

/// Block whose reserved addresses are to be restored.
pub(crate) struct Attempt {
    /// Object of the block, as the agent knows it.
    pub(crate) object: IpBlock,
    /// Addresses that the store has reserved and the object has not; the store was read after the object.
    pub(crate) unpublished: Vec<IpAddr>,
    /// Whether an earlier attempt was not ended.
    pub(crate) has_marks: bool,
    pub(crate) mark: RestoreMark,
    pub(crate) clock: Clock,
}

impl Restorer {
    pub(crate) fn is_idle(&self) -> bool {
        self.task.is_none()
    }

    pub(crate) fn begin(&mut self, api: Api, attempt: Attempt) {
        self.task = Some(Box::pin(restore(api, attempt, Arc::clone(&self.store_tasks))));
    }

    /// Makes one step and returns the number of addresses that were restored by it.
    pub(crate) fn step(&mut self) -> u64 {
        let Some(task) = &mut self.task else { return 0 };
        match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(freed) => {
                self.task = None;
                freed.unwrap_or(0) as u64
            }
            Poll::Pending => 0,
        }
    }

    /// Takes the changes of the store that calls must make.
    pub(crate) fn store_tasks(&self) -> std::vec::IntoIter<StoreTask> {
        std::mem::take(&mut *self.store_tasks.lock().unwrap()).into_iter()
    }
}

async fn restore(api: Api, attempt: Attempt, tasks: StoreTasks) -> Option<usize> {
    let Attempt { object, unpublished, has_marks, mark, clock } = attempt;
    if !unpublished.is_empty() {
        let _ = publish_reservations(&api, &object, unpublished).await;
        return None;
    }
    let change = |step, addresses| {
        let message = RestoreMessage { lease: object.lease_id(), mark, step, addresses };
        let reply = Reply::default();
        tasks.lock().unwrap().push(StoreTask::Restore(message, reply.clone()));
        reply
    };
    if has_marks {
        return change(RestoreStep::Mark, Vec::new()).await.map(|_| 0);
    }
    let wanted = restorable(&api, &object, &[], clock).await.ok()?;
    if wanted.is_empty() {
        return None;
    }
    let marked = change(RestoreStep::Mark, wanted).await?;
    let free = withdraw_reservations(&api, &object, &marked, clock).await.unwrap_or_default();
    Some(change(RestoreStep::Free, free).await?.len())
}
