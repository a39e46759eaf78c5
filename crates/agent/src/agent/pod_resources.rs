//! Which devices the kubelet gave to a pod.
//!
//! Source: kubelet PodResources API v1 (`k8s.io/kubelet/pkg/apis/podresources/v1`); only the fields that are looked
//! at are here, the others are passed over.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use cni::{Error, code};
use npwg::device::{Device, Devices};
use prost::Message;

use super::local_service;
use super::resource_claims::Allocated;

/// How long the kubelet may take.
const PATIENCE: Duration = Duration::from_secs(10);
const LIST: &str = "/v1.PodResourcesLister/List";

#[derive(Clone, PartialEq, Message)]
struct ListRequest {}

#[derive(Clone, PartialEq, Message)]
struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    pods: Vec<PodResources>,
}

#[derive(Clone, PartialEq, Message)]
struct PodResources {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(message, repeated, tag = "3")]
    containers: Vec<ContainerResources>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerResources {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    devices: Vec<ContainerDevices>,
    #[prost(message, repeated, tag = "5")]
    dynamic_resources: Vec<DynamicResource>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerDevices {
    #[prost(string, tag = "1")]
    resource_name: String,
    #[prost(string, repeated, tag = "2")]
    device_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct DynamicResource {
    #[prost(string, tag = "2")]
    claim_name: String,
    #[prost(message, repeated, tag = "4")]
    claim_resources: Vec<ClaimResource>,
}

#[derive(Clone, PartialEq, Message)]
struct ClaimResource {
    #[prost(string, tag = "2")]
    driver_name: String,
    #[prost(string, tag = "3")]
    pool_name: String,
    #[prost(string, tag = "4")]
    device_name: String,
}

/// What a pod was given.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Given {
    /// By device plugins.
    pub(crate) devices: Devices,
    /// By drivers of Dynamic Resource Allocation: each with the name of its ResourceClaim.
    pub(crate) allocated: Vec<(String, Allocated)>,
}

/// What a pod was given, in the order of its containers. A claim that no container uses is not told.
///
/// # Errors
/// Code 11: the kubelet cannot be asked now.
pub(crate) async fn given(socket: &Path, namespace: &str, name: &str) -> Result<Given, Error> {
    let failed = |cause: &dyn std::fmt::Display| {
        let why = format!("kubelet {}: {cause}", socket.display());
        Error::new(code::TRY_AGAIN_LATER, why).details("the devices of the pod are not known")
    };
    let question = local_service::call::<_, ListResponse>(socket, LIST, ListRequest {});
    let answer = tokio::time::timeout(PATIENCE, question).await;
    let answer = answer.map_err(|_| failed(&format_args!("no answer within {PATIENCE:?}")))?;
    Ok(to_pod(answer.map_err(|why| failed(&why))?, namespace, name))
}

fn to_pod(answer: ListResponse, namespace: &str, name: &str) -> Given {
    let mut given = Given::default();
    let pods = answer.pods.into_iter().filter(|pod| pod.namespace == namespace && pod.name == name);
    for container in pods.flat_map(|pod| pod.containers) {
        // The kubelet tells each device by itself, in another order at each call: an ADD that is repeated, and a plan
        // that is made again for a running pod, must find the same.
        let mut of_container: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for ContainerDevices { resource_name, device_ids } in container.devices {
            of_container.entry(resource_name).or_default().extend(device_ids);
        }
        for (resource, ids) in of_container {
            let ids = ids.into_iter().map(|id| Device { id, container: container.name.clone() });
            given.devices.entry(resource).or_default().extend(ids);
        }
        for claim in container.dynamic_resources {
            given.allocated.extend(of_claim(claim, &container.name));
        }
    }
    given
}

/// The devices of a claim. The kubelet tells those of one driver in their order, but the drivers in another at each
/// call: an ADD that is repeated must find the same.
fn of_claim(claim: DynamicResource, container: &str) -> impl Iterator<Item = (String, Allocated)> {
    let DynamicResource { claim_name, mut claim_resources } = claim;
    claim_resources.sort_by(|one, other| one.driver_name.cmp(&other.driver_name));
    let container = container.to_owned();
    claim_resources.into_iter().map(move |ClaimResource { driver_name, pool_name, device_name }| {
        let [driver, pool, device] = [driver_name, pool_name, device_name];
        (claim_name.clone(), Allocated { driver, pool, device, container: container.clone() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_those_of_the_pod_by_container_and_then_in_an_order_that_does_not_change() {
        // As the kubelet tells them: each by itself, and in any order.
        let container = |name: &str, ids: &[&str]| ContainerResources {
            name: name.into(),
            devices: ids
                .iter()
                .map(|id| ContainerDevices { resource_name: "vf".into(), device_ids: vec![(*id).to_owned()] })
                .collect(),
            dynamic_resources: Vec::new(),
        };
        let pod =
            |name: &str, containers| PodResources { name: name.into(), namespace: "n".into(), containers };
        for told in [["2", "4", "1"], ["1", "2", "4"], ["4", "1", "2"]] {
            let answer = ListResponse {
                pods: vec![
                    pod("other", vec![container("c", &["9"])]),
                    pod("p", vec![container("b", &told), container("a", &["3"])]),
                ],
            };
            // As it comes over the wire.
            let answer = ListResponse::decode(answer.encode_to_vec().as_slice()).unwrap();
            let devices = to_pod(answer, "n", "p").devices;
            let found: Vec<_> = devices["vf"].iter().map(|one| (&*one.container, &*one.id)).collect();
            assert_eq!(found, [("b", "1"), ("b", "2"), ("b", "4"), ("a", "3")]);
        }
    }

    #[test]
    fn devices_of_claims_come_in_an_order_that_does_not_change() {
        let resource = |driver: &str, device: &str| ClaimResource {
            driver_name: driver.into(),
            pool_name: "node".into(),
            device_name: device.into(),
        };
        let mut told = vec![resource("sriov", "vf-2"), resource("gpu", "gpu-0"), resource("sriov", "vf-1")];
        for _ in 0..2 {
            let claim = DynamicResource { claim_name: "mine".into(), claim_resources: told.clone() };
            let container =
                ContainerResources { name: "c".into(), devices: Vec::new(), dynamic_resources: vec![claim] };
            let pods =
                vec![PodResources { name: "p".into(), namespace: "n".into(), containers: vec![container] }];
            let given = to_pod(ListResponse { pods }, "n", "p");
            let devices: Vec<_> = given.allocated.iter().map(|(_, one)| one.device.as_str()).collect();
            assert_eq!(devices, ["gpu-0", "vf-2", "vf-1"]);
            assert!(given.allocated.iter().all(|(claim, one)| claim == "mine" && one.container == "c"));
            // Another driver first, as the kubelet's map has it the next time.
            told.swap(0, 1);
        }
    }
}
