//! HTTP server for `/metrics`, `/healthz` and `/readyz`.
//!
//! A role is ready when every cache was filled once and its socket listens. Otherwise `/readyz` lists what is missing,
//! with the reason. A later loss of the API server does not make it unready, because the last known state is served.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use tokio::net::TcpListener;
use tracing::warn;

use cli_support::failure::Failure;

/// Timeout for the headers of a request.
const HEADERS_MAX: std::time::Duration = std::time::Duration::from_secs(10);
/// Maximum number of concurrent connections.
const CONNECTIONS_MAX: usize = 64;

/// Source of the metrics and the readiness.
pub trait HealthStatus: Send + Sync + 'static {
    /// Returns the metrics in the Prometheus text format.
    fn page(&self) -> String;
    /// Returns what is missing; empty if the role is ready.
    fn waits_for(&self) -> Vec<String>;
}

/// Listens on an address. Without IPv6 in the kernel, `[::]` means `0.0.0.0`.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    let bound = match (TcpListener::bind(address).await, address.ip()) {
        // Without IPv6 in the kernel, every address is an IPv4 address.
        (Err(cause), IpAddr::V6(Ipv6Addr::UNSPECIFIED)) if is_of_family(&cause) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        (bound, _) => bound,
    };
    bound.map_err(|cause| {
        Failure::new(format!("listen on {address}: {cause}")).next("choose another address with --listen")
    })
}

/// Whether the kernel lacks the address family.
fn is_of_family(cause: &io::Error) -> bool {
    let family = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL].map(|errno| Some(errno.raw_os_error()));
    family.contains(&cause.raw_os_error())
}

/// Serves requests until the process ends.
pub async fn serve(listener: TcpListener, status: Arc<impl HealthStatus>) {
    let slots = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&slots).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "failed to accept a connection to the HTTP server");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        let status = Arc::clone(&status);
        tokio::spawn(async move {
            let answer = service_fn(move |request| {
                let answered = answer(&request, &*status);
                async move { Ok::<_, Infallible>(answered) }
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEADERS_MAX).keep_alive(false);
            // A client that closes the connection is not an error.
            let _ = server.serve_connection(TokioIo::new(stream), answer).await;
            drop(permit);
        });
    }
}

fn answer(request: &Request<Incoming>, health: &impl HealthStatus) -> Response<Full<Bytes>> {
    let (status, text) = match request.uri().path() {
        "/metrics" => (StatusCode::OK, health.page()),
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => match health.waits_for().as_slice() {
            [] => (StatusCode::OK, "ok\n".to_owned()),
            waited => (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for: {}\n", waited.join(", "))),
        },
        _ => (StatusCode::NOT_FOUND, "not found; the pages are /metrics, /healthz and /readyz\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response
}
