//! Which devices the kubelet gave to a pod.
//!
//! Source: kubelet PodResources API v1 (`k8s.io/kubelet/pkg/apis/podresources/v1`); only the fields that are looked
//! at are here, the others are passed over.

use std::path::Path;
use std::time::Duration;

use cni::{Error, code};
use npwg::device::{Device, Devices};
use prost::Message;

use super::local_service;

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
}

#[derive(Clone, PartialEq, Message)]
struct ContainerDevices {
    #[prost(string, tag = "1")]
    resource_name: String,
    #[prost(string, repeated, tag = "2")]
    device_ids: Vec<String>,
}

/// The devices of a pod, in the order of its containers.
///
/// # Errors
/// Code 11: the kubelet cannot be asked now.
pub(crate) async fn devices(socket: &Path, namespace: &str, name: &str) -> Result<Devices, Error> {
    let failed = |cause: &dyn std::fmt::Display| {
        let why = format!("kubelet {}: {cause}", socket.display());
        Error::new(code::TRY_AGAIN_LATER, why).details("the devices of the pod are not known")
    };
    let question = local_service::call::<_, ListResponse>(socket, LIST, ListRequest {});
    let answer = tokio::time::timeout(PATIENCE, question).await;
    let answer = answer.map_err(|_| failed(&format_args!("no answer within {PATIENCE:?}")))?;
    Ok(of_pod(answer.map_err(|why| failed(&why))?, namespace, name))
}

fn of_pod(answer: ListResponse, namespace: &str, name: &str) -> Devices {
    let mut devices = Devices::new();
    let pods = answer.pods.into_iter().filter(|pod| pod.namespace == namespace && pod.name == name);
    for container in pods.flat_map(|pod| pod.containers) {
        for given in container.devices {
            let all = devices.entry(given.resource_name).or_default();
            let ids = given.device_ids.into_iter();
            all.extend(ids.map(|id| Device { id, container: container.name.clone() }));
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_those_of_the_pod_in_the_order_of_its_containers() {
        let given = |resource: &str, ids: &[&str]| ContainerDevices {
            resource_name: resource.into(),
            device_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        };
        let container = |name: &str, devices| ContainerResources { name: name.into(), devices };
        let pod =
            |name: &str, containers| PodResources { name: name.into(), namespace: "n".into(), containers };
        let answer = ListResponse {
            pods: vec![
                pod("other", vec![container("c", vec![given("vf", &["9"])])]),
                pod(
                    "p",
                    vec![
                        container("b", vec![given("vf", &["2", "1"])]),
                        container("a", vec![given("vf", &["3"])]),
                    ],
                ),
            ],
        };
        // As it comes over the wire.
        let answer = ListResponse::decode(answer.encode_to_vec().as_slice()).unwrap();
        let devices = of_pod(answer, "n", "p");
        let ids: Vec<&str> = devices["vf"].iter().map(|device| device.id.as_str()).collect();
        assert_eq!((ids, devices["vf"][2].container.as_str()), (vec!["2", "1", "3"], "a"));
    }
}
