//! `weft network`: sets, lists, shows and removes a node's CRI networks through the runtime's socket.

mod document;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use tonic::{Code, Status};

use cli_support::failure::{EXIT_CODES, Exit, Failure};
use cli_support::output;
use cli_support::output::{Format, Output, Progress};
use cli_support::privilege;
use cli_support::table;
use cli_support::terminal::plain;
use cri::network_api::PROXY_SOCKET;
use cri::network_api::{Name, Network, NetworkConfig, NetworkMetadata, conflist};
use cri::network_client::{Client, InUse};

/// Arguments of `weft network`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft network set -f red.yaml
  weft network set -f /etc/cni/net.d/20-blue.conflist --name blue
  weft network list
  weft network list -n my-namespace
  weft network show red
  weft network rm -n my-namespace red blue

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: NetworkCommand,
}

#[derive(Debug, Subcommand)]
enum NetworkCommand {
    /// Create or replace networks
    Set(Set),
    /// List all networks and their state
    List(List),
    /// Show one network and its plugin configuration
    Show(Show),
    /// Remove networks
    #[command(visible_alias = "delete")]
    Rm(Remove),
}

/// Option for the socket of the API.
#[derive(Clone, Debug, Args)]
struct Server {
    /// Path to the socket of weft cri-proxy or of a runtime with the CRI Network API
    #[arg(long, default_value = PROXY_SOCKET, value_name = "PATH")]
    socket: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  weft network set -f red.yaml")]
struct Set {
    /// File with networks (YAML or JSON documents) or with a CNI configuration list; - for stdin; may be repeated
    #[arg(short = 'f', long = "file", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Name of the network, for a CNI configuration list (default: the name in the list)
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    name: Option<String>,
    /// Namespace of networks without one
    #[arg(short = 'n', long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  weft network list -o json | jq -r '.[].config.metadata.name'")]
struct List {
    /// List the networks of this namespace (default: all networks)
    #[arg(short = 'n', long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  weft network show _fallback")]
struct Show {
    /// Name of the network
    #[arg(value_name = "[NAMESPACE/]NAME")]
    name: String,
    /// Namespace of a name without one (default: none)
    #[arg(short = 'n', long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  weft network rm red --drain")]
struct Remove {
    /// Names of the networks
    #[arg(value_name = "[NAMESPACE/]NAME", required = true)]
    names: Vec<String>,
    /// Namespace of names without one (default: none)
    #[arg(short = 'n', long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Drain a network in use: refuse new sandboxes and remove the network with its last one
    #[arg(long)]
    drain: bool,
    #[command(flatten)]
    server: Server,
}

/// Runs `weft network`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    cli_support::async_runtime::runtime()?.block_on(async {
        match &arguments.command {
            NetworkCommand::Set(arguments) => set(arguments).await,
            NetworkCommand::List(arguments) => list(arguments).await,
            NetworkCommand::Show(arguments) => show(arguments).await,
            NetworkCommand::Rm(arguments) => remove(arguments).await,
        }
    })
}

async fn connect(server: &Server) -> Result<Client, Failure> {
    // The error of the kernel is clearer than that of the HTTP/2 library.
    if let Err(cause) = tokio::net::UnixStream::connect(&server.socket).await
        && cause.kind() == std::io::ErrorKind::PermissionDenied
    {
        return Err(privilege::refused(&format!("connect to {}", server.socket.display()), &cause));
    }
    let connected = Client::connect(&server.socket).await;
    connected.map_err(|status| {
        failure(&status).next("start weft cri-proxy, or name its socket with --socket; only root may connect")
    })
}

/// Converts a gRPC status into a failure with the server's message.
fn failure(status: &Status) -> Failure {
    let failure = Failure::new(status.message());
    match status.code() {
        Code::Unimplemented => failure
            .next("this socket belongs to a runtime without the CRI Network API; name the socket of weft cri-proxy with --socket"),
        Code::InvalidArgument => failure.exit(Exit::Usage),
        _ => failure,
    }
}

async fn set(arguments: &Set) -> Result<(), Failure> {
    let Set { files, name, namespace, server, output } = arguments;
    let mut configs = document::read(files, name.as_deref())?;
    for (place, config) in &mut configs {
        set_namespace(config, namespace.as_deref()).map_err(|failure| failure.context(&place))?;
    }
    let client = connect(server).await?;
    let progress = Progress::beside(output.format);
    let mut networks = Vec::new();
    for (place, config) in configs {
        let set = client.set(config).await.map_err(|status| failure(&status).context(&place))?;
        progress.line(plain(&format!("{} is set, generation {}", label(&set), metadata(&set).generation)));
        networks.push(set);
    }
    match output.format {
        Format::Json | Format::Yaml => output::print_document(output.format, &networks),
        Format::Text | Format::Wide => Ok(()),
    }
}

async fn list(arguments: &List) -> Result<(), Failure> {
    let List { namespace, server, output } = arguments;
    let mut networks = connect(server).await?.list().await.map_err(|status| failure(&status))?;
    if let Some(namespace) = namespace {
        networks.retain(|network| metadata(network).namespace == *namespace);
    }
    match output.format {
        Format::Json | Format::Yaml => output::print_document(output.format, &networks),
        Format::Text | Format::Wide if networks.is_empty() => output::print("no networks\n"),
        Format::Text | Format::Wide => {
            let rows: Vec<Vec<String>> = networks.iter().map(row).collect();
            let headings = ["network", "generation", "version", "plugins", "ranges", "managed", "connected"];
            output::print(&table::lay_out(&headings, &rows, 0))
        }
    }
}

fn row(network: &Network) -> Vec<String> {
    let config = network.config.clone().unwrap_or_default();
    let status = network.status.clone().unwrap_or_default();
    let cni = config.cniv1_config.unwrap_or_default();
    let yes_or_no = |holds: bool| if holds { "yes" } else { "no" }.to_owned();
    let ranges: Vec<String> = config.ip_ranges.into_iter().map(|range| range.cidr).collect();
    let plugins: Vec<String> = cni.plugins.into_iter().map(|plugin| plugin.r#type).collect();
    vec![
        label(network),
        metadata(network).generation.to_string(),
        cni.cni_version,
        plugins.join(" → "),
        if ranges.is_empty() { "-".to_owned() } else { ranges.join(",") },
        yes_or_no(status.sandbox_management),
        yes_or_no(status.connectivity),
    ]
}

async fn show(arguments: &Show) -> Result<(), Failure> {
    let Show { name, namespace, server, output } = arguments;
    let name = name_within(namespace.as_deref(), name);
    let networks = connect(server).await?.list().await.map_err(|status| failure(&status))?;
    let network = find(&networks, &name)?;
    if output.format.is_document() {
        return output::print_document(output.format, network);
    }
    let config = network.config.clone().unwrap_or_default();
    let rows = vec![row(network)];
    let headings = ["network", "generation", "version", "plugins", "ranges", "managed", "connected"];
    let metadata = metadata(network);
    let list = conflist::render(&config.cniv1_config.unwrap_or_default(), &metadata.name)?;
    let list: serde_json::Value =
        serde_json::from_str(&list).map_err(|cause| Failure::new(format!("network {name}: {cause}")))?;
    let pretty = serde_json::to_string_pretty(&list)
        .map_err(|cause| Failure::new(format!("encode network {name}: {cause}")))?;
    output::print(&format!("{}\n{pretty}\n", table::lay_out(&headings, &rows, 0)))
}

/// Returns a network's name; `namespace` is for a name without one.
fn name_within(namespace: Option<&str>, text: &str) -> Name {
    let Name { namespace: own, name } = Name::read(text);
    let namespace = if own.is_empty() { namespace.unwrap_or_default().to_owned() } else { own };
    Name { namespace, name }
}

/// Sets the namespace for a network that has none.
///
/// # Errors
/// It has another one: a usage error, as for kubectl.
fn set_namespace(config: &mut NetworkConfig, namespace: Option<&str>) -> Result<(), Failure> {
    let Some(namespace) = namespace else { return Ok(()) };
    let metadata = config.metadata.get_or_insert_default();
    if metadata.namespace.is_empty() {
        namespace.clone_into(&mut metadata.namespace);
    }
    match metadata.namespace == namespace {
        true => Ok(()),
        false => {
            let why = format!(
                "the network has the namespace {:?}, not that of -n, {namespace:?}",
                metadata.namespace
            );
            Err(Failure::new(why).next("omit -n, or correct the file").exit(Exit::Usage))
        }
    }
}

/// Returns the network with this name.
fn find<'a>(networks: &'a [Network], name: &Name) -> Result<&'a Network, Failure> {
    let wanted = name.to_string();
    networks.iter().find(|network| label(network) == wanted).ok_or_else(|| {
        let names: Vec<String> = networks.iter().map(label).collect();
        let available = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Failure::new(format!("network {name}: not found")).next(format!("available networks: {available}"))
    })
}

