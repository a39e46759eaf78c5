//! Publisher of the network-status annotation: writes the status in the journal to the pods.
//!
//! - Each attached sandbox causes one PATCH of that annotation alone, with the uid as precondition. No other
//!   annotation, and no other pod of the same name, is changed.
//! - Without the permission to patch, the publisher replaces the pod's status instead, as Multus does.
//! - A failed write is repeated as long as the sandbox exists. A status that was removed or changed is written again.
//! - Of several sandboxes of one pod the newest counts.
//! - A change of one entry or pod causes work for that pod only, also a change that is found every [`RESCAN`].
//!
//! Source: multi-network specification (NPWG), section 5; Kubernetes API, merge patch (RFC 7386).

mod pod_sandboxes;
mod status_write;
mod work_queue;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use cni::name::ContainerId;
use kube::Client;
use npwg::metadata::Pod;
use npwg::status::{self, NETWORK_STATUS};
use rpc::journal::Entry;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::planner::pod_key;
use crate::agent_state::AgentState;
use kube_support::cache::changed_keys::Changed;
use node_support::sandboxes::{RESCAN, Sandboxes};
use pod_sandboxes::PodSandboxes;
use status_write::Written;
use work_queue::WorkQueue;

/// Number of concurrent writes.
const PARALLEL: usize = 8;
/// First and longest pause before a failed write is repeated.
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Time after which a pod without the written status counts as changed; until then the watch may lag behind.
const LAG_MAX: Duration = Duration::from_secs(5);
/// Maximum delay of a write while pods are being attached, which comes first.
const DELAY_MAX: Duration = Duration::from_millis(200);

/// Publishes the status of all sandboxes on the node.
pub(crate) struct StatusPublisher {
    client: Client,
    agent: Arc<AgentState>,
    sandboxes: Arc<Sandboxes>,
    of_pods: PodSandboxes,
    states: BTreeMap<ContainerId, WriteState>,
    /// Pods to look at, by uid.
    queue: WorkQueue,
    writes: JoinSet<(ContainerId, Written)>,
}

/// State of the publication for one sandbox.
#[derive(Clone, Copy, Debug)]
enum WriteState {
    /// A write is in progress, after this number of failures.
    Writing { times: u32 },
    /// The last write failed; the next one begins at `until`.
    Waiting { times: u32, until: Instant },
    /// The pod has a status with this hash.
    Written { hash: u64, at: Instant },
    /// The pod was deleted.
    Obsolete,
}

/// Action that is due for a pod.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Write,
    /// The pod is to be looked at again.
    At(Instant),
    Nothing,
}

impl StatusPublisher {
    pub(crate) fn new(client: Client, agent: Arc<AgentState>, sandboxes: Arc<Sandboxes>) -> StatusPublisher {
        StatusPublisher {
            client,
            agent,
            sandboxes,
            of_pods: PodSandboxes::default(),
            states: BTreeMap::new(),
            queue: WorkQueue::default(),
            writes: JoinSet::new(),
        }
    }

