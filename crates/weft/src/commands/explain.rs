//! `weft explain`: prints the plan for a pod and the source of each decision, or the verdict of network policies on a
//! connection. It changes nothing. Without files, pod and definitions are those of a cluster.

mod cluster;
mod connection;

use std::fmt::Write;

use clap::Args;
use npwg::explain::{self, Row};
use npwg::plan::{Decision, Plan, PodIdentity, Role};
use npwg::refusal::Warning;
use serde::Serialize;

use crate::cluster_access::ClusterAccess;
use crate::manifest_plan::{Inputs, LoadedInputs};
use crate::pod_name::PodName;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output;
use cli_support::output::{Format, Output};
use cli_support::terminal::plain;

/// Arguments of `weft explain`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft explain -n my-namespace my-pod
  weft explain -n my-namespace my-pod -f examples/
  weft explain --from a/web --to b/db --network shared/net-a --tcp 5432 -f manifests/

Without -f, and without manifestDir in the configuration of this machine, the pod is one of the cluster. The plan is the
same as that of `weft attach` and of the meta-plugin for the same files. Devices are known on the node only: the plan
shows which networks take one. Root is not required.

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Name of the pod, or of the workload with its pod template; or NAMESPACE/NAME
    #[arg(value_name = "POD", required_unless_present = "from", conflicts_with = "from")]
    pod: Option<String>,
    #[command(flatten)]
    connection: connection::Options,
    /// Namespace of the pod
    #[arg(short = 'n', long, default_value = "default")]
    namespace: String,
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    cluster: ClusterAccess,
    #[command(flatten)]
    output: Output,
}

/// Document of `-o json`.
#[derive(Serialize)]
struct Explanation<'a> {
    pod: &'a PodIdentity,
    configuration: &'a str,
    networks: Vec<Row>,
    warnings: &'a [Warning],
}

/// Runs `weft explain`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { pod, connection, namespace, inputs, cluster, output } = arguments;
    let Some(pod) = pod else {
        return connection::run(connection, namespace, inputs, output.format);
    };
    let pod = PodName::within(namespace, pod)?;
    let loaded = match cluster::is_wanted(inputs)? {
        (true, found) => cluster::load(cluster, found, &pod)?,
        (false, _) => inputs.read()?,
    };
    let plan =
        loaded.expected_plan(&pod).map_err(|failure| failure.context(format_args!("explain {pod}")))?;
    match output.format {
        Format::Json | Format::Yaml => output::print_document(
            output.format,
            &Explanation {
                pod: &plan.pod,
                configuration: &loaded.meta_plugin.file,
                networks: explain::rows(&plan),
                warnings: &plan.warnings,
            },
        ),
        Format::Text | Format::Wide => output::print(&describe(&plan, &loaded)),
    }
}

fn describe(plan: &Plan, loaded: &LoadedInputs) -> String {
    let PodIdentity { namespace, name, uid: _ } = &plan.pod;
    let count = match plan.delegates.len() {
        1 => "1 network".to_owned(),
        count => format!("{count} networks"),
    };
    let mut output_text =
        plain(&format!("pod {namespace}/{name}: {count}, configured by {}", loaded.meta_plugin.file));
    output_text.push('\n');
    for row in explain::rows(plan) {
        describe_row(&mut output_text, &row);
    }
    for warning in &plan.warnings {
        let Warning { event: _, fault } = warning;
        let _ = write!(output_text, "\nwarning: {} [{}]\n", plain(&fault.to_string()), fault.rule);
    }
    output_text
}

fn describe_row(output_text: &mut String, row: &Row) {
    let Row { network, role, interface, config_name: _, chain, because, requests } = row;
    let role = match role {
        Role::Default => "the default network",
        Role::Every => "a network of every pod",
        Role::Selected => "selected by the pod",
    };
    let title = format!("{interface}  {network}  {}  ({role})", chain.join(" → "));
    // Writing to a string cannot fail.
    let _ = write!(output_text, "\n{}\n", plain(&title));
    for Decision { what, value, why } in because.iter().chain(requests) {
        let _ = writeln!(output_text, "      {:<14}{}  ({})", plain(what), plain(value), plain(why));
    }
}
