//! Cluster controllers (`weft controller`): Neutron ports, IP pools, Services on additional networks, network policies,
//! and the page.
//!
//! ```text
//!   API server ──watch──► pods, definitions ─► port requests ─► Neutron ports (found, created, pooled)
//!        ▲                                                          │
//!        └── openstack.org/kuryr-vif, Events ◄── PortReconciler ◄───┘   ACTIVE?
//!
//!   API server ──ClusterSnapshot──► pools, blocks, nodes, pods ─► status, Events, blocks of gone nodes, ended claims
//!
//!   API server ──watch──► Services, pods ─► EndpointSlices with addresses of additional networks
//!
//!   API server ──watch──► policies, pods, namespaces ─► PolicyAddressSets with the addresses of peers
//! ```
//!
//! - A process runs one of the controllers, with the permissions of that one.
//! - Of several processes, the one that holds the Lease works. The page writes nothing, so each process serves it.
//! - A controller has no state on disk: everything is in the cluster and in Neutron.

#![forbid(unsafe_code)]

mod ipam;
mod neutron;
mod page;
mod policy;
mod services;
mod stuck_leader;
mod work_progress;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgGroup, Args};
use tracing::info;

use admission::{AdmissionController, MissingNetworks, WebhookMetrics, WebhookSettings};

use crate::ipam::reconciler::IpamReconciler;
use crate::neutron::neutron_metrics;
use crate::neutron::port_allocator::Allocator;
use crate::neutron::port_reconciler::PortReconciler;
use cli_support::async_runtime::{ended, runtime};
use cli_support::duration::seconds;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::logging::Log;
use ipam::IpamController;
use kube_support::health::HealthStatus;
use kube_support::leader_election::Election;
use kube_support::{client, health};
use page::{PageController, PageMetrics};
use policy::{PolicyController, PolicyMetrics};
use services::ServiceController;

/// Arguments of `weft controller`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("work").required(true).args(["neutron", "ipam", "services", "policy", "page", "admission"])))]
#[command(after_help = format!("\
Example:
  weft controller --neutron --kuryr-conf /etc/kuryr/kuryr.conf
  OS_CLOUD=kuryr weft controller --neutron --config /etc/weft/controller.yaml
  weft controller --ipam
  weft controller --services
  weft controller --policy
  weft controller --page
  weft controller --admission --missing-networks deny

In a cluster the controllers run as Deployments with two replicas (deploy/neutron, deploy/ipam, deploy/services,
deploy/components/policy).

{EXIT_CODES}"))]
pub struct Arguments {
    /// Run the Neutron controller: create OpenStack ports for pods
    #[arg(long)]
    neutron: bool,
    /// Run the IPAM controller: maintain IP pools and reclaim addresses
    #[arg(long)]
    ipam: bool,
    /// Run the Services controller: publish addresses of additional networks in EndpointSlices
    #[arg(long)]
    services: bool,
    /// Run the policy controller: resolve the peers of MultiNetworkPolicies to addresses
    #[arg(long)]
    policy: bool,
    /// Serve the read-only page at this address. Other addresses than those of the loopback interface need a token
    #[arg(long, num_args = 0..=1, value_name = "ADDRESS:PORT", default_missing_value = "127.0.0.1:9467")]
    page: Option<SocketAddr>,
    /// Serve the admission webhook at this address: it validates network objects and pods, and completes pods
    #[arg(long, num_args = 0..=1, value_name = "ADDRESS:PORT", default_missing_value = "[::]:9468")]
    admission: Option<SocketAddr>,
    /// Answer to a pod that names a network which does not exist (admission)
    #[arg(long, value_enum, value_name = "ANSWER", default_value_t = MissingNetworks::Warn)]
    missing_networks: MissingNetworks,
    /// Validity of the webhook's certificate, which is replaced after two thirds of it, in seconds or as 2160h (admission)
    #[arg(long, value_name = "DURATION", default_value = "2160h", value_parser = validity)]
    certificate_validity: u64,
    /// Further name or address of the webhook in its certificate; may be repeated (admission)
    #[arg(long, value_name = "NAME")]
    webhook_name: Vec<String>,
    /// Grace period after a node is deleted before its address blocks are reclaimed, in seconds (IPAM)
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    node_grace: u64,
    /// Retention of the address of a deleted sticky pod, in hours (IPAM)
    #[arg(long, default_value_t = 24, value_name = "HOURS")]
    sticky_hours: u64,
    /// Interval between reconciliations of all addresses, in seconds (IPAM)
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    ipam_interval: u64,
    /// Path to the configuration of ports and cloud (Neutron; default: cloud from the OS_* variables)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Path to a kuryr.conf, instead of --config (Neutron)
    #[arg(long, value_name = "FILE")]
    kuryr_conf: Option<PathBuf>,
    /// Object to which the ports of a pod are written (Neutron)
    #[arg(long, value_enum, value_name = "STORE", default_value_t = kube_support::kuryr::VifLocation::Annotation)]
    vif_store: kube_support::kuryr::VifLocation,
    /// Path to a kubeconfig (default: in-cluster configuration)
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", value_parser = client::path)]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the Lease for leader election
    #[arg(long, env = "POD_NAMESPACE", default_value = "kube-system", value_name = "NAMESPACE")]
    lease_namespace: String,
    /// Identity of this controller in the Lease (default: weft-PID)
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    identity: Option<String>,
    /// Interval between reconciliations of all ports, in seconds (Neutron)
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    neutron_interval: u64,
    /// Address of the HTTP server for /metrics, /healthz and /readyz
    #[arg(long, default_value = "127.0.0.1:9465", value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    #[command(flatten)]
    log: Log,
}

