//! Allocation of a pod's devices to networks, each device at most once.
//!
//! One allocator serves both annotations and the node's own networks (M15). A network whose definition names a resource
//! gets the next free device from that resource, in network order. An element with `deviceID` gets that device if it
//! belongs to the definition's resource (C10). A network without a free device fails the plan. In a sandbox that is
//! already attached, a network keeps the same device.
//!
//! Some resources have no devices: they mark the nodes that have a network, so that the scheduler chooses one
//! (KubeVirt, OpenShift, ovs-cni). A network with such a resource is attached without a device, unless one of the
//! plugins takes one.
//!
//! Source: Multus `GetResourceMap`; annotation `k8s.v1.cni.cncf.io/resourceName`.

use cni::capability;
use cni::network::Network;

use super::networks::{Asked, Draft};
use crate::device::{Device, Devices};
use crate::metadata::RESOURCE_NAME;
use crate::refusal::{Fault, Refusal, quote};
use crate::rule::Rule;

/// Device allocator for one pod.
pub(super) struct DeviceAllocator<'a> {
    devices: &'a Devices,
    used: Vec<(&'a str, &'a str)>,
}

/// Device for one attachment.
pub(super) struct AllocatedDevice {
    /// Device id.
    pub(super) id: String,
    /// Resource that the device belongs to.
    pub(super) resource: String,
    /// Why this device was chosen.
    pub(super) why: String,
}

impl<'a> DeviceAllocator<'a> {
    /// Returns an allocator in which devices that existing attachments have are used.
    pub(super) fn new<'d>(
        devices: &'a Devices,
        held: impl Iterator<Item = (&'d Draft, &'d Option<&'d str>)>,
    ) -> DeviceAllocator<'a> {
        let mut used = Vec::new();
        for (draft, id) in held.filter_map(|(draft, id)| Some((draft, (*id)?))) {
            let all = devices.iter().filter_map(|(resource, all)| {
                Some((resource.as_str(), all.iter().find(|device| device.id == id)?.id.as_str()))
            });
            let (of_it, others): (Vec<_>, Vec<_>) =
                all.partition(|(resource, _)| draft.resource.as_deref() == Some(*resource));
            // If the definition now names another resource, the device still belongs to the earlier one.
            used.extend(if of_it.is_empty() { others } else { of_it });
        }
        DeviceAllocator { devices, used }
    }

    /// Returns this network's device, if it needs one; `held` is the device that it already has.
    pub(super) fn take(
        &mut self,
        draft: &Draft,
        held: Option<&str>,
    ) -> Result<Option<AllocatedDevice>, Refusal> {
        let asked = draft.element().and_then(|element| element.device_id.as_deref());
        let Some(resource) = &draft.resource else {
            // A device that was not allocated to the pod belongs to the node or to another pod: naming it must not grant it.
            return match (asked, &draft.asked) {
                (Some(id), Some(asked)) => Err(Refusal::failed(not_allocated(draft, id, asked))),
                _ => Ok(None),
            };
        };
        let all = self.devices.get_key_value(resource.as_str());
        let (known, all) = all.map_or(("", &[][..]), |(known, all)| (known.as_str(), all.as_slice()));
        let free = |device: &&Device| !self.used.contains(&(known, device.id.as_str()));
        let kept = held.and_then(|id| all.iter().find(|device| device.id == id));
        let found = match asked {
            _ if kept.is_some() => kept,
            None => all.iter().find(free),
            Some(id) => all.iter().filter(free).find(|device| device.id == id),
        };
        let Some(device) = found else {
            if asked.is_none() && all.is_empty() && !takes_device(&draft.network) {
                return Ok(None);
            }
            return Err(Refusal::failed(missing(draft, resource, asked, all.len())));
        };
        self.used.push((known, device.id.as_str()));
        let owner = if device.container.is_empty() { "the pod" } else { device.container.as_str() };
        Ok(Some(AllocatedDevice {
            id: device.id.clone(),
            resource: resource.clone(),
            why: format!("{resource}, allocated to {owner}"),
        }))
    }
}

/// Plugins that cannot work without a device and that need not declare the capability `deviceID`.
const DEVICE_PLUGINS: [&str; 6] =
    ["sriov", "ib-sriov", "accelerated-bridge", "vdpa", "host-device", "macvtap"];

/// Keys with which a `host-device` configuration itself names the device.
const OWN_DEVICE: [&str; 4] = ["device", "hwaddr", "kernelpath", "pciBusID"];

/// Whether one of the network's plugins takes the device that is allocated to the pod.
pub fn takes_device(network: &Network) -> bool {
    network.plugins.iter().any(|plugin| {
        let capabilities = plugin.read_object("capabilities").ok().flatten().unwrap_or_default();
        let declared = capabilities.read::<bool>(capability::DEVICE_ID).ok().flatten().unwrap_or_default();
        let kind = plugin.text("type").ok().flatten().unwrap_or_default();
        declared
            || DEVICE_PLUGINS.contains(&kind.as_str())
                && !OWN_DEVICE.iter().any(|key| plugin.text(key).is_ok_and(|value| value.is_some()))
    })
}

fn not_allocated(draft: &Draft, id: &str, asked: &Asked) -> Fault {
    let reason =
        format!("{} has no resource, so no device can be allocated to the pod for it", draft.subject);
    let hint = format!("leave it out, or annotate the definition with {RESOURCE_NAME}");
    asked.fault(Rule::DeviceNotAllocated, "deviceID", reason).showing(&quote(id)).hint(hint)
}

fn missing(draft: &Draft, resource: &str, asked: Option<&str>, given: usize) -> Fault {
    if let (Some(id), Some(asked)) = (asked, &draft.asked) {
        let reason = format!("is not a device of {resource} that is allocated to the pod and free");
        return asked.fault(Rule::DeviceNotAllocated, "deviceID", reason).showing(&quote(id));
    }
    let reason = match given {
        0 => format!("needs a device of {resource}, and none is allocated to the pod"),
        _ => format!("needs one more device of {resource} than the {given} allocated to the pod"),
    };
    let hint = format!("request or claim {resource} in the pod's resources, one for each attachment");
    Fault::new(Rule::MissingDevice, &draft.subject, reason).hint(hint)
}
