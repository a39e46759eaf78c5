//! Node agent state, and the handler for requests on the socket: each request is passed to the component that
//! serves it (planner, block provider, sandbox GC, drift detection, hot-plug).

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cni::Error;
use kube::Client;
use rpc::allocate::{AllocateRequest, AllocateResponse};
use rpc::message::Refusal;
use rpc::node_input::NodeInput;
use rpc::plan::PlanRequest;
use rpc::task::{PollTasks, Task, TaskKind, TaskResult};
use tokio::time::timeout;
use tracing::{info, warn};

use super::drift::{CheckOutcome, Drift};
use super::planner::{Planner, pod_key};
use crate::block_provider::BlockProvider;
use crate::hot_plug::HotPlug;
use crate::network_info;
use crate::network_policies::NetworkPolicies;
use crate::policy_updates::{self, PolicyUpdates};
use cli_support::activity::{Busy, Call};
use cri::runtime_sandboxes::RuntimeSandboxes;
use kube_support::health::HealthStatus;
use kube_support::kuryr::VifLocation;
use node_support::agent_server::{Planned, RequestHandler};
use node_support::client_probe::ClientProbe;
use node_support::metrics::Metrics;
use node_support::sandbox_gc::SandboxGc;
use node_support::sandboxes::Sandboxes;
use node_support::traces::Traces;

/// Longest time that a poll for tasks is held open.
const POLL_MAX: Duration = Duration::from_secs(20);
/// Interval at which a poll looks for tasks that no pod change announces.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which a poll collects pod changes, so that many at once cost one comparison over all sandboxes.
const POLL_GATHER: Duration = Duration::from_millis(50);
/// Shortest interval between two searches for tasks on behalf of plans: each looks at all sandboxes.
const SEARCH_INTERVAL: Duration = Duration::from_millis(500);
/// The same after a search that found no task, while no policy updates are pending. Orphaned sandboxes and checks are
/// due after many seconds, so such tasks need not be sent at once.
const IDLE_SEARCH_INTERVAL: Duration = Duration::from_secs(2);

/// Components that the node agent holds while it runs.
pub(crate) struct AgentState {
    /// Planner for this node.
    pub(crate) planner: Planner,
    /// Counter for ADDs in progress.
    pub(crate) busy: Arc<Busy>,
    /// Whether another agent listens on this agent's socket.
    replaced: Arc<AtomicBool>,
    /// Metrics that the agent serves.
    pub(crate) metrics: Metrics,
    /// Trace exporter, if traces are enabled.
    pub(crate) traces: Option<Arc<Traces>>,
    sandbox_gc: Arc<SandboxGc>,
    /// Provider for address blocks.
    pub(crate) block_provider: BlockProvider,
    sandboxes: Arc<Sandboxes>,
    drift: Drift,
    hot_plug: Option<HotPlug>,
    /// Network policies, if they are enforced, and the updates.
    pub(crate) policies: Option<(Arc<NetworkPolicies>, PolicyUpdates)>,
    /// When tasks were last searched on behalf of a plan.
    searched: Mutex<Search>,
    /// Counter for polls in progress.
    polls: Busy,
    /// Whether the last poll returned tasks before hot-plug changes were planned.
    hot_plug_waits: AtomicBool,
}

/// When tasks were last searched on behalf of a plan, and what was found.
#[derive(Debug, Default)]
struct Search {
    at: Option<Instant>,
    has_found: bool,
}

impl Search {
    /// Begins a search, unless the last one was a short while ago. Returns whether it begins.
    fn begin(&mut self, now: Instant, has_updates: bool) -> bool {
        let pause = if self.has_found || has_updates { SEARCH_INTERVAL } else { IDLE_SEARCH_INTERVAL };
        let is_due = self.at.is_none_or(|at| now.saturating_duration_since(at) >= pause);
        if is_due {
            self.at = Some(now);
        }
        is_due
    }
}

/// Configuration for the agent's state.
#[derive(Debug)]
pub(crate) struct AgentConfig {
    /// Sandboxes on this node.
    pub(crate) sandboxes: Arc<Sandboxes>,
    /// File with the results of first checks, see [`super::drift`].
    pub(crate) checked: PathBuf,
    /// Sandboxes that the container runtime lists; empty unless an endpoint is configured.
    pub(crate) runtime: Arc<RuntimeSandboxes>,
    /// Time between a pod's deletion and the take-down of the orphaned sandbox.
    pub(crate) orphan_grace: Duration,
    /// Interval between two checks on a sandbox; zero disables them.
    pub(crate) check_interval: Duration,
    /// Whether running pods follow changes to the networks annotation.
    pub(crate) hot_plug: bool,
    /// Interval at which rules are compared with the kernel's, zero for never; `None` if policies are not
    /// enforced.
    pub(crate) policy: Option<Duration>,
    /// Object to which the Neutron controller writes ports.
    pub(crate) vif_store: VifLocation,
    /// Directory with the address stores.
    pub(crate) store_dir: PathBuf,
    /// Whether another agent listens on this agent's socket.
    pub(crate) replaced: Arc<AtomicBool>,
}

