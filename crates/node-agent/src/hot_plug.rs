//! Hot-plug: compares the networks that a running pod's annotation selects with those in the sandbox.
//!
//! - It is opt-in, and works only for an executor that polls for tasks (`weft executor`).
//! - A sandbox is compared when the pod's annotation changes, and again at growing intervals until it matches or the
//!   change proves impossible.
//! - If a network cannot be attached, the others still are. It is planned again when a definition or a
//!   namespace changes, and at the same intervals, because a device may become free.
//! - A sandbox whose networks were requested through the container runtime keeps them; the annotation is ignored.
//! - An invalid annotation changes nothing, so that a typing error removes no network.
//! - Devices, isolation and policies are as in an ADD, because the same planner makes the plan.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cni::name::ContainerId;
use cni::{Error, code};
use npwg::refusal::{Fault, Reason};
use npwg::selection::Annotation;
use rpc::change;
use rpc::frame::MESSAGE_MAX;
use rpc::journal::Entry;
use rpc::node_input::NodeInput;
use rpc::plan::{PlanRequest, Purpose};
use rpc::task::Task;

use super::planner::{Planner, pod_key};
use node_support::plan_metadata::has_runtime_networks;
use node_support::sandboxes::Sandboxes;

/// First and longest pause before a change is sent again.
const REPEAT_MIN: Duration = Duration::from_secs(5);
const REPEAT_MAX: Duration = Duration::from_secs(600);
/// Maximum number of changes in one response, and of bytes in all of them. A larger change is sent alone.
const CHANGES_MAX: usize = 16;
const BYTES_MAX: usize = 4 << 20;
/// Maximum size for a change, in bytes. The rest of a message is for the envelope, the node's configuration
/// and other kinds of tasks.
const CHANGE_MAX: usize = MESSAGE_MAX - (2 << 20);

/// Hot-plug state for all sandboxes, by container id.
#[derive(Debug, Default)]
pub(crate) struct HotPlug(Mutex<BTreeMap<ContainerId, Seen>>);

/// Facts from the last comparison.
#[derive(Clone, Debug)]
struct Seen {
    /// The pod's annotation at that time.
    annotation: Option<String>,
    /// Whether the sandbox matches the annotation, or never will.
    settled: bool,
    compared: Instant,
    /// Number of comparisons with this annotation.
    times: u32,
    /// Why selected networks could not be planned. A reason has an Event once.
    refused: Vec<Fault>,
    /// [`Planner::inputs`] before the comparison.
    inputs: u64,
}

/// Comparison between a sandbox and the pod's annotation.
struct Comparison {
    verdict: Verdict,
    /// Why selected networks cannot be planned.
    refused: Vec<Fault>,
    inputs: u64,
}

