//! Publisher of the network-status annotation: writes the status in the journal to the pods.
//!
//! - Each attached sandbox causes one PATCH of that annotation alone, with the uid as precondition. No other
//!   annotation, and no other pod of the same name, is changed.
//! - Without the permission to patch, the publisher replaces the pod's status instead, as Multus does.
//! - A failed write is repeated as long as the sandbox exists. A status that was removed or changed is written again.
//! - Of several sandboxes of one pod the newest counts.
//!
//! Source: multi-network specification (NPWG), section 5; Kubernetes API, merge patch (RFC 7386).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use cni::name::ContainerId;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use npwg::metadata::Pod;
use npwg::plan::PodIdentity;
use npwg::status::{self, NETWORK_STATUS};
use rpc::journal::Entry;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use super::planner::pod_key;
use crate::agent_state::AgentState;
use kube_support::api_error;
use kube_support::api_error::is_about_uid;
use kube_support::resources::{MIRROR, PodObject, Reduced};
use node_support::sandboxes::{RESCAN, Sandbox, Sandboxes};

/// Number of concurrent writes.
const PARALLEL: usize = 8;
/// First and longest pause before a failed write is repeated.
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Time after which a pod without the written status counts as changed; until then the watch may lag behind.
const LAG_MAX: Duration = Duration::from_secs(5);
/// Number of attempts to replace a pod that other clients change concurrently.
const REPLACES: usize = 5;
/// Longest delay of a write in favour of pods that are being attached.
const DELAY_MAX: Duration = Duration::from_millis(200);
/// Deadline of a write.
const WRITE_MAX: Duration = Duration::from_secs(10);

/// Publisher of the status of all sandboxes of the node.
pub(crate) struct StatusPublisher {
    client: Client,
    agent: Arc<AgentState>,
    sandboxes: Arc<Sandboxes>,
    states: BTreeMap<ContainerId, WriteState>,
    writes: JoinSet<(ContainerId, Written)>,
}

/// State of the publication for one sandbox.
#[derive(Clone, Debug)]
enum WriteState {
    /// A write is in progress, after this number of failures.
    Writing { times: u32 },
    /// The last write failed; the next one begins at `until`.
    Waiting { times: u32, until: Instant },
    /// The pod has this status.
    Written { text: String, at: Instant },
    /// The pod was deleted.
    Obsolete,
}

/// Outcome of a write.
#[derive(Debug)]
enum Written {
    Yes(String),
    /// The pod was deleted, or the pod of that name is another one.
    Obsolete,
    Failed(String),
}

/// Outcome of one API request.
#[derive(Debug)]
enum Patched {
    Yes,
    Gone,
    /// The pod of that name has another uid.
    Another,
    Forbidden,
    Failed(String),
}

impl StatusPublisher {
    pub(crate) fn new(client: Client, agent: Arc<AgentState>, sandboxes: Arc<Sandboxes>) -> StatusPublisher {
        StatusPublisher { client, agent, sandboxes, states: BTreeMap::new(), writes: JoinSet::new() }
    }

