//! HTTP server for `/metrics`, `/healthz` and `/readyz`.
//!
//! A role is ready when every cache was filled once and the socket listens. Otherwise `/readyz` lists what is missing,
//! with the reason. While the API server cannot be reached, the last known state is served: `/readyz` then lists each
//! cache's age, and after [`STALE`] the role is not ready any more. `/healthz` does not depend on caches.

mod metrics_format;
mod process_metrics;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::io::Errno;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tracing::warn;

use crate::cache::followed::{self, CacheState, STALE};
use cli_support::failure::Failure;
use metrics_format::MetricsFormat;

/// Timeout for the request headers.
const HEADERS_MAX: Duration = Duration::from_secs(1);
/// Timeout for a whole connection.
const CONNECTION_MAX: Duration = Duration::from_secs(10);
/// Maximum number of connections. A further one ends the oldest, so that idle connections do not delay a
/// probe.
const CONNECTIONS_MAX: usize = 64;

/// Where metrics and readiness come from.
pub trait HealthStatus: Send + Sync + 'static {
    /// Returns the metrics in OpenMetrics or in Prometheus's text format. The process metrics are added to
    /// them.
    fn page(&self) -> String;
    /// Returns what is missing; empty if the role is ready.
    fn waits_for(&self) -> Vec<String>;
    /// Returns why the role makes no progress, although nothing is missing. A controller then releases the Lease.
    fn stalled(&self) -> Option<String> {
        None
    }
}

/// Returns the metrics that every role adds to the page, for the metrics reference: process, program and caches.
pub fn example_metrics() -> String {
    let pods = CacheState {
        kind: "RESOURCE",
        objects: 0,
        is_synced: true,
        age: Duration::ZERO,
        failures: 0,
        why: None,
    };
    process_metrics::page() + &followed::page(&[pods])
}

/// Returns the status and text that `/readyz` answers. `missing` is what the role waits for.
fn readiness(missing: &[String], caches: &[CacheState]) -> (StatusCode, String) {
    let old = caches.iter().filter(|state| state.is_synced && !state.age.is_zero());
    let lines: String = old.clone().map(|state| format!("{state}\n")).collect();
    if !missing.is_empty() {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for: {}\n{lines}", missing.join(", ")));
    }
    let is_stale = old.clone().any(|state| state.age >= STALE);
    if is_stale {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("stale\n{lines}"));
    }
    (StatusCode::OK, format!("ok\n{lines}"))
}

/// Listens on an address. Without IPv6 in the kernel, `[::]` means `0.0.0.0`.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    bind_for(address, "--listen").await
}

/// Listens on the address that an option gives, as [`bind`].
pub async fn bind_for(address: SocketAddr, option: &str) -> Result<TcpListener, Failure> {
    let bound = match (TcpListener::bind(address).await, address.ip()) {
        // Without IPv6 in the kernel, every address is an IPv4 address.
        (Err(cause), IpAddr::V6(Ipv6Addr::UNSPECIFIED)) if is_of_family(&cause) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        (bound, _) => bound,
    };
    bound.map_err(|cause| {
        Failure::new(format!("listen on {address}: {cause}"))
            .next(format!("choose another address with {option}"))
    })
}

/// Whether the kernel lacks the address family.
fn is_of_family(cause: &io::Error) -> bool {
    let family = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL].map(|errno| Some(errno.raw_os_error()));
    family.contains(&cause.raw_os_error())
}

/// Serves requests until the process ends.
pub async fn serve(listener: TcpListener, status: Arc<impl HealthStatus>) {
    let mut connections: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "failed to accept a connection to the HTTP server");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let status = Arc::clone(&status);
        connections.retain(|connection| !connection.is_finished());
        if connections.len() >= CONNECTIONS_MAX {
            connections.pop_front().inspect(JoinHandle::abort);
        }
        connections.push_back(tokio::spawn(async move {
            let answer = service_fn(move |request| {
                let answered = answer(&request, &*status);
                async move { Ok::<_, Infallible>(answered) }
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEADERS_MAX).keep_alive(false);
            // A client that closes the connection is not an error.
            let connection = server.serve_connection(TokioIo::new(stream), answer);
            let _ = tokio::time::timeout(CONNECTION_MAX, connection).await;
        }));
    }
}

