//! The part of an agent that gives addresses of the node's blocks up: it sees a notice, has the ledger's hands do it as one
//! more call in the queue for the lock, and tells the server. Each of the three may die on the way.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use ipam::Grid;
use ipam::handover::{GivenUp, Outcome, tell, wanted};
use ipam::lease::Refusal;
use ipam::registry::Object;

use super::api_server::Api;
use super::cluster::Task;

/// What the hands said: heard by the agent, unless one of them died.
#[derive(Clone, Default)]
pub(crate) struct Said(Arc<Mutex<Option<GivenUp>>>);

/// What the hands are to do: lease, address, and where to say what came of it.
type Errand = (String, IpAddr, Said);

/// That part of an agent.
#[derive(Default)]
pub(crate) struct Giver {
    task: Option<Task<Option<Outcome>>>,
    errands: Arc<Mutex<Vec<Errand>>>,
    /// What time it is by now.
    now: Arc<AtomicU64>,
}

impl Said {
    /// Says how a call ended.
    pub(crate) fn say(&self, outcome: &Result<Option<IpAddr>, Refusal>) {
        let given = match outcome {
            Ok(_) => GivenUp::Hole,
            Err(Refusal::Here(_)) => GivenUp::Held("somebody".into()),
            Err(_) => GivenUp::Unknown,
        };
        *self.0.lock().unwrap() = Some(given);
    }
}

impl Future for Said {
    type Output = GivenUp;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<GivenUp> {
        match self.0.lock().unwrap().take() {
            Some(given) => Poll::Ready(given),
            // Nobody will say anything any more.
            None if Arc::strong_count(&self.0) == 1 => Poll::Ready(GivenUp::Unknown),
            None => Poll::Pending,
        }
    }
}

impl Giver {
    /// One thing goes on; how many addresses were given up.
    pub(crate) fn go_on(&mut self, begins: bool, api: &Api, grid: Grid, node: &str, now: u64) -> u64 {
        self.now.store(now, Relaxed);
        if begins && self.task.is_none() {
            let server = api.server.lock().unwrap();
            let asked = server.objects.values().find(|object| object.holder.asks == node).cloned();
            drop(server);
            self.task = asked.map(|object| {
                let (api, errands, node) = (api.clone(), Arc::clone(&self.errands), node.to_owned());
                Box::pin(give_up(api, grid, node, object, Arc::clone(&self.now), errands))
                    as Task<Option<Outcome>>
            });
        }
        let Some(task) = &mut self.task else { return 0 };
        match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => {
                self.task = None;
                u64::from(outcome == Some(Outcome::Given))
            }
            Poll::Pending => 0,
        }
    }

    /// What the hands are to do.
    pub(crate) fn errands(&self) -> std::vec::IntoIter<Errand> {
        std::mem::take(&mut *self.errands.lock().unwrap()).into_iter()
    }
}

async fn give_up(
    api: Api,
    grid: Grid,
    node: String,
    object: Object,
    now: Arc<AtomicU64>,
    errands: Arc<Mutex<Vec<Errand>>>,
) -> Option<Outcome> {
    let block = wanted(&api, grid, &node, &object, now.load(Relaxed)).await.ok()??;
    let said = Said::default();
    errands.lock().unwrap().push((block.lease_id(), object.net.addr(), said.clone()));
    let given = said.await;
    tell(&api, &object, block, given, now.load(Relaxed)).await.ok()
}