    /// Runs until the agent ends.
    pub(crate) async fn run(mut self) {
        self.sandboxes.read_all();
        let mut watch = self.sandboxes.watch();
        let mut pods = self.agent.planner.pods.changes();
        let mut rescan = tokio::time::interval(RESCAN);
        let mut retry = tokio::time::interval(RETRY_MIN);
        retry.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.sandboxes.changed(&mut watch) => {}
                changed = pods.changed() => if changed.is_err() { return },
                _ = rescan.tick() => self.sandboxes.read_all(),
                _ = retry.tick(), if self.waits() => {}
                Some(ended) = self.writes.join_next() => if let Ok((container, written)) = ended {
                    self.settle(container, written);
                },
            }
            self.begin_all();
        }
    }

    fn waits(&self) -> bool {
        self.states.values().any(|work| matches!(work, WriteState::Waiting { .. }))
    }

    /// Begins every write that is due.
    fn begin_all(&mut self) {
        let all = self.sandboxes.all();
        self.states.retain(|container, _| all.contains_key(container));
        for (state, count) in self.sandboxes.counts() {
            self.agent.metrics.sandboxes(state, count);
        }
        for (container, sandbox) in newest(&all) {
            if self.writes.len() >= PARALLEL {
                return;
            }
            let entry = &sandbox.entry;
            let pod = self.agent.planner.pods.find(&pod_key(&entry.plan.pod));
            let Some(pod) = pod.filter(|pod| pod.uid == entry.plan.pod.uid) else { continue };
            let Ok(text) = status::render(&entry.network_status) else { continue };
            if self.is_due(&container, &pod, &text) {
                self.begin(container, Arc::clone(entry), text);
            }
        }
    }

    fn is_due(&mut self, container: &ContainerId, pod: &Pod, text: &str) -> bool {
        let is_there = pod.annotations.get(NETWORK_STATUS).is_some_and(|there| there == text);
        match self.states.get(container) {
            Some(WriteState::Writing { .. } | WriteState::Obsolete) => false,
            Some(WriteState::Waiting { until, .. }) => *until <= Instant::now(),
            // The watch delivers our own write a little later.
            Some(WriteState::Written { text: written, at }) if written == text && at.elapsed() < LAG_MAX => {
                false
            }
            Some(WriteState::Written { .. }) => !is_there,
            None if is_there => {
                self.states.insert(
                    container.clone(),
                    WriteState::Written { text: text.to_owned(), at: Instant::now() },
                );
                false
            }
            None => true,
        }
    }

    fn begin(&mut self, container: ContainerId, entry: Arc<Entry>, text: String) {
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
            agent.busy.quiet(DELAY_MAX).await;
            let (started, began) = (Instant::now(), SystemTime::now());
            let written = write(client, &entry.plan.pod, text).await;
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

    fn settle(&mut self, container: ContainerId, written: Written) {
        let times = match self.states.get(&container) {
            Some(WriteState::Writing { times }) => *times,
            _ => 0,
        };
        let work = match written {
            Written::Yes(text) => {
                info!(%container, "network-status written");
                WriteState::Written { text, at: Instant::now() }
            }
            Written::Obsolete => WriteState::Obsolete,
            Written::Failed(why) => {
                let pause = RETRY_MAX.min(RETRY_MIN * 2_u32.saturating_pow(times.min(10)));
                warn!(%container, error = why, "failed to write network-status");
                WriteState::Waiting { times: times + 1, until: Instant::now() + pause }
            }
        };
        self.states.insert(container, work);
    }
}

/// Returns the newest complete sandbox of each pod.
fn newest(all: &BTreeMap<ContainerId, Sandbox>) -> BTreeMap<ContainerId, Sandbox> {
    let mut of_pod: BTreeMap<&str, (&ContainerId, &Sandbox)> = BTreeMap::new();
    for (container, sandbox) in all {
        let Entry { complete, plan, network_status, .. } = &*sandbox.entry;
        if !complete || plan.pod.uid.is_empty() || network_status.is_empty() {
            continue;
        }
        let newer =
            of_pod.get(plan.pod.uid.as_str()).is_none_or(|(_, known)| known.modified <= sandbox.modified);
        if newer {
            of_pod.insert(&plan.pod.uid, (container, sandbox));
        }
    }
    of_pod.into_values().map(|(container, sandbox)| (container.clone(), sandbox.clone())).collect()
}

