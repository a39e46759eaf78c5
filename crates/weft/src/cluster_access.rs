//! Options that select a cluster, as kubectl has them, and the client for it.

use std::path::PathBuf;

use clap::Args;
use kube::Client;

use cli_support::async_runtime::runtime;
use cli_support::failure::Failure;
use ipam_api::cluster_snapshot::SnapshotError;
use kube_support::{api_error, client};

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

/// Returns the failure to read pools and pods of a cluster, with the next step.
pub(crate) fn snapshot_failure(error: &SnapshotError) -> Failure {
    match error {
        SnapshotError::List { kind, error } => api_error::failure(format_args!("list {kind}"), error),
        SnapshotError::Late { .. } => Failure::new(error.to_string()),
    }
}

impl ClusterAccess {
    /// Whether the options or the environment name a cluster.
    pub(crate) fn is_named(&self) -> bool {
        let is_path = |path: &PathBuf| !path.as_os_str().is_empty();
        self.kubeconfig.as_ref().is_some_and(is_path) || self.context.is_some()
    }

    /// Returns the given namespace, or as kubectl does that of the context, or of this pod.
    ///
    /// # Errors
    /// The kubeconfig is unusable.
    pub(crate) fn namespace(&self, given: Option<&str>) -> Result<String, Failure> {
        let (path, context) = (self.kubeconfig.as_deref(), self.context.as_deref());
        match given {
            Some(given) => Ok(given.to_owned()),
            None => runtime()?.block_on(client::namespace_of_person(path, context)),
        }
    }

    /// Returns a client for the cluster.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        client::client_of_person(self.kubeconfig.as_deref(), self.context.as_deref()).await
    }
}
