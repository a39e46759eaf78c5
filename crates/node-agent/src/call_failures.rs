//! Failed calls and tasks, taken from the history on the node: each is logged, counted, and reported as a pod Event.
//!
//! - `weft-cni` has no log, so failures reach the cluster by the history ([`rpc::history`]), even for a DEL, which
//!   never contacts the agent.
//! - Refused plans and the results of checks, changes and policy updates were logged by the agent itself. They are only counted here.
//! - Failures from before the start of the agent stay in the history (`weft history`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rpc::history::Record;
use tracing::warn;

use crate::agent_state::AgentState;
use kube_support::events::EventReason;
use node_support::history::History;

/// Interval at which the history is read.
const INTERVAL: Duration = Duration::from_secs(1);
/// Stage in which the agent itself refuses a call, and tasks whose results it receives.
const PLAN: &str = "plan";
const REPORTED: [&str; 4] = ["check", "change", "update-policy", "verify-policy"];

/// Follows the history below `directory` (`cniDir`) until the agent ends.
pub(crate) async fn follow(agent: Arc<AgentState>, directory: PathBuf) {
    let mut failures = History::below(&directory).follow_failures();
    loop {
        tokio::time::sleep(INTERVAL).await;
        for record in failures.read_new() {
            report(&agent, &record);
        }
    }
}

fn report(agent: &AgentState, record: &Record) {
    let Record { verb, pod, container, failed_stage, error: Some(error), .. } = record else { return };
    agent.metrics.call_failed(verb, error.code, failed_stage);
    if failed_stage == PLAN || REPORTED.contains(&verb.as_str()) {
        return;
    }
    warn!(
        verb,
        namespace = pod.namespace,
        pod = pod.name,
        container,
        stage = failed_stage,
        code = error.code,
        %error,
        "call of weft-cni failed"
    );
    let reason = match verb.as_str() {
        "ADD" => EventReason::AttachFailed,
        "DEL" | "take-down" => EventReason::DetachFailed,
        _ => return,
    };
    agent.planner.events.call_failed(pod, reason, &without_container(&error.to_string(), container));
}

/// Returns the error without the container ID, which differs at each attempt and between pods.
fn without_container(error: &str, container: &str) -> String {
    match container.is_empty() {
        true => error.to_owned(),
        false => {
            error.replace(&format!("sandbox {container}"), "the sandbox").replace(container, "CONTAINER")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_failure_event_has_no_container_id() {
        let id = "0a1b".repeat(16);
        let busy = without_container(&format!("sandbox {id}: another operation runs"), &id);
        assert_eq!(busy, "the sandbox: another operation runs");
        let full = without_container(&format!("journal: write /var/lib/weft/sandboxes/{id}.json: full"), &id);
        assert_eq!(full, "journal: write /var/lib/weft/sandboxes/CONTAINER.json: full");
        assert_eq!(without_container("no such interface", ""), "no such interface");
    }
}