    /// Runs until the agent ends.
    pub(crate) async fn run(mut self) {
        // The first tick, which comes at once, reads the journal.
        let mut watch = self.sandboxes.watch();
        let changed_pods = self.agent.planner.pods.changed_keys();
        let mut pods = self.agent.planner.pods.changes();
        let mut rescan = tokio::time::interval(RESCAN);
        loop {
            let next = self.queue.next();
            tokio::select! {
                change = self.sandboxes.changed(&mut watch) => self.journal_changed(change),
                changed = pods.changed() => match changed {
                    Ok(()) => self.pods_changed(changed_pods.take()),
                    Err(_) => return,
                },
                _ = rescan.tick() => {
                    let changed = self.sandboxes.read_all();
                    self.journal_changed(changed);
                }
                () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now).into()), if next.is_some() => {}
                Some(ended) = self.writes.join_next() => if let Ok((container, written)) = ended {
                    self.settle(container, written);
                },
            }
            self.begin_due();
        }
    }

    /// Queues the pods whose entries changed.
    fn journal_changed(&mut self, changed: BTreeSet<ContainerId>) {
        let StatusPublisher { sandboxes, of_pods, states, queue, .. } = self;
        sandboxes.with(|all| {
            for container in changed {
                let sandbox = all.get(&container);
                if sandbox.is_none() {
                    states.remove(&container);
                }
                of_pods.update(&container, sandbox).iter().for_each(|uid| queue.add(uid));
            }
        });
    }

    /// Queues the pods that changed, if they have a sandbox.
    fn pods_changed(&mut self, changed: Changed) {
        match changed {
            Changed::All => self.of_pods.uids().for_each(|uid| self.queue.add(uid)),
            Changed::Keys(keys) => {
                for key in keys {
                    if let Some(pod) = self.agent.planner.pods.find(&key)
                        && self.of_pods.newest(&pod.uid).is_some()
                    {
                        self.queue.add(&pod.uid);
                    }
                }
            }
        }
    }

    /// Begins the writes that are due, as many as may run.
    fn begin_due(&mut self) {
        self.queue.wake(Instant::now());
        while self.writes.len() < PARALLEL {
            let Some((uid, since)) = self.queue.take() else { return };
            self.look_at(uid, since);
        }
    }

    /// Begins the write for a pod if it is due. The pod has been in the queue since `since`.
    fn look_at(&mut self, uid: String, since: Instant) {
        let Some(container) = self.of_pods.newest(&uid) else { return };
        let Some(sandbox) = self.sandboxes.find(container) else { return };
        let (container, entry) = (container.clone(), sandbox.entry);
        let pod = self.agent.planner.pods.find(&pod_key(&entry.plan.pod));
        let Some(pod) = pod.filter(|pod| pod.uid == entry.plan.pod.uid) else { return };
        let Ok(text) = status::render(&entry.network_status) else { return };
        match self.due(&container, &pod, &text, Instant::now()) {
            Due::Write => self.begin(container, entry, text, since),
            Due::At(time) => self.queue.add_at(time, uid),
            Due::Nothing => {}
        }
    }

    fn due(&mut self, container: &ContainerId, pod: &Pod, text: &str, now: Instant) -> Due {
        let is_there = pod.annotations.get(NETWORK_STATUS).is_some_and(|there| there == text);
        match self.states.get(container) {
            Some(WriteState::Writing { .. } | WriteState::Obsolete) => Due::Nothing,
            Some(WriteState::Waiting { until, .. }) if *until <= now => Due::Write,
            Some(WriteState::Waiting { until, .. }) => Due::At(*until),
            Some(WriteState::Written { .. }) if is_there => Due::Nothing,
            // The watch delivers our own write a little later.
            Some(WriteState::Written { hash, at }) if *hash == hash_of(text) && now < *at + LAG_MAX => {
                Due::At(*at + LAG_MAX)
            }
            Some(WriteState::Written { .. }) => Due::Write,
            None if is_there => {
                let state = WriteState::Written { hash: hash_of(text), at: now };
                self.states.insert(container.clone(), state);
                Due::Nothing
            }
            None => Due::Write,
        }
    }

    fn begin(&mut self, container: ContainerId, entry: Arc<Entry>, text: String, since: Instant) {
        let times = match self.states.get(&container) {
            Some(WriteState::Waiting { times, .. }) => *times,
            _ => 0,
        };
        let first = self.states.insert(container.clone(), WriteState::Writing { times }).is_none();
        let (client, agent) = (self.client.clone(), Arc::clone(&self.agent));
        if first {
            agent.planner.events.attached(&entry);
        }
        self.writes.spawn(async move {
            // A pod that has waited for other writes is not delayed again.
            agent.busy.quiet(DELAY_MAX.saturating_sub(since.elapsed())).await;
            let (started, began) = (Instant::now(), SystemTime::now());
            let written = status_write::write(client, &entry.plan.pod, text).await;
            let outcome = match &written {
                Written::Yes(_) => "written",
                Written::Obsolete => "skipped",
                Written::Failed(_) => "failed",
            };
            agent.metrics.published(outcome, started.elapsed());
            if let Some(traces) = &agent.traces {
                let failure = match &written {
                    Written::Failed(why) => Some(why.as_str()),
                    _ => None,
                };
                traces.status(&container, began, outcome, failure);
            }
            (container, written)
        });
    }

    /// Records the outcome of a write. The pod is looked at again, because it may have changed meanwhile.
    fn settle(&mut self, container: ContainerId, written: Written) {
        let Some(sandbox) = self.sandboxes.find(&container) else { return };
        let times = match self.states.get(&container) {
            Some(WriteState::Writing { times }) => *times,
            _ => 0,
        };
        let state = match written {
            Written::Yes(text) => {
                info!(%container, "network-status written");
                WriteState::Written { hash: hash_of(&text), at: Instant::now() }
            }
            Written::Obsolete => WriteState::Obsolete,
            Written::Failed(why) => {
                let pause = RETRY_MAX.min(RETRY_MIN * 2_u32.saturating_pow(times.min(10)));
                warn!(%container, error = why, "failed to write network-status");
                WriteState::Waiting { times: times + 1, until: Instant::now() + pause }
            }
        };
        self.states.insert(container, state);
        self.queue.add(&sandbox.entry.plan.pod.uid);
    }
}

fn hash_of(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Reason why the status of a sandbox could not be published.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PublishError {
    /// The status could not be rendered.
    #[error(transparent)]
    Render(cni::Error),
    /// The status could not be written to the pod.
    #[error("{reason}")]
    Write {
        /// Reason of the last failure.
        reason: String,
    },
}

/// Writes the status of one sandbox, and repeats a failed write for 30 seconds.
///
/// # Errors
/// The reason of the last failure.
pub(crate) async fn publish(client: &Client, entry: &Entry) -> Result<(), PublishError> {
    let text = status::render(&entry.network_status).map_err(PublishError::Render)?;
    let started = Instant::now();
    let mut pause = RETRY_MIN;
    loop {
        match status_write::write(client.clone(), &entry.plan.pod, text.clone()).await {
            Written::Yes(_) | Written::Obsolete => return Ok(()),
            Written::Failed(why) if started.elapsed() >= RETRY_MAX => {
                return Err(PublishError::Write { reason: why });
            }
            Written::Failed(_) => tokio::time::sleep(pause).await,
        }
        pause *= 2;
    }
}
