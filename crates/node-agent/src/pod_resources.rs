//! Which devices the kubelet gave to a pod.
//!
//! Rule: of an answer no more is unfolded than what is about the pod, and of that no more than a pod can have.
//!
//! Source: kubelet PodResources API v1 (`k8s.io/kubelet/pkg/apis/podresources/v1`); only the fields that are looked
//! at are here, the others are passed over.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use cni::{Error, code};
use npwg::device::{Device, Devices};
use prost::Message;

use super::resource_claims::Allocated;
use cri::unix_service;
use cri::wire;

/// Where the kubelet tells which devices a pod has.
pub(crate) const POD_RESOURCES: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";
/// How long the kubelet may take.
const PATIENCE: Duration = Duration::from_secs(10);
const LIST: &str = "/v1.PodResourcesLister/List";

#[derive(Clone, PartialEq, Message)]
struct ListRequest {}

/// Field `pod_resources` of a ListPodResourcesResponse.
const PODS: u32 = 1;
/// So many bytes the kubelet tells of a pod at most. A device has some hundred; what is empty unfolds to forty times as much.
const POD_MAX: usize = 256 << 10;

/// Whose a PodResources is.
#[derive(Clone, PartialEq, Message)]
struct Owner {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
}

/// The rest of a PodResources.
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
    let question = unix_service::call(socket, LIST, &ListRequest {});
    let answer = tokio::time::timeout(PATIENCE, question).await;
    let answer = answer.map_err(|_| failed(&format_args!("no answer within {PATIENCE:?}")))?;
    let answer = answer.map_err(|why| failed(&why))?;
    Ok(to_pod(unfolded(&answer, namespace, name).map_err(|why| failed(&why))?))
}

/// A reason why an answer of the kubelet cannot be used.
#[derive(Debug, thiserror::Error)]
enum AnswerError {
    /// The answer is not a message.
    #[error("its answer is no message")]
    Frame,
    /// A part of the answer has another form.
    #[error(transparent)]
    Decode(#[from] prost::DecodeError),
    /// The answer says more of the pod than is read.
    #[error("it tells more than {POD_MAX} bytes of pod {namespace}/{name}")]
    TooLarge {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        name: String,
    },
}

/// What an answer says of one pod.
fn unfolded(answer: &[u8], namespace: &str, name: &str) -> Result<PodResources, AnswerError> {
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

fn to_pod(told: PodResources) -> Given {
    let mut given = Given::default();
    for container in told.containers {
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

    /// What a kubelet says who answers with `message`, and how many MiB this process grew by meanwhile, at its largest.
    async fn answered(name: &str, message: &[u8]) -> (Result<Given, Error>, u64) {
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
        let before = largest();
        let given = given(&socket, "n", "p").await;
        kubelet.abort();
        std::fs::remove_file(&socket).unwrap();
        (given, largest() - before)
    }

    /// How large this process was at its largest, in MiB.
    fn largest() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
    }

    #[tokio::test]
    async fn empty_messages_of_a_kubelet_take_no_more_memory_than_they_have_bytes() {
        // Empty pods, and a pod of empty containers, as many as an answer may have.
        let pods = b"\x0a\x00".repeat(8 << 20);
        let (given, grown) = answered("pods", &pods[..pods.len() - 16]).await;
        assert_eq!(given, Ok(Given::default()));
        assert!(grown < 128, "{grown} MiB");
        let mut pod = b"\x0a\x01p\x12\x01n".to_vec();
        pod.extend(b"\x1a\x00".repeat((8 << 20) - 16));
        let mut message = Vec::new();
        wire::push(&mut message, 1, &pod);
        let (given, grown) = answered("containers", &message).await;
        let error = given.unwrap_err();
        assert_eq!(error.code, code::TRY_AGAIN_LATER);
        assert!(error.msg.ends_with("it tells more than 262144 bytes of pod n/p"), "{error}");
        assert!(grown < 128, "{grown} MiB");
    }

    /// As the kubelet tells of a pod in its list.
    fn pod(name: &str, containers: Vec<ContainerResources>) -> Vec<u8> {
        let mut pod = Owner { name: name.to_owned(), namespace: "n".to_owned() }.encode_to_vec();
        PodResources { containers }.encode(&mut pod).unwrap();
        let mut record = Vec::new();
        wire::push(&mut record, PODS, &pod);
        record
    }

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
        for told in [["2", "4", "1"], ["1", "2", "4"], ["4", "1", "2"]] {
            // As it comes over the wire.
            let answer = [
                pod("other", vec![container("c", &["9"])]),
                pod("p", vec![container("b", &told), container("a", &["3"])]),
            ];
            let devices = to_pod(unfolded(&answer.concat(), "n", "p").unwrap()).devices;
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
            let given = to_pod(PodResources { containers: vec![container] });
            let devices: Vec<_> = given.allocated.iter().map(|(_, one)| one.device.as_str()).collect();
            assert_eq!(devices, ["gpu-0", "vf-2", "vf-1"]);
            assert!(given.allocated.iter().all(|(claim, one)| claim == "mine" && one.container == "c"));
            // Another driver first, as the kubelet's map has it the next time.
            told.swap(0, 1);
        }
    }
}
