//! Serves CRI clients: HTTP/2 on a Unix socket.
//!
//! - The number of clients is bounded, and so is the number of calls per client.
//! - Data that a client does not read is not read from the runtime either.
//! - On shutdown, calls in progress are finished, and no new ones are accepted.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, watch};
use tracing::{debug, warn};

use super::backend::{CONNECTION_WINDOW, HEADERS_MAX, STREAM_WINDOW};
use super::calls::{Calls, Client};
use crate::authority_rewriting::RewrittenAuthority;
use node_support::listener::Listener;

/// Maximum number of clients.
const CLIENTS_MAX: usize = 512;
/// Maximum number of concurrent calls per client; HTTP/2 makes the client wait with more.
const CALLS_MAX: u32 = 256;
/// Maximum amount of unread data per call, in bytes.
const UNREAD_MAX: usize = 256 << 10;
/// Time for which a shutdown waits for calls in progress.
pub(crate) const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Serves clients until `end`.
pub(crate) async fn serve(
    mut listener: Listener,
    runtime: PathBuf,
    calls: Arc<Calls>,
    end: impl Future<Output = ()>,
) {
    let runtime = Arc::new(runtime);
    let room = Arc::new(Semaphore::new(CLIENTS_MAX));
    let (ending, ended) = watch::channel(());
    let mut end = std::pin::pin!(end);
    loop {
        let stream = tokio::select! {
            stream = listener.accept() => stream,
            () = &mut end => break,
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            warn!(clients = CLIENTS_MAX, "connection closed: too many clients");
            continue;
        };
        let client = Arc::new(Client::of(&calls, &runtime));
        let (calls, ended) = (Arc::clone(&calls), ended.clone());
        tokio::spawn(async move {
            serve_client(stream, client, calls, ended).await;
            drop(permit);
        });
    }
    listener.retire();
    drop(ended);
    let _ = ending.send(());
    let _ = tokio::time::timeout(DRAIN_MAX, ending.closed()).await;
}

/// Serves one client until it disconnects.
async fn serve_client(
    stream: UnixStream,
    client: Arc<Client>,
    calls: Arc<Calls>,
    mut ended: watch::Receiver<()>,
) {
    let service = service_fn(|request| {
        let (calls, client) = (Arc::clone(&calls), Arc::clone(&client));
        async move { Ok::<_, Infallible>(calls.answer(&client, request).await) }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .auto_date_header(false)
        .max_concurrent_streams(CALLS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(UNREAD_MAX)
        .max_header_list_size(HEADERS_MAX);
    let (reading, writing) = stream.into_split();
    let stream = TokioIo::new(tokio::io::join(RewrittenAuthority::of(reading), writing));
    let mut connection = std::pin::pin!(builder.serve_connection(stream, service));
    let finished = tokio::select! {
        finished = &mut connection => finished,
        _ = ended.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = finished {
        debug!(%error, "client connection ended");
    }
}
