//! Read-only page of pods, networks, nodes, pools and failures (`weft controller --page`).
//!
//! ```text
//!   API server ──watch──► caches of rows ─► PageModel ──/api/stream (server-sent events)──► browser
//!        ▲                                                    ▲
//!        └── TokenReview, SubjectAccessReview ◄── PageAccess ─┘  for each viewer, cached
//! ```
//!
//! - It serves GET and HEAD only, and writes nothing to the cluster except reviews.
//! - On a loopback address each client of this host sees everything. On another address each request needs a token, and a
//!   viewer gets only rows of namespaces in which it may list the objects.
//! - Memory is bounded: a row is one string that all clients share, a client has a position, and slow clients are dropped.

mod access;
mod assets;
mod model;
mod objects;
mod open_streams;
mod review_shares;
mod rights;
mod routes;
mod rows;
mod server;
mod sources;
mod stream;

use std::net::SocketAddr;
use std::sync::Arc;

use cli_support::failure::Failure;
use kube::Client;
use kube_support::health::{self, HealthStatus};
use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use rustix::net::sockopt;

use access::{PageAccess, Protection};
use model::PageModel;
use open_streams::OpenStreams;
use sources::Sources;

/// Size of the kernel's buffer for a connection, in bytes: a larger one could hold all rows for a client that does not
/// read.
const SEND_BUFFER: usize = 128 << 10;

/// Metrics of the page.
#[derive(Debug)]
pub(crate) struct PageMetrics {
    registry: Registry,
    streams: Gauge,
    dropped: Counter,
    refused: Counter,
}

/// Server of the page.
pub(crate) struct PageController {
    model: PageModel,
    access: PageAccess,
    sources: Sources,
    streams: Arc<OpenStreams>,
    metrics: PageMetrics,
}

// === impl PageMetrics ===

impl PageMetrics {
    /// Returns metrics that are all zero.
    pub(crate) fn new() -> PageMetrics {
        let mut registry = Registry::with_prefix("weft_page");
        let (streams, dropped, refused) = (Gauge::default(), Counter::default(), Counter::default());
        registry.register("streams", "Number of connected clients of the page", streams.clone());
        registry.register(
            "streams_dropped",
            "Number of clients that were disconnected because they did not read",
            dropped.clone(),
        );
        registry.register(
            "requests_refused",
            "Number of requests without a valid token, or beyond the maximum number of clients",
            refused.clone(),
        );
        PageMetrics { registry, streams, dropped, refused }
    }

    /// Returns the metrics page.
    pub(crate) fn page(&self) -> String {
        let mut page = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut page, &self.registry);
        page
    }
}

// === impl PageController ===

impl PageController {
    /// Returns a page for this address, and watches the cluster from now on.
    pub(crate) fn new(client: &Client, address: SocketAddr) -> Arc<PageController> {
        let protection =
            if address.ip().to_canonical().is_loopback() { Protection::Loopback } else { Protection::Token };
        let metrics = PageMetrics::new();
        let controller = Arc::new(PageController {
            model: PageModel::new(),
            access: PageAccess::new(client.clone(), protection),
            sources: Sources::follow(client),
            streams: OpenStreams::new(metrics.streams.clone()),
            metrics,
        });
        let following = Arc::clone(&controller);
        tokio::spawn(async move { following.sources.keep(&following.model).await });
        controller
    }

    /// Serves the page until the process ends.
    pub(crate) async fn serve(self: Arc<Self>, address: SocketAddr) -> Result<(), Failure> {
        let listener = health::bind_for(address, "--page").await?;
        // Connections inherit it. A kernel that refuses has another limit.
        let _ = sockopt::set_socket_send_buffer_size(&listener, SEND_BUFFER);
        server::serve(listener, self).await;
        Ok(())
    }
}

impl HealthStatus for PageController {
    fn page(&self) -> String {
        self.metrics.page()
    }

    fn waits_for(&self) -> Vec<String> {
        self.sources.waits_for()
    }
}
