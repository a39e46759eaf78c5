//! `weft cri-proxy`: adds the CRI Network API to a container runtime that does not implement it.
//!
//! ```text
//!   kubelet, weft network, … ──► server ──► calls ──┬─► backend ──► containerd, CRI-O ── CNI ──► weft-cni
//!                                                   └─► networks (store, fallback)                  │
//!                                       plan ◄── request handler ◄───────── plan request ───────────┘
//! ```
//!
//! - Calls that the proxy does not know are forwarded as HTTP/2, byte for byte, so that calls and fields from newer CRI
//!   releases pass.
//! - The proxy may start before the runtime, and it keeps running while the runtime restarts.
//! - It keeps nothing essential in memory, so it can be restarted at any time.
//!
//! Source: CRI `runtime.v1`; the proposal «CRI Network API»; docs/cri-networks.md.

#![forbid(unsafe_code)]

mod authority_rewriting;
mod backend;
mod body_rewriting;
mod calls;
mod fallback;
mod lock;
mod network_condition;
mod network_store;
mod networks;
mod parameters;
mod plugin_answers;
mod plugins;
mod relay;
mod reply_rewriting;
mod request_handler;
mod request_networks;
pub mod runtime_network;
mod sandbox;
mod server;
mod unary_message;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rpc::journal as record;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::lock::ProxyLock;
use crate::network_condition::NetworkConditions;
use crate::network_store::Store;
use crate::request_handler::Planner;
use calls::{Calls, NetworkOwner};
use cli_support::background::BackgroundTasks;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::logging::Log;
use cri::network_api::{Name, PROXY_SOCKET};
use cri::runtime_sandboxes;
use cri::runtime_sandboxes::RuntimeSandboxes;
use fallback::Fallback;
use networks::Networks;
use node_support::agent_server::AgentServer;
use node_support::journal_reader::Journal;
use node_support::listener::Listener;
use node_support::sandbox_gc::SandboxGc;
use node_support::sandboxes::{RESCAN, Sandboxes};
use plugins::Plugins;

/// Socket on which the proxy receives plan requests from the meta-plugin.
const PLAN_SOCKET: &str = "/run/weft/networks.sock";

/// Options of `weft cri-proxy`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft cri-proxy --runtime /run/containerd/containerd.sock --runtime-networks /etc/cni/weft

To use the proxy, set `containerRuntimeEndpoint: unix://{PROXY_SOCKET}` in the configuration of the kubelet.

{EXIT_CODES}"))]
pub struct Arguments {
    /// Path to the socket for CRI clients
    #[arg(long, default_value = PROXY_SOCKET, value_name = "PATH")]
    listen: PathBuf,
    /// Path to the container runtime's socket
    #[arg(long, default_value = "/run/containerd/containerd.sock", value_name = "PATH")]
    runtime: PathBuf,
    /// CNI configuration directory of the container runtime, to which the proxy adds its own list (default: the runtime
    /// attaches networks itself)
    #[arg(long, value_name = "DIR")]
    runtime_networks: Option<PathBuf>,
    /// CNI configuration directory whose first network becomes the network _fallback
    #[arg(long, default_value = "/etc/cni/net.d", value_name = "DIR")]
    fallback: PathBuf,
    /// Network for sandboxes that request none (default: _fallback, the first network on disk)
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    default_network: Option<String>,
    /// Directories with external plugins, separated by colons
    #[arg(long, default_value = "/opt/cni/bin", value_name = "DIR:DIR")]
    plugins: String,
    /// Directory for stored networks
    #[arg(long, default_value = "/var/lib/weft/networks", value_name = "DIR")]
    store: PathBuf,
    /// Journal directory (the meta-plugin's cniDir)
    #[arg(long, default_value = record::DIRECTORY, value_name = "DIR")]
    journal: PathBuf,
    /// Path to the socket for the meta-plugin's plan requests
    #[arg(long, default_value = PLAN_SOCKET, value_name = "PATH")]
    plan_socket: PathBuf,
    /// Path to the node agent's socket; the agent plans for sandboxes that request no networks (default: no agent)
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// Reject sandboxes that request networks, because the proxy cannot enforce network policies; set it if the node agent
    /// runs with --policy
    #[arg(long)]
    policy: bool,
    /// Grace period after the runtime removes a sandbox before it is taken down, in seconds (at least 15)
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    orphan_grace: u64,
    #[command(flatten)]
    log: Log,
}

/// Runs the proxy until SIGTERM or SIGINT.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    arguments.log.start()?;
    raise_descriptors();
    cli_support::async_runtime::runtime()?.block_on(work(arguments))
}

