//! Options that select a cluster, as kubectl has them, and the client for it.

use std::path::PathBuf;

use clap::Args;
use kube::Client;

use cli_support::failure::Failure;
use kube_support::client;

/// Options that select a cluster.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ClusterAccess {
    /// Path to a kubeconfig (default: in-cluster configuration in a pod, else ~/.kube/config)
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", value_parser = client::path, global = true)]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig (default: its current context)
    #[arg(long, value_name = "NAME", global = true)]
    context: Option<String>,
}

impl ClusterAccess {
    /// Whether the options or the environment name a cluster.
    pub(crate) fn is_named(&self) -> bool {
        let is_path = |path: &PathBuf| !path.as_os_str().is_empty();
        self.kubeconfig.as_ref().is_some_and(is_path) || self.context.is_some()
    }

    /// Returns a client for the cluster.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        client::client_of_person(self.kubeconfig.as_deref(), self.context.as_deref()).await
    }
}
