//! Changes to policies, address sets, pods and journal entries, which lead to
//! [`crate::policy_updates::PolicyUpdates`].

use std::sync::Arc;

use crate::agent_state::AgentState;
use crate::policy_updates::{Concerned, GATHER, TICK};
use node_support::sandboxes::Sandboxes;

/// Compares sandboxes after each change, until the agent ends.
pub(crate) async fn follow(agent: Arc<AgentState>, sandboxes: Arc<Sandboxes>) {
    let Some((policies, updates)) = &agent.policies else { return std::future::pending().await };
    let planner = &agent.planner;
    let (changed_policies, changed_pods) = (policies.policies.changed_keys(), planner.pods.changed_keys());
    let (mut policy_changes, mut pod_changes) = (policies.policies.changes(), planner.pods.changes());
    let (mut set_changes, mut journal_changes) = (policies.changes(), sandboxes.changes());
    let mut tick = tokio::time::interval(TICK);
    loop {
        // The senders live as long as the agent.
        let is_tick = tokio::select! {
            _ = policy_changes.changed() => false,
            _ = pod_changes.changed() => false,
            _ = set_changes.changed() => false,
            _ = journal_changes.changed() => false,
            _ = tick.tick() => true,
        };
        if is_tick && !updates.waits() {
            continue;
        }
        tokio::time::sleep(GATHER).await;
        let mut concerned = Concerned::default();
        concerned.add(changed_policies.take(), |concerned, (namespace, _)| {
            concerned.namespaces.insert(namespace);
        });
        concerned.add(changed_pods.take(), |concerned, pod| {
            concerned.pods.insert(pod);
        });
        concerned.namespaces.extend(policies.changed_namespaces());
        updates.compare(policies, planner, &sandboxes, &concerned);
        agent.metrics.policy_updates_pending(updates.count());
    }
}
