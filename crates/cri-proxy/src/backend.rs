//! The container runtime behind the proxy: one HTTP/2 connection for each client of ours, made when it is needed.
//!
//! Rules: a client that stalls stalls its own connection and nobody else's; a runtime that is away is UNAVAILABLE, and
//! is tried again with the next call; a call is tried twice only if the first attempt certainly did not leave.

use std::path::PathBuf;
use std::sync::Arc;

use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tonic::Status;
use tracing::debug;

use cri::unix_service::with_sources;

/// Why a body ended early.
pub(crate) type Cause = Box<dyn std::error::Error + Send + Sync>;
/// A body on its way through.
pub(crate) type Body = UnsyncBoxBody<Bytes, Cause>;

/// What a call may have in flight, in bytes.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;
/// What a connection may have in flight, in bytes.
pub(crate) const CONNECTION_WINDOW: u32 = 1 << 20;
/// Largest headers, in bytes.
pub(crate) const HEADERS_MAX: u32 = 64 << 10;
/// The host of a call that names none; a unix socket has none, and the runtime does not look.
const HOST: &str = "localhost";

/// One client's way to the runtime.
#[derive(Debug)]
pub(crate) struct Backend {
    socket: Arc<PathBuf>,
    connection: Mutex<Option<SendRequest<Body>>>,
}

impl Backend {
    /// To the runtime that listens at `socket`; nothing is opened yet.
    pub(crate) fn at(socket: Arc<PathBuf>) -> Backend {
        Backend { socket, connection: Mutex::new(None) }
    }

    /// Makes a call.
    ///
    /// # Errors
    /// UNAVAILABLE: the runtime is away, or went away.
    pub(crate) async fn call(&self, mut request: Request<Body>) -> Result<Response<Incoming>, Status> {
        address(&mut request);
        let mut connection = self.connection().await?;
        let mut refused = match connection.try_send_request(request).await {
            Ok(answer) => return Ok(answer),
            Err(refused) => refused,
        };
        // The runtime may have been restarted since the last call: this one never left.
        let Some(request) = refused.take_message() else { return Err(self.away(refused.error())) };
        self.connection.lock().await.take();
        let mut connection = self.connection().await?;
        connection.try_send_request(request).await.map_err(|refused| self.away(refused.error()))
    }

    async fn connection(&self) -> Result<SendRequest<Body>, Status> {
        let mut known = self.connection.lock().await;
        if let Some(open) = known.as_ref().filter(|open| !open.is_closed()) {
            return Ok(open.clone());
        }
        let stream = UnixStream::connect(&*self.socket).await.map_err(|cause| self.away(&cause))?;
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(HEADERS_MAX);
        let opened = builder.handshake(TokioIo::new(stream)).await;
        let (sender, connection) = opened.map_err(|cause| self.away(&cause))?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(%error, "a connection to the runtime ended");
            }
        });
        *known = Some(sender.clone());
        Ok(sender)
    }

    fn away(&self, cause: &dyn std::error::Error) -> Status {
        Status::unavailable(format!("runtime {}: {}", self.socket.display(), with_sources(cause)))
    }
}

/// HTTP/2 wants a host; what a client said is kept.
fn address(request: &mut Request<Body>) {
    if request.uri().authority().is_some() {
        return;
    }
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    if let Ok(uri) = Uri::builder().scheme("http").authority(HOST).path_and_query(path).build() {
        *request.uri_mut() = uri;
    }
}
