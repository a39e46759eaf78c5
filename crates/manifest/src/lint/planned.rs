//! Plans one pod from definitions alone: finds a request that a definition cannot fulfil before the pod starts.
//!
//! - The default network is the one that `weft explain` uses without a configuration.
//! - Facts that only a node knows are not reported: allocated devices and networks on the node's disk.
//! - The linter calls it with the definitions of files, the admission webhook with those of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use cni::name::{ContainerId, IfName};
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::definition::Disk;
use npwg::device::{Device, Devices};
use npwg::metadata::{Definition, NetworkReference, Pod};
use npwg::plan::{self, Request, Sandbox};
use npwg::policy::{self, Labels};
use npwg::refusal::Fault;
use npwg::rule::{Rule, Stage};

/// Configuration of a node whose default network accepts every pod.
const NODE: &str = r#"{"cniVersion": "1.1.0", "name": "weft", "type": "weft",
    "delegates": [{"cniVersion": "1.1.0", "name": "default", "type": "bridge"}]}"#;

/// Number of devices for each resource: more than a pod can have networks.
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

/// Planner of pods without a node.
#[derive(Clone, Debug)]
pub struct PodPlanner {
    node: NodeConfiguration,
    sandbox: Sandbox,
}

impl PodPlanner {
    /// Returns a planner. `None` only if the built-in configuration were invalid.
    pub fn new() -> Option<PodPlanner> {
        let node = NodeConfiguration::read(NODE.as_bytes(), Flavour::Weft).ok()?;
        let sandbox =
            Sandbox { container: ContainerId::new("lint").ok()?, ifname: IfName::new("eth0").ok()? };
        Some(PodPlanner { node, sandbox })
    }

    /// Returns the definitions that the pod selects; none of an invalid annotation.
    pub fn wanted(&self, pod: &Pod) -> BTreeSet<NetworkReference> {
        plan::wanted(pod, &self.node)
    }

    /// Returns why the pod would be refused, if all definitions are known. `labels` are the namespace's labels; without
    /// them, access rules that need labels are not checked.
    pub fn refusal(
        &self,
        pod: &Pod,
        definitions: &BTreeMap<NetworkReference, Definition>,
        labels: Option<&Labels>,
    ) -> Option<Fault> {
        let wanted = self.wanted(pod);
        if pod.host_network || wanted.iter().any(|reference| !definitions.contains_key(reference)) {
            return None;
        }
        let of_pod = || definitions.iter().filter(|(reference, _)| wanted.contains(*reference));
        let policies = policy::policies(of_pod());
        let is_access_known = labels.is_some() || !policy::need_namespace_labels(&policies);
        let access = policy::access(pod, policies, labels);
        let resources = plan::resources(pod, &self.node, of_pod().map(|(_, definition)| definition));
        let devices: Devices = resources.into_iter().map(|resource| (resource, any_devices())).collect();
        let planned = plan::plan(&Request {
            pod,
            sandbox: &self.sandbox,
            node: &self.node,
            definitions,
            disk: &Disk::default(),
            devices: &devices,
            access: &access,
            held: &[],
        });
        let refusal = planned.err()?;
        let fault = refusal.fault();
        let is_known = fault.rule != Rule::NetworkNotAllowed || is_access_known;
        let is_planned = fault.rule.stage() == Stage::Plan && !UNKNOWN.contains(&fault.rule);
        (is_planned && is_known).then(|| fault.clone())
    }
}

fn any_devices() -> Vec<Device> {
    let device = |number| Device { id: format!("device-{number}"), container: "main".to_owned() };
    (0..DEVICES).map(device).collect()
}
