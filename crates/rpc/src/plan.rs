//! Messages about the plan of a sandbox: [`PlanRequest`], [`PlanResponse`], and afterwards [`PlanReport`].
//!
//! The agent reads no file of the node, so the request contains what a plan may need of them: [`NodeInput`].

use cni::error::Error;
use cni::name::{ContainerId, IfName};
use npwg::plan::{Plan, PodIdentity, Sandbox};
use serde::{Deserialize, Serialize};

use crate::node_input::NodeInput;
use crate::task::{self, Task};

/// Request for the plan of a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanRequest {
    /// The pod, as the container runtime names it.
    pub pod: PodIdentity,
    /// The sandbox.
    pub container: ContainerId,
    /// The interface name that the container runtime chose.
    pub ifname: IfName,
    /// Input of the plan from the node.
    pub node: NodeInput,
    /// Start of the runtime's call, in microseconds of Unix time, for traces.
    pub began: u64,
    /// Trace context of the runtime's call (`traceparent` of W3C Trace Context); empty if it passed none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trace_parent: String,
    /// Use of the plan.
    #[serde(default, skip_serializing_if = "Purpose::is_attach")]
    pub purpose: Purpose,
}

/// Use of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Purpose {
    /// The networks are attached.
    #[default]
    Attach,
    /// The networks are detached, because the journal has lost the entry of the sandbox. A refusal is no event of the pod.
    Detach,
}

/// Plan of a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanResponse {
    /// The plan.
    pub plan: Plan,
    /// Tasks of this node, to be executed once the runtime has its answer. Those of an unknown kind are left out: they
    /// must not cost the pod its plan.
    #[serde(deserialize_with = "task::known")]
    pub tasks: Vec<Task>,
    /// Id of the trace that the planner exports of this call; empty if it exports none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub trace: String,
}

/// Report of an executed plan, for metrics and traces alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanReport {
    /// Duration of the whole call up to the runtime's answer, the plan included, in microseconds.
    pub microseconds: u64,
    /// Attachments that were attempted, in order.
    pub attachments: Vec<AttachmentReport>,
    /// Error of the call, if it failed.
    pub error: Option<Error>,
}

/// Report of one attempted attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentReport {
    /// The network, as the network-status names it.
    pub network: String,
    /// The first plugin of its list.
    pub plugin: String,
    /// Interface.
    pub ifname: IfName,
    /// Duration in microseconds; `None` if it failed.
    pub microseconds: Option<u64>,
    /// The plugin calls in the order of their start, including those that undid the attachment.
    pub steps: Vec<PluginCall>,
}

/// Call of one plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginCall {
    /// Name of the plugin.
    pub plugin: String,
    /// `ADD` or `DEL`.
    pub verb: String,
    /// Start, in microseconds since the start of the runtime's call.
    pub began: u64,
    /// Duration in microseconds, including the plugins that it called.
    pub microseconds: u64,
    /// Number of calling plugins: 0 for a plugin of the list, 1 for its IPAM plugin.
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
