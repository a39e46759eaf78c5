//! Client for the kubelet's PodResources API: the devices that were allocated to a pod.
//!
//! Only the part of a response that is about the pod is decoded, up to [`POD_MAX`] bytes.
//!
//! Source: kubelet PodResources API v1 (`k8s.io/kubelet/pkg/apis/podresources/v1`). Unused fields are
//! omitted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use cni::{Error, code};
use npwg::device::{Device, Devices};
use prost::Message;

use super::resource_claims::AllocatedDevice;
use cri::unix_service;
use cri::wire;

/// Path to the kubelet's PodResources socket.
pub(crate) const POD_RESOURCES: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";
/// Deadline for the kubelet's response.
const RESPONSE_MAX: Duration = Duration::from_secs(10);
const LIST: &str = "/v1.PodResourcesLister/List";

#[derive(Clone, PartialEq, Message)]
struct ListRequest {}

/// Field `pod_resources` in a ListPodResourcesResponse.
const PODS: u32 = 1;
/// Maximum bytes about one pod. A device takes some hundred; an empty message takes forty times as much in memory.
const POD_MAX: usize = 256 << 10;

/// Pod that a PodResources message is about.
#[derive(Clone, PartialEq, Message)]
struct Owner {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
}

/// The other fields in a PodResources message.
#[derive(Clone, PartialEq, Message)]
struct PodResources {
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

/// Devices that were allocated to a pod.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct PodDevices {
    /// Devices that device plugins provide.
    pub(crate) devices: Devices,
    /// Devices from Dynamic Resource Allocation, each with the ResourceClaim's name.
    pub(crate) allocated: Vec<(String, AllocatedDevice)>,
}

/// Returns a pod's devices, in container order. Claims that no container uses are not included.
///
/// # Errors
/// Code 11: the kubelet does not answer now.
pub(crate) async fn pod_devices(socket: &Path, namespace: &str, name: &str) -> Result<PodDevices, Error> {
    let failed = |cause: &dyn std::fmt::Display| {
        let why = format!("kubelet {}: {cause}", socket.display());
        Error::new(code::TRY_AGAIN_LATER, why).details("the pod's devices cannot be read")
    };
    let call = unix_service::call(socket, LIST, &ListRequest {});
    let answer = tokio::time::timeout(RESPONSE_MAX, call).await;
    let answer = answer.map_err(|_| failed(&format_args!("no answer within {RESPONSE_MAX:?}")))?;
    let answer = answer.map_err(|why| failed(&why))?;
    Ok(to_devices(decode_pod(&answer, namespace, name).map_err(|why| failed(&why))?))
}

/// Why the kubelet's response cannot be used.
#[derive(Debug, thiserror::Error)]
enum AnswerError {
    /// The response is not a protobuf message.
    #[error("its response is not a protobuf message")]
    Frame,
    /// A part of the response cannot be decoded.
    #[error(transparent)]
    Decode(#[from] prost::DecodeError),
    /// The response is too large for one pod.
    #[error("its response contains more than {POD_MAX} bytes about pod {namespace}/{name}")]
    TooLarge {
        /// Namespace that the pod is in.
        namespace: String,
        /// Pod name.
        name: String,
    },
}

/// Decodes the part of a response that is about one pod.
fn decode_pod(answer: &[u8], namespace: &str, name: &str) -> Result<PodResources, AnswerError> {
    let mut all = PodResources::default();
    let mut length = 0;
    for record in wire::records(answer) {
        let record = record.map_err(|_| AnswerError::Frame)?;
        let Some(pod) = record.content.filter(|_| record.number == PODS) else { continue };
        let owner = Owner::decode(pod)?;
        if owner.namespace != namespace || owner.name != name {
            continue;
        }
        length += pod.len();
        if length > POD_MAX {
            return Err(AnswerError::TooLarge { namespace: namespace.to_owned(), name: name.to_owned() });
        }
        all.merge(pod)?;
    }
    Ok(all)
}

fn to_devices(pod: PodResources) -> PodDevices {
    let mut given = PodDevices::default();
    for container in pod.containers {
        // The kubelet lists each device separately and in another order at each call. The order must be stable for a
        // repeated ADD, and for a plan of a running pod.
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

/// Returns a claim's devices. The kubelet lists one driver's devices in order, but the drivers in another
/// order at each call. The order must be stable for a repeated ADD.
fn of_claim(claim: DynamicResource, container: &str) -> impl Iterator<Item = (String, AllocatedDevice)> {
    let DynamicResource { claim_name, mut claim_resources } = claim;
    claim_resources.sort_by(|one, other| one.driver_name.cmp(&other.driver_name));
    let container = container.to_owned();
    claim_resources.into_iter().map(move |ClaimResource { driver_name, pool_name, device_name }| {
        let [driver, pool, device] = [driver_name, pool_name, device_name];
        (claim_name.clone(), AllocatedDevice { driver, pool, device, container: container.clone() })
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::{BodyExt, Full};
    use hyper::body::Bytes;
    use hyper::server::conn::http2::Builder;
    use hyper::service::service_fn;
    use hyper::{HeaderMap, Response};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::net::UnixListener;
    use tonic::codegen::http::HeaderValue;

    use super::*;

    /// Returns the devices in `message` as a kubelet's response, and the growth of this process's peak memory in MiB.
    async fn devices_in(name: &str, message: &[u8]) -> (Result<PodDevices, Error>, u64) {
        let socket = std::env::temp_dir().join(format!("weft-{name}-{}.sock", std::process::id()));
        let listener = UnixListener::bind(&socket).unwrap();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let framed = Bytes::from([&[0], &length[..], message].concat());
        let kubelet = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = service_fn(move |_| {
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
                let body = Full::new(framed.clone()).with_trailers(std::future::ready(Some(Ok(trailers))));
                std::future::ready(Ok::<_, Infallible>(Response::new(body)))
            });
            let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), answer).await;
        });
        let before = peak_memory();
        let given = pod_devices(&socket, "n", "p").await;
        kubelet.abort();
        std::fs::remove_file(&socket).unwrap();
        (given, peak_memory() - before)
    }

    /// Returns the peak memory of this process, in MiB.
    fn peak_memory() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
    }

