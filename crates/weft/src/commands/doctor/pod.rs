//! `weft doctor` in a pod without capabilities, such as the agent's: agent, journal, plugin file, kernel, disk and clock.
//!
//! The node's configuration, interfaces and packet filters are not visible in the pod. The last line says how they are
//! checked.

use std::os::unix::net::UnixStream;
use std::path::Path;

use rpc::journal::{self, State};

use super::kernel::{self, Kubeconfig};
use super::{Diagnosis, Finding, agent_health, broken_entry, failed_to_detach, node, recent_failures};
use crate::manifest_plan::Inputs;
use crate::place::Place;
use cli_support::failure::Failure;
use node_support::history::History;
use node_support::journal_reader::{Journal, Row};
use node_support::weft_cni::{PLUGINS, WeftCni};

/// Socket on which the agent listens.
const SOCKET: &str = "/run/weft/agent.sock";

/// Diagnoses what the pod can read.
pub(super) fn diagnose(place: &Place) -> Result<Diagnosis, Failure> {
    let directory = Path::new(journal::DIRECTORY);
    let mut findings = Vec::new();
    if let Err(cause) = UnixStream::connect(SOCKET) {
        let why = format!("no agent answers ({cause}); pods that select networks do not start");
        findings.push(Finding::new(format!("agent {SOCKET}"), why, logs(place)));
    }
    findings.extend(agent_health::finding());
    let mut sandboxes = 0;
    for row in Journal::at(&directory.join(journal::ENTRIES)).rows()? {
        match row {
            Row::Broken { container, error } => findings.push(broken_entry(&container, &error)),
            Row::Entry(entry) => {
                sandboxes += 1;
                let pending = entry.attachments.iter().zip(&entry.plan.delegates);
                for (attachment, delegate) in pending.filter(|(one, _)| one.state != State::Detached) {
                    let Some(failure) = &attachment.failure else { continue };
                    let what = format!(
                        "sandbox {} of {}/{}",
                        entry.container_id, entry.plan.pod.namespace, entry.plan.pod.name
                    );
                    let why = failed_to_detach(delegate, failure);
                    let detach = place.line(&format!("detach --container-id {}", entry.container_id));
                    findings.push(Finding::new(what, why, detach));
                }
            }
        }
    }
    let records = History::below(directory).records().unwrap_or_default();
    findings.extend(node::clock_finding(&records));
    findings.extend(node::disk_findings(directory));
    if let Ok(weft_cni) = WeftCni::find() {
        findings.extend(node::plugin_findings(&weft_cni, Path::new(PLUGINS), false));
    }
    let inputs = Inputs { files: Vec::new(), config: None };
    findings.extend(kernel::findings(&inputs, Kubeconfig::OfPod));
    let unchecked = format!(
        "not checked in a pod: configuration of the runtime, interfaces, packet filters and namespaces; {}",
        place.line("doctor")
    );
    Ok(Diagnosis { findings, sandboxes, failures: recent_failures(&records), unchecked })
}

/// Returns the command that shows the log from this node's agent.
fn logs(place: &Place) -> String {
    let (namespace, node) = match place {
        Place::Pod { namespace, node } => (namespace.as_str(), node.as_str()),
        Place::Machine => ("kube-system", ""),
    };
    let of_node =
        if node.is_empty() { String::new() } else { format!(" --field-selector spec.nodeName={node}") };
    format!("kubectl -n {namespace} get pods -l app.kubernetes.io/component=agent{of_node} -o wide")
}