async fn remove(arguments: &Remove) -> Result<(), Failure> {
    let Remove { names, namespace, drain, server } = arguments;
    let client = connect(server).await?;
    let networks = client.list().await.map_err(|status| failure(&status))?;
    let in_use = if *drain { InUse::Drained } else { InUse::Refused };
    let progress = Progress::beside(Format::Text);
    let mut failures: Option<Failure> = None;
    for network in names.iter().map(|name| name_within(namespace.as_deref(), name)) {
        let Name { namespace, name } = network.clone();
        let metadata = NetworkMetadata { name, namespace, ..NetworkMetadata::default() };
        // The runtime accepts the removal of a network that it does not have, which hides a misspelt name.
        let removed = match find(&networks, &network) {
            Ok(_) => client.remove(metadata, in_use).await.map_err(|status| failure(&status)),
            Err(unknown) => Err(unknown),
        };
        match removed {
            Ok(()) => {
                let state = if *drain {
                    "is removed, or drains until its last sandbox is removed"
                } else {
                    "is removed"
                };
                progress.line(plain(&format!("{network} {state}")));
            }
            Err(failed) => {
                failures = Some(match failures {
                    Some(before) => before.also(Some(failed)),
                    None => failed,
                });
            }
        }
    }
    failures.map_or(Ok(()), Err)
}

fn metadata(network: &Network) -> NetworkMetadata {
    network.config.as_ref().and_then(|config: &NetworkConfig| config.metadata.clone()).unwrap_or_default()
}

fn label(network: &Network) -> String {
    Name::of(&metadata(network)).to_string()
}