/// Result of a comparison.
enum Verdict {
    /// The sandbox matches.
    Same,
    /// The sandbox is to be changed.
    Change(Task),
    /// The change is impossible. Contains the action that failed and the reason, unless an Event was sent already.
    Impossible(Option<(&'static str, String)>),
    /// The change cannot be planned now.
    Later,
}

impl HotPlug {
    fn seen(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the changes that are due. `node` contains the networks on the node's disk.
    pub(crate) async fn due(&self, planner: &Planner, sandboxes: &Sandboxes, node: &NodeInput) -> Vec<Task> {
        if !planner.sees_cluster() {
            return Vec::new();
        }
        let due: Vec<(Arc<Entry>, Option<String>)> = sandboxes.with(|all| {
            self.seen().retain(|container, _| all.contains_key(container));
            let due = all.values().map(|sandbox| &sandbox.entry);
            due.filter_map(|entry| Some((Arc::clone(entry), self.is_due(planner, entry)?))).collect()
        });
        let (mut tasks, mut bytes) = (Vec::new(), 0);
        for (entry, annotation) in due {
            if !fits(tasks.len(), bytes, 0) {
                break;
            }
            let inputs = planner.inputs();
            let (verdict, refused) = compare(planner, node, &entry).await;
            let (verdict, size) = sized(verdict);
            // A change that is not sent stays due.
            if !fits(tasks.len(), bytes, size) {
                break;
            }
            bytes += size;
            tasks.extend(self.settle(planner, &entry, annotation, Comparison { verdict, refused, inputs }));
        }
        tasks
    }

    /// Returns the pod's annotation if the sandbox must be compared.
    fn is_due(&self, planner: &Planner, entry: &Entry) -> Option<Option<String>> {
        let is_whole = entry.complete || entry.changing;
        if entry.plan.pod.uid.is_empty() || !is_whole || has_runtime_networks(&entry.plan, &entry.ifname) {
            return None;
        }
        let pod = planner.pods.find(&pod_key(&entry.plan.pod)).filter(|pod| pod.uid == entry.plan.pod.uid)?;
        let annotation = pod.annotations.get(Annotation::Networks.key()).cloned();
        let is_due = match self.seen().get(&entry.container_id) {
            Some(known) if known.annotation == annotation => {
                let is_new = !known.refused.is_empty() && known.inputs != planner.inputs();
                let pause = REPEAT_MAX.min(REPEAT_MIN * 2_u32.saturating_pow(known.times.min(10)));
                !known.settled && (is_new || known.compared.elapsed() >= pause)
            }
            _ => true,
        };
        is_due.then_some(annotation)
    }

    /// Stores what a comparison found, sends the Events, and returns the task.
    fn settle(
        &self,
        planner: &Planner,
        entry: &Entry,
        annotation: Option<String>,
        comparison: Comparison,
    ) -> Option<Task> {
        let Comparison { verdict, refused, inputs } = comparison;
        let mut seen = self.seen();
        let known = seen.get(&entry.container_id).filter(|known| known.annotation == annotation);
        let times = known.map_or(0, |known| known.times + 1);
        let said = known.map_or(&[][..], |known| &known.refused);
        for fault in refused.iter().filter(|fault| !said.contains(fault)) {
            planner.events.refused_network(&entry.plan.pod, fault);
        }
        let settled = refused.is_empty() && matches!(verdict, Verdict::Same | Verdict::Impossible(_));
        let known = Seen { annotation, settled, compared: Instant::now(), times, refused, inputs };
        seen.insert(entry.container_id.clone(), known);
        match verdict {
            Verdict::Change(task) => return Some(task),
            Verdict::Impossible(Some((action, why))) => {
                planner.events.unchanged(&entry.plan.pod, action, &why);
            }
            Verdict::Same | Verdict::Impossible(None) | Verdict::Later => {}
        }
        None
    }
}

/// Whether a change with this size fits into a response that has `count` changes with `bytes` bytes.
fn fits(count: usize, bytes: usize, size: usize) -> bool {
    count == 0 || (count < CHANGES_MAX && bytes + size <= BYTES_MAX)
}

/// Returns how large a change is in a message, 0 for other verdicts. A change that no message can hold is
/// impossible.
fn sized(verdict: Verdict) -> (Verdict, usize) {
    let Verdict::Change(task) = &verdict else { return (verdict, 0) };
    match serde_json::to_vec(task).map_or(usize::MAX, |message| message.len()) {
        size if size <= CHANGE_MAX => (verdict, size),
        size => {
            let why = format!(
                "the plan has {size} bytes, and the executor receives at most {CHANGE_MAX}: select fewer networks, or shorten their configurations"
            );
            (Verdict::Impossible(Some(("PlanChange", why))), 0)
        }
    }
}

/// Compares a sandbox with the pod's annotation. Also returns why selected networks cannot be planned.
async fn compare(planner: &Planner, node: &NodeInput, entry: &Entry) -> (Verdict, Vec<Fault>) {
    let request = PlanRequest {
        pod: entry.plan.pod.clone(),
        container: entry.container_id.clone(),
        ifname: entry.ifname.clone(),
        node: node.clone(),
        began: 0,
        trace_parent: String::new(),
        purpose: Purpose::Attach,
    };
    let (plan, is_known) = match planner.possible_plan(&request, &entry.held()).await {
        Ok(planned) => planned,
        Err(Error { code: code::TRY_AGAIN_LATER, .. }) => return (Verdict::Later, Vec::new()),
        // The planner has sent an Event with the reason.
        Err(_) => return (Verdict::Impossible(None), Vec::new()),
    };
    if let Some(warning) = plan.warnings.iter().find(|warning| warning.event == Reason::AnnotationIgnored) {
        let why = format!("nothing is changed: {}", warning.fault);
        return (Verdict::Impossible(Some(("ReadAnnotation", why))), Vec::new());
    }
    let refused: Vec<Fault> = plan.refused.iter().map(|refused| refused.fault.clone()).collect();
    let verdict = match change::between(entry, &plan) {
        // A definition that could not be read may exist: that is no reason for an Event.
        Ok(None) if !is_known => return (Verdict::Later, Vec::new()),
        Ok(None) => Verdict::Same,
        Ok(Some(_)) => Verdict::Change(Task::Change { plan: Box::new(plan) }),
        Err(error) => Verdict::Impossible(Some(("PlanChange", error.to_string()))),
    };
    (verdict, if is_known { refused } else { Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_plug_response_is_limited_by_count_and_bytes() {
        assert!(fits(1, BYTES_MAX / 2, BYTES_MAX / 2) && !fits(1, BYTES_MAX / 2, BYTES_MAX / 2 + 1));
        assert!(fits(CHANGES_MAX - 1, 0, 1) && !fits(CHANGES_MAX, 0, 1));
        // A change that is larger than a shared response is sent alone.
        assert!(fits(0, 0, CHANGE_MAX) && !fits(1, 1, CHANGE_MAX));
    }
}
