//! Place where the program runs: a node, a pod without access to the node, or a machine that is no node.
//!
//! A pod is recognized by the service account; access to the node, by the capability to enter namespaces.
//!
//! Source: capabilities(7), CAP_SYS_ADMIN; proc_pid_status(5), CapEff.

use std::fs;

use cli_support::failure::{Exit, Failure};
use cli_support::privilege;

/// File with a pod's namespace.
const POD_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// Number that CAP_SYS_ADMIN has.
const SYS_ADMIN: u32 = 21;

/// Place where the program runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A machine whose namespaces the program can enter, or may if it is root.
    Machine,
    /// A pod without this capability, such as the agent's.
    Pod {
        /// Namespace that the pod is in.
        namespace: String,
        /// Node that the pod is on; empty if unknown.
        node: String,
    },
}

impl Place {
    /// Returns where this process runs.
    pub(crate) fn of_process() -> Place {
        let is_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        if !is_pod || can_enter_namespaces(&status) {
            return Place::Machine;
        }
        let namespace = fs::read_to_string(POD_NAMESPACE).unwrap_or_default();
        let namespace = if namespace.trim().is_empty() { "kube-system" } else { namespace.trim() };
        Place::Pod { namespace: namespace.to_owned(), node: std::env::var("NODE_NAME").unwrap_or_default() }
    }

    /// Returns the line that runs a command on this pod's node. `command` has the words after `weft`.
    pub(crate) fn line(&self, command: &str) -> String {
        match self {
            Place::Machine => format!("sudo weft {command}"),
            Place::Pod { node, .. } if node.is_empty() => format!("on the node: sudo weft {command}"),
            Place::Pod { node, .. } => format!("ssh {node} sudo weft {command}"),
        }
    }
}

/// Fails unless the process can change or enter namespaces on this machine. `command` has the words after
/// `weft`.
pub(crate) fn require_host(command: &str, why: &str) -> Result<(), Failure> {
    let place = Place::of_process();
    match &place {
        Place::Machine => privilege::require(&format!("weft {command}"), why),
        Place::Pod { .. } => {
            let words: Vec<String> = std::env::args().skip(1).collect();
            let sentence =
                format!("weft {command} needs the node itself: {why}, and this pod has no capability for it");
            Err(Failure::new(sentence).exit(Exit::NeedsRoot).next(place.line(&words.join(" "))))
        }
    }
}

/// Whether a process status has the capability.
fn can_enter_namespaces(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    effective.is_some_and(|bits| bits & (1 << SYS_ADMIN) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_of_a_pod_without_capability_names_its_node() {
        assert!(can_enter_namespaces("Name:\tweft\nCapEff:\t000001ffffffffff\n"));
        assert!(!can_enter_namespaces("CapEff:\t0000000000000000\n"));
        assert!(!can_enter_namespaces("CapEff:\tx\n") && !can_enter_namespaces(""));
        let pod = Place::Pod { namespace: "net".into(), node: "worker-1".into() };
        assert_eq!(pod.line("check -n blue web"), "ssh worker-1 sudo weft check -n blue web");
    }
}
