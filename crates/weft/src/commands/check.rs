//! `weft check`: runs CHECK for every plugin in a sandbox and reports attachments that changed.

use clap::Args;
use npwg::plan::PodIdentity;
use rpc::journal::{Entry, Unchecked};
use serde::Serialize;

use crate::attachments::{NamedAttachment, named_attachments};
use crate::cluster_access::ClusterAccess;
use crate::commands::detach::operations_on;
use crate::known_journals::{JournalHandle, Target};
use crate::manifest_plan::Inputs;
use crate::place::require_host;
use crate::remote_node::{Needs, RemoteNode};
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output::{Output, Progress};
use cli_support::terminal::plain;
use node_support::weft_cni::{Plugins, WeftCni};

/// Arguments of `weft check`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft check -n my-namespace my-pod
  weft check my-namespace/my-pod -o json

Built-in plugins are checked in every cniVersion. External plugins are not called if the cniVersion is below 0.4.0: then
only interface and addresses are compared. Networks with disableCheck are skipped. The output names what was not checked.

{EXIT_CODES} A changed attachment and a pod without attachments are failures."))]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    remote: RemoteNode,
    #[command(flatten)]
    cluster: ClusterAccess,
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    plugins: Plugins,
    #[command(flatten)]
    output: Output,
}

/// Document for `-o json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CheckedSandbox<'a> {
    pod: &'a PodIdentity,
    container_id: &'a str,
    attachments: Vec<NamedAttachment<'a>>,
    /// Whether everything that was checked is unchanged.
    unchanged: bool,
    /// Plugins that were not called.
    unchecked: Vec<Unchecked>,
    /// First difference, or the reason why a plugin could not check.
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
}

/// Runs `weft check`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { target, inputs, plugins, output: Output { format }, .. } = arguments;
    let node_pod = target.pod()?;
    if let Some(done) = arguments.remote.run(&arguments.cluster, node_pod.as_ref(), Needs::Namespaces) {
        return done;
    }
    require_host("check", "it enters network namespaces")?;
    let weft_cni = WeftCni::find()?;
    let progress = Progress::beside(*format);
    let subject = target.describe()?;
    let step = format!("check {subject}");
    let sandbox = target.find(&JournalHandle::all(inputs)?).map_err(|failure| failure.context(&step))?;
    let Some((handle, entry)) = sandbox else {
        return Err(Failure::new(format!("{step}: no attachments"))
            .next("weft list shows the attachments of this node"));
    };
    let checked = operations_on(&weft_cni, &handle, &entry, plugins, progress)?.check();
    let checked = checked.map_err(|failure| failure.context(&step));
    if let Some(printed) = format.print(&document(&entry, checked.as_ref().err())) {
        return printed.and(checked);
    }
    checked?;
    let (count, unchecked) = (entry.plan.delegates.len(), entry.unchecked());
    progress.line(plain(&format!("{subject}: {}", summary(count, unchecked.len()))));
    for one in unchecked {
        progress.line(plain(&format!("  not checked: {one}")));
    }
    Ok(())
}

fn document<'a>(entry: &'a Entry, failure: Option<&Failure>) -> CheckedSandbox<'a> {
    CheckedSandbox {
        pod: &entry.plan.pod,
        container_id: entry.container_id.as_str(),
        attachments: named_attachments(entry).collect(),
        unchanged: failure.is_none(),
        unchecked: entry.unchecked(),
        error: failure.map(ToString::to_string).unwrap_or_default(),
    }
}

/// Returns the result for `count` networks without a difference, `partly` of which had plugins that were not
/// checked.
fn summary(count: usize, partly: usize) -> String {
    match (count, partly) {
        (1, 0) => "its only network is unchanged".to_owned(),
        (count, 0) => format!("all {count} networks are unchanged"),
        (1, _) => "no difference found; its only network was not fully checked".to_owned(),
        (count, partly) => format!("no difference found; {partly} of {count} networks not fully checked"),
    }
}

#[cfg(test)]
mod tests {
    use super::summary;

    #[test]
    fn check_summary_has_singular_and_plural() {
        assert_eq!(summary(1, 0), "its only network is unchanged");
        assert_eq!(summary(3, 0), "all 3 networks are unchanged");
        assert_eq!(summary(1, 1), "no difference found; its only network was not fully checked");
        assert_eq!(summary(3, 1), "no difference found; 1 of 3 networks not fully checked");
    }
}
