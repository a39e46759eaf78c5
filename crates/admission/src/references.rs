//! Network references in a pod: whether the networks exist, whether the pod may use them, and whether they can do what
//! the pod requests.

use std::collections::{BTreeMap, BTreeSet};

use manifest::lint::planned::PodPlanner;
use manifest::lint::ranges;
use npwg::metadata::{Definition, NetworkReference, Pod};
use npwg::refusal::{Fault, KeyPath, quote};
use npwg::rule::{Rule, Severity};
use npwg::selection::{Annotation, Reading};

use crate::cluster::ClusterFacts;
use crate::findings::Findings;

/// Answer to a pod that names a network which does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum MissingNetworks {
    /// Accept the pod with a warning: the definition may be applied later, as GitOps tools do.
    #[default]
    Warn,
    /// Deny the pod.
    Deny,
}

/// Adds the findings about the networks that a pod selects.
pub(crate) fn look(pod: &Pod, cluster: &ClusterFacts, missing: MissingNetworks, findings: &mut Findings) {
    if pod.host_network || !cluster.definitions.is_synced() {
        return;
    }
    let Some(planner) = PodPlanner::new() else { return };
    let definitions = cluster.definitions(&planner.wanted(pod));
    let text = pod.annotations.get(Annotation::Networks.key()).map_or("", String::as_str);
    let reading = Reading::of(Annotation::Networks, text, &pod.namespace);
    for element in &reading.elements {
        match definitions.get(&element.network) {
            None => findings.add(
                match missing {
                    MissingNetworks::Warn => Severity::Warning,
                    MissingNetworks::Deny => Severity::Error,
                },
                absent(element.index, &element.network, &definitions),
            ),
            Some(definition) => {
                if let Some(fault) = ranges::outside(element, definition) {
                    findings.add(Severity::Error, fault);
                }
            }
        }
    }
    let labels = cluster.namespace(&pod.namespace).map(|namespace| namespace.labels.clone());
    if let Some(fault) = planner.refusal(pod, &definitions, labels.as_ref()) {
        findings.add(Severity::Error, fault);
    }
}

fn absent(index: usize, network: &NetworkReference, known: &BTreeMap<NetworkReference, Definition>) -> Fault {
    let elsewhere = known.keys().find(|other| other.name == network.name);
    let hint = match elsewhere {
        Some(other) => format!("did you mean {other}?"),
        None => "create it, or correct the name".to_owned(),
    };
    let reason = "there is no such NetworkAttachmentDefinition, so the pod does not start before it exists";
    let fault = Fault::new(Rule::UnknownNetwork, Annotation::Networks.subject(), reason);
    fault.at(KeyPath::root().index(index)).showing(&quote(&network.to_string())).hint(hint)
}

/// Returns the networks that a pod selects.
pub(crate) fn selected(pod: &Pod) -> BTreeSet<NetworkReference> {
    let text = pod.annotations.get(Annotation::Networks.key()).map_or("", String::as_str);
    let elements = Reading::of(Annotation::Networks, text, &pod.namespace).elements;
    elements.into_iter().map(|element| element.network).collect()
}
