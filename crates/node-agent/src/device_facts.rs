//! Devices of a pod that a plan needs, from the kubelet and from ResourceClaims.
//!
//! ```text
//!   kubelet ── devices of device plugins ──────────────────► resource, id
//!           └─ devices of claims ──┐
//!   API ── claims of no container ─┴─► ResourceSlices ─► resource, id
//! ```
//!
//! - Nothing is read unless a definition or the pod names a resource. Claims are not read if device plugins provide all resources.
//! - Devices are in the order of the containers, followed by those of the pod itself.

use std::collections::BTreeSet;
use std::path::Path;

use cni::{Error, code};
use kube::{Api, Client};
use npwg::device::{Device, Devices};
use npwg::metadata::Pod;

use super::pod_resources::{self, PodDevices};
use super::resource_claims::{AllocatedDevice, ClaimObject};
use super::resource_slices::{Published, Slices};
use kube_support::lookup::ask;

/// Returns the pod's devices, if one of these resources is wanted.
///
/// # Errors
/// 7 a device has no id for a plugin · 11 the kubelet or the API server does not answer now.
pub(crate) async fn devices(
    socket: &Path,
    (client, slices): (&Client, &Slices),
    pod: &Pod,
    wanted: &BTreeSet<String>,
) -> Result<Devices, Error> {
    if wanted.is_empty() {
        return Ok(Devices::new());
    }
    let PodDevices { mut devices, allocated } =
        pod_resources::pod_devices(socket, &pod.namespace, &pod.name).await?;
    if wanted.iter().all(|resource| devices.contains_key(resource)) {
        return Ok(devices);
    }
    let unreported =
        pod.resource_claims.iter().filter(|name| !allocated.iter().any(|(claim, _)| claim == *name));
    let mut of_pod: Vec<AllocatedDevice> = Vec::new();
    for name in unreported {
        let asked = ask(Api::<ClaimObject>::namespaced(client.clone(), &pod.namespace), name).await;
        let claim = asked.map_err(|why| {
            Error::new(code::TRY_AGAIN_LATER, format!("resourceclaim {}/{name}: {why}", pod.namespace))
        })?;
        of_pod.extend(claim.map(|claim| claim.devices_of(&pod.uid)).unwrap_or_default());
    }
    let mut unknown = None;
    for device in allocated.into_iter().map(|(_, device)| device).chain(of_pod) {
        match slices.find(client, &device).await? {
            Some(published) => add(&mut devices, device, published)?,
            None => unknown = Some(device),
        }
    }
    decide(devices, wanted, unknown)
}

/// Returns the devices. If a resource is missing and a device is in no slice, it may be that one: try again later.
fn decide(
    devices: Devices,
    wanted: &BTreeSet<String>,
    unknown: Option<AllocatedDevice>,
) -> Result<Devices, Error> {
    match (unknown, wanted.iter().find(|resource| !devices.contains_key(*resource))) {
        (Some(device), Some(resource)) => {
            let why = format!(
                "{device} is in no ResourceSlice, and the pod has no other device of resource {resource}"
            );
            Err(Error::new(code::TRY_AGAIN_LATER, why)
                .details("check that the device's driver runs on this node"))
        }
        _ => Ok(devices),
    }
}

/// Adds a device, once if several containers share it.
fn add(devices: &mut Devices, device: AllocatedDevice, published: Published) -> Result<(), Error> {
    let Published { resource: Some(resource), id } = published else { return Ok(()) };
    let Some(id) = id else {
        let why = format!("{device} of resource {resource} has no deviceID");
        let hint = "the driver must publish the attribute k8s.cni.cncf.io/deviceID or resource.kubernetes.io/pciBusID in its ResourceSlice";
        return Err(Error::new(code::INVALID_CONFIG, why).details(hint));
    };
    let all = devices.entry(resource).or_default();
    if !all.iter().any(|known| known.id == id) {
        all.push(Device { id, container: device.container });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(container: &str) -> AllocatedDevice {
        let [driver, pool, device] = ["d.example", "w", "vf-0"].map(str::to_owned);
        AllocatedDevice { driver, pool, device, container: container.to_owned() }
    }

    fn published(resource: Option<&str>, id: Option<&str>) -> Published {
        Published { resource: resource.map(str::to_owned), id: id.map(str::to_owned) }
    }

    #[test]
    fn device_shared_by_containers_is_added_once() {
        let mut devices = Devices::new();
        for container in ["a", "b"] {
            add(&mut devices, device(container), published(Some("r"), Some("0000:00:01.0"))).unwrap();
        }
        add(&mut devices, device("a"), published(None, Some("0000:00:02.0"))).unwrap();
        let expected = Device { id: "0000:00:01.0".into(), container: "a".into() };
        assert_eq!(devices, Devices::from([("r".to_owned(), vec![expected])]));
    }

    #[test]
    fn device_without_device_id_is_refused() {
        let mut devices = Devices::new();
        let error = add(&mut devices, device("a"), published(Some("r"), None)).unwrap_err();
        assert_eq!(error.code, code::INVALID_CONFIG);
        assert!(error.to_string().contains("device vf-0 of pool w of driver d.example"), "{error}");
        assert!(devices.is_empty());
    }

    #[test]
    fn device_in_no_slice_is_an_error_if_a_resource_is_missing() {
        let given = Devices::from([("r".to_owned(), Vec::new())]);
        let complete = BTreeSet::from(["r".to_owned()]);
        let lacking = BTreeSet::from(["r".to_owned(), "s".to_owned()]);
        let error = decide(given.clone(), &lacking, Some(device("a"))).unwrap_err();
        assert_eq!(error.code, code::TRY_AGAIN_LATER);
        assert!(error.msg.contains("is in no ResourceSlice") && error.msg.ends_with("resource s"), "{error}");
        assert_eq!(decide(given.clone(), &complete, Some(device("a"))), Ok(given.clone()));
        // The planner reports the missing resource.
        assert_eq!(decide(given.clone(), &lacking, None), Ok(given));
    }
}