fn answer(request: &Request<Incoming>, health: &impl HealthStatus) -> Response<Full<Bytes>> {
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let format = MetricsFormat::accepted(accept);
    let mut content_type = "text/plain; charset=utf-8";
    let (status, text) = match request.uri().path() {
        "/metrics" => {
            content_type = format.content_type();
            let page = health.page() + "\n" + &process_metrics::page() + &followed::metrics();
            (StatusCode::OK, format.render(&page))
        }
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => readiness(&health.waits_for(), &followed::states()),
        _ => (StatusCode::NOT_FOUND, "not found; the pages are /metrics, /healthz and /readyz\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;

    struct Ready;

    impl HealthStatus for Ready {
        fn page(&self) -> String {
            "# HELP weft_x X.\n# TYPE weft_x counter\nweft_x_total 1\n# EOF\n".to_owned()
        }

        fn waits_for(&self) -> Vec<String> {
            Vec::new()
        }
    }

    #[test]
    fn readiness_has_the_age_of_each_cache_and_ends_when_stale() {
        let state = |age, is_synced| CacheState {
            kind: "pods",
            objects: 1,
            is_synced,
            age: Duration::from_secs(age),
            failures: 1,
            why: Some("refused".to_owned()),
        };
        assert_eq!(readiness(&[], &[state(0, true)]), (StatusCode::OK, "ok\n".to_owned()));
        let old = "pods: last known state of 100 s ago (refused)\n";
        assert_eq!(readiness(&[], &[state(100, true)]), (StatusCode::OK, format!("ok\n{old}")));
        let (status, text) = readiness(&[], &[state(120, true)]);
        assert!(status == StatusCode::SERVICE_UNAVAILABLE && text.starts_with("stale\npods: "), "{text}");
        // Whether a cache that was never filled is needed, the role knows.
        assert_eq!(readiness(&[], &[state(900, false)]).0, StatusCode::OK);
        let waits = readiness(&["nodes".to_owned()], &[state(100, true)]);
        assert_eq!(waits, (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for: nodes\n{old}")));
    }

    #[test]
    fn metrics_page_has_the_content_type_of_its_format() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(bind((Ipv4Addr::LOCALHOST, 0).into())).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || runtime.block_on(serve(listener, Arc::new(Ready))));
        let get = |path: &str, accept: &str| {
            let mut stream = TcpStream::connect(address).unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        };
        let open = get("/metrics", "application/openmetrics-text;version=1.0.0");
        assert!(
            open.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"),
            "{open}"
        );
        assert!(open.contains("# TYPE weft_x counter\n") && open.ends_with("# EOF\n"), "{open}");
        assert!(open.contains("process_cpu_seconds_total ") && open.contains("weft_build_info{"), "{open}");
        let text = get("/metrics", "*/*");
        assert!(text.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{text}");
        assert!(text.contains("# TYPE weft_x_total counter\n") && !text.contains("# EOF"), "{text}");
        assert!(get("/healthz", "*/*").contains("content-type: text/plain; charset=utf-8\r\n"));
    }

    #[test]
    fn health_probes_are_answered_beside_idle_connections() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(bind((Ipv4Addr::LOCALHOST, 0).into())).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || runtime.block_on(serve(listener, Arc::new(Ready))));
        // Some send nothing, and some a part of a request.
        let mut idle = Vec::new();
        for number in 0..3 * CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(address).unwrap();
            if number % 2 == 0 {
                stream.write_all(b"GET /healthz HTTP/1.1\r\n").unwrap();
            }
            idle.push(stream);
        }
        for path in ["/healthz", "/readyz"] {
            let mut probe = TcpStream::connect(address).unwrap();
            // The timeout of a probe.
            probe.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            probe.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
            let mut answer = String::new();
            probe.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        }
    }
}
