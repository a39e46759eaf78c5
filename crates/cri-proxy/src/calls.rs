//! Dispatches calls by path, before anything is decoded.
//!
//! | call | handling |
//! |---|---|
//! | `SetPodNetwork`, `RemovePodNetwork`, `ListPodNetwork` | answered by the proxy |
//! | `RunPodSandbox` | validated, annotated if it requests networks, forwarded; the response is checked against the journal |
//! | `PodSandboxStatus`, `GetContainerEvents` | forwarded; addresses by network are added, except in `v1alpha2` |
//! | `ListPodSandbox`, `PodSandboxStats` and similar calls | forwarded; the annotation is removed from the response |
//! | `Status` | forwarded; `NetworkReady` combines the runtime and the networks |
//! | any other, including unknown calls | forwarded |

use std::path::PathBuf;
use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use prost::bytes::Bytes;
use tokio::sync::Semaphore;
use tonic::Status;
use tracing::debug;

use super::backend::{Backend, Body, Cause};
use super::networks::InUse;
use super::{relay, sandbox};
use crate::body_rewriting::{Edit, edited, framed};
use crate::network_condition::NetworkConditions;
use crate::reply_rewriting;
use crate::reply_rewriting::ReportedAddresses;
use crate::request_networks;
use crate::request_networks::ATTACHMENTS;
use crate::unary_message::{MessageReceiver, decode, reply as answer};
use cri::messages::{CONFIG, CONFIG_ANNOTATIONS, RunPodSandboxRequest};
use cri::network_api::{Empty, LIST, ListReply, Name, REMOVE, RemoveRequest, SET, SetReply, SetRequest};
use cri::wire;
use node_support::journal_reader::Journal;

/// Maximum error message, in characters. A character may take three bytes, and each byte three bytes in a header.
const MESSAGE_MAX: usize = 1024;

/// Runtime service path in each CRI version. Kubelets before 1.26 use the older version, which has the same messages
/// and fields. They treat every address as the pod's own, and the API server rejects a pod status that has two
/// addresses in one family; they must therefore see only the primary addresses.
const RUNTIME_SERVICES: &[(&str, ReportedAddresses)] = &[
    ("/runtime.v1.RuntimeService/", ReportedAddresses::All),
    ("/runtime.v1alpha2.RuntimeService/", ReportedAddresses::Primary),
];

/// Methods whose responses contain sandbox annotations, but not networks.
const ANNOTATED_RESPONSES: &[&str] = &[
    "ListPodSandbox",
    "StreamPodSandboxes",
    "PodSandboxStats",
    "ListPodSandboxStats",
    "StreamPodSandboxStats",
];

/// Component that attaches sandbox networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NetworkOwner {
    /// The proxy: the runtime calls the meta-plugin through the list in this directory, and the meta-plugin asks the
    /// proxy.
    Proxy(PathBuf),
    /// The runtime itself.
    Runtime,
}

/// Admitted sandbox. The networks that it needs cannot be removed until it is created.
#[derive(Debug)]
enum Admitted {
    /// The sandbox gets the default network, which may be a stored one.
    Default(#[expect(dead_code, reason = "the networks are in use until it is dropped")] Option<InUse>),
    /// The sandbox requests these networks.
    Requested(#[expect(dead_code, reason = "the networks are in use until it is dropped")] InUse),
}

/// Call handler, shared by all clients.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) conditions: Arc<NetworkConditions>,
    pub(crate) journal: Journal,
    pub(crate) owner: NetworkOwner,
    /// Slots for large messages, which all clients share.
    pub(crate) room: Arc<Semaphore>,
}

/// One proxy client.
#[derive(Debug)]
pub(crate) struct Client {
    backend: Arc<Backend>,
    receiver: MessageReceiver,
}

impl Client {
    /// Returns a client with a separate connection to the runtime socket.
    pub(crate) fn of(calls: &Calls, runtime: &Arc<PathBuf>) -> Client {
        let backend = Arc::new(Backend::at(Arc::clone(runtime)));
        Client { backend, receiver: MessageReceiver::within(&calls.room) }
    }
}

impl Calls {
    /// Handles one call.
    pub(crate) async fn answer(&self, client: &Client, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let answered = self.dispatch(client, request, &path).await;
        answered.unwrap_or_else(|status| {
            let status = bounded(status);
            debug!(path, code = ?status.code(), error = status.message(), "call refused");
            status.into_http()
        })
    }

    async fn dispatch(
        &self,
        client: &Client,
        request: Request<Incoming>,
        path: &str,
    ) -> Result<Response<Body>, Status> {
        let backend = &client.backend;
        match path {
            SET => return self.set(client, request.into_body()).await,
            REMOVE => return self.remove(client, request.into_body()).await,
            LIST => return self.list(client, request.into_body()).await,
            _ => {}
        }
        let called = RUNTIME_SERVICES
            .iter()
            .find_map(|(service, reported)| Some((*service, path.strip_prefix(service)?, *reported)));
        let Some((service, method, reported)) = called else { return forward(backend, request).await };
        match method {
            "RunPodSandbox" => self.run_pod_sandbox(client, service, request).await,
            "PodSandboxStatus" => {
                let journal = self.journal.clone();
                rewrite(
                    backend,
                    request,
                    Box::new(move |message| reply_rewriting::status(message, &journal, reported)),
                )
                .await
            }
            "GetContainerEvents" => {
                let journal = self.journal.clone();
                rewrite(backend, request, Box::new(move |message| reply_rewriting::event(message, &journal)))
                    .await
            }
            _ if ANNOTATED_RESPONSES.contains(&method) => {
                rewrite(backend, request, Box::new(reply_rewriting::list)).await
            }
            "Status" if self.owner != NetworkOwner::Runtime => {
                let ready = self.conditions.readiness().await;
                rewrite(
                    backend,
                    request,
                    Box::new(move |message| reply_rewriting::readiness(message, &ready)),
                )
                .await
            }
            _ => forward(backend, request).await,
        }
    }

