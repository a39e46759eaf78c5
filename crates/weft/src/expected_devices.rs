//! Plan for a pod whose devices only the node knows: `weft explain` for an SR-IOV pod from files.
//!
//! The kubelet allocates devices when the pod starts. Until then, the pod's resource limits tell how many it
//! gets from each resource. Each is a placeholder in the plan, which is shown and never executed, or a device
//! that an annotation requests by its id. A resource from which no plugin takes a device has none: it may be
//! one that marks nodes.

use std::collections::{BTreeMap, BTreeSet};

use cni::network::Network;
use manifest::Manifest;
use npwg::configuration::NodeConfiguration;
use npwg::definition::Disk;
use npwg::device::{Device, Devices};
use npwg::metadata::{Definition, Pod, SpecConfig};
use npwg::plan::{self, Plan, PodIdentity, Sandbox};
use npwg::policy;
use npwg::refusal::Refusal;
use npwg::selection::{Annotation, Element, Reading};
use serde_json::Value;

/// Prefix for a placeholder's id; no device plugin uses it.
const PLACEHOLDER: &str = "weft-placeholder-";
/// Maximum number of placeholders for one resource: more than a pod can have networks.
const DEVICES_MAX: u64 = 256;

/// Returns the devices that the manifest requests, as placeholders.
pub(crate) fn expected_devices<'a>(manifests: impl Iterator<Item = &'a str>, pod: &PodIdentity) -> Devices {
    let mut devices = Devices::new();
    for text in manifests {
        let manifest = Manifest::parse(text);
        let is_pod = |other: &Pod| (&other.namespace, &other.name) == (&pod.namespace, &pod.name);
        let Some(located) = manifest.pods.iter().find(|located| is_pod(&located.value.pod)) else { continue };
        let spec = located.node_at(&located.base.key("spec")).to_json();
        for container in spec["containers"].as_array().into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default();
            for (resource, count) in resources_of(container) {
                let all: &mut Vec<Device> = devices.entry(resource).or_default();
                for _ in 0..count {
                    let id = format!("{PLACEHOLDER}{}", all.len());
                    all.push(Device { id, container: name.to_owned() });
                }
            }
        }
        // As in the plan, the first pod of a name counts.
        break;
    }
    devices
}

/// Returns a container's extended resources, which have a domain in the name.
fn resources_of(container: &Value) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for kind in ["requests", "limits"] {
        for (resource, count) in container["resources"][kind].as_object().into_iter().flatten() {
            let count = count.as_u64().or_else(|| count.as_str()?.parse().ok());
            if let Some(count) = count.filter(|_| resource.contains('/')) {
                counts.insert(resource.clone(), count.min(DEVICES_MAX));
            }
        }
    }
    counts
}

/// Returns the plan for a pod, with placeholders for devices.
///
/// # Errors
/// The pod cannot be planned even if the node allocates the devices that it requests.
pub(crate) fn plan(
    manifests: &manifest::Collection,
    node: &NodeConfiguration,
    (pod, sandbox): (&PodIdentity, &Sandbox),
    disk: &Disk,
    devices: &Devices,
) -> Result<Plan, cni::Error> {
    let pod = manifests.pod(node, pod)?;
    let wanted = plan::wanted(&pod, node);
    let mut devices = devices.clone();
    devices.retain(|resource, _| {
        let is_wanted = |definition: &&Definition| wanted.contains(&definition.reference());
        let of_it = manifests.definitions.values().filter(is_wanted);
        let mut of_it = of_it.filter(|definition| definition.resource() == Some(resource)).peekable();
        of_it.peek().is_none() || of_it.any(may_take_device)
    });
    let requested = requested_devices(&pod, node, manifests);
    for (resource, id) in &requested {
        let all = devices.get_mut(resource).into_iter().flatten();
        // The last one: an element without a device takes the first.
        if let Some(placeholder) = all.rev().find(|device| device.id.starts_with(PLACEHOLDER)) {
            placeholder.id.clone_from(id);
        }
    }
    let wanted = manifests.definitions.iter().filter(|(reference, _)| wanted.contains(*reference));
    let access = policy::access(&pod, policy::policies(wanted), manifests.namespaces.get(&pod.namespace));
    let planned = plan::plan(&plan::Request {
        pod: &pod,
        sandbox,
        node,
        definitions: &manifests.definitions,
        disk,
        devices: &devices,
        access: &access,
        held: &[],
    });
    let mut plan = planned.map_err(|refusal: Refusal| cni::Error::from(refusal))?;
    for decision in plan.delegates.iter_mut().flat_map(|delegate| &mut delegate.because) {
        if decision.what != "device" {
            continue;
        }
        if decision.value.starts_with(PLACEHOLDER) {
            "known on the node only".clone_into(&mut decision.value);
            decision.why = format!("a device of {}", decision.why);
        } else if requested.iter().any(|(_, id)| *id == decision.value) {
            let why = "requested by the pod; whether the kubelet allocates it is known on the node only";
            why.clone_into(&mut decision.why);
        }
    }
    Ok(plan)
}

/// Returns the devices that the pod's annotations request by `deviceID`, each with the resource. A device
/// that is requested twice is returned once: only one network can have it.
fn requested_devices(
    pod: &Pod,
    node: &NodeConfiguration,
    manifests: &manifest::Collection,
) -> BTreeSet<(String, String)> {
    let homes =
        [(Annotation::DefaultNetwork, &node.multus_namespace), (Annotation::Networks, &pod.namespace)];
    let elements = homes.into_iter().flat_map(|(annotation, home)| {
        let text = pod.annotations.get(annotation.key()).map_or("", String::as_str);
        Reading::of(annotation, text, home).elements
    });
    let device = |element: Element| {
        let definition = manifests.definitions.get(&element.network);
        let resource = element.resource.or_else(|| Some(definition?.resource()?.to_owned()));
        Some((resource?, element.device_id?))
    };
    elements.filter_map(device).collect()
}

/// Whether one of a definition's plugins takes a device. If the configuration is on the node's disk, that is
/// unknown.
fn may_take_device(definition: &Definition) -> bool {
    match &definition.config {
        SpecConfig::Text(text) => Network::parse(text.as_bytes(), &definition.name)
            .is_ok_and(|network| plan::takes_device(&network)),
        SpecConfig::Absent | SpecConfig::Structured(_) => true,
    }
}
