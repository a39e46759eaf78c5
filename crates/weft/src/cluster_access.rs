//! Options that select a cluster, as kubectl has them, and the client for it.

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use kube::Client;

use cli_support::async_runtime::runtime;
use cli_support::failure::Failure;
use ipam_api::cluster_snapshot::SnapshotError;
use kube_support::{api_error, client};

/// Options that select a cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterAccess {
    options: ClusterOptions,
    /// Whether an option of the command line names the cluster, not only the variable KUBECONFIG.
    is_given: bool,
}

/// Options as the command line and the environment have them.
#[derive(Clone, Debug, Default, Args)]
struct ClusterOptions {
    /// Path to a kubeconfig (default: in-cluster configuration in a pod, else ~/.kube/config)
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", value_parser = client::path, global = true)]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig (default: its current context)
    #[arg(long, value_name = "NAME", global = true)]
    context: Option<String>,
}

/// Returns the failure if a cluster's pools and pods cannot be read, with the next step.
pub(crate) fn snapshot_failure(error: &SnapshotError) -> Failure {
    match error {
        SnapshotError::List { kind, error } => api_error::failure(format_args!("list {kind}"), error),
        SnapshotError::Late { .. } => Failure::new(error.to_string()),
    }
}

// === impl ClusterAccess ===

impl ClusterAccess {
    /// Whether the options or the environment name a cluster.
    pub(crate) fn is_named(&self) -> bool {
        let is_path = |path: &PathBuf| !path.as_os_str().is_empty();
        self.options.kubeconfig.as_ref().is_some_and(is_path) || self.options.context.is_some()
    }

    /// Whether the command line has `--kubeconfig` or `--context`. A command that can also read this node then reads
    /// the cluster. The variable KUBECONFIG does not decide that: many nodes set it for each shell.
    pub(crate) fn is_given(&self) -> bool {
        self.is_given
    }

    /// Returns the given namespace, or, as kubectl does, the one in the context, or this pod's.
    ///
    /// # Errors
    /// The kubeconfig is unusable.
    pub(crate) fn namespace(&self, given: Option<&str>) -> Result<String, Failure> {
        let ClusterOptions { kubeconfig, context } = &self.options;
        match given {
            Some(given) => Ok(given.to_owned()),
            None => {
                runtime()?.block_on(client::namespace_of_person(kubeconfig.as_deref(), context.as_deref()))
            }
        }
    }

    /// Returns the options for kubectl. The variable KUBECONFIG reaches it without an option.
    pub(crate) fn kubectl_options(&self) -> Vec<std::ffi::OsString> {
        let ClusterOptions { kubeconfig, context } = &self.options;
        let kubeconfig = kubeconfig.iter().filter(|path| !path.as_os_str().is_empty());
        let kubeconfig = kubeconfig.flat_map(|path| ["--kubeconfig".into(), path.clone().into_os_string()]);
        let context = context.iter().flat_map(|name| ["--context".into(), name.into()]);
        kubeconfig.chain(context).collect()
    }

    /// Returns a client for the cluster.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        let ClusterOptions { kubeconfig, context } = &self.options;
        client::client_of_person(kubeconfig.as_deref(), context.as_deref()).await
    }
}

impl Args for ClusterAccess {
    fn augment_args(command: Command) -> Command {
        ClusterOptions::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        ClusterOptions::augment_args_for_update(command)
    }
}

impl FromArgMatches for ClusterAccess {
    fn from_arg_matches(matches: &ArgMatches) -> Result<ClusterAccess, clap::Error> {
        let mut access = ClusterAccess::default();
        access.update_from_arg_matches(matches)?;
        Ok(access)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let is_given = |option| matches.value_source(option) == Some(ValueSource::CommandLine);
        self.options = ClusterOptions::from_arg_matches(matches)?;
        // An empty path counts as no option, also below.
        let has_path = self.options.kubeconfig.as_ref().is_some_and(|path| !path.as_os_str().is_empty());
        self.is_given = (is_given("kubeconfig") && has_path) || is_given("context");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// Command with a subcommand, as `weft ipam` is.
    #[derive(Debug, Parser)]
    struct Outer {
        #[command(flatten)]
        access: ClusterAccess,
        #[command(subcommand)]
        inner: Option<Inner>,
    }

    #[derive(Debug, clap::Subcommand)]
    enum Inner {
        Show,
    }

    #[test]
    fn kubeconfig_or_context_on_the_command_line_is_given() {
        for (line, is_named, is_given) in [
            ("weft", false, false),
            ("weft --context blue", true, true),
            ("weft --kubeconfig a.yaml", true, true),
            ("weft show --context=blue", true, true),
            ("weft show", false, false),
            ("weft --kubeconfig=", false, false),
        ] {
            let words = line.split(' ');
            let Outer { access, inner } = Outer::try_parse_from(words).unwrap();
            // The environment of this test may have the variable.
            let is_named = is_named || std::env::var_os("KUBECONFIG").is_some_and(|path| !path.is_empty());
            assert_eq!((access.is_named(), access.is_given()), (is_named, is_given), "{line}");
            assert_eq!(inner.is_some(), line.contains("show"), "{line}");
        }
    }
}
