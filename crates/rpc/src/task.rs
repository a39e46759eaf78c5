//! Tasks that the agent decides and `weft-cni` executes: [`Task`], their transport, and [`TaskResult`].
//!
//! ```text
//!   agent ── PlanResponse ──► weft-cni (an ADD) ── TaskBatch ──┐
//!         ── Tasks ─────────► weft executor ────── TaskBatch ──┴─► weft-cni, on stdin ── TaskResult ──► agent
//! ```
//!
//! A task names a sandbox and its pod: it does not change the journal entry of another pod.

use std::net::IpAddr;

use cni::error::Error;
use cni::name::{ContainerId, IfName};
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::network_policy::AttachmentPolicy;
use npwg::plan::{Decision, Plan};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha512};

use crate::frame::{MESSAGE_MAX, Message};
use crate::node_input::NodeInput;

/// Task for this node that no call of the container runtime triggers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Task {
    /// Detaches a sandbox whose pod is deleted, by its entry in the journal.
    TakeDown {
        /// The sandbox.
        container: ContainerId,
        /// The pod that its entry must name.
        uid: String,
        /// Knowledge about the sandbox.
        certainty: Certainty,
    },
    /// Makes `weft publish` write the status of this sandbox if no agent follows the journal.
    Publish {
        /// The sandbox.
        container: ContainerId,
        /// A kubeconfig on the node; `None` for the credentials of a pod.
        kubeconfig: Option<String>,
    },
    /// Checks that a sandbox is as it was attached, and reports the result.
    Check {
        /// The sandbox.
        container: ContainerId,
        /// The pod that its entry must name.
        uid: String,
    },
    /// Attaches and detaches networks of a running sandbox until it is as planned, and reports the result.
    Change {
        /// The new plan of the same sandbox; it names the pod.
        plan: Box<Plan>,
    },
    /// Replaces the network policies of attachments of a running sandbox, and reports the result.
    UpdatePolicy {
        /// The sandbox.
        container: ContainerId,
        /// The pod that its entry must name.
        uid: String,
        /// The attachments that change.
        attachments: Vec<PolicyUpdate>,
    },
    /// Compares the rules of a sandbox's network policies with the kernel's, and restores those that were changed. Reports
    /// the result if there were some.
    VerifyPolicy {
        /// The sandbox.
        container: ContainerId,
        /// The pod that its entry must name.
        uid: String,
    },
}

/// New policies of one attachment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyUpdate {
    /// Interface.
    pub ifname: IfName,
    /// Network that the attachment must be of: hot-plug may have replaced it.
    pub network: String,
    /// Digest ([`PolicyUpdate::digest`]) of the policies in the entry that the agent compared. With others the update is out
    /// of date and changes nothing. Absent: the update replaces any policies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
    /// Policies in force from now on; `None` for no restriction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<AttachmentPolicy>,
    /// Decision that the plan gets, for `weft explain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<Decision>,
}

/// Certainty that a sandbox is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Certainty {
    /// The container runtime no longer knows the sandbox.
    Gone,
    /// The pod is no longer in the cluster. The sandbox is kept as long as its network namespace exists.
    PodGone,
}

/// Request for the tasks of this node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PollTasks {
    /// Input of the plan of a running pod from the node.
    pub node: NodeInput,
}

/// Tasks, and the input for their execution: the standard input of `weft-cni run-tasks`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskBatch {
    /// The meta-plugin's configuration, byte for byte.
    pub configuration: Box<RawValue>,
    /// The name by which the meta-plugin was called.
    pub flavour: Flavour,
    /// The tasks, executed in this order, except that updates of network policies precede the others.
    #[serde(deserialize_with = "known")]
    pub tasks: Vec<Task>,
}

/// Result of a task that reports one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskResult {
    /// The kind of the task.
    pub kind: TaskKind,
    /// The sandbox.
    pub container: ContainerId,
    /// Its pod.
    pub uid: String,
    /// Networks that a change attached and detached, in order.
    pub changes: Vec<NetworkChange>,
    /// Findings of a check, changes of rules that were undone, or the error of a change.
    pub error: Option<Error>,
    /// Interfaces of the attachments with a fault, with changed rules, or whose update failed.
    pub wrong: Vec<IfName>,
    /// Whether nothing was done because another process has locked the sandbox.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_locked: bool,
}

/// Kind of a task that reports its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TaskKind {
    /// [`Task::Check`].
    Check,
    /// [`Task::Change`].
    Change,
    /// [`Task::UpdatePolicy`].
    UpdatePolicy,
    /// [`Task::VerifyPolicy`].
    VerifyPolicy,
}

/// Network that was attached to a running sandbox, or detached from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkChange {
    /// The network, as the network-status names it.
    pub network: String,
    /// Interface.
    pub ifname: IfName,
    /// Addresses; `None` if it was detached.
    pub added: Option<Vec<IpAddr>>,
}

