//! Connects to the container runtime: one HTTP/2 connection per proxy client, opened on demand.
//!
//! - A client that stalls delays only itself, because no other client uses the same connection.
//! - While the runtime is down, calls fail with UNAVAILABLE; the next call tries to connect again.
//! - A call is repeated only if the first attempt was certainly not sent.

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

/// Error for a body that ended early.
pub(crate) type Cause = Box<dyn std::error::Error + Send + Sync>;
/// Body of a forwarded request or response.
pub(crate) type Body = UnsyncBoxBody<Bytes, Cause>;

/// Flow-control window per call, in bytes.
pub(crate) const STREAM_WINDOW: u32 = 256 << 10;
/// Flow-control window per connection, in bytes.
pub(crate) const CONNECTION_WINDOW: u32 = 1 << 20;
/// Maximum size of all headers, in bytes.
pub(crate) const HEADERS_MAX: u32 = 64 << 10;
/// Host for calls without one; the runtime ignores it.
const HOST: &str = "localhost";

/// One client's connection to the runtime.
#[derive(Debug)]
pub(crate) struct Backend {
    socket: Arc<PathBuf>,
    connection: Mutex<Option<SendRequest<Body>>>,
}

impl Backend {
    /// Prepares a connection to the runtime socket; the first call opens it.
    pub(crate) fn at(socket: Arc<PathBuf>) -> Backend {
        Backend { socket, connection: Mutex::new(None) }
    }

    /// Sends a call.
    ///
    /// # Errors
    /// UNAVAILABLE: the runtime cannot be reached, or the connection was lost.
    pub(crate) async fn call(&self, mut request: Request<Body>) -> Result<Response<Incoming>, Status> {
        address(&mut request);
        let mut connection = self.connection().await?;
        let mut refused = match connection.try_send_request(request).await {
            Ok(answer) => return Ok(answer),
            Err(refused) => refused,
        };
        // The runtime may have been restarted since the last call. This call was certainly not sent, so it can be
        // repeated.
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
                debug!(%error, "connection to the runtime ended");
            }
        });
        *known = Some(sender.clone());
        Ok(sender)
    }

    fn away(&self, cause: &dyn std::error::Error) -> Status {
        Status::unavailable(format!("runtime {}: {}", self.socket.display(), with_sources(cause)))
    }
}

/// Adds a host if the client sent none, because HTTP/2 requires one.
fn address(request: &mut Request<Body>) {
    if request.uri().authority().is_some() {
        return;
    }
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    if let Ok(uri) = Uri::builder().scheme("http").authority(HOST).path_and_query(path).build() {
        *request.uri_mut() = uri;
    }
}
