//! Span export to an OpenTelemetry collector (OTLP).
//!
//! - An invalid option or variable is an error at start, and the error names it.
//! - An unreachable collector is logged once, and once again when it is reachable.
//!
//! Source: OpenTelemetry, «OTLP exporter configuration» and «general SDK configuration».

use std::env;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use opentelemetry::KeyValue;
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig, Identity};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{self, SdkTracerProvider, SpanData};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tracing::{info, warn};

use crate::metrics::{Metrics, Spans};
use crate::traces::otlp_client::OtlpClient;
use cli_support::failure::{Exit, Failure};

/// Service name if none is set.
const SERVICE: &str = "weft-agent";
/// Path for traces below the collector's address.
const PATH: &str = "/v1/traces";
/// Default timeout for a collector's response.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest certificate or key, in bytes.
const PEM_MAX: u64 = 1 << 20;

/// Options for the export of traces.
#[derive(Clone, Debug, Args)]
pub struct Export {
    /// URL of an OpenTelemetry collector (OTLP) that receives a trace of each ADD (default: the OTEL_EXPORTER_OTLP_…
    /// variables; without them no traces are exported)
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
}

/// Returns the provider that exports spans; `None` if no export is requested.
pub(super) fn provider(
    export: &Export,
    node: &str,
    metrics: &Metrics,
) -> Result<Option<SdkTracerProvider>, Failure> {
    let Export { otlp_endpoint } = export;
    let is_requested = otlp_endpoint.is_some() || otlp("ENDPOINT").is_some();
    let is_off = variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    match variable("OTEL_TRACES_EXPORTER").as_deref() {
        Some("none") => return Ok(None),
        None | Some("otlp") => {}
        Some(other) => {
            return Err(invalid("OTEL_TRACES_EXPORTER", other, "set it to `otlp` or `none`"));
        }
    }
    if !is_requested || is_off {
        return Ok(None);
    }
    let timeout = match otlp("TIMEOUT") {
        None => TIMEOUT,
        Some((name, value)) => match value.parse() {
            Ok(milliseconds) => Duration::from_millis(milliseconds),
            Err(_) => return Err(invalid(&name, &value, "set it to a number of milliseconds")),
        },
    };
    let exporter = match otlp("PROTOCOL") {
        Some((_, protocol)) if protocol == "grpc" => over_grpc(otlp_endpoint.as_deref(), timeout),
        Some((name, protocol)) if protocol != "http/protobuf" => {
            return Err(invalid(&name, &protocol, "set it to `http/protobuf` or `grpc`"));
        }
        _ => over_http(otlp_endpoint.as_deref(), timeout),
    }?;
    let exporter =
        CountingExporter { exporter, spans: metrics.spans.clone(), is_away: AtomicBool::new(false) };
    let mut resource = Resource::builder().with_attributes([
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("k8s.node.name", node.to_owned()),
    ]);
    if variable("OTEL_SERVICE_NAME").is_none() {
        resource = resource.with_service_name(SERVICE);
    }
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build());
    info!("traces are exported");
    Ok(Some(provider.build()))
}

fn over_grpc(endpoint: Option<&str>, timeout: Duration) -> Result<SpanExporter, Failure> {
    let mut tls = ClientTlsConfig::new();
    tls = match pem("CERTIFICATE")? {
        Some((_, authority)) => tls.ca_certificate(Certificate::from_pem(authority)),
        None => tls.with_enabled_roots(),
    };
    if let Some((certificate, key)) = identity()? {
        tls = tls.identity(Identity::from_pem(certificate.1, key.1));
    }
    let address = endpoint.map(str::to_owned).or_else(|| otlp("ENDPOINT").map(|(_, address)| address));
    let mut builder = SpanExporter::builder().with_tonic().with_timeout(timeout);
    if address.is_some_and(|address| address.starts_with("https:")) {
        builder = builder.with_tls_config(tls);
    }
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    builder.build().map_err(refused)
}

