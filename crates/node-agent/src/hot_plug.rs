//! Networks of running pods: what a pod's annotation selects now, against what its sandbox has.
//!
//! Rules:
//! - opt-in, and only for the hands that come for orders (`weft executor`): nobody else is there when nobody calls;
//! - a sandbox is looked at when its pod's annotation changed, and again, less and less often, until it is as asked;
//! - a sandbox that asked its runtime for networks keeps them: what its pod's annotation says is not looked at;
//! - an annotation that cannot be read changes nothing: a slip of the pen does not take a pod's networks away;
//! - devices, isolation and policies are as for an ADD: it is the same plan.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cni::name::ContainerId;
use cni::{Error, code};
use npwg::refusal::Reason;
use npwg::selection::Annotation;
use rpc::change;
use rpc::journal::Entry;
use rpc::node_input::NodeInput;
use rpc::plan::PlanRequest;
use rpc::task::Task;

use super::planner::{Planner, place};
use node_support::plan_metadata::has_runtime_networks;
use node_support::sandboxes::Sandboxes;

/// How soon an order is repeated first, and at most.
const REPEAT_MIN: Duration = Duration::from_secs(5);
const REPEAT_MAX: Duration = Duration::from_secs(600);
/// Most orders in one reply.
const ORDERS_MAX: usize = 16;

/// Who looks for them.
#[derive(Debug, Default)]
pub(crate) struct HotPlug(Mutex<BTreeMap<ContainerId, Seen>>);

/// A sandbox and the annotation it was looked at for.
#[derive(Clone, Debug)]
struct Seen {
    annotation: Option<String>,
    /// It is as asked, or will not be.
    settled: bool,
    looked: Instant,
    times: u32,
}

/// What is to be done about one.
enum Verdict {
    /// It is as asked.
    Same,
    /// It is to be made so.
    Order(Task),
    /// It cannot be: where that showed, and why, unless it was told already.
    Never(Option<(&'static str, String)>),
    /// Nothing can be said now.
    Later,
}

impl HotPlug {
    fn seen(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The changes that are due; `node` has what the node's disk says.
    pub(crate) async fn due(&self, planner: &Planner, sandboxes: &Sandboxes, node: &NodeInput) -> Vec<Task> {
        if !planner.sees_cluster() {
            return Vec::new();
        }
        let all = sandboxes.all();
        self.seen().retain(|container, _| all.contains_key(container));
        let mut orders = Vec::new();
        for sandbox in all.into_values() {
            if orders.len() == ORDERS_MAX {
                break;
            }
            if let Some(annotation) = self.is_due(planner, &sandbox.entry) {
                let verdict = verdict(planner, node, &sandbox.entry).await;
                orders.extend(self.settle(planner, &sandbox.entry, annotation, verdict));
            }
        }
        orders
    }

    /// The pod's annotation, if its sandbox is to be looked at for it.
    fn is_due(&self, planner: &Planner, entry: &Entry) -> Option<Option<String>> {
        let is_whole = entry.complete || entry.changing;
        if entry.plan.pod.uid.is_empty() || !is_whole || has_runtime_networks(&entry.plan, &entry.ifname) {
            return None;
        }
        let pod = planner.pods.find(&place(&entry.plan.pod)).filter(|pod| pod.uid == entry.plan.pod.uid)?;
        let annotation = pod.annotations.get(Annotation::Networks.key()).cloned();
        let is_due = match self.seen().get(&entry.container_id) {
            Some(known) if known.annotation == annotation => {
                let pause = REPEAT_MAX.min(REPEAT_MIN * 2_u32.saturating_pow(known.times.min(10)));
                !known.settled && known.looked.elapsed() >= pause
            }
            _ => true,
        };
        is_due.then_some(annotation)
    }

    /// Keeps what was found of a sandbox, and tells what is to be told.
    fn settle(
        &self,
        planner: &Planner,
        entry: &Entry,
        annotation: Option<String>,
        verdict: Verdict,
    ) -> Option<Task> {
        let mut seen = self.seen();
        let times = seen.get(&entry.container_id).filter(|known| known.annotation == annotation);
        let times = times.map_or(0, |known| known.times + 1);
        let settled = matches!(verdict, Verdict::Same | Verdict::Never(_));
        let known = Seen { annotation, settled, looked: Instant::now(), times };
        seen.insert(entry.container_id.clone(), known);
        match verdict {
            Verdict::Order(order) => return Some(order),
            Verdict::Never(Some((action, why))) => planner.events.unchanged(&entry.plan.pod, action, &why),
            Verdict::Same | Verdict::Never(None) | Verdict::Later => {}
        }
        None
    }
}

async fn verdict(planner: &Planner, node: &NodeInput, entry: &Entry) -> Verdict {
    let request = PlanRequest {
        pod: entry.plan.pod.clone(),
        container: entry.container_id.clone(),
        ifname: entry.ifname.clone(),
        node: node.clone(),
        began: 0,
    };
    let plan = match planner.plan(&request, &entry.held()).await {
        Ok(plan) => plan,
        Err(Error { code: code::TRY_AGAIN_LATER, .. }) => return Verdict::Later,
        // The refusal was told with its reason.
        Err(_) => return Verdict::Never(None),
    };
    if let Some(warning) = plan.warnings.iter().find(|warning| warning.event == Reason::AnnotationIgnored) {
        let why = format!("nothing is changed: {}", warning.fault);
        return Verdict::Never(Some(("ReadAnnotation", why)));
    }
    match change::between(entry, &plan) {
        Ok(None) => Verdict::Same,
        Ok(Some(_)) => Verdict::Order(Task::Change { plan: Box::new(plan) }),
        Err(error) => Verdict::Never(Some(("PlanChange", error.to_string()))),
    }
}
