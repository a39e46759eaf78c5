//! `weft controller`: what is decided once for a cluster, and not on each node.
//!
//! ```text
//!   API server ──watch──► pods, definitions ─► wishes ─► ports of Neutron (found, made, pooled)
//!        ▲                                                   │
//!        └── openstack.org/kuryr-vif, Events ◄── desk ◄──────┘   ACTIVE?
//! ```
//!
//! Of several, the one that holds the Lease works; it has nothing on its disk: what it must know is in the cluster and
//! in Neutron.

mod allocator;
mod desk;
mod election;
mod kuryr_conf;
mod pools;
mod settings;
pub(crate) mod store;
pub(crate) mod subject;
pub(crate) mod wish;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tracing::info;

use crate::agent::{Log, cluster, ended, health, runtime};
use crate::failure::{EXIT_CODES, Exit, Failure};
use allocator::Allocator;
use desk::Desk;
use election::Election;

/// What `weft controller` is told.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft controller --neutron --kuryr-conf /etc/kuryr/kuryr.conf
  OS_CLOUD=kuryr weft controller --neutron --config /etc/weft/controller.yaml

In a cluster it runs as a Deployment of two (deploy/neutron) and needs no --kubeconfig.

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Make ports of OpenStack Networking for pods
    #[arg(long)]
    neutron: bool,
    /// How ports are made, and in which cloud; without it OS_* variables say which cloud
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The same from a kuryr.conf
    #[arg(long, value_name = "FILE")]
    kuryr_conf: Option<PathBuf>,
    /// Where a pod's ports are written
    #[arg(long, value_enum, default_value_t = store::Place::Annotation)]
    vif_store: store::Place,
    /// Credentials, where it is no pod of the cluster
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the Lease that says which of several controllers works
    #[arg(long, env = "POD_NAMESPACE", default_value = "kube-system", value_name = "NAMESPACE")]
    lease_namespace: String,
    /// Who this one is, in the Lease
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    identity: Option<String>,
    /// How often all ports are compared with all pods, in seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    reconcile: u64,
    /// Where /metrics, /healthz and /readyz are
    #[arg(long, default_value = "127.0.0.1:9465", value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    #[command(flatten)]
    log: Log,
}

/// The Lease.
const LEASE: &str = "weft-neutron";

/// Does it, until SIGTERM or SIGINT.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if !arguments.neutron {
        return Err(Failure::new("nothing to control").next("say --neutron").exit(Exit::Usage));
    }
    arguments.log.start()?;
    runtime()?.block_on(work(arguments))
}

async fn work(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments {
        config,
        kuryr_conf,
        vif_store,
        kubeconfig,
        lease_namespace,
        identity,
        reconcile,
        listen,
        ..
    } = arguments;
    let settings = settings::read(config.as_deref(), kuryr_conf.as_deref())?;
    let neutron = neutron::Client::new(settings.cloud).map_err(|error| Failure::new(error.to_string()))?;
    let client = cluster::client(kubeconfig.as_deref()).await?;
    let page = health::bind(*listen).await?;
    let identity = identity.clone().unwrap_or_else(|| format!("weft-{}", std::process::id()));
    let election = Election::new(client.clone(), lease_namespace, LEASE, &identity);
    let allocator = Arc::new(Allocator::new(neutron, settings.rules));
    let every = Duration::from_secs((*reconcile).max(1));
    let desk = Arc::new(Desk::new(client, allocator, *vif_store, every, &identity));
    tokio::spawn(health::serve(page, Arc::clone(&desk)));
    info!(listen = %listen, identity, "started");
    let end = ended()?;
    let lead = async {
        election.win().await;
        tokio::select! {
            () = Arc::clone(&desk).run() => Ok(()),
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
