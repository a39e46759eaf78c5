//! `weft explain`: prints the plan for a pod and where each decision comes from, or the network policies'
//! verdict on a connection. It changes nothing. Without files, pod and definitions come from a cluster.

mod cluster_pod;
mod cluster_policies;
mod connection;

use std::fmt::Write;

use clap::Args;
use manifest::DEFAULT_NAMESPACE;
use npwg::explain::{self, Row};
use npwg::plan::{Decision, Plan, PodIdentity, Role};
use npwg::refusal::Warning;
use serde::Serialize;

use crate::attachments::network_count;
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
  weft explain --from a/web --to b/db --network shared/net-a --tcp 5432

Without -f the pod is one of the cluster, unless the configuration of this machine has manifestDir and neither --context
nor --kubeconfig is given. The plan is the same as that of `weft attach` and of the meta-plugin for the same files.
Devices are known on the node only: the plan shows which networks take one. Root is not required.

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Name of the pod, or of the workload with its pod template; or NAMESPACE/NAME
    #[arg(value_name = "POD", required_unless_present = "from", conflicts_with = "from")]
    pod: Option<String>,
    #[command(flatten)]
    connection: connection::Options,
    /// Namespace of the pod (default: of a pod of the cluster that of the kubeconfig's context, else `default`)
    #[arg(short = 'n', long)]
    namespace: Option<String>,
    /// Address of the page of weft (http or https), for links to the pod and its networks
    #[arg(long, env = "WEFT_PAGE", value_name = "URL", value_parser = page_address)]
    page: Option<String>,
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    cluster: ClusterAccess,
    #[command(flatten)]
    output: Output,
}

/// Document for `-o json`.
#[derive(Serialize)]
struct Explanation<'a> {
    pod: &'a PodIdentity,
    configuration: &'a str,
    networks: Vec<Row>,
    warnings: &'a [Warning],
    /// Link to the pod on weft's page.
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<String>,
}

/// Runs `weft explain`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { pod, connection, namespace, page, inputs, cluster, output } = arguments;
    let Some(pod) = pod else {
        return connection::run(connection, namespace.as_deref(), (inputs, cluster), output.format);
    };
    let name = PodName::within(namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE), pod)?;
    let (pod, loaded) = match cluster_pod::is_wanted(inputs, cluster)? {
        (true, found) => {
            let has_namespace = namespace.is_some() || pod.contains('/');
            let name = if has_namespace { name } else { cluster_pod::within_context(cluster, pod)? };
            let loaded = cluster_pod::load(cluster, found, &name)?;
            (name, loaded)
        }
        (false, _) => (name, inputs.read()?),
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
                page: page.as_ref().filter(|page| !page.is_empty()).map(|page| pod_link(page, &plan.pod)),
            },
        ),
        Format::Text | Format::Wide => output::print(&describe(&plan, &loaded, page.as_deref())),
    }
}

/// Parses the page's address. The empty one, as from an empty environment variable, means none.
fn page_address(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    if rest.is_some_and(|host| !host.is_empty()) || text.is_empty() {
        Ok(text.trim_end_matches('/').to_owned())
    } else {
        Err("expected http://HOST[:PORT] or https://HOST".to_owned())
    }
}

fn pod_link(page: &str, pod: &PodIdentity) -> String {
    format!("{page}/pod/{}/{}", pod.namespace, pod.name)
}

fn describe(plan: &Plan, loaded: &LoadedInputs, page: Option<&str>) -> String {
    let PodIdentity { namespace, name, uid: _ } = &plan.pod;
    let count = network_count(plan.delegates.len());
    let mut output_text =
        plain(&format!("pod {namespace}/{name}: {count}, configured by {}", loaded.meta_plugin.file));
    output_text.push('\n');
    let page = page.filter(|page| !page.is_empty());
    if let Some(page) = page {
        let _ = writeln!(output_text, "page: {}", plain(&pod_link(page, &plan.pod)));
    }
    let rows = explain::rows(plan);
    let width = label_width(&rows);
    for row in rows {
        describe_row(&mut output_text, &row, width);
        // A network without a namespace is in a file of the node.
        if let Some(page) = page.filter(|_| row.network.contains('/')) {
            let _ = writeln!(
                output_text,
                "      {:<width$}{}",
                "page",
                plain(&format!("{page}/network/{}", row.network))
            );
        }
    }
    for warning in &plan.warnings {
        let Warning { event: _, fault } = warning;
        let _ = write!(output_text, "\nwarning: {} [{}]\n", plain(&fault.to_string()), fault.rule);
    }
    output_text
}

/// Returns how wide the label column is; every label is shorter.
fn label_width(rows: &[Row]) -> usize {
    let decisions = rows.iter().flat_map(|row| row.because.iter().chain(&row.requests));
    let longest = decisions.map(|decision| plain(&decision.what).chars().count()).max();
    (longest.unwrap_or_default() + 2).max(14)
}

fn describe_row(output_text: &mut String, row: &Row, width: usize) {
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
        let _ = writeln!(output_text, "      {:<width$}{}  ({})", plain(what), plain(value), plain(why));
    }
}