impl AgentState {
    /// Starts to follow the cluster.
    pub(crate) fn new(
        client: &Client,
        node: &str,
        pod_resources: PathBuf,
        config: &AgentConfig,
        (metrics, traces): (Metrics, Option<Arc<Traces>>),
    ) -> AgentState {
        let busy = Arc::new(Busy::default());
        let policies = config.policy.map(|_| Arc::new(NetworkPolicies::new(client)));
        AgentState {
            planner: Planner::new(client, node, pod_resources, config.vif_store, &busy, policies.clone()),
            policies: policies.zip(config.policy.map(PolicyUpdates::new)),
            busy,
            replaced: Arc::clone(&config.replaced),
            metrics,
            traces,
            block_provider: BlockProvider::new(client.clone(), node, &config.store_dir),
            sandbox_gc: Arc::new(SandboxGc::new(
                Arc::clone(&config.sandboxes),
                Arc::clone(&config.runtime),
                config.orphan_grace,
            )),
            sandboxes: Arc::clone(&config.sandboxes),
            drift: Drift::new(config.check_interval, config.checked.clone()),
            hot_plug: config.hot_plug.then(HotPlug::default),
            searched: Mutex::default(),
            polls: Busy::default(),
            hot_plug_waits: AtomicBool::new(false),
        }
    }

    /// Returns the tasks that are due for any sandbox; without policy updates unless `with_updates`.
    fn search_tasks(&self, with_updates: bool) -> Vec<Task> {
        // Without a live watch, a pod missing from the cache is not known to be deleted.
        let mut tasks = if self.planner.sees_cluster() {
            self.sandbox_gc
                .due(|pod| self.planner.pods.find(&pod_key(pod)).is_some_and(|known| known.uid == pod.uid))
        } else {
            Vec::new()
        };
        // First: a policy should not wait until sandboxes are checked.
        if let Some((_, updates)) = &self.policies {
            tasks.splice(0..0, updates.due(&self.sandboxes, with_updates));
        }
        tasks.extend(self.drift.due(&self.sandboxes));
        self.metrics.tasks_sent(&tasks);
        tasks
    }

    /// Returns the tasks that are due for an executor.
    ///
    /// Tasks that a search finds count as sent, and to plan changes may take longer than a response.
    /// Therefore no planning follows a search that found some. The next poll plans first, so that updates do
    /// not delay changes for ever.
    async fn tasks_of_poll(&self, node: &NodeInput) -> Vec<Task> {
        let Some(hot_plug) = &self.hot_plug else { return self.search_tasks(true) };
        let plans_first = self.hot_plug_waits.swap(false, Ordering::Relaxed);
        if !plans_first {
            let tasks = self.search_tasks(true);
            if !tasks.is_empty() {
                self.hot_plug_waits.store(true, Ordering::Relaxed);
                return tasks;
            }
        }
        let changes = hot_plug.due(&self.planner, &self.sandboxes, node).await;
        self.metrics.tasks_sent(&changes);
        let mut tasks = Vec::new();
        if plans_first || !changes.is_empty() {
            // Changes and updates of policies may be large: they do not share a message.
            tasks = self.search_tasks(changes.is_empty());
        }
        tasks.extend(changes);
        tasks
    }

    /// Records a task's result, unless the sandbox is gone.
    fn record_result(&self, result: &TaskResult) {
        let Some(sandbox) = self.sandboxes.find(&result.container) else { return };
        let pod = &sandbox.entry.plan.pod;
        if pod.uid != result.uid {
            return;
        }
        if result.is_locked {
            if let Some((_, updates)) = &self.policies {
                updates.was_locked(&result.container);
            }
            return;
        }
        let error = result.error.as_ref().map(ToString::to_string);
        self.metrics.task_ended(result.kind, error.is_some());
        match result.kind {
            TaskKind::Check => {
                let container = &result.container;
                match self.drift.record(result) {
                    CheckOutcome::Same => {}
                    CheckOutcome::NeverCorrect => {
                        warn!(%container, error, "first check of attachment failed; it is not reported as drift");
                    }
                    CheckOutcome::Drifted => {
                        self.planner.events.drifted(pod, error.as_deref());
                        warn!(%container, error, "attachment no longer matches its configuration");
                    }
                    CheckOutcome::Restored => {
                        self.planner.events.drifted(pod, None);
                        info!(%container, "all attachments match their configuration again");
                    }
                }
                self.metrics.drifted(self.drift.count());
            }
            TaskKind::UpdatePolicy => {
                if let Some((_, updates)) = &self.policies {
                    let report = (&self.planner, &self.metrics);
                    policy_updates::updated(report, updates, &sandbox.entry, result);
                }
            }
            TaskKind::VerifyPolicy => {
                policy_updates::restored((&self.planner, &self.metrics), &sandbox.entry, result);
            }
            TaskKind::Change => {
                self.planner.events.changed(pod, &result.changes);
                let added = result.changes.iter().filter(|done| done.added.is_some());
                added.for_each(|done| self.drift.attachment_added(&result.container, &done.ifname));
                self.metrics.changed(if error.is_some() { "failed" } else { "changed" });
                if let Some(error) = error {
                    self.planner.events.unchanged(pod, "Change", &error);
                    warn!(container = %result.container, error, "failed to change networks of running pod");
                }
            }
        }
    }
}