impl Message for TaskBatch {
    const FIELD: &'static str = "taskBatch";

    fn limit(&self) -> usize {
        MESSAGE_MAX
    }
}

impl TaskBatch {
    /// Returns the meta-plugin's configuration.
    ///
    /// # Errors
    /// Those of [`NodeConfiguration::read`].
    pub fn configuration(&self) -> Result<NodeConfiguration, Error> {
        NodeConfiguration::read(self.configuration.get().as_bytes(), self.flavour)
    }

    /// Returns the tasks in the order of their execution: a change of networks may take long, and an update does not wait
    /// for it.
    pub fn into_ordered(mut self) -> Vec<Task> {
        self.tasks.sort_by_key(|task| !matches!(task, Task::UpdatePolicy { .. }));
        self.tasks
    }
}

// === impl PolicyUpdate ===

impl PolicyUpdate {
    /// Number of hexadecimal digits of a digest.
    const DIGITS: usize = 32;

    /// Returns the digest of the policies of an attachment, or of their absence.
    ///
    /// # Errors
    /// The policies cannot be encoded.
    pub fn digest(policy: Option<&AttachmentPolicy>) -> Result<String, Error> {
        let text = serde_json::to_vec(&policy)
            .map_err(|cause| Error::internal(format!("encode network policies: {cause}")))?;
        let hash = Sha512::digest(text);
        Ok(hash.iter().take(Self::DIGITS / 2).map(|byte| format!("{byte:02x}")).collect())
    }

    /// Whether the agent compared other policies than `current`, those of the entry.
    ///
    /// # Errors
    /// The policies cannot be encoded.
    pub fn is_stale(&self, current: Option<&AttachmentPolicy>) -> Result<bool, Error> {
        let Some(replaces) = &self.replaces else { return Ok(false) };
        Ok(*replaces != Self::digest(current)?)
    }
}

// === impl TaskKind ===

impl TaskKind {
    /// All kinds.
    pub const ALL: [TaskKind; 4] =
        [TaskKind::Check, TaskKind::Change, TaskKind::UpdatePolicy, TaskKind::VerifyPolicy];
}

/// Decodes the tasks of the kinds that this release knows, and skips the others.
pub(crate) fn known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Task>, D::Error> {
    let all: Vec<Box<RawValue>> = Vec::deserialize(deserializer)?;
    Ok(all.iter().filter_map(|task| serde_json::from_str(task.get()).ok()).collect())
}

#[cfg(test)]
mod tests {
    use npwg::network_policy::IsolatedDirection;

    use super::*;

    #[test]
    fn network_policy_update_is_stale_after_another_one() {
        let [old, new] = [None, Some(IsolatedDirection::default())].map(|egress| AttachmentPolicy {
            egress,
            ingress: Some(IsolatedDirection::default()),
            ..Default::default()
        });
        let update = |known: Option<&AttachmentPolicy>| PolicyUpdate {
            ifname: IfName::new("net1").unwrap(),
            network: "blue/data".into(),
            replaces: Some(PolicyUpdate::digest(known).unwrap()),
            policy: None,
            because: None,
        };
        let states = [None, Some(&AttachmentPolicy::default()), Some(&old), Some(&new)];
        for (index, compared) in states.into_iter().enumerate() {
            let stale = states.map(|current| update(compared).is_stale(current).unwrap());
            assert_eq!(stale, std::array::from_fn(|other| other != index), "{compared:?}");
        }
        let any = PolicyUpdate { replaces: None, ..update(None) };
        assert!(!any.is_stale(Some(&old)).unwrap(), "an update of an agent without digests");
    }

    #[test]
    fn network_policy_updates_precede_other_tasks_of_a_batch() {
        let (container, uid) = (ContainerId::new("c1").unwrap(), String::new());
        let check = Task::Check { container: container.clone(), uid: uid.clone() };
        let verify = Task::VerifyPolicy { container: container.clone(), uid: uid.clone() };
        let update = Task::UpdatePolicy { container, uid, attachments: Vec::new() };
        let tasks = vec![check.clone(), update.clone(), verify.clone(), update.clone()];
        let configuration = RawValue::from_string("{}".to_owned()).unwrap();
        let batch = TaskBatch { configuration, flavour: Flavour::Weft, tasks };
        assert_eq!(batch.into_ordered(), [update.clone(), update, check, verify]);
    }

    #[test]
    fn tasks_of_an_unknown_kind_are_ignored() {
        let batch = br#"{"version":1,"taskBatch":{"configuration":{},"flavour":"weft","extra":7,
            "tasks":[{"dance":{"container":"c1"}},"rest",{"check":{"container":"c1","uid":"u","extra":1}}]}}"#;
        let batch: TaskBatch = crate::frame::decode(batch).unwrap();
        let container = ContainerId::new("c1").unwrap();
        assert_eq!(batch.tasks, [Task::Check { container, uid: "u".to_owned() }]);
    }
}
