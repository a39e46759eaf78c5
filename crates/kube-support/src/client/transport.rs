//! Connections to the API server, and the deadlines for what arrives over them.
//!
//! - Watches have separate HTTP/2 connections. The client pings the server over them, so a connection that no longer
//!   carries data ends even if a proxy or a load balancer keeps it open. Other requests use HTTP/1.1.
//! - A server without HTTP/2, or a network that drops packets, is noticed by TCP: keepalive probes, and a
//!   limit for data that is not acknowledged.
//! - A body that is not a watch's must progress, and end. A watch may be silent for as long as the connection lives.
//! - If a server is overloaded (429, 503, 504), it is asked again twice, within a second. The last answer then reaches
//!   the caller.
//!
//! Source: client-go `rest/transport` (`ReadIdleTimeout` 30 s, `PingTimeout` 15 s); tcp(7), `TCP_KEEPIDLE`
//! and `TCP_USER_TIMEOUT`; RFC 9113, section 6.7.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use hyper::{Request, Response, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ConfigExt};
use tokio::time::{Instant, Sleep, sleep, timeout};
use tower::retry::RetryLayer;
use tower::{BoxError, Layer, Service};

use cli_support::failure::Failure;

/// Timeout for a connection, including the TLS handshake.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Number of idle connections kept for requests, and the time for which they are kept. If all connections die
/// at once, a Lease must still be renewed over a new one in time: each dead one costs an attempt.
const IDLE: (usize, Duration) = (2, Duration::from_secs(20));
/// Number of HTTP/2 connections that watches share. A server may allow 100 streams on each.
const WATCH_CONNECTIONS: usize = 4;
/// Silence after which a watch connection is pinged, and the time to answer. A dead one ends within the sum of both.
const PING: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(15));
/// Silence after which TCP probes a connection, the interval between probes, and how many there are.
const PROBES: (Duration, Duration, u32) = (Duration::from_secs(15), Duration::from_secs(5), 3);
/// Time for which sent data may stay without acknowledgement.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);
/// Number of retries if an overloaded server rejects a request, and the pauses before.
const RETRIES: u32 = 2;
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));

/// Deadlines for a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadlines {
    /// Time until a response begins, for watches as well.
    ///
    /// A server that is not ready for a list may let it wait for a minute. A server that hangs, or whose
    /// address is unreachable, may not answer for five minutes; a repeated request may reach another server.
    pub(crate) response: Duration,
    /// Longest pause in a body.
    pub(crate) pause: Duration,
    /// Time until a body ends. An API server ends a request after 60 s by default.
    pub(crate) body: Duration,
}

/// Deadlines that every client has.
pub(crate) const DEADLINES: Deadlines = Deadlines {
    response: Duration::from_secs(30),
    pause: Duration::from_secs(30),
    body: Duration::from_secs(120),
};

/// Connector whose connections have a deadline.
#[derive(Clone)]
struct Connector(HttpsConnector<HttpConnector>);

/// Connections to one server.
#[derive(Clone)]
struct Connections {
    requests: HttpClient<Connector, Body>,
    /// Connections for watches.
    watches: Arc<[HttpClient<Connector, Body>]>,
    deadlines: Deadlines,
}

/// Response body that fails if it stops.
#[derive(Debug)]
pub(super) struct ProgressingBody {
    body: Incoming,
    /// Deadline for the next data; none for a watch.
    deadline: Option<Pin<Box<Sleep>>>,
    deadlines: Deadlines,
    began: Instant,
    received: usize,
}

/// Returns a service that sends requests to the server in a configuration.
///
/// # Errors
/// The configuration has an invalid certificate or credential, or a proxy.
pub(super) fn transport(
    config: &Config,
    deadlines: Deadlines,
) -> Result<
    impl Service<Request<Body>, Response = Response<ProgressingBody>, Error = BoxError, Future: Send>
    + Send
    + 'static,
    Failure,
> {
    let failed = |cause: kube::Error| Failure::new(format!("Kubernetes client: {cause}"));
    let connections = connections(config, deadlines)?;
    let headers = config.extra_headers_layer().map_err(failed)?;
    let credentials = tower::util::option_layer(config.auth_layer().map_err(failed)?);
    let policy = RetryPolicy::new(RETRY_PAUSES.0, RETRY_PAUSES.1, RETRIES, false);
    let retries = policy.map_err(|cause| Failure::new(format!("Kubernetes client: {cause}")))?;
    let service = credentials.layer(headers.layer(connections));
    Ok(config.base_uri_layer().layer(RetryLayer::new(retries).layer(service)))
}

