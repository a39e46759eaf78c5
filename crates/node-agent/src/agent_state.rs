//! State of the node agent: its planner, and what follows the sandboxes of the node; it answers the requests on the socket.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cni::Error;
use kube::Client;
use npwg::plan::Plan;
use rpc::allocate::{AllocateRequest, AllocateResponse};
use rpc::plan::PlanRequest;
use rpc::task::{PollTasks, Task, TaskKind, TaskResult};
use tokio::time::timeout;
use tracing::{info, warn};

use super::drift::{Drift, Heard};
use super::planner::{Planner, place};
use crate::block_provider::BlockProvider;
use crate::hot_plug::HotPlug;
use cli_support::activity::{Busy, Call};
use cri::runtime_sandboxes::RuntimeSandboxes;
use kube_support::health::HealthStatus;
use kube_support::kuryr::VifLocation;
use node_support::agent_server::RequestHandler;
use node_support::client_probe::ClientProbe;
use node_support::metrics::Metrics;
use node_support::sandbox_gc::SandboxGc;
use node_support::sandboxes::Sandboxes;
use node_support::traces::Traces;

/// How long somebody who comes for orders waits for them, and how often it is looked.
const ERRAND_MAX: Duration = Duration::from_secs(20);
const ERRAND_PAUSE: Duration = Duration::from_secs(1);

/// An agent's knowledge.
pub(crate) struct AgentState {
    /// The plans, and what they are made of.
    pub(crate) planner: Planner,
    /// Pods that are being attached.
    pub(crate) busy: Arc<Busy>,
    /// Whether another agent listens in this one's place.
    replaced: Arc<AtomicBool>,
    /// The figures.
    pub(crate) metrics: Metrics,
    /// Where spans go, if anywhere.
    pub(crate) traces: Option<Arc<Traces>>,
    sandbox_gc: Arc<SandboxGc>,
    /// Who leases blocks of addresses.
    pub(crate) block_provider: BlockProvider,
    sandboxes: Arc<Sandboxes>,
    drift: Drift,
    changes: Option<HotPlug>,
}

/// How an agent looks after what is attached.
#[derive(Debug)]
pub(crate) struct AgentConfig {
    /// The sandboxes of this node.
    pub(crate) sandboxes: Arc<Sandboxes>,
    /// The file of what is known of checks.
    pub(crate) checked: PathBuf,
    /// Those that the runtime knows, if it is asked.
    pub(crate) runtime: Arc<RuntimeSandboxes>,
    /// How long a pod must be gone before its sandbox is taken down unasked.
    pub(crate) orphan_grace: Duration,
    /// How often a sandbox is checked; zero for never.
    pub(crate) check_interval: Duration,
    /// Do running pods get what their annotation says now?
    pub(crate) hot_plug: bool,
    /// Where the controller of Neutron ports writes.
    pub(crate) vif_store: VifLocation,
    /// Where ledgers of addresses are.
    pub(crate) ledgers: PathBuf,
    /// Whether another agent listens in this one's place.
    pub(crate) replaced: Arc<AtomicBool>,
}

impl AgentState {
    /// Starts to follow the cluster.
    pub(crate) fn new(
        client: &Client,
        node: &str,
        pod_resources: PathBuf,
        care: &AgentConfig,
        (metrics, traces): (Metrics, Option<Arc<Traces>>),
    ) -> AgentState {
        let busy = Arc::new(Busy::default());
        AgentState {
            planner: Planner::new(client, node, pod_resources, care.vif_store, &busy),
            busy,
            replaced: Arc::clone(&care.replaced),
            metrics,
            traces,
            block_provider: BlockProvider::new(client.clone(), node, &care.ledgers),
            sandbox_gc: Arc::new(SandboxGc::new(
                Arc::clone(&care.sandboxes),
                Arc::clone(&care.runtime),
                care.orphan_grace,
            )),
            sandboxes: Arc::clone(&care.sandboxes),
            drift: Drift::new(care.check_interval, care.checked.clone()),
            changes: care.hot_plug.then(HotPlug::default),
        }
    }
}

