//! HTTP/1.1 client for JSON over verified TLS.
//!
//! - A response may have at most [`ANSWER_MAX`] bytes, and must arrive within the timeout.
//! - Redirects are not followed.
//! - Certificates are verified against the system's CAs. If a CA bundle is set, only that bundle counts.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, USER_AGENT};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::time::timeout;

use crate::error::{Cause, Error};

/// Maximum response size in bytes, enough for ten thousand ports.
const ANSWER_MAX: usize = 32 << 20;
/// Timeout for establishing a connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Time after which an idle connection is closed.
const IDLE_MAX: Duration = Duration::from_secs(20);

/// HTTP client with a connection pool.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    timeout: Duration,
}

/// HTTP response with the decoded body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Http {
    /// Returns a client that trusts the CAs in `bundle`, or the system's CAs if there is no bundle.
    pub(crate) fn new(bundle: Option<&Path>, timeout: Duration) -> Result<Http, Error> {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(CONNECT_MAX));
        connector.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(bundle)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new()).pool_idle_timeout(IDLE_MAX).build(connector);
        Ok(Http { client, timeout })
    }

    /// Sends one request; `longer` extends the timeout, for example for a bulk request.
    pub(crate) async fn call(
        &self,
        method: &Method,
        uri: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
        longer: Duration,
    ) -> Result<Answer, Error> {
        let what = || format!("{method} {uri}");
        let unreachable = |why: String| Error::new(what(), Cause::Unreachable(why));
        let address: Uri = uri.parse().map_err(|_| Error::configuration(what(), "not a server URL"))?;
        let mut request = Request::builder().method(method).uri(address).header(ACCEPT, "application/json");
        request = request.header(USER_AGENT, concat!("weft/", env!("CARGO_PKG_VERSION")));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let bytes = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(bytes)));
        let request = request.map_err(|cause| Error::configuration(what(), cause.to_string()))?;
        let answered = async {
            let response = self.client.request(request).await.map_err(|cause| unreachable(chain(&cause)))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, ANSWER_MAX).collect().await;
            let body = body.map_err(|cause| unreachable(format!("the response is incomplete: {cause}")))?;
            Ok((head, body.to_bytes()))
        };
        let deadline = self.timeout + longer;
        let answered = timeout(deadline, answered).await;
        let (head, bytes) =
            answered.map_err(|_| unreachable(format!("no response within {} s", deadline.as_secs())))??;
        let body = match bytes.is_empty() {
            true => Value::Null,
            false => match serde_json::from_slice(&bytes) {
                Ok(body) => body,
                // An error page from a proxy is not JSON; keep its beginning as the message.
                Err(_) if !head.status.is_success() => {
                    Value::String(String::from_utf8_lossy(&bytes).chars().take(200).collect())
                }
                Err(cause) => return Err(Error::new(what(), Cause::Unreadable(cause.to_string()))),
            },
        };
        Ok(Answer { status: head.status, headers: head.headers, body })
    }
}

// === impl Answer ===

impl Answer {
    /// Returns the error that a non-success response stands for.
    pub(crate) fn refusal(&self, what: &str) -> Error {
        let Answer { status, headers, body } = self;
        let fault = &body["NeutronError"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let message = [&fault["message"], &body["error"]["message"], &body["message"], fault, body]
            .into_iter()
            .find_map(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let why = match status.as_u16() {
            401 => Cause::Unauthorized(message),
            status => Cause::Refused {
                status,
                kind: text(&fault["type"]),
                message,
                request: headers
                    .get("x-openstack-request-id")
                    .and_then(|id| id.to_str().ok())
                    .unwrap_or_default()
                    .to_owned(),
            },
        };
        Error::new(what, why)
    }
}

/// Joins an error's message and those of all causes, because the first alone says only "client error (Connect)".
fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words.push_str(": ");
        words.push_str(&error.to_string());
        cause = error.source();
    }
    words
}

fn tls(bundle: Option<&Path>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    match bundle {
        Some(path) => {
            let what = || format!("CA bundle {}", path.display());
            let failed = |cause: String| Error::configuration(what(), cause);
            let certificates =
                CertificateDer::pem_file_iter(path).map_err(|cause| failed(cause.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|cause| failed(cause.to_string()))?;
                roots.add(certificate).map_err(|cause| failed(cause.to_string()))?;
            }
            if roots.is_empty() {
                return Err(failed("contains no certificate".to_owned()));
            }
        }
        // Missing system CAs are not an error here: plain HTTP needs none, and TLS will fail with its own message.
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|cause| Error::configuration("TLS", cause.to_string()))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
