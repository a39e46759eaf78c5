//! Node agent (`weft agent`): plans the networks for this node's pods and publishes the network-status.
//!
//! ```text
//!   API server ──watch──► caches ──┐
//!                                  ├─► Planner ◄── PlanRequest ── AgentServer ◄── weft-cni
//!   kubelet, ResourceSlices ───────┘     └─────── plan, tasks ──────────────────►
//!   journal ──inotify──► sandboxes ──► StatusPublisher ──patch──► network-status, Events
//! ```
//!
//! - The agent changes nothing on the host. It needs no capability.
//! - It writes only to the socket directory, and reads the journal and the address stores.
//! - `weft-cni` writes the address stores; the agent executes it for that.
//! - One thread runs all asynchronous tasks. Blocking work (weft-cni, the watch of the journal) has separate threads.

#![forbid(unsafe_code)]

mod agent_state;
mod block_leases;
mod block_provider;
mod call_failures;
mod device_facts;
mod drift;
mod hot_plug;
mod idle_blocks;
mod network_info;
mod network_policies;
mod network_sync;
mod neutron_ports;
mod node_report;
mod planner;
mod pod_resources;
mod policy_changes;
mod policy_updates;
mod resource_claims;
mod resource_slices;
pub mod single_plan;
mod status_publisher;
mod transfer_handler;
mod unattached_pods;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rpc::journal::{self, Entry};
use tracing::info;

use crate::agent_state::{AgentConfig, AgentState};
use crate::node_report::Directories;
use crate::status_publisher::StatusPublisher;
use cli_support::async_runtime::{ended, runtime};
use cli_support::background::{BackgroundTasks, run_on_thread};
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::logging::Log;
use cri::runtime_sandboxes;
use cri::runtime_sandboxes::RuntimeSandboxes;
use ipam_api::store_name::ADDRESS_STORES;
use kube_support::kuryr::VifLocation;
use kube_support::{client, events, health};
use node_support::agent_server::AgentServer;
use node_support::metrics::Metrics;
use node_support::sandboxes::Sandboxes;
use node_support::traces::{Export, Traces};
use node_support::weft_cni::PLUGINS;
use pod_resources::POD_RESOURCES;

/// File beside the socket with the results of first checks, see [`drift`].
const CHECKED: &str = "checked.json";
/// Arguments of `weft agent`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft agent --node-name worker-1 --kubeconfig /etc/kubernetes/weft.conf

In a cluster the agent runs as a DaemonSet (deploy/base).

{EXIT_CODES}"))]
pub struct Arguments {
    /// Name of the Kubernetes node
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: String,
    /// Path to a kubeconfig (default: in-cluster configuration)
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", value_parser = client::path)]
    kubeconfig: Option<PathBuf>,
    /// Path to the socket for the meta-plugin (its agentSocket)
    #[arg(long, default_value = "/run/weft/agent.sock", value_name = "PATH")]
    socket: PathBuf,
    /// Directory of the journal, which the agent reads (cniDir of the meta-plugin)
    #[arg(long, default_value = journal::DIRECTORY, value_name = "DIR")]
    journal: PathBuf,
    /// Directory of the address stores of weft-ipam (ipam.dataDir of the networks)
    #[arg(long, default_value = ADDRESS_STORES, value_name = "DIR")]
    address_stores: PathBuf,
    /// Directory of the container runtime's plugins, in which the agent compares `weft` with its own weft-cni
    #[arg(long, default_value = PLUGINS, value_name = "DIR")]
    plugins: PathBuf,
    /// Path to the kubelet's pod resources socket
    #[arg(long, default_value = POD_RESOURCES, value_name = "PATH")]
    pod_resources: PathBuf,
    /// Address of the HTTP server for /metrics, /healthz and /readyz
    #[arg(long, default_value = "127.0.0.1:9464", value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Time after the deletion of a pod until its orphaned sandbox is taken down, in seconds
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    orphan_grace: u64,
    /// Path to the CRI socket of the container runtime; sandboxes that the runtime does not list are taken down (default: off)
    #[arg(long, value_name = "PATH")]
    runtime_endpoint: Option<String>,
    /// Path to a CRI Network API socket that receives every NetworkAttachmentDefinition as a network (default: off; without PATH /run/weft/cri.sock)
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = cri::network_api::PROXY_SOCKET)]
    sync_networks: Option<PathBuf>,
    /// Interval between two CHECKs of a sandbox, in seconds; 0 disables them
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    check_interval: u64,
    /// Apply changes of the networks annotation to running pods; requires `weft executor` on the node
    #[arg(long)]
    hot_plug: bool,
    /// Enforce MultiNetworkPolicies; requires networkPolicies in the configuration of the meta-plugin, `weft controller
    /// --policy` in the cluster, and `weft executor` on the node
    #[arg(long)]
    policy: bool,
    /// Interval between two comparisons of a sandbox's rules of network policies with those of the kernel, in seconds; 0
    /// disables them
    #[arg(long, default_value_t = 30, value_name = "SECONDS", requires = "policy")]
    policy_check_interval: u64,
    /// Object to which the Neutron controller writes the ports of a pod
    #[arg(long, value_enum, value_name = "STORE", default_value_t = VifLocation::Annotation)]
    vif_store: VifLocation,
    #[command(flatten)]
    export: Export,
    #[command(flatten)]
    log: Log,
}

/// Returns a metrics page of the agent with a series for each family: for the reference of metrics.
pub fn example_metrics() -> String {
    Metrics::example().page() + "\n" + &network_info::example()
}

/// Runs the agent until SIGTERM or SIGINT.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    arguments.log.start()?;
    runtime()?.block_on(work(arguments))
}

