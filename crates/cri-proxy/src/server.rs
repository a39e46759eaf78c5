//! Where clients come in: a unix socket that speaks HTTP/2, with a bound on everything.
//!
//! Rules: a client has so many calls at a time, and the proxy so many clients; what a client does not read is not read
//! from the runtime either; who is told to end finishes the calls that are under way, and no others.

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

/// Clients at a time.
const CLIENTS_MAX: usize = 512;
/// Calls of one client at a time; further ones are refused by HTTP/2's own means, and a client waits.
const CALLS_MAX: u32 = 256;
/// What is held for a client that does not read, in bytes a call.
const UNREAD_MAX: usize = 256 << 10;
/// How long calls that are under way may take once we have to end.
pub(crate) const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Serves until `end` comes.
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
            warn!(clients = CLIENTS_MAX, "too many clients");
            continue;
        };
        let client = Arc::new(Client::of(&calls, &runtime));
        let (calls, ended) = (Arc::clone(&calls), ended.clone());
        tokio::spawn(async move {
            attend(stream, client, calls, ended).await;
            drop(permit);
        });
    }
    listener.retire();
    drop(ended);
    let _ = ending.send(());
    let _ = tokio::time::timeout(DRAIN_MAX, ending.closed()).await;
}

/// One client, to its end.
async fn attend(stream: UnixStream, client: Arc<Client>, calls: Arc<Calls>, mut ended: watch::Receiver<()>) {
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
    let (said, answered) = stream.into_split();
    let stream = TokioIo::new(tokio::io::join(RewrittenAuthority::of(said), answered));
    let mut connection = std::pin::pin!(builder.serve_connection(stream, service));
    let finished = tokio::select! {
        finished = &mut connection => finished,
        _ = ended.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = finished {
        debug!(%error, "a client's connection ended");
    }
}
