//! Plans of the pods in the files: a request that a definition in another file cannot fulfil is found before the pod starts.
//!
//! - A pod is planned if all of its networks are in the files, with a default network as `weft explain` uses it.
//! - Some facts are known to a cluster or a node only, and nothing is reported about them: allocated devices, networks on a
//!   node's disk, and the labels of a namespace that is in no file.

use std::collections::BTreeMap;

use cni::name::{ContainerId, IfName};
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::definition::Disk;
use npwg::device::{Device, Devices};
use npwg::metadata::{Definition, NetworkReference};
use npwg::plan::{self, Request, Sandbox};
use npwg::policy::{self, Labels};
use npwg::refusal::Fault;
use npwg::rule::{Rule, Stage};

use super::Seen;
use super::selecting_pod::SelectingPod;

/// Configuration of a node whose default network accepts every pod.
const NODE: &str = r#"{"cniVersion": "1.1.0", "name": "weft", "type": "weft",
    "delegates": [{"cniVersion": "1.1.0", "name": "default", "type": "bridge"}]}"#;

/// Number of devices of each resource: more than a pod can have networks.
const DEVICES: usize = 256;

/// Rules about facts that only a cluster or a node knows.
const UNKNOWN: &[Rule] = &[
    Rule::UnknownNetwork,
    Rule::ConfigNotFound,
    Rule::UnknownNodeNetwork,
    Rule::InvalidAuxiliaryChain,
    Rule::DeviceNotAllocated,
    Rule::MissingDevice,
    Rule::NetworkPolicyNotEnforceable,
];

/// Returns the refusals of plans, each with its place.
pub(super) fn refused(
    pods: &[SelectingPod],
    definitions: &BTreeMap<NetworkReference, Definition>,
    namespaces: &BTreeMap<String, Labels>,
) -> Vec<(Seen, Fault)> {
    let Ok(node) = NodeConfiguration::read(NODE.as_bytes(), Flavour::Weft) else { return Vec::new() };
    let (Some(container), Some(ifname)) = (ContainerId::new("lint").ok(), IfName::new("eth0").ok()) else {
        return Vec::new();
    };
    let sandbox = Sandbox { container, ifname };
    let mut findings = Vec::new();
    for selecting in pods {
        let SelectingPod { pod, .. } = selecting;
        let wanted = plan::wanted(pod, &node);
        if pod.host_network || wanted.iter().any(|reference| !definitions.contains_key(reference)) {
            continue;
        }
        let of_pod = || definitions.iter().filter(|(reference, _)| wanted.contains(*reference));
        let policies = policy::policies(of_pod());
        let labels = namespaces.get(&pod.namespace);
        let is_access_known = labels.is_some() || !policy::need_namespace_labels(&policies);
        let access = policy::access(pod, policies, labels);
        let resources = plan::resources(pod, &node, of_pod().map(|(_, definition)| definition));
        let devices: Devices = resources.into_iter().map(|resource| (resource, any_devices())).collect();
        let planned = plan::plan(&Request {
            pod,
            sandbox: &sandbox,
            node: &node,
            definitions,
            disk: &Disk::default(),
            devices: &devices,
            access: &access,
            held: &[],
        });
        let Err(refusal) = planned else { continue };
        let mut fault = refusal.fault().clone();
        let is_known = fault.rule != Rule::NetworkNotAllowed || is_access_known;
        if fault.rule.stage() == Stage::Plan && !UNKNOWN.contains(&fault.rule) && is_known {
            let place = selecting.place(&fault.path).clone();
            fault.subject = format!("{} of {}", fault.subject, selecting.subject());
            findings.push((place, fault));
        }
    }
    findings
}

fn any_devices() -> Vec<Device> {
    let device = |number| Device { id: format!("device-{number}"), container: "main".to_owned() };
    (0..DEVICES).map(device).collect()
}