/// Raises the open-file limit to the maximum: each client takes two files, and service managers allow only a few.
fn raise_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        warn!(%error, "failed to raise the limit of open files");
    }
}

async fn work(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { listen, runtime, runtime_networks, journal: directory, plan_socket, agent, .. } =
        arguments;
    let grace = Duration::from_secs(arguments.orphan_grace);
    let _lock = ProxyLock::of(&[("--journal", directory), ("--store", &arguments.store)])?;
    refuse_sockets_in_use(&[("--listen", listen), ("--plan-socket", plan_socket)])?;
    let entries = directory.join(record::ENTRIES);
    let journal = Journal::at(&entries);
    let networks = Arc::new(networks(arguments, &journal)?);
    let sandboxes = Arc::new(Sandboxes::of(&entries));
    let background = BackgroundTasks::default();
    background.begin("the journal", follow(Arc::clone(&sandboxes), Arc::clone(&networks)));
    let plan_server = AgentServer::bind(plan_socket)?;
    let listener = Listener::bind(listen)?;
    let owner = owner(runtime_networks.as_deref(), arguments)?;
    let known = Arc::new(RuntimeSandboxes::default());
    if let NetworkOwner::Proxy(directory) = &owner {
        let followed = runtime_sandboxes::follow(runtime.clone(), grace, Arc::clone(&known));
        background.begin("the runtime's sandboxes", followed);
        background.begin("the runtime's list", runtime_network::follow(runtime.clone(), directory.clone()));
    }
    let sandbox_gc = SandboxGc::new(Arc::clone(&sandboxes), known, grace);
    let planner = Arc::new(Planner {
        networks: Arc::clone(&networks),
        runtime: runtime.clone(),
        agent: agent.clone(),
        sandbox_gc,
    });
    let conditions = Arc::new(NetworkConditions::of(networks, sandboxes));
    let calls = Arc::new(Calls { conditions, journal, owner, room: unary_message::room() });
    info!(listen = %listen.display(), runtime = %runtime.display(), ?runtime_networks, "CRI proxy started");
    let (end, mut ended) = watch::channel(());
    let planning = tokio::spawn(plan_server.serve(planner, async move {
        // `changed` fails when the sender is dropped, which also means that the server has ended.
        let _ = ended.changed().await;
    }));
    server::serve(
        listener,
        runtime.clone(),
        calls,
        background.clone().until(cli_support::async_runtime::ended()?),
    )
    .await;
    drop(end);
    let _ = planning.await;
    info!("CRI proxy stopped");
    background.outcome()
}

/// Fails if another process already serves one of the sockets. This proxy would take over the clients of that process,
/// but not the sandboxes.
fn refuse_sockets_in_use(sockets: &[(&str, &Path)]) -> Result<(), Failure> {
    let living = sockets.iter().find(|(_, path)| std::os::unix::net::UnixStream::connect(path).is_ok());
    let Some((option, path)) = living else { return Ok(()) };
    let why = format!("{option} {}: another process listens on it", path.display());
    Err(Failure::new(why).next(format!("stop that process, or set another socket with {option}")))
}

fn networks(arguments: &Arguments, journal: &Journal) -> Result<Networks, Failure> {
    let Arguments { fallback, default_network, plugins, store, .. } = arguments;
    Networks::open(
        Store::open(store)?,
        Plugins::in_path(plugins),
        Fallback::of(fallback),
        default_network.as_deref().map(Name::read),
        journal.clone(),
    )
}

/// Writes the proxy's list into the runtime's CNI directory, if a directory is configured.
fn owner(directory: Option<&Path>, arguments: &Arguments) -> Result<NetworkOwner, Failure> {
    let Some(directory) = directory else { return Ok(NetworkOwner::Runtime) };
    runtime_network::write(
        directory,
        &runtime_network::RuntimeNetwork {
            socket: &arguments.plan_socket,
            journal: &arguments.journal,
            plugins: &arguments.plugins,
            network_policies: arguments.policy,
        },
    )?;
    Ok(NetworkOwner::Proxy(directory.to_owned()))
}

/// Follows the journal, and removes draining networks once they have no sandbox left.
async fn follow(sandboxes: Arc<Sandboxes>, networks: Arc<Networks>) {
    sandboxes.read_all();
    let mut watch = sandboxes.watch();
    loop {
        networks.recover().await;
        networks.finish_draining().await;
        tokio::select! {
            _ = sandboxes.changed(&mut watch) => {}
            () = tokio::time::sleep(RESCAN) => drop(sandboxes.read_all()),
        }
    }
}