/// Lease of the Neutron controller.
const NEUTRON_LEASE: &str = "weft-neutron";
/// Lease of the IPAM controller.
const IPAM_LEASE: &str = "weft-ipam";
/// Lease of the Services controller.
const SERVICES_LEASE: &str = "weft-services";
/// Lease of the policy controller.
const POLICY_LEASE: &str = "weft-policy";

/// Returns the metrics pages of the controllers, by role, with a series for each family: for the reference of metrics.
pub fn example_metrics() -> [(&'static str, String); 6] {
    let neutron = neutron_metrics::NeutronFigures::default().page(&neutron_metrics::no_operations());
    let services = services::ServiceMetrics::new().page();
    let page = PageMetrics::new().page();
    [
        ("ipam", ipam::IpamMetrics::example().page()),
        ("services", services),
        ("neutron", neutron),
        ("policy", PolicyMetrics::new().page()),
        ("page", page),
        ("admission", WebhookMetrics::new().page()),
    ]
}

/// Runs the controller until SIGTERM or SIGINT.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    arguments.log.start()?;
    runtime()?.block_on(async {
        match arguments {
            Arguments { ipam: true, .. } => arguments.run_ipam().await,
            Arguments { services: true, .. } => arguments.run_services().await,
            Arguments { policy: true, .. } => arguments.run_policy().await,
            Arguments { page: Some(address), .. } => arguments.run_page(*address).await,
            Arguments { admission: Some(address), .. } => arguments.run_admission(*address).await,
            _ => arguments.run_neutron().await,
        }
    })
}

/// Parses the validity of a certificate and returns its seconds.
fn validity(text: &str) -> Result<u64, String> {
    let seconds = seconds(text).map_err(|error| error.to_string())?;
    if (10..=10 * 365 * 86_400).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("expected from 10 seconds to ten years".to_owned())
    }
}

impl Arguments {
    async fn run_neutron(&self) -> Result<(), Failure> {
        let settings = neutron::config_file::read(self.config.as_deref(), self.kuryr_conf.as_deref())?;
        let neutron =
            ::neutron::Client::new(settings.cloud).map_err(|error| Failure::new(error.to_string()))?;
        let client = client::client(self.kubeconfig.as_deref()).await?;
        let allocator = Arc::new(Allocator::new(neutron, settings.rules));
        let every = Duration::from_secs(self.neutron_interval.max(1));
        let reconciler =
            Arc::new(PortReconciler::new(client.clone(), allocator, self.vif_store, every, &self.identity()));
        self.lead(client, NEUTRON_LEASE, Arc::clone(&reconciler), reconciler.run()).await
    }

