//! Keeps the webhook certificate: reads and replaces the Secret, serves the certificate, and tells the API server which
//! authorities to trust.
//!
//! - Of several replicas the first one writes the Secret: a later write has an old resource version and is rejected.
//! - The API server learns of an authority before a certificate is signed with it ([`crate::certificate`]).
//! - Without the API server the last certificate is served.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use kube_support::api_error;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

use crate::WebhookSettings;
use crate::certificate::Stored;

/// Name of the Service, the Secret and the webhook configurations.
pub(crate) const NAME: &str = "weft-admission";
/// Key of the Secret with the certificates as JSON.
const STATE: &str = "state";
/// Interval at which Secret and webhook configurations are compared with the time.
const INTERVAL: Duration = Duration::from_secs(30);
/// Interval after a failure.
const RETRY: Duration = Duration::from_secs(5);

/// Keeper of the certificate.
pub(crate) struct CertificateKeeper {
    client: Client,
    namespace: String,
    validity: Duration,
    names: Vec<String>,
    served: Mutex<Served>,
}

/// Certificate that is served.
#[derive(Default)]
struct Served {
    stored: Option<Stored>,
    acceptor: Option<TlsAcceptor>,
    /// Reason of the last failure; none after a success.
    failure: Option<String>,
}

impl CertificateKeeper {
    pub(crate) fn new(client: Client, settings: &WebhookSettings) -> CertificateKeeper {
        let namespace = settings.namespace.clone();
        let names = [format!("{NAME}.{namespace}.svc"), format!("{NAME}.{namespace}.svc.cluster.local")];
        let extra = settings.extra_names.iter().cloned();
        CertificateKeeper {
            client,
            namespace,
            validity: settings.certificate_validity,
            names: names.into_iter().chain(extra).collect(),
            served: Mutex::default(),
        }
    }

    fn served(&self) -> std::sync::MutexGuard<'_, Served> {
        // A panic leaves no field half changed.
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what accepts TLS connections; `None` before the first certificate.
    pub(crate) fn acceptor(&self) -> Option<TlsAcceptor> {
        self.served().acceptor.clone()
    }

    /// Returns what is missing before reviews can be served.
    pub(crate) fn waits_for(&self) -> Vec<String> {
        let served = self.served();
        match (&served.acceptor, &served.failure) {
            (Some(_), _) => Vec::new(),
            (None, Some(why)) => vec![format!("the certificate of the webhook ({why})")],
            (None, None) => vec!["the certificate of the webhook".to_owned()],
        }
    }

    /// Keeps certificate and trust current until the process ends.
    pub(crate) async fn keep(&self) {
        loop {
            let result = self.round().await;
            let pause = if result.is_ok() { self.interval() } else { RETRY.min(self.interval()) };
            self.record(result.err());
            sleep(pause).await;
        }
    }

    /// Records the failure of a round. An equal one is logged once.
    fn record(&self, failure: Option<String>) {
        let mut served = self.served();
        if let Some(why) = failure.as_ref().filter(|why| served.failure.as_ref() != Some(*why)) {
            warn!(error = why, "failed to keep the certificate of the webhook");
        }
        served.failure = failure;
    }

    /// Returns the pause between two rounds: short validities, as in tests, need shorter ones.
    fn interval(&self) -> Duration {
        INTERVAL.min(self.validity / 20).max(Duration::from_millis(200))
    }

    async fn round(&self) -> Result<(), String> {
        let stored = self.stored().await?;
        // The API server trusts the authority before a replica serves a certificate of it.
        self.trust::<ValidatingWebhookConfiguration>(&stored).await?;
        self.trust::<MutatingWebhookConfiguration>(&stored).await?;
        self.use_certificate(stored)
    }

    /// Serves a certificate from now on.
    fn use_certificate(&self, stored: Stored) -> Result<(), String> {
        let mut served = self.served();
        if served.stored.as_ref() != Some(&stored) {
            let acceptor = acceptor(&stored).map_err(|error| format!("use the certificate: {error}"))?;
            (served.stored, served.acceptor) = (Some(stored), Some(acceptor));
            info!("webhook serves a new certificate");
        }
        Ok(())
    }

    /// Returns the content of the Secret, after replacing what is due.
    async fn stored(&self) -> Result<Stored, String> {
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &self.namespace);
        let described =
            |what: &str, error: &kube::Error| format!("{what} Secret {NAME}: {}", api_error::describe(error));
        loop {
            let secret = secrets.get_opt(NAME).await.map_err(|error| described("read", &error))?;
            let known = secret.as_ref().and_then(read);
            let next = Stored::next(known.as_ref(), now(), self.validity, &self.names);
            let Some(next) = next.map_err(|error| error.to_string())? else {
                return known.ok_or_else(|| "the Secret is empty".to_owned());
            };
            let written = match secret {
                None => {
                    secrets.create(&PostParams::default(), &self.secret(&next, ObjectMeta::default())).await
                }
                Some(Secret { metadata, .. }) => {
                    secrets.replace(NAME, &PostParams::default(), &self.secret(&next, metadata)).await
                }
            };
            match written {
                Ok(_) => return Ok(next),
                // Another replica was faster: its certificate counts.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(described("write", &error)),
            }
        }
    }

    fn secret(&self, stored: &Stored, metadata: ObjectMeta) -> Secret {
        let state = serde_json::to_vec(stored).unwrap_or_default();
        let metadata =
            ObjectMeta { name: Some(NAME.into()), namespace: Some(self.namespace.clone()), ..metadata };
        let data = BTreeMap::from([(STATE.to_owned(), ByteString(state))]);
        Secret { metadata, data: Some(data), ..Secret::default() }
    }

    /// Writes the authorities into a webhook configuration, if it exists and has others.
    async fn trust<K>(&self, stored: &Stored) -> Result<(), String>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned
            + Serialize,
    {
        let api = Api::<K>::all(self.client.clone());
        let kind = K::kind(&());
        let described =
            |what: &str, error: &kube::Error| format!("{what} {kind} {NAME}: {}", api_error::describe(error));
        let Some(found) = api.get_opt(NAME).await.map_err(|error| described("read", &error))? else {
            return Ok(());
        };
        let object = serde_json::to_value(&found).map_err(|error| error.to_string())?;
        let bundle = serde_json::to_value(ByteString(stored.bundle().into_bytes()))
            .map_err(|error| error.to_string())?;
        let webhooks = object["webhooks"].as_array().cloned().unwrap_or_default();
        if webhooks.iter().all(|webhook| webhook["clientConfig"]["caBundle"] == bundle) {
            return Ok(());
        }
        let changes: Vec<Value> = (0..webhooks.len())
            .map(|index| json!({ "op": "add", "path": format!("/webhooks/{index}/clientConfig/caBundle"), "value": bundle }))
            .collect();
        let patch: json_patch::Patch =
            serde_json::from_value(Value::from(changes)).map_err(|error| error.to_string())?;
        let patched = api.patch(NAME, &PatchParams::default(), &Patch::<()>::Json(patch)).await;
        patched
            .map(|_| info!(%kind, "authorities of the webhook written"))
            .map_err(|error| described("patch", &error))
    }
}

fn read(secret: &Secret) -> Option<Stored> {
    serde_json::from_slice(&secret.data.as_ref()?.get(STATE)?.0).ok()
}

fn acceptor(stored: &Stored) -> Result<TlsAcceptor, Box<dyn std::error::Error>> {
    let certificate = CertificateDer::from_pem_slice(stored.server.certificate.as_bytes())?;
    let key = PrivateKeyDer::from_pem_slice(stored.server.key.as_bytes())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
