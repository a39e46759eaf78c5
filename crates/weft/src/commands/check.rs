//! `weft check`: runs CHECK of every plugin of a sandbox and reports attachments that changed.

use clap::Args;

use crate::commands::detach::operations_on;
use crate::known_journals::{JournalHandle, Target};
use crate::manifest_plan::Inputs;
use crate::place::require_host;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output::{Format, Progress};
use cli_support::terminal::plain;
use node_support::weft_cni::{Plugins, WeftCni};

/// Arguments of `weft check`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft check --pod my-namespace/my-pod

Networks with a cniVersion below 0.4.0 or with disableCheck are skipped.

{EXIT_CODES} A changed attachment and a pod without attachments are failures."))]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    plugins: Plugins,
}

/// Runs `weft check`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { target, inputs, plugins } = arguments;
    require_host("check", "it enters network namespaces")?;
    let weft_cni = WeftCni::find()?;
    let progress = Progress::beside(Format::Text);
    let step = format!("check {}", target.describe());
    let sandbox = target.find(&JournalHandle::all(inputs)?).map_err(|failure| failure.context(&step))?;
    let Some((handle, entry)) = sandbox else {
        return Err(Failure::new(format!("{step}: no attachments"))
            .next("weft list shows the attachments of this node"));
    };
    operations_on(&weft_cni, &handle, &entry, plugins, progress)?
        .check()
        .map_err(|failure| failure.context(&step))?;
    let count = entry.plan.delegates.len();
    progress.line(plain(&format!("{}: all {count} networks are unchanged", target.describe())));
    Ok(())
}
