//! The devices of a pod, handed out once each.
//!
//! There is one ledger a pod, for both annotations and the node's own networks (M15). A network whose
//! definition names a resource takes the next device of that resource in the order of the networks; an element
//! that names one itself takes that one (C10), and none where the definition names no resource. Nothing left is an error here, not a plugin's riddle. In a sandbox
//! that is attached already a network keeps its device, and nobody else takes it.
//!
//! Source: Multus `GetResourceMap`; reference `k8s.v1.cni.cncf.io/resourceName`.

use super::networks::{Asked, Draft};
use crate::device::{Device, Devices};
use crate::metadata::RESOURCE_NAME;
use crate::refusal::{Fault, Refusal, quote};
use crate::rule::Rule;

/// What is left of the devices.
pub(super) struct Ledger<'a> {
    devices: &'a Devices,
    used: Vec<(&'a str, &'a str)>,
}

/// The device of one attachment.
pub(super) struct Taken {
    /// Its id.
    pub(super) id: String,
    /// The resource it was given for.
    pub(super) resource: String,
    /// Why this one.
    pub(super) why: String,
}

impl<'a> Ledger<'a> {
    /// A ledger in which what is held is used already.
    pub(super) fn new<'d>(
        devices: &'a Devices,
        held: impl Iterator<Item = (&'d Draft, &'d Option<&'d str>)>,
    ) -> Ledger<'a> {
        let mut used = Vec::new();
        for (draft, id) in held.filter_map(|(draft, id)| Some((draft, (*id)?))) {
            let all = devices.iter().filter_map(|(resource, all)| {
                Some((resource.as_str(), all.iter().find(|device| device.id == id)?.id.as_str()))
            });
            let (of_it, others): (Vec<_>, Vec<_>) =
                all.partition(|(resource, _)| draft.resource.as_deref() == Some(*resource));
            // Where the definition names another resource by now, it is a device of what it named once.
            used.extend(if of_it.is_empty() { others } else { of_it });
        }
        Ledger { devices, used }
    }

    /// The device of this network, if it needs one; `held` is the one that it has.
    pub(super) fn take(&mut self, draft: &Draft, held: Option<&str>) -> Result<Option<Taken>, Refusal> {
        let asked = draft.element().and_then(|element| element.device_id.as_deref());
        let Some(resource) = &draft.resource else {
            // What nobody gave the pod is the node's, or another pod's: its author cannot take it by naming it.
            return match (asked, &draft.asked) {
                (Some(id), Some(asked)) => Err(Refusal::failed(ungiven(draft, id, asked))),
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
            return Err(Refusal::failed(missing(draft, resource, asked, all.len())));
        };
        self.used.push((known, device.id.as_str()));
        let owner = if device.container.is_empty() { "the pod" } else { device.container.as_str() };
        Ok(Some(Taken {
            id: device.id.clone(),
            resource: resource.clone(),
            why: format!("{resource}, given to {owner}"),
        }))
    }
}

fn ungiven(draft: &Draft, id: &str, asked: &Asked) -> Fault {
    let reason =
        format!("{} names no resource, of which the pod could have been given a device", draft.subject);
    let cure = format!("leave it out, or annotate the definition with {RESOURCE_NAME}");
    asked.fault(Rule::DeviceNotAllocated, "deviceID", reason).showing(&quote(id)).cure(cure)
}

fn missing(draft: &Draft, resource: &str, asked: Option<&str>, given: usize) -> Fault {
    if let (Some(id), Some(asked)) = (asked, &draft.asked) {
        let reason =
            format!("is no device of {resource} that the pod was given and another network did not take");
        return asked.fault(Rule::DeviceNotAllocated, "deviceID", reason).showing(&quote(id));
    }
    let reason = match given {
        0 => format!("needs a device of {resource}, and the pod was given none"),
        _ => format!("needs one more device of {resource} than the {given} the pod was given"),
    };
    let cure = format!("request or claim {resource} in the pod's resources, one for each attachment");
    Fault::new(Rule::MissingDevice, &draft.subject, reason).cure(cure)
}