impl HealthStatus for AgentState {
    /// What must be there before questions can be answered.
    fn waits_for(&self) -> Vec<String> {
        let replaced = self.replaced.load(Ordering::Relaxed);
        let socket = replaced.then(|| "the socket, on which another agent listens".to_owned());
        self.planner.waits_for().into_iter().chain(socket).collect()
    }

    fn page(&self) -> String {
        self.metrics.cache(self.planner.pods.what(), self.planner.pods.count(), self.planner.pods.age());
        self.metrics.cache(
            self.planner.definitions.what(),
            self.planner.definitions.count(),
            self.planner.definitions.age(),
        );
        self.metrics.page()
    }
}

impl RequestHandler for AgentState {
    async fn plan_sandbox(&self, request: &PlanRequest) -> Result<Plan, Error> {
        self.planner.plan(request, &[]).await
    }

    async fn allocate_blocks(&self, request: &AllocateRequest, probe: &ClientProbe<'_>) -> AllocateResponse {
        self.block_provider.deliver(request, probe, &self.metrics).await
    }

    fn due_tasks(&self) -> Vec<Task> {
        // A pod that is not heard of is not a pod that is gone.
        let mut orders = match self.planner.pods.is_synced() && self.planner.pods.age().is_zero() {
            true => self
                .sandbox_gc
                .due(|pod| self.planner.pods.find(&place(pod)).is_some_and(|known| known.uid == pod.uid)),
            false => Vec::new(),
        };
        orders.extend(self.drift.due(&self.sandboxes));
        self.metrics.tasks_sent(orders.len());
        orders
    }

    async fn poll_tasks(&self, request: &PollTasks) -> Vec<Task> {
        let started = Instant::now();
        let mut pods = self.planner.pods.changes();
        loop {
            let mut orders = self.due_tasks();
            if let Some(changes) = &self.changes {
                let due = changes.due(&self.planner, &self.sandboxes, &request.node).await;
                self.metrics.tasks_sent(due.len());
                orders.extend(due);
            }
            if !orders.is_empty() || started.elapsed() >= ERRAND_MAX {
                return orders;
            }
            // A pod that changed is looked at at once, everything else from time to time.
            let _ = timeout(ERRAND_PAUSE, pods.changed()).await;
        }
    }

    fn task_result(&self, result: &TaskResult) {
        let Some(sandbox) = self.sandboxes.find(&result.container) else { return };
        let pod = &sandbox.entry.plan.pod;
        if pod.uid != result.uid {
            return;
        }
        let error = result.error.as_ref().map(ToString::to_string);
        match result.kind {
            TaskKind::Check => {
                let container = &result.container;
                match self.drift.heard(result) {
                    Heard::Same => {}
                    Heard::WrongFromTheFirst => {
                        warn!(%container, error, "a plugin finds fault with what it made: that is no change");
                    }
                    Heard::Changed => {
                        self.planner.events.drifted(pod, error.as_deref());
                        warn!(%container, error, "an attachment changed");
                    }
                    Heard::Restored => {
                        self.planner.events.drifted(pod, None);
                        info!(%container, "every attachment is as it was");
                    }
                }
                self.metrics.drifted(self.drift.count());
            }
            TaskKind::Change => {
                self.planner.events.changed(pod, &result.changes);
                let came = result.changes.iter().filter(|done| done.added.is_some());
                came.for_each(|done| self.drift.came(&result.container, &done.ifname));
                self.metrics.changed(if error.is_some() { "failed" } else { "changed" });
                if let Some(error) = error {
                    self.planner.events.unchanged(pod, "Change", &error);
                    warn!(container = %result.container, error, "a running pod could not be changed");
                }
            }
        }
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