    async fn run_ipam(&self) -> Result<(), Failure> {
        let client = client::client(self.kubeconfig.as_deref()).await?;
        let grace = Duration::from_secs(self.node_grace);
        let retention = Duration::from_secs(self.sticky_hours.saturating_mul(3600));
        let reconciler = IpamReconciler::new(client.clone(), grace, retention, &self.identity());
        let controller =
            Arc::new(IpamController::new(reconciler, Duration::from_secs(self.ipam_interval.max(1))));
        self.lead(client, IPAM_LEASE, Arc::clone(&controller), controller.run()).await
    }

    async fn run_services(&self) -> Result<(), Failure> {
        let client = client::client(self.kubeconfig.as_deref()).await?;
        let controller = Arc::new(ServiceController::new(client.clone(), &self.identity()));
        self.lead(client, SERVICES_LEASE, Arc::clone(&controller), controller.run()).await
    }

    async fn run_policy(&self) -> Result<(), Failure> {
        let client = client::client(self.kubeconfig.as_deref()).await?;
        let controller = Arc::new(PolicyController::new(client.clone(), &self.identity()));
        self.lead(client, POLICY_LEASE, Arc::clone(&controller), controller.run()).await
    }

    /// Serves the page. `--listen` serves metrics and health beside it.
    async fn run_page(&self, address: SocketAddr) -> Result<(), Failure> {
        let client = client::client(self.kubeconfig.as_deref()).await?;
        let listener = health::bind(self.listen).await?;
        let end = ended()?;
        let page = PageController::new(&client, address);
        tokio::spawn(health::serve(listener, Arc::clone(&page)));
        info!(page = %address, listen = %self.listen, "page started");
        tokio::select! {
            failed = page.serve(address) => failed,
            () = end => {
                info!("page stopped");
                Ok(())
            }
        }
    }

    /// Serves the admission webhook. Each replica does.
    async fn run_admission(&self, address: SocketAddr) -> Result<(), Failure> {
        let client = client::client(self.kubeconfig.as_deref()).await?;
        let listener = health::bind(self.listen).await?;
        let end = ended()?;
        let settings = WebhookSettings {
            listen: address,
            namespace: self.lease_namespace.clone(),
            missing_networks: self.missing_networks,
            certificate_validity: Duration::from_secs(self.certificate_validity),
            extra_names: self.webhook_name.clone(),
        };
        let webhook = AdmissionController::new(&client, settings);
        tokio::spawn(health::serve(listener, Arc::clone(&webhook)));
        info!(webhook = %address, listen = %self.listen, "admission webhook started");
        tokio::select! {
            failed = webhook.serve() => failed,
            () = end => {
                info!("admission webhook stopped");
                Ok(())
            }
        }
    }

    /// Works while this controller holds the Lease. `status` is served over HTTP from the start.
    ///
    /// A controller that cannot see the cluster is no candidate, and a leader that stays blind gives the Lease back: another
    /// one may have a connection that works.
    async fn lead(
        &self,
        client: kube::Client,
        lease: &str,
        status: Arc<impl HealthStatus>,
        work: impl Future<Output = ()>,
    ) -> Result<(), Failure> {
        let listener = health::bind(self.listen).await?;
        let identity = self.identity();
        let election = Election::new(client, &self.lease_namespace, lease, &identity);
        tokio::spawn(health::serve(listener, Arc::clone(&status)));
        info!(listen = %self.listen, identity, "controller started");
        let end = ended()?;
        let lead = async {
            stuck_leader::ready(&*status).await;
            election.win().await;
            tokio::select! {
                () = election.hold_for(work) => Ok(()),
                () = election.keep() => Err(Failure::new("the Lease is lost: another controller takes over")),
                why = stuck_leader::watch(&*status) => {
                    election.resign().await;
                    Err(Failure::new(format!("the Lease is given back, because this controller is stuck: {why}")))
                }
            }
        };
        let outcome = tokio::select! {
            outcome = lead => outcome,
            () = end => {
                election.resign().await;
                Ok(())
            }
        };
        info!("controller stopped");
        outcome
    }

    fn identity(&self) -> String {
        self.identity.clone().unwrap_or_else(|| format!("weft-{}", std::process::id()))
    }
}