/// Writes the status to the pod with this uid.
///
/// The API's object of a static pod has another uid than the pod itself; that uid is read once the API rejects ours.
async fn write(client: Client, pod: &PodIdentity, text: String) -> Written {
    let PodIdentity { namespace, name, uid } = pod;
    let pods: Api<PodObject> = Api::namespaced(client.clone(), namespace);
    let written = async {
        let outcome = match patch(&pods, name, uid, &text).await {
            Patched::Forbidden => replace(client, pod, &text).await,
            Patched::Another => match pods.get(name).await {
                Ok(there) => {
                    let own = there.meta().uid.clone().unwrap_or_default();
                    match there.reduce().uid == *uid && own != *uid {
                        true => patch(&pods, name, &own, &text).await,
                        false => Patched::Another,
                    }
                }
                Err(error) => Patched::Failed(api_error::describe(&error)),
            },
            patched => patched,
        };
        match outcome {
            Patched::Yes => Written::Yes(text),
            Patched::Gone | Patched::Another => Written::Obsolete,
            Patched::Forbidden => {
                Written::Failed("no permission to patch or to replace the pod's status".to_owned())
            }
            Patched::Failed(why) => Written::Failed(why),
        }
    };
    let late = || Written::Failed(format!("the API server did not answer within {} s", WRITE_MAX.as_secs()));
    tokio::time::timeout(WRITE_MAX, written).await.unwrap_or_else(|_| late())
}

/// Patches the status annotation.
///
/// `kubectl -n NAMESPACE patch pod NAME --subresource status --type merge -p '{"metadata":{"uid":…,"annotations":{…}}}'`
async fn patch(pods: &Api<PodObject>, name: &str, uid: &str, text: &str) -> Patched {
    let patch = serde_json::json!({ "metadata": { "uid": uid, "annotations": { NETWORK_STATUS: text } } });
    match pods.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => Patched::Yes,
        Err(kube::Error::Api(status)) if status.code == 404 => Patched::Gone,
        Err(kube::Error::Api(status)) if status.code == 403 => Patched::Forbidden,
        Err(kube::Error::Api(status)) if is_about_uid(&status) => {
            debug!(name, message = status.message, "the pod of this name has another uid");
            Patched::Another
        }
        Err(error) => Patched::Failed(api_error::describe(&error)),
    }
}

/// Replaces the pod's status, with all other fields unchanged: `kubectl -n NAMESPACE replace --subresource status`.
///
/// It is for installations that keep the permissions of Multus, which are to read and to replace pods.
async fn replace(client: Client, pod: &PodIdentity, text: &str) -> Patched {
    let PodIdentity { namespace, name, uid } = pod;
    let kind = ApiResource::erase::<PodObject>(&());
    let pods: Api<DynamicObject> = Api::namespaced_with(client, namespace, &kind);
    let mut last = String::new();
    for _ in 0..REPLACES {
        let mut there = match pods.get(name).await {
            Ok(there) => there,
            Err(kube::Error::Api(status)) if status.code == 404 => return Patched::Gone,
            Err(error) => return Patched::Failed(api_error::describe(&error)),
        };
        let mirrored = there.annotations().get(MIRROR);
        if there.metadata.uid.as_ref() != Some(uid) && mirrored != Some(uid) {
            return Patched::Another;
        }
        there.annotations_mut().insert(NETWORK_STATUS.to_owned(), text.to_owned());
        match pods.replace_status(name, &PostParams::default(), &there).await {
            Ok(_) => return Patched::Yes,
            Err(kube::Error::Api(status)) if status.code == 403 => return Patched::Forbidden,
            // Another client has changed the pod meanwhile.
            Err(kube::Error::Api(status)) if status.code == 409 => last = status.message,
            Err(error) => return Patched::Failed(api_error::describe(&error)),
        }
    }
    Patched::Failed(last)
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
        match write(client.clone(), &entry.plan.pod, text.clone()).await {
            Written::Yes(_) | Written::Obsolete => return Ok(()),
            Written::Failed(why) if started.elapsed() >= RETRY_MAX => {
                return Err(PublishError::Write { reason: why });
            }
            Written::Failed(_) => tokio::time::sleep(pause).await,
        }
        pause *= 2;
    }
}
