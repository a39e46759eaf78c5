//! `weft migrate`: moves the nodes of a cluster from Multus to weft, or from whereabouts' program to weft-ipam, one after
//! the other.
//!
//! ```text
//!   weft migrate multus ── kubectl ──► cordon, label ──► DaemonSets of Multus and weft
//!                          └─ pods ──► weft import multus on the node
//! ```
//!
//! - A node is moved by a label: Multus runs where it is set, weft where it is not (docs/migrate-from-multus.md).
//! - Work on a node's files is done by a pod with the image of weft that exists only for that ([`node_job`]).
//! - The state of a migration is in the cluster: label and annotation of each node. A command that was interrupted is
//!   repeated and continues with the node it was at. A node that fails stops the command and stays cordoned.
//! - Everything is done with kubectl and the rights of the caller.

mod node_job;
mod nodes;

use clap::{Args, Subcommand};

use crate::cluster_access::ClusterAccess;
use crate::kubectl::Kubectl;
use cli_support::duration::seconds;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output::{self, Format, Progress};
use cli_support::terminal::plain;
use nodes::{Migration, NodeState};

/// Arguments of `weft migrate`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft migrate check
  weft migrate multus
  weft migrate multus worker-1 --drain
  weft migrate multus worker-1 --back
  weft migrate whereabouts

Before the first node, label the nodes and restrict the DaemonSet of Multus: docs/migrate-from-multus.md. kubectl must be
in PATH.

{EXIT_CODES} A node that cannot be moved is a failure."))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    step: Step,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    cluster: ClusterAccess,
}

/// Options of every step.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Namespace of weft, and of Multus
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system", global = true)]
    namespace: String,
    /// Image of weft for the work on the nodes (default: that of the DaemonSet weft-agent)
    #[arg(long, value_name = "IMAGE", global = true)]
    image: Option<String>,
    /// CNI configuration directory of the nodes
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d", global = true)]
    conf_dir: String,
    /// CNI plugin directory of the nodes
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin", global = true)]
    bin_dir: String,
    /// Label of the nodes that have Multus
    #[arg(long, value_name = "KEY=VALUE", default_value = "network=multus", global = true)]
    label: String,
    /// DaemonSet of Multus
    #[arg(long, value_name = "NAME", default_value = "kube-multus-ds", global = true)]
    daemonset: String,
    /// ConfigMap with the configuration of the Multus daemon, if there is one
    #[arg(long, value_name = "NAME", default_value = "multus-daemon-config", global = true)]
    daemon_config: String,
    /// Timeout of each wait, in seconds or as 5m
    #[arg(long, default_value = "300", value_name = "DURATION", value_parser = seconds, global = true)]
    timeout: u64,
}

#[derive(Debug, Subcommand)]
enum Step {
    /// Say for each node what was found, and what a migration would do; change nothing
    #[command(after_help = "Example:\n  weft migrate check\n  weft migrate check worker-1")]
    Check {
        /// Name of a node (default: all nodes)
        #[arg(value_name = "NODE")]
        nodes: Vec<String>,
    },
    /// Move nodes from Multus to weft
    #[command(after_help = "Example:\n  weft migrate multus\n  weft migrate multus worker-1 --back")]
    Multus {
        /// Name of a node (default: all nodes that are not moved yet)
        #[arg(value_name = "NODE")]
        nodes: Vec<String>,
        /// Also drain each node before it is moved (default: its pods keep running)
        #[arg(long)]
        drain: bool,
        /// Give the nodes back to Multus; they are drained, because Multus does not know the pods of weft
        #[arg(long, requires = "nodes")]
        back: bool,
    },
    /// Install weft-ipam under the name whereabouts, after the import of its addresses
    #[command(after_help = "Example:\n  weft migrate whereabouts\n  weft migrate whereabouts worker-1")]
    Whereabouts {
        /// Name of a node (default: all nodes)
        #[arg(value_name = "NODE")]
        nodes: Vec<String>,
    },
}

/// Runs `weft migrate`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { step, options, cluster } = arguments;
    let kubectl = Kubectl::new(cluster);
    let migration = Migration::new(&kubectl, options)?;
    match step {
        Step::Check { nodes } => check(&migration, nodes),
        Step::Multus { nodes, back: true, .. } => each(&migration, nodes, |state| migration.give_back(state)),
        Step::Multus { nodes, drain, .. } => {
            each(&migration, nodes, |state| migration.take_over(state, *drain))
        }
        Step::Whereabouts { nodes } => {
            migration.refuse_running_whereabouts()?;
            each(&migration, nodes, |state| {
                let words = ["/weft-cni", "install", &options.bin_dir];
                let names = ["--names", "whereabouts,weft-ipam", "--replace"];
                migration
                    .job(&state.name)
                    .run(&[words.as_slice(), &names].concat())
                    .map(|output| vec![output])
            })
        }
    }
}

/// Changes the nodes one after the other, and ends at the first failure.
fn each(
    migration: &Migration<'_>,
    wanted: &[String],
    change: impl Fn(&NodeState) -> Result<Vec<String>, Failure>,
) -> Result<(), Failure> {
    let progress = Progress::beside(Format::Text);
    for state in migration.nodes(wanted)? {
        let lines = change(&state).map_err(|failure| failure.context(format!("node {}", state.name)))?;
        for line in lines.iter().flat_map(|text| text.lines()) {
            progress.line(plain(&format!("{}: {line}", state.name)));
        }
    }
    Ok(())
}

/// Says for each node what is there. The nodes are independent, so a failure does not end it.
fn check(migration: &Migration<'_>, wanted: &[String]) -> Result<(), Failure> {
    let mut failed = Vec::new();
    for state in migration.nodes(wanted)? {
        let mut text = format!("node {}: {}\n", state.name, state.describe());
        let looked = migration.look(&state);
        let outcome = match &looked {
            Ok(output) => output.clone(),
            Err(failure) => {
                failed.push(state.name.clone());
                failure.to_string()
            }
        };
        text.extend(outcome.lines().map(|line| format!("  {}\n", plain(line))));
        output::print(&text)?;
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "{} of the nodes cannot be moved as they are: {}",
            failed.len(),
            failed.join(", ")
        ))),
    }
}
