//! `/metrics`, `/healthz` and `/readyz` over HTTP.
//!
//! Rules: ready is who has seen every list once and listens for questions; what is still waited for is said, and why. An API
//! that cannot be reached later makes nobody unready: what is known is served.

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

/// How long a client may take for its headers.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);
/// Most connections at a time.
const CONNECTIONS_MAX: usize = 64;

/// Who is asked.
pub trait HealthStatus: Send + Sync + 'static {
    /// Its figures.
    fn page(&self) -> String;
    /// What it still waits for; nothing if it is ready.
    fn waits_for(&self) -> Vec<String>;
}

/// Opens the address.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    let bound = match (TcpListener::bind(address).await, address.ip()) {
        // A kernel without IPv6: every address that it has is one of IPv4.
        (Err(cause), IpAddr::V6(Ipv6Addr::UNSPECIFIED)) if is_of_family(&cause) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        (bound, _) => bound,
    };
    bound.map_err(|cause| {
        Failure::new(format!("listen on {address}: {cause}")).next("choose another address with --listen")
    })
}

/// Is it refused because there are no addresses of this family?
fn is_of_family(cause: &io::Error) -> bool {
    let family = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL].map(|errno| Some(errno.raw_os_error()));
    family.contains(&cause.raw_os_error())
}

/// Answers for ever.
pub async fn serve(listener: TcpListener, brain: Arc<impl HealthStatus>) {
    let room = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "metrics: accept");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        let brain = Arc::clone(&brain);
        tokio::spawn(async move {
            let answer = service_fn(move |request| {
                let answered = answer(&request, &*brain);
                async move { Ok::<_, Infallible>(answered) }
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(PATIENCE).keep_alive(false);
            // A client that goes away is no event.
            let _ = server.serve_connection(TokioIo::new(stream), answer).await;
            drop(permit);
        });
    }
}

fn answer(request: &Request<Incoming>, brain: &impl HealthStatus) -> Response<Full<Bytes>> {
    let (status, text) = match request.uri().path() {
        "/metrics" => (StatusCode::OK, brain.page()),
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => match brain.waits_for().as_slice() {
            [] => (StatusCode::OK, "ok\n".to_owned()),
            waited => (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for: {}\n", waited.join(", "))),
        },
        _ => (StatusCode::NOT_FOUND, "there are /metrics, /healthz and /readyz\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response
}
