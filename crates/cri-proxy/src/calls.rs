//! Which calls are the proxy's own and which the runtime's: by path, before anything is decoded.
//!
//! | call | what happens |
//! |---|---|
//! | `SetPodNetwork`, `RemovePodNetwork`, `ListPodNetwork` | answered here |
//! | `RunPodSandbox` | checked, given our annotation if it asks for networks, forwarded; the answer counts if we were asked for the plan |
//! | `PodSandboxStatus`, `GetContainerEvents` | forwarded; the answer gets addresses by network; in `v1alpha2` it does not |
//! | `ListPodSandbox`, `PodSandboxStats` and their like | forwarded; the answer without our annotation |
//! | `Status` | forwarded; `NetworkReady` is the runtime's and the networks' |
//! | any other, also one that this release has never heard of | forwarded |

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
use crate::unary_message::{Gatherer, decode, reply as answer};
use cri::messages::{CONFIG, CONFIG_ANNOTATIONS, RunPodSandboxRequest};
use cri::network_api::{Empty, LIST, ListReply, Name, REMOVE, RemoveRequest, SET, SetReply, SetRequest};
use cri::wire;
use node_support::journal_reader::Journal;

/// Longest message of a refusal, in characters; each may be three bytes, and a byte three of a header.
const MESSAGE_MAX: usize = 1024;

/// The runtime's service in each version of CRI. Kubelets before 1.26 speak the older one, whose messages have the same
/// fields: `runtime.v1` was made of it by another name. Those that know no other take every address for the pod's own, and
/// the API server refuses the status of a pod with two of one family.
const RUNTIME_SERVICES: &[(&str, ReportedAddresses)] = &[
    ("/runtime.v1.RuntimeService/", ReportedAddresses::All),
    ("/runtime.v1alpha2.RuntimeService/", ReportedAddresses::Primary),
];

/// Methods whose answers repeat the annotations of sandboxes, and nothing of their networks.
const TELLING_ATTRIBUTES: &[&str] = &[
    "ListPodSandbox",
    "StreamPodSandboxes",
    "PodSandboxStats",
    "ListPodSandboxStats",
    "StreamPodSandboxStats",
];

/// Whose the network of sandboxes is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The runtime calls the meta-plugin, by our list in this directory, and that asks us.
    Ours(PathBuf),
    /// The runtime does it by itself.
    Runtime,
}