async fn work(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { node_name, kubeconfig, socket, journal: directory, address_stores, .. } = arguments;
    let Arguments { listen, runtime_endpoint, sync_networks, policy_check_interval, export, .. } = arguments;
    let metrics = Metrics::default();
    let traces = Traces::start(export, node_name, &metrics)?.map(Arc::new);
    let client = client::client(kubeconfig.as_deref()).await?;
    let listener = health::bind(*listen).await?;
    let (checked, socket) = (socket.with_file_name(CHECKED), AgentServer::bind(socket)?);
    let sandboxes = Arc::new(Sandboxes::of(&directory.join(journal::ENTRIES)));
    let background = BackgroundTasks::default();
    let orphan_grace = Duration::from_secs(arguments.orphan_grace);
    let runtime = follow_runtime(runtime_endpoint.as_deref(), orphan_grace, &background);
    let config = AgentConfig {
        sandboxes: Arc::clone(&sandboxes),
        checked,
        runtime,
        orphan_grace,
        check_interval: Duration::from_secs(arguments.check_interval),
        hot_plug: arguments.hot_plug,
        policy: arguments.policy.then(|| Duration::from_secs(*policy_check_interval)),
        vif_store: arguments.vif_store,
        store_dir: address_stores.clone(),
        replaced: socket.replaced(),
    };
    let telemetry = (metrics, traces.clone());
    let agent =
        Arc::new(AgentState::new(&client, node_name, arguments.pod_resources.clone(), &config, telemetry));
    background.begin("HTTP server", health::serve(listener, Arc::clone(&agent)));
    follow_addresses(&client, node_name, address_stores, &agent, &background);
    follow_node(&client, arguments, &agent, &sandboxes, &background);
    let publisher = background
        .begin("network-status publisher", StatusPublisher::new(client, Arc::clone(&agent), sandboxes).run());
    if let Some(socket) = sync_networks {
        background.begin("CRI network sync", network_sync::follow(Arc::clone(&agent), socket.clone()));
    }
    info!(node = node_name, listen = %listen, "agent started");
    let events = agent.planner.events.clone();
    socket.serve(agent, background.clone().until(ended()?)).await;
    // Writes that have not begun, and their Events, are left to the next agent.
    publisher.abort();
    events.end().await;
    if let Some(traces) = traces {
        // The export needs the runtime of this thread, so it ends on another one.
        let _ = run_on_thread(move || traces.end()).await;
    }
    info!("agent stopped");
    background.outcome()
}

/// Starts the background tasks that observe this node and report about it.
fn follow_node(
    client: &kube::Client,
    arguments: &Arguments,
    agent: &Arc<AgentState>,
    sandboxes: &Arc<Sandboxes>,
    background: &BackgroundTasks,
) {
    let Arguments { node_name, journal, address_stores, plugins, .. } = arguments;
    background.begin("failures of calls", call_failures::follow(Arc::clone(agent), journal.clone()));
    let unattached = unattached_pods::follow(Arc::clone(agent), Arc::clone(sandboxes));
    background.begin("unattached pods", unattached);
    let directories = Directories {
        journal: journal.clone(),
        address_stores: address_stores.clone(),
        plugins: plugins.clone(),
    };
    let report = node_report::follow(client.clone(), node_name.clone(), directories, Arc::clone(sandboxes));
    background.begin("node report", report);
    if let Some((policies, _)) = &agent.policies {
        let pods = Arc::clone(&agent.planner.pods);
        background.begin("address sets of policies", Arc::clone(policies).follow_namespaces(pods));
        let updates = policy_changes::follow(Arc::clone(agent), Arc::clone(sandboxes));
        background.begin("updates of network policies", updates);
    }
}

/// Follows the sandboxes that the container runtime lists, if an endpoint is configured.
fn follow_runtime(
    endpoint: Option<&str>,
    grace: Duration,
    background: &BackgroundTasks,
) -> Arc<RuntimeSandboxes> {
    let runtime = Arc::new(RuntimeSandboxes::default());
    if let Some(endpoint) = endpoint {
        // The kubelet's option has the form of a URL.
        let endpoint = PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint));
        let followed = runtime_sandboxes::follow(endpoint, grace, Arc::clone(&runtime));
        background.begin("watch of the runtime's sandboxes", followed);
    }
    runtime
}

/// Starts the background tasks that keep the address stores and the IPBlocks of this node consistent.
fn follow_addresses(
    client: &kube::Client,
    node: &str,
    address_stores: &Path,
    agent: &Arc<AgentState>,
    background: &BackgroundTasks,
) {
    let all = || (client.clone(), node.to_owned(), address_stores.to_owned(), Arc::clone(agent));
    let (client, node, stores, own) = all();
    background.begin("address transfers", transfer_handler::follow(client, node, stores, own));
    let (client, node, stores, own) = all();
    background.begin("block leases", block_leases::follow(client, node, stores, own));
    let (client, node, stores, own) = all();
    background.begin("return of idle blocks", idle_blocks::follow(client, node, stores, own));
    let (client, _, _, provider) = all();
    let history = async move { provider.block_provider.follow_history(client).await };
    background.begin("version of the cluster", history);
    let agent = Arc::clone(agent);
    background.begin("detection of address stores", async move { agent.block_provider.detect_use().await });
}

/// Writes the status of one sandbox and sends Events; for a node without an agent.
pub fn publish(entry: &Entry, kubeconfig: Option<&Path>) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let client = client::client_of_objects(kubeconfig).await?;
        status_publisher::publish(&client, entry)
            .await
            .map_err(|why| Failure::new(format!("network-status of {}: {why}", entry.container_id)))?;
        events::publish(client, entry).await;
        Ok(())
    })
}
