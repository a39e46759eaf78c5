//! Messages about a sandbox plan: [`PlanRequest`], [`PlanResponse`], and afterwards [`PlanReport`].
//!
//! The agent reads no file on the node, so the request contains what a plan may need from there:
//! [`NodeInput`].

use cni::error::Error;
use cni::name::{ContainerId, IfName};
use npwg::plan::{Plan, PodIdentity, Sandbox};
use serde::{Deserialize, Serialize};

use crate::node_input::NodeInput;
use crate::task::{self, Task};

/// Request for a sandbox plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanRequest {
    /// The pod, as the container runtime names it.
    pub pod: PodIdentity,
    /// Sandbox to plan for.
    pub container: ContainerId,
    /// The interface name that the container runtime chose.
    pub ifname: IfName,
    /// Facts that the plan needs from the node.
    pub node: NodeInput,
    /// When the runtime's call began, in microseconds since 1970, for traces.
    pub began: u64,
    /// Trace context in the runtime's call (`traceparent` in W3C Trace Context); empty if it passed none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trace_parent: String,
    /// Purpose that the plan will be used for.
    #[serde(default, skip_serializing_if = "Purpose::is_attach")]
    pub purpose: Purpose,
}

/// Purpose that a plan will be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Purpose {
    /// The networks are attached.
    #[default]
    Attach,
    /// The networks are detached, because the journal has lost the sandbox's entry. A refusal causes no Event
    /// on the pod.
    Detach,
}

/// Sandbox plan, with tasks for the node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanResponse {
    /// The plan.
    pub plan: Plan,
    /// Tasks for this node, to be executed once the runtime has the answer. Unknown kinds are left out: they must not
    /// cost the pod its plan.
    #[serde(deserialize_with = "task::known")]
    pub tasks: Vec<Task>,
    /// Trace id under which the planner exports this call; empty if it exports none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trace: String,
}

/// Report about an executed plan, only for metrics and traces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanReport {
    /// Duration of the whole call up to the runtime's answer, including the plan, in microseconds.
    pub microseconds: u64,
    /// Attachments that were attempted, in order.
    pub attachments: Vec<AttachmentReport>,
    /// Why the call failed, if it did.
    pub error: Option<Error>,
}

/// Report about one attempted attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentReport {
    /// The network, as the network-status names it.
    pub network: String,
    /// First plugin in the list.
    pub plugin: String,
    /// Interface in the pod.
    pub ifname: IfName,
    /// Duration in microseconds; `None` if it failed.
    pub microseconds: Option<u64>,
    /// Plugin calls in the order in which they started, including those that undid the attachment.
    pub steps: Vec<PluginCall>,
}

/// Outcome of one plugin call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginCall {
    /// Plugin that was called.
    pub plugin: String,
    /// `ADD` or `DEL`.
    pub verb: String,
    /// When it began, in microseconds after the runtime's call.
    pub began: u64,
    /// Duration in microseconds, including the plugins that it called.
    pub microseconds: u64,
    /// Number of plugins above it in the call chain: 0 for a plugin in the list, 1 for that plugin's IPAM plugin.
    pub depth: usize,
    /// Whether the call failed.
    pub failed: bool,
}

// === impl PlanRequest ===

impl PlanRequest {
    /// Returns the sandbox that the plan is for.
    pub fn sandbox(&self) -> Sandbox {
        Sandbox { container: self.container.clone(), ifname: self.ifname.clone() }
    }
}

// === impl Purpose ===

impl Purpose {
    /// Whether the networks are attached.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    fn is_attach(&self) -> bool {
        *self == Purpose::Attach
    }
}

// === impl PlanResponse ===

impl PlanResponse {
    /// Returns a plan without tasks and without a trace.
    pub fn without_tasks(plan: Plan) -> PlanResponse {
        PlanResponse { plan, tasks: Vec::new(), trace: String::new() }
    }
}
