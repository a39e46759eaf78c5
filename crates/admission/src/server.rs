//! HTTPS server of the webhook.
//!
//! - Number and duration of connections are bounded, and so is the request size. The API server keeps connections open.
//! - A new certificate serves new connections; those that are open keep theirs.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::AdmissionController;
use crate::answer::Webhook;

/// Timeout for the handshake, and for the headers of the first request.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Time after which an idle connection is closed. The API server opens another one.
const IDLE_MAX: Duration = Duration::from_secs(90);
/// Maximum number of connections. A further one ends the oldest.
const CONNECTIONS_MAX: usize = 256;
/// Maximum request size, in bytes: two objects as large as the API server can store, plus the envelope.
const BODY_MAX: usize = 8 << 20;

/// Serves reviews until the process ends.
pub(crate) async fn serve(listener: TcpListener, controller: Arc<AdmissionController>) {
    let mut connections: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "failed to accept a connection to the webhook");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        connections.retain(|connection| !connection.is_finished());
        if connections.len() >= CONNECTIONS_MAX {
            connections.pop_front().inspect(JoinHandle::abort);
        }
        connections.push_back(tokio::spawn(connection(stream, Arc::clone(&controller))));
    }
}

async fn connection(stream: TcpStream, controller: Arc<AdmissionController>) {
    let Some(acceptor) = controller.keeper.acceptor() else { return };
    // A client that does not trust the certificate ends the handshake; its own log says so.
    let Ok(Ok(stream)) = timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await else { return };
    let answer = service_fn(move |request| {
        let controller = Arc::clone(&controller);
        async move { Ok::<_, Infallible>(respond(request, &controller).await) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(IDLE_MAX);
    // A client that closes the connection is not an error.
    let _ = server.serve_connection(TokioIo::new(stream), answer).await;
}

async fn respond(request: Request<Incoming>, controller: &AdmissionController) -> Response<Full<Bytes>> {
    let webhook = match request.uri().path() {
        "/validate" => Webhook::Validate,
        "/mutate" => Webhook::Mutate,
        _ => return plain(StatusCode::NOT_FOUND, "not found; the webhooks are /validate and /mutate\n"),
    };
    if request.method() != Method::POST {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "a review is sent with POST\n");
    }
    let Ok(body) = Limited::new(request.into_body(), BODY_MAX).collect().await else {
        return plain(StatusCode::PAYLOAD_TOO_LARGE, "the review is too large, or it did not arrive whole\n");
    };
    match controller.answer(webhook, &body.to_bytes()) {
        Some(answer) => {
            let mut response = Response::new(Full::new(Bytes::from(answer)));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        None => plain(StatusCode::BAD_REQUEST, "the body is not an AdmissionReview of admission.k8s.io/v1\n"),
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}
