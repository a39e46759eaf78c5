//! Plans of the pods in the files: a request that a definition in another file cannot fulfil is found before the pod starts.
//!
//! A pod is planned if the files contain all of the selected networks.

use std::collections::BTreeMap;

use npwg::metadata::{Definition, NetworkReference};
use npwg::policy::Labels;
use npwg::refusal::Fault;

use super::Seen;
use super::selecting_pod::SelectingPod;
use crate::lint::{planned::PodPlanner, ranges};

/// Returns the refusals of plans and the requested addresses that no range contains, each with the place.
pub(super) fn refused(
    pods: &[SelectingPod],
    definitions: &BTreeMap<NetworkReference, Definition>,
    namespaces: &BTreeMap<String, Labels>,
) -> Vec<(Seen, Fault)> {
    let Some(planner) = PodPlanner::new() else { return Vec::new() };
    let mut findings = Vec::new();
    for selecting in pods {
        let SelectingPod { pod, reading, .. } = selecting;
        let refusal = planner.refusal(pod, definitions, namespaces.get(&pod.namespace));
        let outside = reading.elements.iter().filter_map(|element| {
            let definition = definitions.get(&element.network)?;
            ranges::outside(element, definition)
        });
        for mut fault in refusal.into_iter().chain(outside.filter(|_| !pod.host_network)) {
            let place = selecting.place(&fault.path).clone();
            fault.subject = format!("{} of {}", fault.subject, selecting.subject());
            findings.push((place, fault));
        }
    }
    findings
}
