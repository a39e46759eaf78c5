//! `weft controller`: what is decided once for a cluster, and not on each node.
//!
//! ```text
//!   API server ──watch──► pods, definitions ─► wishes ─► ports of Neutron (found, made, pooled)
//!        ▲                                                   │
//!        └── openstack.org/kuryr-vif, Events ◄── desk ◄──────┘   ACTIVE?
//!
//!   API server ──census──► pools, blocks, nodes, pods ─► status, Events, blocks of dead nodes, claims that ended
//!
//!   API server ──watch──► Services, pods ─► EndpointSlices with addresses of further networks
//! ```
//!
//! One process does one of the three, with the rights for that one. Of several, the one that holds the Lease works; it has
//! nothing on its disk: what it must know is in the cluster and in Neutron.

#![forbid(unsafe_code)]

mod ipam;
mod neutron;
mod services;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgGroup, Args};
use tracing::info;

use crate::ipam::reconciler::IpamReconciler;
use crate::neutron::port_allocator::Allocator;
use crate::neutron::port_reconciler::PortReconciler;
use cli_support::async_runtime::{ended, runtime};
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::logging::Log;
use ipam::IpamController;
use kube_support::health::HealthStatus;
use kube_support::leader_election::Election;
use kube_support::{client, health};
use services::ServiceController;

/// What `weft controller` is told.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("work").required(true).args(["neutron", "ipam", "services"])))]
#[command(after_help = format!("\
Example:
  weft controller --neutron --kuryr-conf /etc/kuryr/kuryr.conf
  OS_CLOUD=kuryr weft controller --neutron --config /etc/weft/controller.yaml
  weft controller --ipam
  weft controller --services

In a cluster the controllers run as Deployments with two replicas (deploy/neutron, deploy/ipam, deploy/services).

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

/// The Lease of who makes ports.
const NEUTRON_LEASE: &str = "weft-neutron";
/// The Lease of who keeps addresses.
const IPAM_LEASE: &str = "weft-ipam";
/// The Lease of who lists addresses.
const SERVICES_LEASE: &str = "weft-services";

/// Does it, until SIGTERM or SIGINT.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    arguments.log.start()?;
    runtime()?.block_on(async {
        match arguments {
            Arguments { ipam: true, .. } => arguments.keep_addresses().await,
            Arguments { services: true, .. } => arguments.list_addresses().await,
            _ => arguments.make_ports().await,
        }
    })
}

impl Arguments {
    async fn make_ports(&self) -> Result<(), Failure> {
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

    async fn keep_addresses(&self) -> Result<(), Failure> {
        let client = client::client(self.kubeconfig.as_deref()).await?;
        let grace = Duration::from_secs(self.node_grace);
        let retention = Duration::from_secs(self.sticky_hours.saturating_mul(3600));
        let keeper = IpamReconciler::new(client.clone(), grace, retention, &self.identity());
        let warden = Arc::new(IpamController::new(keeper, Duration::from_secs(self.ipam_interval.max(1))));
        self.lead(client, IPAM_LEASE, Arc::clone(&warden), warden.run()).await
    }

    async fn list_addresses(&self) -> Result<(), Failure> {
        let client = client::client(self.kubeconfig.as_deref()).await?;
        let lister = Arc::new(ServiceController::new(client.clone(), &self.identity()));
        self.lead(client, SERVICES_LEASE, Arc::clone(&lister), lister.run()).await
    }

    /// Works as long as the Lease is ours; `told` answers over HTTP all the while.
    async fn lead(
        &self,
        client: kube::Client,
        lease: &str,
        told: Arc<impl HealthStatus>,
        work: impl Future<Output = ()>,
    ) -> Result<(), Failure> {
        let page = health::bind(self.listen).await?;
        let identity = self.identity();
        let election = Election::new(client, &self.lease_namespace, lease, &identity);
        tokio::spawn(health::serve(page, told));
        info!(listen = %self.listen, identity, "started");
        let end = ended()?;
        let lead = async {
            election.win().await;
            tokio::select! {
                () = election.hold_for(work) => Ok(()),
                () = election.keep() => Err(Failure::new("the Lease is lost: another controller goes on")),
            }
        };
        let outcome = tokio::select! {
            outcome = lead => outcome,
            () = end => {
                election.resign().await;
                Ok(())
            }
        };
        info!("ended");
        outcome
    }

    fn identity(&self) -> String {
        self.identity.clone().unwrap_or_else(|| format!("weft-{}", std::process::id()))
    }
}
