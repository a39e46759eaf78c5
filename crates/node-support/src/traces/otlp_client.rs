//! HTTP client for the trace exporter.
//!
//! The exporting thread has no async runtime, so the agent's runtime sends the request. A response is bounded
//! in size and time.

use std::pin::Pin;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use rustls::ClientConfig;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// Largest response in bytes: it contains what was refused, and why.
const ANSWER_MAX: usize = 64 * 1024;

/// HTTP client for one collector.
#[derive(Clone, Debug)]
pub(super) struct OtlpClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    runtime: Handle,
    timeout: Duration,
}

impl OtlpClient {
    /// Returns a client with a TLS configuration and a timeout. Must be called inside a runtime.
    pub(super) fn new(tls: ClientConfig, timeout: Duration) -> OtlpClient {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(timeout));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        OtlpClient { client, runtime: Handle::current(), timeout }
    }

    async fn send(self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answered = async {
            let response = self.client.request(request.map(Full::new)).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_MAX).collect().await?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        timeout(self.timeout, answered).await?
    }
}

impl HttpClient for OtlpClient {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let sent = self.runtime.spawn(self.clone().send(request));
        Box::pin(async move { sent.await? })
    }
}