    #[tokio::test]
    async fn pod_resources_empty_messages_are_bounded_in_memory() {
        // Empty pods, and a pod of empty containers, as many as a response may have.
        let pods = b"\x0a\x00".repeat(8 << 20);
        let (given, grown) = devices_in("pods", &pods[..pods.len() - 16]).await;
        assert_eq!(given, Ok(PodDevices::default()));
        assert!(grown < 128, "{grown} MiB");
        let mut pod = b"\x0a\x01p\x12\x01n".to_vec();
        pod.extend(b"\x1a\x00".repeat((8 << 20) - 16));
        let mut message = Vec::new();
        wire::push(&mut message, 1, &pod);
        let (given, grown) = devices_in("containers", &message).await;
        let error = given.unwrap_err();
        assert_eq!(error.code, code::TRY_AGAIN_LATER);
        assert!(error.msg.ends_with("its response contains more than 262144 bytes about pod n/p"), "{error}");
        assert!(grown < 128, "{grown} MiB");
    }

    /// Returns a pod as the kubelet encodes it in its list.
    fn pod(name: &str, containers: Vec<ContainerResources>) -> Vec<u8> {
        let mut pod = Owner { name: name.to_owned(), namespace: "n".to_owned() }.encode_to_vec();
        PodResources { containers }.encode(&mut pod).unwrap();
        let mut record = Vec::new();
        wire::push(&mut record, PODS, &pod);
        record
    }

    #[test]
    fn pod_resources_devices_are_sorted_by_container_and_id() {
        // The kubelet lists each device separately, in any order.
        let container = |name: &str, ids: &[&str]| ContainerResources {
            name: name.into(),
            devices: ids
                .iter()
                .map(|id| ContainerDevices { resource_name: "vf".into(), device_ids: vec![(*id).to_owned()] })
                .collect(),
            dynamic_resources: Vec::new(),
        };
        for ids in [["2", "4", "1"], ["1", "2", "4"], ["4", "1", "2"]] {
            let answer = [
                pod("other", vec![container("c", &["9"])]),
                pod("p", vec![container("b", &ids), container("a", &["3"])]),
            ];
            let devices = to_devices(decode_pod(&answer.concat(), "n", "p").unwrap()).devices;
            let found: Vec<_> = devices["vf"].iter().map(|one| (&*one.container, &*one.id)).collect();
            assert_eq!(found, [("b", "1"), ("b", "2"), ("b", "4"), ("a", "3")]);
        }
    }

    #[test]
    fn pod_resources_devices_of_claims_have_a_stable_order() {
        let resource = |driver: &str, device: &str| ClaimResource {
            driver_name: driver.into(),
            pool_name: "node".into(),
            device_name: device.into(),
        };
        let mut resources =
            vec![resource("sriov", "vf-2"), resource("gpu", "gpu-0"), resource("sriov", "vf-1")];
        for _ in 0..2 {
            let claim = DynamicResource { claim_name: "mine".into(), claim_resources: resources.clone() };
            let container =
                ContainerResources { name: "c".into(), devices: Vec::new(), dynamic_resources: vec![claim] };
            let given = to_devices(PodResources { containers: vec![container] });
            let devices: Vec<_> = given.allocated.iter().map(|(_, one)| one.device.as_str()).collect();
            assert_eq!(devices, ["gpu-0", "vf-2", "vf-1"]);
            assert!(given.allocated.iter().all(|(claim, one)| claim == "mine" && one.container == "c"));
            // The kubelet's map has another driver first at the next call.
            resources.swap(0, 1);
        }
    }
}
