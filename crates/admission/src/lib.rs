//! Admission webhook (`weft controller --admission`): the API server asks it about network objects and pods.
//!
//! ```text
//!   API server ──AdmissionReview──► server ─► answer ─┬─ /validate: findings of lint, references, definitions in use
//!        ▲                                             └─ /mutate: resources, node selectors, default network
//!        └── caBundle ◄── certificates ◄── Secret          ▲
//!   API server ──watch──► definitions, namespaces, pods ───┘
//! ```
//!
//! - Every rule is one of `weft lint`: what the webhook accepts without an error, lint accepts, and the other way round.
//! - An answer needs no request to the API server: it comes from caches, so it takes a few milliseconds.
//! - The webhook never holds a pod up: `failurePolicy` is `Ignore`, and the agent checks everything again.
//! - A dry run has no side effect, because a review never has one.
//! - Every replica answers. The replicas share one certificate, which is in a Secret.

#![forbid(unsafe_code)]

mod answer;
mod certificate;
mod certificate_keeper;
mod cluster;
mod completion;
mod findings;
mod pod_form;
mod protection;
mod references;
mod server;
mod webhook_metrics;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cli_support::failure::Failure;
use kube::Client;
use kube_support::health::HealthStatus;

use certificate_keeper::CertificateKeeper;
use cluster::ClusterFacts;
pub use references::MissingNetworks;
pub use webhook_metrics::WebhookMetrics;

/// Settings of the webhook.
#[derive(Clone, Debug)]
pub struct WebhookSettings {
    /// Address of the HTTPS server.
    pub listen: SocketAddr,
    /// Namespace of the Service, the Secret and this pod.
    pub namespace: String,
    /// Answer to a pod that names a network which does not exist.
    pub missing_networks: MissingNetworks,
    /// Validity of a certificate; it is replaced after two thirds of it.
    pub certificate_validity: Duration,
    /// Names and addresses of the webhook beside the Service's, for an API server outside the cluster.
    pub extra_names: Vec<String>,
}

/// The webhook.
pub struct AdmissionController {
    settings: WebhookSettings,
    cluster: ClusterFacts,
    keeper: CertificateKeeper,
    metrics: WebhookMetrics,
}

// === impl AdmissionController ===

impl AdmissionController {
    /// Returns a webhook, and watches the cluster from now on.
    pub fn new(client: &Client, settings: WebhookSettings) -> Arc<AdmissionController> {
        Arc::new(AdmissionController {
            cluster: ClusterFacts::follow(client),
            keeper: CertificateKeeper::new(client.clone(), &settings),
            metrics: WebhookMetrics::new(),
            settings,
        })
    }

    /// Serves reviews until the process ends.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub async fn serve(self: Arc<Self>) -> Result<(), Failure> {
        let listener = kube_support::health::bind_for(self.settings.listen, "--admission").await?;
        let keeping = Arc::clone(&self);
        tokio::spawn(async move { keeping.keeper.keep().await });
        server::serve(listener, self).await;
        Ok(())
    }
}

impl HealthStatus for AdmissionController {
    fn page(&self) -> String {
        self.metrics.page()
    }

    fn waits_for(&self) -> Vec<String> {
        self.cluster.waits_for().into_iter().chain(self.keeper.waits_for()).collect()
    }
}