    async fn set(&self, client: &Client, body: Incoming) -> Result<Response<Body>, Status> {
        let SetRequest { config } = decode(&client.receiver.receive(body).await?)?;
        let stored = self.conditions.networks.set(config).await?;
        Ok(answer(&SetReply { network: self.conditions.one(stored).await? }))
    }

    async fn remove(&self, client: &Client, body: Incoming) -> Result<Response<Body>, Status> {
        let RemoveRequest { metadata, drain } = decode(&client.receiver.receive(body).await?)?;
        self.conditions.networks.remove(metadata, drain).await?;
        Ok(answer(&Empty {}))
    }

    async fn list(&self, client: &Client, body: Incoming) -> Result<Response<Body>, Status> {
        let Empty {} = decode(&client.receiver.receive(body).await?)?;
        Ok(answer(&ListReply { networks: self.conditions.list().await? }))
    }

    async fn run_pod_sandbox(
        &self,
        client: &Client,
        service: &'static str,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Status> {
        let (mut parts, body) = request.into_parts();
        let message = client.receiver.receive(body).await?;
        let (message, held) = self.admit(message)?;
        let Some(framed) = framed(&message) else {
            return Err(Status::resource_exhausted("the request is too large"));
        };
        // The proxy has to decode this response, so it must not be compressed.
        parts.headers.remove("grpc-accept-encoding");
        let body = Full::new(framed).map_err(Cause::from).boxed_unsync();
        let backend = &client.backend;
        let answered = backend.call(Request::from_parts(parts, body)).await?;
        let answered = match (&self.owner, &held) {
            (NetworkOwner::Proxy(directory), Admitted::Requested(_)) => {
                sandbox::checked(answered, &self.journal, (backend, service), directory).await?
            }
            _ => answered.map(relay::unchanged),
        };
        drop(held);
        Ok(answered)
    }

    /// Validates the request, adds the attachments as annotation, and marks the networks as in use.
    fn admit(&self, message: Bytes) -> Result<(Bytes, Admitted), Status> {
        let RunPodSandboxRequest { config } = decode(&message)?;
        let config = config.unwrap_or_default();
        let attachments = request_networks::attachments(&config, &self.conditions.networks)?;
        if attachments.is_empty() {
            let default = self.conditions.networks.default_name().filter(|_| !config.is_on_host());
            let held = default.map(|name| self.conditions.networks.hold(vec![name.clone()]));
            return Ok((message, Admitted::Default(held)));
        }
        if self.owner == NetworkOwner::Runtime {
            let why = "the runtime attaches sandbox networks itself";
            let hint = "start the proxy with --runtime-networks DIR, where DIR is the runtime's CNI configuration directory";
            return Err(Status::failed_precondition(format!("config.networks: {why}: {hint}")));
        }
        let names = attachments.iter().map(|attachment| Name::read(&attachment.network)).collect();
        let held = self.conditions.networks.hold(names);
        let text = serde_json::to_string(&attachments)
            .map_err(|cause| Status::internal(format!("encode the attachments: {cause}")))?;
        // Protobuf merges embedded messages and map entries, so appending leaves the existing fields as they are.
        let mut config = Vec::new();
        wire::push(&mut config, CONFIG_ANNOTATIONS, &wire::entry(ATTACHMENTS, &text));
        let mut message = message.to_vec();
        wire::push(&mut message, CONFIG, &config);
        Ok((message.into(), Admitted::Requested(held)))
    }
}

/// Truncates an error message: it travels as a header, and clients limit header sizes.
fn bounded(status: Status) -> Status {
    let Some((end, _)) = status.message().char_indices().nth(MESSAGE_MAX) else { return status };
    let text = status.message().get(..end).unwrap_or_default();
    Status::new(status.code(), format!("{text}…"))
}

/// Forwards a call to the runtime, and the response to the client.
async fn forward(backend: &Backend, request: Request<Incoming>) -> Result<Response<Body>, Status> {
    let request = request.map(|body| body.map_err(Cause::from).boxed_unsync());
    Ok(backend.call(request).await?.map(relay::unchanged))
}

/// Forwards a call and edits each message in the response.
async fn rewrite(
    backend: &Backend,
    mut request: Request<Incoming>,
    edit: Edit,
) -> Result<Response<Body>, Status> {
    // A compressed response could not be edited. Without this header the runtime does not compress.
    request.headers_mut().remove("grpc-accept-encoding");
    let request = request.map(|body| body.map_err(Cause::from).boxed_unsync());
    Ok(backend.call(request).await?.map(|body| edited(body, edit)))
}
