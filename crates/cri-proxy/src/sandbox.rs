//! The runtime's answer to a sandbox that asked for networks: it counts if the runtime had them attached.
//!
//! Rules: a runtime that does not call our list knows nothing of what was asked for; a sandbox that it made without is taken
//! back, whoever waits for it, and refused.
//!
//! Source: CRI `runtime.v1`, RunPodSandbox.

use std::path::Path;
use std::sync::Arc;

use cni::name::ContainerId;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::{Request, Response, header};
use prost::Message;
use tonic::Status;
use tracing::{info, warn};

use super::backend::{Backend, Body, Cause};
use super::relay::{self, Relayed};
use crate::body_rewriting::{MESSAGE_MAX, PREFIX, framed};
use cri::messages::PodSandboxId;
use cri::unix_service::with_sources;
use node_support::journal_reader::Journal;

/// The answer as it came, if the journal knows the sandbox; `service` is the path of the runtime's methods, `directory`
/// where it has to find our list.
///
/// # Errors
/// FAILED_PRECONDITION: the runtime does not call our list.
pub(super) async fn confirmed(
    answer: Response<Incoming>,
    journal: &Journal,
    (backend, service): (&Arc<Backend>, &'static str),
    directory: &Path,
) -> Result<Response<Body>, Status> {
    if answer.body().is_end_stream() {
        return Ok(answer.map(relay::untouched));
    }
    let (parts, body) = answer.into_parts();
    let whole = Limited::new(Relayed::of(body), MESSAGE_MAX).collect().await;
    let whole = whole.map_err(|cause| Status::internal(format!("the runtime's answer: {cause}")))?;
    let trailers = whole.trailers().cloned();
    let bytes = whole.to_bytes();
    if let Some(id) = unknown(&bytes, journal) {
        return Err(taken_back(Arc::clone(backend), service, id, directory).await);
    }
    let body = Full::new(bytes).with_trailers(std::future::ready(trailers.map(Ok)));
    Ok(Response::from_parts(parts, body.map_err(Cause::from).boxed_unsync()))
}

/// The sandbox in an answer that the journal does not know.
fn unknown(answer: &Bytes, journal: &Journal) -> Option<String> {
    let id = PodSandboxId::decode(answer.get(PREFIX..)?).ok()?.id;
    let container = ContainerId::new(&id).ok()?;
    // One that cannot be read was written by whom the runtime called.
    matches!(journal.entry(&container), Ok(None)).then_some(id)
}

/// Takes a sandbox back that was made without its networks; what its client is told.
async fn taken_back(backend: Arc<Backend>, service: &'static str, id: String, directory: &Path) -> Status {
    let why = format!(
        "the runtime made sandbox {id} and called no list of weft cri-proxy for it, so that it is on none of its networks: \
        conf_dir in the runtime's configuration must be {}, and max_conf_num 1; restart the runtime then",
        directory.display()
    );
    warn!(sandbox = id, why);
    // It must go even if its client does not wait.
    let gone = tokio::spawn(async move {
        let told = PodSandboxId { id };
        for method in ["StopPodSandbox", "RemovePodSandbox"] {
            tell(&backend, &format!("{service}{method}"), &told).await?;
        }
        info!(sandbox = told.id, "taken back");
        Ok::<(), String>(())
    });
    match gone.await.unwrap_or_else(|cause| Err(cause.to_string())) {
        Ok(()) => Status::failed_precondition(why),
        Err(left) => Status::failed_precondition(format!("{why}; it could not be removed: {left}")),
    }
}

/// One call to the runtime whose answer says nothing.
async fn tell(backend: &Backend, path: &str, sandbox: &PodSandboxId) -> Result<(), String> {
    let failed = |cause: &dyn std::error::Error| format!("{path}: {}", with_sources(cause));
    let body = Full::new(framed(&sandbox.encode_to_vec()).unwrap_or_default());
    let request = Request::post(path)
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .body(body.map_err(Cause::from).boxed_unsync())
        .map_err(|cause| failed(&cause))?;
    let answer = backend.call(request).await.map_err(|status| format!("{path}: {}", status.message()))?;
    let headers = answer.headers().clone();
    let whole = Limited::new(answer.into_body(), MESSAGE_MAX).collect().await;
    let whole = whole.map_err(|cause| format!("{path}: {cause}"))?;
    let status = Status::from_header_map(whole.trailers().unwrap_or(&headers));
    match status.filter(|status| status.code() != tonic::Code::Ok) {
        None => Ok(()),
        Some(status) => Err(format!("{path}: {}", status.message())),
    }
}