/// A sandbox whose networks nobody removes until it is made.
#[derive(Debug)]
enum Admitted {
    /// It gets the default network, which may be one that was set.
    Unasked(#[expect(dead_code, reason = "it holds as long as it is there")] Option<InUse>),
    /// It asks for these.
    Asking(#[expect(dead_code, reason = "it holds as long as it is there")] InUse),
}

/// What answers calls.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) conditions: Arc<NetworkConditions>,
    pub(crate) journal: Journal,
    pub(crate) owner: Owner,
    /// The room for larger messages.
    pub(crate) room: Arc<Semaphore>,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Client {
    backend: Arc<Backend>,
    gatherer: Gatherer,
}

impl Client {
    /// With its own way to the runtime that listens at `runtime`.
    pub(crate) fn of(calls: &Calls, runtime: &Arc<PathBuf>) -> Client {
        let backend = Arc::new(Backend::at(Arc::clone(runtime)));
        Client { backend, gatherer: Gatherer::within(&calls.room) }
    }
}

impl Calls {
    /// Answers one call.
    pub(crate) async fn answer(&self, client: &Client, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let answered = self.dispatch(client, request, &path).await;
        answered.unwrap_or_else(|status| {
            let status = bounded(status);
            debug!(path, code = ?status.code(), why = status.message(), "refused");
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
            .find_map(|(service, told)| Some((*service, path.strip_prefix(service)?, *told)));
        let Some((service, method, told)) = called else { return forward(backend, request).await };
        match method {
            "RunPodSandbox" => self.run_pod_sandbox(client, service, request).await,
            "PodSandboxStatus" => {
                let journal = self.journal.clone();
                rewrite(
                    backend,
                    request,
                    Box::new(move |message| reply_rewriting::status(message, &journal, told)),
                )
                .await
            }
            "GetContainerEvents" => {
                let journal = self.journal.clone();
                rewrite(backend, request, Box::new(move |message| reply_rewriting::event(message, &journal)))
                    .await
            }
            _ if TELLING_ATTRIBUTES.contains(&method) => {
                rewrite(backend, request, Box::new(reply_rewriting::list)).await
            }
            "Status" if self.owner != Owner::Runtime => {
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
        let SetRequest { config } = decode(&client.gatherer.gather(body).await?)?;
        let stored = self.conditions.networks.set(config).await?;
        Ok(answer(&SetReply { network: self.conditions.one(stored).await? }))
    }

    async fn remove(&self, client: &Client, body: Incoming) -> Result<Response<Body>, Status> {
        let RemoveRequest { metadata, drain } = decode(&client.gatherer.gather(body).await?)?;
        self.conditions.networks.remove(metadata, drain).await?;
        Ok(answer(&Empty {}))
    }

    async fn list(&self, client: &Client, body: Incoming) -> Result<Response<Body>, Status> {
        let Empty {} = decode(&client.gatherer.gather(body).await?)?;
        Ok(answer(&ListReply { networks: self.conditions.list().await? }))
    }

    async fn run_pod_sandbox(
        &self,
        client: &Client,
        service: &'static str,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Status> {
        let (mut parts, body) = request.into_parts();
        let message = client.gatherer.gather(body).await?;
        let (message, held) = self.admit(message)?;
        let Some(framed) = framed(&message) else {
            return Err(Status::resource_exhausted("the request is too large"));
        };
        // An answer that is looked at must not be compressed.
        parts.headers.remove("grpc-accept-encoding");
        let body = Full::new(framed).map_err(Cause::from).boxed_unsync();
        let backend = &client.backend;
        let answered = backend.call(Request::from_parts(parts, body)).await?;
        let answered = match (&self.owner, &held) {
            (Owner::Ours(directory), Admitted::Asking(_)) => {
                sandbox::confirmed(answered, &self.journal, (backend, service), directory).await?
            }
            _ => answered.map(relay::untouched),
        };
        drop(held);
        Ok(answered)
    }

    /// The request with what it asks for, checked; and its networks, held.
    fn admit(&self, message: Bytes) -> Result<(Bytes, Admitted), Status> {
        let RunPodSandboxRequest { config } = decode(&message)?;
        let config = config.unwrap_or_default();
        let attachments = request_networks::attachments(&config, &self.conditions.networks)?;
        if attachments.is_empty() {
            let default = self.conditions.networks.default_name().filter(|_| !config.is_on_host());
            let held = default.map(|name| self.conditions.networks.hold(vec![name.clone()]));
            return Ok((message, Admitted::Unasked(held)));
        }
        if self.owner == Owner::Runtime {
            let why = "the runtime makes the networks of sandboxes by itself";
            let cure =
                "start the proxy with --runtime-networks DIR, the runtime's directory of CNI configurations";
            return Err(Status::failed_precondition(format!("config.networks: {why}: {cure}")));
        }
        let names = attachments.iter().map(|attachment| Name::read(&attachment.network)).collect();
        let held = self.conditions.networks.hold(names);
        let text = serde_json::to_string(&attachments)
            .map_err(|cause| Status::internal(format!("encode the attachments: {cause}")))?;
        // Embedded messages merge, and entries of maps add up: what is there stays as it is.
        let mut config = Vec::new();
        wire::push(&mut config, CONFIG_ANNOTATIONS, &wire::entry(ATTACHMENTS, &text));
        let mut message = message.to_vec();
        wire::push(&mut message, CONFIG, &config);
        Ok((message.into(), Admitted::Asking(held)))
    }
}

/// A message is a header: one that repeats what a client sent must not be longer than clients take.
fn bounded(status: Status) -> Status {
    let Some((end, _)) = status.message().char_indices().nth(MESSAGE_MAX) else { return status };
    let text = status.message().get(..end).unwrap_or_default();
    Status::new(status.code(), format!("{text}…"))
}

/// Hands a call to the runtime, and its answer back.
async fn forward(backend: &Backend, request: Request<Incoming>) -> Result<Response<Body>, Status> {
    let request = request.map(|body| body.map_err(Cause::from).boxed_unsync());
    Ok(backend.call(request).await?.map(relay::untouched))
}

/// The same with each message of the answer edited.
async fn rewrite(
    backend: &Backend,
    mut request: Request<Incoming>,
    edit: Edit,
) -> Result<Response<Body>, Status> {
    // What is compressed cannot be edited; without this header it is not.
    request.headers_mut().remove("grpc-accept-encoding");
    let request = request.map(|body| body.map_err(Cause::from).boxed_unsync());
    Ok(backend.call(request).await?.map(|body| edited(body, edit)))
}
