//! Which devices the kubelet gave to a pod.
//!
//! Source: kubelet PodResources API v1 (`k8s.io/kubelet/pkg/apis/podresources/v1`); only the fields that are looked
//! at are here, the others are passed over.

use std::path::Path;
use std::time::Duration;

use cni::{Error, code};
use hyper_util::rt::TokioIo;
use npwg::device::{Device, Devices};
use prost::Message;
use tokio::net::UnixStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic_prost::ProstCodec;

/// How long the kubelet may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest answer, in bytes.
const ANSWER_MAX: usize = 16 << 20;
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
    let answer = tokio::time::timeout(PATIENCE, list(socket)).await;
    let answer = answer.map_err(|_| failed(&format_args!("no answer within {PATIENCE:?}")))?;
    Ok(of_pod(answer.map_err(|why| failed(&why))?, namespace, name))
}

async fn list(socket: &Path) -> Result<ListResponse, String> {
    let socket = socket.to_owned();
    let connect = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    // The name of the host is of no account: the connector knows the socket.
    let endpoint = Endpoint::from_static("http://localhost");
    let channel: Channel =
        endpoint.connect_with_connector(connect).await.map_err(|cause| with_sources(&cause))?;
    let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(ANSWER_MAX);
    client.ready().await.map_err(|cause| with_sources(&cause))?;
    let codec: ProstCodec<ListRequest, ListResponse> = ProstCodec::default();
    let path = PathAndQuery::from_static(LIST);
    let answer = client.unary(tonic::Request::new(ListRequest {}), path, codec).await;
    answer.map(tonic::Response::into_inner).map_err(|status| status.message().to_owned())
}

fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
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
