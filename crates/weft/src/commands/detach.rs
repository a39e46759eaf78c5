//! `weft detach`: takes a sandbox down by what the journal says of it, and removes the namespace that `weft attach` made.
//!
//! Rules: nothing but the journal is needed, no manifest and no configuration; what is gone already is done;
//! the namespace stays as long as something in it could not be detached.

use std::path::Path;

use clap::Args;
use rpc::journal::Entry;

use crate::commands::attach::{OWN_NAMESPACE, turn};
use crate::known_journals::{JournalHandle, Target};
use crate::manifest_plan::Inputs;
use crate::pod_name::namespace_path;
use crate::work::Work;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output::{Format, Progress};
use cli_support::privilege;
use cli_support::terminal::plain;
use node_support::weft_cni::{Plugins, WeftCni};

/// What `weft detach` is told.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft detach --pod my-namespace/my-pod
  weft detach --container-id my-namespace_my-pod

The journal has everything that detaching needs. -f and --config are only used to find the journal if cniDir of the
configuration moves it. Detaching a pod without attachments succeeds.

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    plugins: Plugins,
}

/// Does it.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { target, inputs, plugins } = arguments;
    privilege::require("weft detach", "it removes network interfaces")?;
    let weft_cni = WeftCni::find()?;
    let progress = Progress::beside(Format::Text);
    let step = format!("detach {}", target.describe());
    let found = target.find(&JournalHandle::all(inputs)?).map_err(|failure| failure.context(&step))?;
    let Some((keeper, entry)) = found else {
        return remains(target, &weft_cni, progress).map_err(|failure| failure.context(&step));
    };
    progress.line(plain(&format!("{}: {} networks", target.describe(), entry.plan.delegates.len())));
    let work = of_entry(&weft_cni, &keeper, &entry, plugins, progress)?;
    work.detach(&entry).map_err(|failure| failure.context(&step))?;
    if entry.args.split(';').any(|pair| pair == OWN_NAMESPACE) {
        weft_cni.delete(&entry.netns).map_err(|failure| failure.context(&step))?;
        progress.line(format!("  removed {}", plain(&entry.netns)));
    }
    // What an attach could not remove of its own goes, too; one that is under way keeps it.
    drop(turn(&entry.container_id));
    Ok(())
}

/// The work on a sandbox that the journal knows.
pub(crate) fn of_entry(
    weft_cni: &WeftCni,
    keeper: &JournalHandle,
    entry: &Entry,
    plugins: &Plugins,
    progress: Progress,
) -> Result<Work, Failure> {
    let (meta_plugin, journal) = (keeper.meta_plugin(entry)?, keeper.journal().clone());
    let mut work = Work::of_entry(weft_cni.clone(), meta_plugin, entry, journal, progress);
    if let Some(path) = plugins.given() {
        path.clone_into(&mut work.subject.path);
    }
    Ok(work)
}

/// Nothing is recorded: at most a namespace is left of an attach that was killed before it began.
fn remains(target: &Target, weft_cni: &WeftCni, progress: Progress) -> Result<(), Failure> {
    if let Some(container) = target.container()? {
        // An attach that is still alive has a use for it.
        let _turn = turn(&container)?;
        let path = namespace_path(&container);
        let is_there = Path::new(&path).try_exists();
        if is_there.map_err(|cause| privilege::refused(&format!("look at {path}"), &cause))? {
            weft_cni.delete(&path)?;
            progress.line(format!("removed {path}, left by an attach that was ended early"));
        }
    }
    progress.line(format!("{}: nothing is attached", target.describe()));
    Ok(())
}