fn over_http(endpoint: Option<&str>, timeout: Duration) -> Result<SpanExporter, Failure> {
    let client = OtlpClient::new(tls()?, timeout);
    let mut builder = SpanExporter::builder().with_http().with_http_client(client).with_timeout(timeout);
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(format!("{}{PATH}", endpoint.trim_end_matches('/')));
    }
    builder.build().map_err(refused)
}

fn refused(cause: impl std::fmt::Display) -> Failure {
    Failure::new(format!("traces: {cause}")).exit(Exit::Usage)
}

fn invalid(name: &str, value: &str, hint: &str) -> Failure {
    Failure::new(format!("{name}={value}: invalid value")).next(hint).exit(Exit::Usage)
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns name and value that an exporter's variable has; the one for traces alone comes first.
fn otlp(what: &str) -> Option<(String, String)> {
    let names = [format!("OTEL_EXPORTER_OTLP_TRACES_{what}"), format!("OTEL_EXPORTER_OTLP_{what}")];
    names.into_iter().find_map(|name| variable(&name).map(|value| (name, value)))
}

/// Returns the setting, and what the file contains that such a variable names.
fn pem(what: &str) -> Result<Option<(String, Vec<u8>)>, Failure> {
    let Some((name, path)) = otlp(what) else { return Ok(None) };
    let failed = |cause: String| Failure::new(format!("{name}={path}: {cause}")).exit(Exit::Usage);
    let size = fs::metadata(&path).map_err(|cause| failed(cause.to_string()))?.len();
    if size > PEM_MAX {
        return Err(failed(format!("{size} bytes are too many for a certificate or key")));
    }
    let bytes = fs::read(&path).map_err(|cause| failed(cause.to_string()))?;
    Ok(Some((format!("{name}={path}"), bytes)))
}

type Pem = (String, Vec<u8>);

/// Returns the client certificate and key.
fn identity() -> Result<Option<(Pem, Pem)>, Failure> {
    match (pem("CLIENT_CERTIFICATE")?, pem("CLIENT_KEY")?) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, None) => Ok(None),
        (Some((name, _)), None) | (None, Some((name, _))) => {
            Err(Failure::new(format!("{name}: certificate and key must be set together")).exit(Exit::Usage))
        }
    }
}

fn tls() -> Result<ClientConfig, Failure> {
    let failed = |name: &str, cause: String| Failure::new(format!("{name}: {cause}")).exit(Exit::Usage);
    let read = |(name, bytes): &Pem| {
        let read: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(bytes).collect();
        read.map_err(|cause| failed(name, cause.to_string()))
    };
    let mut roots = RootCertStore::empty();
    match pem("CERTIFICATE")? {
        Some(authority) => {
            for certificate in read(&authority)? {
                roots.add(certificate).map_err(|cause| failed(&authority.0, cause.to_string()))?;
            }
        }
        // No root is no error: plain HTTP needs none, and TLS fails by itself.
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|cause| failed("TLS", cause.to_string()))?.with_root_certificates(roots);
    match identity()? {
        None => Ok(config.with_no_client_auth()),
        Some((certificate, (name, key))) => {
            let key =
                PrivateKeyDer::from_pem_slice(&key).map_err(|cause| failed(&name, cause.to_string()))?;
            let config = config.with_client_auth_cert(read(&certificate)?, key);
            config.map_err(|cause| failed(&name, cause.to_string()))
        }
    }
}

/// Exporter that counts spans.
#[derive(Debug)]
struct CountingExporter {
    exporter: SpanExporter,
    spans: Spans,
    is_away: AtomicBool,
}

impl trace::SpanExporter for CountingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len() as u64;
        let exported = self.exporter.export(batch).await;
        let was_away = self.is_away.swap(exported.is_err(), Ordering::Relaxed);
        match &exported {
            Ok(()) => {
                self.spans.add("exported", count);
                if was_away {
                    info!("traces are exported again");
                }
            }
            Err(error) => {
                self.spans.add("failed", count);
                if !was_away {
                    warn!(%error, "failed to export traces; they are dropped");
                }
            }
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
