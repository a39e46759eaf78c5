//! WeftNode: the node agent's report about the node, which `weft status` and `kubectl get weftnodes` show.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The object has no settings.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "weft.dev",
    version = "v1alpha1",
    kind = "WeftNode",
    plural = "weftnodes",
    shortname = "wnode",
    status = "WeftNodeStatus",
    doc = "Report of the node agent about the node of the same name. The agent writes it; nothing reads it to decide.",
    printcolumn(
        name = "Version",
        type_ = "string",
        json_path = ".status.version",
        description = "Version of the agent"
    ),
    printcolumn(
        name = "Plugin",
        type_ = "string",
        json_path = ".status.plugin",
        description = "Plugin file on the node, compared with that of the agent"
    ),
    printcolumn(
        name = "Default",
        type_ = "string",
        json_path = ".status.defaultNetwork",
        description = "Default network of the newest pod"
    ),
    printcolumn(
        name = "Sandboxes",
        type_ = "integer",
        json_path = ".status.sandboxes",
        description = "Number of sandboxes in the journal"
    ),
    printcolumn(
        name = "Failures",
        type_ = "integer",
        json_path = ".status.failedCalls",
        description = "Number of calls that failed in the hour before the report"
    ),
    printcolumn(
        name = "Reported",
        type_ = "date",
        json_path = ".status.reportedAt",
        description = "Time of the report"
    )
)]
pub struct WeftNodeSpec {}

/// Facts about the node at the time of the report.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WeftNodeStatus {
    /// Time of the report. The agent reports changes, and every five minutes.
    #[schemars(extend("format" = "date-time"))]
    pub reported_at: String,
    /// Whether the agent runs in a pod. It is gone if its pod is.
    pub in_pod: bool,
    /// Version of the agent.
    pub version: String,
    /// Commit from which the agent was built, or `unknown`.
    pub commit: String,
    /// Plugin file on the node: `Current` if it equals weft-cni of the agent's image, `Different`, `Missing`, or `Unknown`
    /// if the agent cannot read the directory.
    pub plugin: PluginState,
    /// Default network of the newest pod; absent if no pod runs.
    // The API server of Kubernetes 1.20 reads an empty string in an apply patch as null, and refuses the whole report.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub default_network: String,
    /// Number of sandboxes in the journal.
    #[schemars(with = "i64")]
    pub sandboxes: u64,
    /// Number of sandboxes whose journal entry is unreadable or whose networks are not all attached.
    #[schemars(with = "i64")]
    pub incomplete_sandboxes: u64,
    /// Number of calls that failed in the hour before the report.
    #[schemars(with = "i64")]
    pub failed_calls: u64,
    /// Newest of these failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<FailedCall>,
    /// Pools of cluster-wide addresses from which the node leases blocks.
    pub pools: Vec<NodePool>,
    /// Resources of which the agent knows an old state only, for more than a minute.
    #[schemars(length(max = 32), inner(length(max = 64)))]
    pub stale_caches: Vec<String>,
}

/// Comparison of the plugin file on the node with that of the agent.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum PluginState {
    /// Both files are equal.
    Current,
    /// The node has another file.
    Different,
    /// The node has no such file.
    Missing,
    /// The agent cannot compare them.
    #[default]
    #[serde(other)]
    Unknown,
}

/// Failed call of weft-cni.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct FailedCall {
    /// Time of the call.
    #[schemars(extend("format" = "date-time"))]
    pub time: String,
    /// Call or task: ADD, DEL, CHECK, GC, …
    pub verb: String,
    /// Namespace and name of the pod.
    pub pod: String,
    /// Error, shortened to 300 characters.
    pub message: String,
}

/// Addresses that a node leases from one pool.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct NodePool {
    /// Name of the pool, or of the part of it that a network uses.
    pub name: String,
    /// Number of addresses that pods hold.
    #[schemars(with = "i64")]
    pub held: u64,
    /// Number of further addresses in the blocks of the node.
    #[schemars(with = "i64")]
    pub free: u64,
}
