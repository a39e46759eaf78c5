//! What a plan takes beside the pod and its definitions: devices. The same for an agent and for a single question.
//!
//! ```text
//!   kubelet ── device plugins' ──────────────────────────► resource, id
//!           └─ claims' ──┐
//!   API ── claims that no container uses ──┴─► ResourceSlices ─► resource, id
//! ```
//!
//! Rules: nobody is asked unless a definition wants a device, and claims are not looked at where device plugins gave
//! every resource that is wanted. Devices come in the order of the containers, and last those of the pod itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cni::{Error, code};
use kube::{Api, Client};
use npwg::device::{Device, Devices};
use npwg::metadata::{Definition, NetworkReference, Pod};

use super::pod_resources::{self, Given};
use super::resource_claims::{Allocated, ClaimObject};
use super::resource_slices::{Published, Slices};
use kube_support::lookup::ask;

/// The pod's devices, if a definition needs one.
///
/// # Errors
/// 7 a driver publishes a device that no plugin can find · 11 the kubelet or the API cannot be asked now.
pub(crate) async fn devices(
    socket: &Path,
    (client, slices): (&Client, &Slices),
    pod: &Pod,
    definitions: &BTreeMap<NetworkReference, Definition>,
) -> Result<Devices, Error> {
    let wanted: BTreeSet<&str> = definitions.values().filter_map(Definition::resource).collect();
    if wanted.is_empty() {
        return Ok(Devices::new());
    }
    let Given { mut devices, allocated } = pod_resources::given(socket, &pod.namespace, &pod.name).await?;
    if wanted.iter().all(|resource| devices.contains_key(*resource)) {
        return Ok(devices);
    }
    let untold = pod.resource_claims.iter().filter(|name| !allocated.iter().any(|(claim, _)| claim == *name));
    let mut of_pod: Vec<Allocated> = Vec::new();
    for name in untold {
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
    decide(devices, &wanted, unknown)
}

/// A device that is in no slice may be no network's business; where a network lacks one it may be that.
fn decide(devices: Devices, wanted: &BTreeSet<&str>, unknown: Option<Allocated>) -> Result<Devices, Error> {
    match (unknown, wanted.iter().find(|resource| !devices.contains_key(**resource))) {
        (Some(device), Some(resource)) => {
            let why =
                format!("{device} is in no ResourceSlice, and nothing else the pod was given is {resource}");
            Err(Error::new(code::TRY_AGAIN_LATER, why).details("does its driver run on this node?"))
        }
        _ => Ok(devices),
    }
}

/// Puts a device among the others. One that several containers share is one device.
fn add(devices: &mut Devices, device: Allocated, published: Published) -> Result<(), Error> {
    let Published { resource: Some(resource), id } = published else { return Ok(()) };
    let Some(id) = id else {
        let why = format!("{device} is {resource}, and has no deviceID");
        let cure = "its ResourceSlice needs the attribute k8s.cni.cncf.io/deviceID or resource.kubernetes.io/pciBusID";
        return Err(Error::new(code::INVALID_CONFIG, why).details(cure));
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

    fn device(container: &str) -> Allocated {
        let [driver, pool, device] = ["d.example", "w", "vf-0"].map(str::to_owned);
        Allocated { driver, pool, device, container: container.to_owned() }
    }

    fn published(resource: Option<&str>, id: Option<&str>) -> Published {
        Published { resource: resource.map(str::to_owned), id: id.map(str::to_owned) }
    }

    #[test]
    fn a_device_that_containers_share_is_one_and_one_of_no_resource_is_none() {
        let mut devices = Devices::new();
        for container in ["a", "b"] {
            add(&mut devices, device(container), published(Some("r"), Some("0000:00:01.0"))).unwrap();
        }
        add(&mut devices, device("a"), published(None, Some("0000:00:02.0"))).unwrap();
        let expected = Device { id: "0000:00:01.0".into(), container: "a".into() };
        assert_eq!(devices, Devices::from([("r".to_owned(), vec![expected])]));
    }

    #[test]
    fn a_device_that_no_plugin_can_find_is_refused() {
        let mut devices = Devices::new();
        let error = add(&mut devices, device("a"), published(Some("r"), None)).unwrap_err();
        assert_eq!(error.code, code::INVALID_CONFIG);
        assert!(error.to_string().contains("device vf-0 of pool w of driver d.example"), "{error}");
        assert!(devices.is_empty());
    }

    #[test]
    fn a_device_in_no_slice_is_an_error_where_a_network_lacks_one() {
        let given = Devices::from([("r".to_owned(), Vec::new())]);
        let (lacking, complete) = (BTreeSet::from(["r", "s"]), BTreeSet::from(["r"]));
        let error = decide(given.clone(), &lacking, Some(device("a"))).unwrap_err();
        assert_eq!(error.code, code::TRY_AGAIN_LATER);
        assert!(error.msg.contains("is in no ResourceSlice") && error.msg.ends_with("is s"), "{error}");
        assert_eq!(decide(given.clone(), &complete, Some(device("a"))), Ok(given.clone()));
        // The planner says who lacks what.
        assert_eq!(decide(given.clone(), &lacking, None), Ok(given));
    }
}
