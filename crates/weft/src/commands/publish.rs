//! `weft publish`: writes the network-status of one sandbox once. The meta-plugin runs it on nodes without an agent.

use std::path::PathBuf;

use clap::Args;
use cni::name::ContainerId;
use rpc::journal;

use cli_support::failure::{EXIT_CODES, Failure};
use kube_support::client;
use node_support::journal_reader::Journal;

/// Arguments of `weft publish`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft publish --container-id 8a3c… --kubeconfig /etc/kubernetes/weft.conf

Nodes with an agent do not need this command.

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Container ID of the sandbox
    #[arg(long, value_name = "ID", value_parser = ContainerId::new)]
    container_id: ContainerId,
    /// Directory of the journal (cniDir of the meta-plugin)
    #[arg(long, default_value = journal::DIRECTORY, value_name = "DIR")]
    journal: PathBuf,
    /// Path to a kubeconfig (default: in-cluster configuration)
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", value_parser = client::path)]
    kubeconfig: Option<PathBuf>,
}

/// Runs `weft publish`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { container_id, journal, kubeconfig } = arguments;
    let entry = Journal::at(&journal.join(journal::ENTRIES)).entry(container_id)?;
    match entry.filter(|entry| entry.complete) {
        Some(entry) => node_agent::publish(&entry, kubeconfig.as_deref()),
        None => Err(Failure::new(format!("sandbox {container_id} is not attached"))),
    }
}
