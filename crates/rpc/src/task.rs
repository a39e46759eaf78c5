//! Tasks that the agent decides and `weft-cni` executes: [`Task`], the transport, and [`TaskResult`].
//!
//! ```text
//!   agent ── PlanResponse ──► weft-cni (an ADD) ── TaskBatch ──┐
//!         ── Tasks ─────────► weft executor ────── TaskBatch ──┴─► weft-cni, on stdin ── TaskResult ──► agent
//! ```
//!
//! A task names a sandbox and the pod: it does not change the journal entry of another pod.

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

/// Task for this node that no container runtime call triggers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Task {
    /// Detaches a sandbox whose pod is deleted, as the journal entry says.
    TakeDown {
        /// Sandbox to detach.
        container: ContainerId,
        /// Pod uid that the entry must have.
        uid: String,
        /// Knowledge about the sandbox.
        certainty: Certainty,
    },
    /// Makes `weft publish` write this sandbox's status if no agent follows the journal.
    Publish {
        /// Sandbox whose status to write.
        container: ContainerId,
        /// Kubeconfig on the node; `None` for a pod's credentials.
        kubeconfig: Option<String>,
    },
    /// Checks that a sandbox is as it was attached, and reports the result.
    Check {
        /// Sandbox to check.
        container: ContainerId,
        /// Pod uid that the entry must have.
        uid: String,
    },
    /// Attaches and detaches networks in a running sandbox until it is as planned, and reports the result.
    Change {
        /// New plan for the same sandbox; it names the pod.
        plan: Box<Plan>,
    },
    /// Replaces the network policies on attachments in a running sandbox, and reports the result.
    UpdatePolicy {
        /// Sandbox to update.
        container: ContainerId,
        /// Pod uid that the entry must have.
        uid: String,
        /// The attachments that change.
        attachments: Vec<PolicyUpdate>,
    },
    /// Compares a sandbox's network policy rules with those in the kernel, and restores those that somebody
    /// changed. Reports the result if there were some.
    VerifyPolicy {
        /// Sandbox to verify.
        container: ContainerId,
        /// Pod uid that the entry must have.
        uid: String,
    },
}

/// New policies for one attachment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyUpdate {
    /// Interface in the pod.
    pub ifname: IfName,
    /// Network that the attachment must be to: hot-plug may have replaced it.
    pub network: String,
    /// Digest ([`PolicyUpdate::digest`]) of the policies that the agent compared in the entry. If the entry
    /// has others, the update is out of date and changes nothing. Absent: the update replaces any policies.
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
    /// The pod is no longer in the cluster. The sandbox is kept as long as the network namespace exists.
    PodGone,
}

/// Request for this node's tasks.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PollTasks {
    /// Facts that planning for a running pod needs from the node.
    pub node: NodeInput,
}

/// Tasks and everything needed to execute them, as `weft-cni run-tasks` reads it from standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskBatch {
    /// The meta-plugin's configuration, byte for byte.
    pub configuration: Box<RawValue>,
    /// The name by which the meta-plugin was called.
    pub flavour: Flavour,
    /// Tasks, executed in this order, except that network policy updates precede the others.
    #[serde(deserialize_with = "known")]
    pub tasks: Vec<Task>,
}

/// Outcome of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskResult {
    /// Which kind of task it was.
    pub kind: TaskKind,
    /// Sandbox that it was for.
    pub container: ContainerId,
    /// Uid of the pod in it.
    pub uid: String,
    /// Networks that a change attached and detached, in order.
    pub changes: Vec<NetworkChange>,
    /// Findings from a check, changed rules that were restored, or the error from a change.
    pub error: Option<Error>,
    /// Interfaces with a finding, with changed rules, or whose update failed.
    pub wrong: Vec<IfName>,
    /// Whether nothing was done because another process has locked the sandbox.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_locked: bool,
}

/// Task kind that reports a result.
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
    /// Interface in the pod.
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
    /// Those that [`NodeConfiguration::read`] returns.
    pub fn configuration(&self) -> Result<NodeConfiguration, Error> {
        NodeConfiguration::read(self.configuration.get().as_bytes(), self.flavour)
    }

    /// Returns the tasks in execution order: a network change may take long, and a policy update must not
    /// wait for it.
    pub fn into_ordered(mut self) -> Vec<Task> {
        self.tasks.sort_by_key(|task| !matches!(task, Task::UpdatePolicy { .. }));
        self.tasks
    }
}

// === impl PolicyUpdate ===

impl PolicyUpdate {
    /// Hexadecimal digits in a digest.
    const DIGITS: usize = 32;

    /// Returns the digest for an attachment's policies, or for having none.
    ///
    /// # Errors
    /// The policies cannot be encoded.
    pub fn digest(policy: Option<&AttachmentPolicy>) -> Result<String, Error> {
        let text = serde_json::to_vec(&policy)
            .map_err(|cause| Error::internal(format!("encode network policies: {cause}")))?;
        let hash = Sha512::digest(text);
        Ok(hash.iter().take(Self::DIGITS / 2).map(|byte| format!("{byte:02x}")).collect())
    }

    /// Whether the agent compared other policies than `current`, which the entry has.
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
    /// Every kind that reports a result.
    pub const ALL: [TaskKind; 4] =
        [TaskKind::Check, TaskKind::Change, TaskKind::UpdatePolicy, TaskKind::VerifyPolicy];
}

/// Decodes the tasks whose kind this release knows, and skips the others.
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