fn connections(config: &Config, deadlines: Deadlines) -> Result<Connections, Failure> {
    if let Some(proxy) = &config.proxy_url {
        return Err(Failure::new(format!("Kubernetes client: proxy-url {proxy}: proxies are not supported"))
            .next("remove proxy-url from the kubeconfig, and connect to the API server directly"));
    }
    let failed = |cause: &dyn std::fmt::Display| Failure::new(format!("Kubernetes client: {cause}"));
    let tls = config.rustls_client_config().map_err(|cause| failed(&cause))?;
    let connector = |has_http2: bool| {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(PROBES.0));
        tcp.set_keepalive_interval(Some(PROBES.1));
        tcp.set_keepalive_retries(Some(PROBES.2));
        tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX));
        let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http();
        if let Some(name) = &config.tls_server_name {
            let name = name.clone().try_into();
            let name = name.map_err(|_| failed(&"tls-server-name: not a host name"))?;
            builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
        }
        let builder = builder.enable_http1();
        let tls =
            if has_http2 { builder.enable_http2().wrap_connector(tcp) } else { builder.wrap_connector(tcp) };
        Ok::<Connector, Failure>(Connector(tls))
    };
    let of_watches = || {
        let mut builder = HttpClient::builder(TokioExecutor::new());
        builder.timer(TokioTimer::new()).pool_timer(TokioTimer::new());
        builder.http2_keep_alive_interval(PING.0).http2_keep_alive_timeout(PING.1);
        builder.http2_keep_alive_while_idle(true);
        Ok::<_, Failure>(builder.build(connector(true)?))
    };
    let watches: Result<Vec<_>, Failure> = (0..WATCH_CONNECTIONS).map(|_| of_watches()).collect();
    let mut requests = HttpClient::builder(TokioExecutor::new());
    requests.pool_timer(TokioTimer::new());
    requests.pool_max_idle_per_host(IDLE.0).pool_idle_timeout(IDLE.1);
    Ok(Connections { requests: requests.build(connector(false)?), watches: watches?.into(), deadlines })
}

/// Whether a request is a watch, whose response ends after minutes.
pub(crate) fn is_watch(uri: &Uri) -> bool {
    let mut parameters = uri.query().unwrap_or_default().split('&');
    parameters.any(|parameter| matches!(parameter, "watch=true" | "watch=1"))
}

// === impl Connector ===

impl Service<Uri> for Connector {
    type Response = <HttpsConnector<HttpConnector> as Service<Uri>>::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let connecting = timeout(CONNECT_MAX, self.0.call(server));
        Box::pin(async move {
            let late = |_| BoxError::from(format!("no connection within {} s", CONNECT_MAX.as_secs()));
            connecting.await.map_err(late)?
        })
    }
}

// === impl Connections ===

impl Service<Request<Body>> for Connections {
    type Response = Response<ProgressingBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_watch = is_watch(request.uri());
        let client = if is_watch { self.of_watch(request.uri()) } else { &self.requests };
        let (sent, deadlines) = (client.request(request), self.deadlines);
        Box::pin(async move {
            let response = sent.await?;
            Ok(response.map(|body| ProgressingBody::new(body, is_watch, deadlines)))
        })
    }
}

impl Connections {
    /// Returns the connection for a watch: each path has a separate one.
    fn of_watch(&self, uri: &Uri) -> &HttpClient<Connector, Body> {
        let mut hasher = DefaultHasher::new();
        uri.path().hash(&mut hasher);
        let index = hasher.finish() % WATCH_CONNECTIONS as u64;
        &self.watches[usize::try_from(index).unwrap_or_default()]
    }
}

// === impl ProgressingBody ===

impl ProgressingBody {
    fn new(body: Incoming, is_watch: bool, deadlines: Deadlines) -> ProgressingBody {
        let deadline = (!is_watch).then(|| Box::pin(sleep(deadlines.pause)));
        ProgressingBody { body, deadline, deadlines, began: Instant::now(), received: 0 }
    }
}

impl HttpBody for ProgressingBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let frame = Pin::new(&mut this.body).poll_frame(context);
        let Some(deadline) = &mut this.deadline else {
            return frame.map(|frame| frame.map(|frame| frame.map_err(BoxError::from)));
        };
        match frame {
            Poll::Ready(Some(Ok(frame))) => {
                this.received += frame.data_ref().map_or(0, Bytes::len);
                let end = this.began + this.deadlines.body;
                deadline.as_mut().reset(end.min(Instant::now() + this.deadlines.pause));
                if end > Instant::now() {
                    return Poll::Ready(Some(Ok(frame)));
                }
            }
            Poll::Ready(frame) => return Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from))),
            Poll::Pending => std::task::ready!(deadline.as_mut().poll(context)),
        }
        let why = if this.began.elapsed() >= this.deadlines.body {
            format!(
                "its response has no end after {} s and {} bytes",
                this.deadlines.body.as_secs(),
                this.received
            )
        } else {
            format!(
                "its response stopped after {} bytes: no data for {} s",
                this.received,
                this.deadlines.pause.as_secs()
            )
        };
        Poll::Ready(Some(Err(why.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
