//! Checks the runtime's response for a sandbox that requested networks: the journal must contain the sandbox.
//!
//! A runtime that does not call the proxy's list ignores the requested networks. If it created a sandbox without them,
//! the proxy removes the sandbox again and rejects the call, even if the client has disconnected by then.
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

/// Returns the response unchanged if the journal contains the sandbox. `service` is the path prefix for the runtime's
/// methods, `directory` the CNI directory that has the proxy's list.
///
/// # Errors
/// FAILED_PRECONDITION: the runtime does not call the proxy's list.
pub(super) async fn checked(
    answer: Response<Incoming>,
    journal: &Journal,
    (backend, service): (&Arc<Backend>, &'static str),
    directory: &Path,
) -> Result<Response<Body>, Status> {
    if answer.body().is_end_stream() {
        return Ok(answer.map(relay::unchanged));
    }
    let (parts, body) = answer.into_parts();
    let whole = Limited::new(Relayed::of(body), MESSAGE_MAX).collect().await;
    let whole = whole.map_err(|cause| Status::internal(format!("runtime response: {cause}")))?;
    let trailers = whole.trailers().cloned();
    let bytes = whole.to_bytes();
    if let Some(id) = missing_in_journal(&bytes, journal) {
        return Err(remove_sandbox(Arc::clone(backend), service, id, directory).await);
    }
    let body = Full::new(bytes).with_trailers(std::future::ready(trailers.map(Ok)));
    Ok(Response::from_parts(parts, body.map_err(Cause::from).boxed_unsync()))
}

/// Returns the sandbox id in a response if the journal does not contain it.
fn missing_in_journal(answer: &Bytes, journal: &Journal) -> Option<String> {
    let id = PodSandboxId::decode(answer.get(PREFIX..)?).ok()?.id;
    let container = ContainerId::new(&id).ok()?;
    // The meta-plugin wrote the unreadable entry, so the runtime did call it.
    matches!(journal.entry(&container), Ok(None)).then_some(id)
}

/// Removes a sandbox that was created without networks; returns the error for the client.
async fn remove_sandbox(
    backend: Arc<Backend>,
    service: &'static str,
    id: String,
    directory: &Path,
) -> Status {
    let why = format!(
        "the runtime created sandbox {id} without its networks, because it did not call the list of weft cri-proxy: \
        set conf_dir in the runtime's configuration to {} and max_conf_num to 1, then restart the runtime",
        directory.display()
    );
    warn!(sandbox = id, error = why, "sandbox created without its networks");
    // The task goes on if the client disconnects.
    let removed = tokio::spawn(async move {
        let sandbox = PodSandboxId { id };
        for method in ["StopPodSandbox", "RemovePodSandbox"] {
            call(&backend, &format!("{service}{method}"), &sandbox).await?;
        }
        info!(sandbox = sandbox.id, "sandbox removed");
        Ok::<(), String>(())
    });
    match removed.await.unwrap_or_else(|cause| Err(cause.to_string())) {
        Ok(()) => Status::failed_precondition(why),
        Err(cause) => Status::failed_precondition(format!("{why}; it could not be removed: {cause}")),
    }
}

/// Calls the runtime and ignores what the response contains.
async fn call(backend: &Backend, path: &str, sandbox: &PodSandboxId) -> Result<(), String> {
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
