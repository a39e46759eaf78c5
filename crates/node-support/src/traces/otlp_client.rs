//! Carries spans over HTTP, with the client that everything else here has.
//!
//! Rules: the thread that exports has no runtime of its own, so the agent's does the work; an answer is bounded in
//! size and time.

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

/// Largest answer, in bytes: it says what was refused, and why.
const ANSWER_MAX: usize = 64 * 1024;

/// Goes to a collector.
#[derive(Clone, Debug)]
pub(super) struct Courier {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    runtime: Handle,
    patience: Duration,
}

impl Courier {
    /// One that trusts whom `tls` trusts, and waits so long for an answer. To be made inside a runtime.
    pub(super) fn new(tls: ClientConfig, patience: Duration) -> Courier {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(patience));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Courier { client, runtime: Handle::current(), patience }
    }

    async fn carry(self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answered = async {
            let response = self.client.request(request.map(Full::new)).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_MAX).collect().await?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        timeout(self.patience, answered).await?
    }
}

impl HttpClient for Courier {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let carried = self.runtime.spawn(self.clone().carry(request));
        Box::pin(async move { carried.await? })
    }
}
