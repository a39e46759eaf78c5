//! HTTP server for the page: limits number and duration of connections.
//!
//! - A connection is for one request. Headers and response have timeouts, except for a stream. A stream has a timeout
//!   for each message, and after the end.
//! - The number of connections is bounded. A further one ends the oldest that has no stream, so idle connections of a
//!   client without a token keep no other client out.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::warn;

use super::PageController;
use super::routes;
use super::stream::{ConnectionState, SLOW_MAX};

/// Timeout for the headers of a request.
const HEADERS_MAX: Duration = Duration::from_secs(5);
/// Timeout for a whole connection without a stream. A review of rights may need two answers of the API server.
const CONNECTION_MAX: Duration = Duration::from_secs(30);
/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 1024;
/// Maximum buffer size for a connection, in bytes. It also limits request headers.
const BUFFER_MAX: usize = 32 << 10;

/// Serves requests until the process ends.
pub(super) async fn serve(listener: TcpListener, page: Arc<PageController>) {
    let mut connections: VecDeque<(JoinHandle<()>, Arc<ConnectionState>)> = VecDeque::new();
    loop {
        let (stream, client) = match listener.accept().await {
            Ok((stream, client)) => (stream, client.ip()),
            Err(error) => {
                warn!(%error, "failed to accept a connection to the page");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        connections.retain(|(connection, _)| !connection.is_finished());
        if connections.len() >= CONNECTIONS_MAX {
            let idle = connections.iter().position(|(_, state)| !state.is_stream.load(Ordering::Relaxed));
            let Some((oldest, _)) = idle.and_then(|place| connections.remove(place)) else {
                page.metrics.refused.inc();
                continue;
            };
            oldest.abort();
        }
        let state = Arc::new(ConnectionState::new(client));
        let connection = tokio::spawn(connection(stream, Arc::clone(&page), Arc::clone(&state)));
        connections.push_back((connection, state));
    }
}

async fn connection(stream: TcpStream, page: Arc<PageController>, state: Arc<ConnectionState>) {
    let of_request = Arc::clone(&state);
    let answer = service_fn(move |request: Request<Incoming>| {
        let (page, state) = (Arc::clone(&page), Arc::clone(&of_request));
        async move {
            let (request, _) = request.into_parts();
            Ok::<_, Infallible>(routes::answer(&request, page, &state).await)
        }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADERS_MAX);
    server.keep_alive(false).max_buf_size(BUFFER_MAX);
    let late = async {
        sleep(CONNECTION_MAX).await;
        if state.is_stream.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    // A client that reads gets the end of the stream at once, and the connection closes by itself.
    let ended = async {
        state.ended.notified().await;
        sleep(SLOW_MAX).await;
    };
    // A client that closes the connection is not an error.
    tokio::select! {
        _ = server.serve_connection(TokioIo::new(stream), answer) => {}
        () = state.cut.notified() => {}
        () = late => {}
        () = ended => {}
    }
}
