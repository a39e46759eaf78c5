//! `weft check`: runs CHECK of every plugin of a sandbox and reports attachments that changed.

use clap::Args;
use npwg::plan::PodIdentity;
use rpc::journal::Entry;
use serde::Serialize;

use crate::attachments::{NamedAttachment, named_attachments};
use crate::commands::detach::operations_on;
use crate::known_journals::{JournalHandle, Target};
use crate::manifest_plan::Inputs;
use crate::place::require_host;
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

Networks with a cniVersion below 0.4.0 or with disableCheck are skipped.

{EXIT_CODES} A changed attachment and a pod without attachments are failures."))]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    plugins: Plugins,
    #[command(flatten)]
    output: Output,
}

/// Document of `-o json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CheckedSandbox<'a> {
    pod: &'a PodIdentity,
    container_id: &'a str,
    attachments: Vec<NamedAttachment<'a>>,
    unchanged: bool,
    /// First difference, or the reason why a plugin could not check.
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
}

/// Runs `weft check`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { target, inputs, plugins, output: Output { format } } = arguments;
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
    let count = entry.plan.delegates.len();
    progress.line(plain(&format!("{subject}: {} unchanged", all_networks(count))));
    Ok(())
}

fn document<'a>(entry: &'a Entry, failure: Option<&Failure>) -> CheckedSandbox<'a> {
    CheckedSandbox {
        pod: &entry.plan.pod,
        container_id: entry.container_id.as_str(),
        attachments: named_attachments(entry).collect(),
        unchanged: failure.is_none(),
        error: failure.map(ToString::to_string).unwrap_or_default(),
    }
}

fn all_networks(count: usize) -> String {
    match count {
        1 => "its only network is".to_owned(),
        count => format!("all {count} networks are"),
    }
}
