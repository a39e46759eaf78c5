//! `weft explain`: the plan a pod gets and where each decision came from; nothing is changed.

use std::fmt::Write;

use clap::Args;
use npwg::explain::{self, Row};
use npwg::plan::{Decision, Plan, PodIdentity, Role};
use npwg::refusal::Warning;
use serde::Serialize;

use crate::manifest_plan::{Inputs, Material};
use crate::pod_name::PodName;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output;
use cli_support::output::{Format, Output};
use cli_support::terminal::plain;

/// What `weft explain` is told.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft explain -n my-namespace my-pod -f examples/

The plan is the same as that of `weft attach` and of the meta-plugin for the same files. Root is not required.

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Name of the pod, or of the workload with its pod template
    #[arg(value_name = "POD")]
    pod: String,
    /// Namespace of the pod
    #[arg(short = 'n', long, default_value = "default")]
    namespace: String,
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    output: Output,
}

/// What a program reads.
#[derive(Serialize)]
struct Explanation<'a> {
    pod: &'a PodIdentity,
    configuration: &'a str,
    networks: Vec<Row>,
    warnings: &'a [Warning],
}

/// Does it.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { pod, namespace, inputs, output } = arguments;
    let pod = PodName::new(namespace, pod)
        .map_err(|error| Failure::new(error.to_string()).exit(cli_support::failure::Exit::Usage))?;
    let material = inputs.read()?;
    let plan = material.plan(&pod).map_err(|failure| failure.context(format_args!("explain {pod}")))?;
    match output.format {
        Format::Json => output::print_json(&Explanation {
            pod: &plan.pod,
            configuration: &material.meta_plugin.file,
            networks: explain::rows(&plan),
            warnings: &plan.warnings,
        }),
        Format::Text => output::print(&describe(&plan, &material)),
    }
}

fn describe(plan: &Plan, material: &Material) -> String {
    let PodIdentity { namespace, name, uid: _ } = &plan.pod;
    let count = match plan.delegates.len() {
        1 => "1 network".to_owned(),
        count => format!("{count} networks"),
    };
    let mut text = plain(&format!("pod {namespace}/{name}: {count}, by {}", material.meta_plugin.file));
    text.push('\n');
    for row in explain::rows(plan) {
        describe_row(&mut text, &row);
    }
    for warning in &plan.warnings {
        let Warning { event: _, fault } = warning;
        let _ = write!(text, "\nwarning: {} [{}]\n", plain(&fault.to_string()), fault.rule);
    }
    text
}

fn describe_row(text: &mut String, row: &Row) {
    let Row { network, role, interface, config_name: _, chain, because, requests } = row;
    let role = match role {
        Role::Default => "the default network",
        Role::Every => "a network of every pod",
        Role::Selected => "selected by the pod",
    };
    let title = format!("{interface}  {network}  {}  ({role})", chain.join(" → "));
    // Writing to a text cannot fail.
    let _ = write!(text, "\n{}\n", plain(&title));
    for Decision { what, value, why } in because.iter().chain(requests) {
        let _ = writeln!(text, "      {:<14}{}  ({})", plain(what), plain(value), plain(why));
    }
}