impl HealthStatus for AgentState {
    /// Returns what is missing before requests can be answered.
    fn waits_for(&self) -> Vec<String> {
        let replaced = self.replaced.load(Ordering::Relaxed);
        let socket = replaced.then(|| "the socket: another agent listens on it".to_owned());
        self.planner.waits_for().into_iter().chain(socket).collect()
    }

    fn page(&self) -> String {
        for (state, count) in self.sandboxes.counts() {
            self.metrics.sandboxes(state, count);
        }
        self.metrics.unchecked(self.sandboxes.unchecked());
        self.metrics.page() + "\n" + &network_info::page(&self.sandboxes)
    }
}

impl RequestHandler for AgentState {
    async fn plan_sandbox(&self, request: &PlanRequest) -> Result<Planned, Refusal> {
        Ok(self.planner.plan(request, &[]).await?.into())
    }

    async fn allocate_blocks(&self, request: &AllocateRequest, probe: &ClientProbe<'_>) -> AllocateResponse {
        let pod = self.planner.pods.find(&pod_key(&request.pod));
        let pod = pod.as_deref().filter(|pod| request.pod.uid.is_empty() || request.pod.uid == pod.uid);
        self.block_provider.allocate(request, probe, pod, &self.metrics).await
    }

    fn due_tasks(&self) -> Vec<Task> {
        let updates = self.policies.as_ref().is_some_and(|(_, updates)| updates.has_pending());
        let searched = || self.searched.lock().unwrap_or_else(PoisonError::into_inner);
        if !searched().begin(Instant::now(), updates) {
            return Vec::new();
        }
        // An executor applies updates at once. The client of a plan executes tasks after its ADD, which may take long.
        let tasks = self.search_tasks(self.polls.is_quiet());
        searched().has_found = !tasks.is_empty();
        tasks
    }

    async fn poll_tasks(&self, request: &PollTasks) -> Vec<Task> {
        let _poll = self.polls.begin();
        let started = Instant::now();
        let mut pods = self.planner.pods.changes();
        let mut definitions = self.planner.definitions.changes();
        let mut updates = self.policies.as_ref().map(|(_, updates)| updates.queued());
        loop {
            let tasks = self.tasks_of_poll(&request.node).await;
            if !tasks.is_empty() || started.elapsed() >= POLL_MAX {
                return tasks;
            }
            let update = async {
                match &mut updates {
                    Some(updates) => drop(updates.changed().await),
                    None => std::future::pending().await,
                }
            };
            let changed = async {
                tokio::select! {
                    changed = pods.changed() => changed,
                    changed = definitions.changed() => changed,
                }
            };
            // A changed pod, definition or policy is handled at once, everything else at the interval.
            tokio::select! {
                biased;
                () = update => {}
                changed = timeout(POLL_INTERVAL, changed) => if changed.is_ok() && self.hot_plug.is_some() {
                    tokio::time::sleep(POLL_GATHER).await;
                },
            }
        }
    }

    async fn task_result(&self, result: &TaskResult) -> Result<(), Error> {
        self.record_result(result);
        Ok(())
    }

    fn metrics(&self) -> Option<&Metrics> {
        Some(&self.metrics)
    }

    fn begin(&self) -> Option<Call<'_>> {
        Some(self.busy.begin())
    }

    fn traces(&self) -> Option<&Traces> {
        self.traces.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_search_is_rare_while_no_task_is_due() {
        let (mut search, start) = (Search::default(), Instant::now());
        let begins = |search: &mut Search, seconds: f64, has_updates| {
            search.begin(start + Duration::from_secs_f64(seconds), has_updates)
        };
        assert!(begins(&mut search, 0.0, false), "the first plan");
        assert!(!begins(&mut search, 1.9, false));
        assert!(!begins(&mut search, 0.4, true));
        assert!(begins(&mut search, 0.5, true), "an update of policies is pending");
        search.has_found = true;
        assert!(!begins(&mut search, 0.9, false));
        assert!(begins(&mut search, 1.0, false), "the last search found tasks, so more may be due");
        search.has_found = false;
        assert!(!begins(&mut search, 2.9, false));
        assert!(begins(&mut search, 3.0, false));
    }
}
