//! `weft demo`: the whole job on this machine, shown and removed again.
//!
//! Two pods get their networks on a *pretend host*, a network namespace of its own: bridges, forwarding and packet
//! filters are made in there and go with it, so the machine's are never touched. Everything has this run's
//! own names; two demos at once do not meet.
//!
//! Rules: whatever fails, and Ctrl-C, ends in the same removal; it works with what the journal says, and each failure
//! of it is reported; the machine is looked at before and after, and a difference is a failure.

mod examples;
mod ping;
mod snapshot;
mod stage;
mod tag;

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;

use crate::attachments;
use crate::commands::demo::tag::Tag;
use crate::pod_name::PodName;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::interrupt::Interrupt;
use cli_support::output::{Format, Progress};
use cli_support::privilege;
use cli_support::terminal::plain;
use node_support::weft_cni::{Plugins, WeftCni};
use snapshot::Snapshot;
use stage::{Actor, Stage};

/// What `weft demo` is told.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft demo
  weft demo -f my-networks/ --pod default/web --partner default/db

The demonstration requires root and weft-cni, but no cluster, no configuration and no other plugin. In manifests,
`/run/weft-example` is replaced by a directory of this run.

{EXIT_CODES} A ping without a reply is a failure, and so is a machine that differs afterwards."))]
pub(crate) struct Arguments {
    /// Files or directories with manifests and the configuration of the meta-plugin (default: the built-in examples/)
    #[arg(short = 'f', long = "file", value_name = "FILE|DIR", num_args = 1..)]
    files: Vec<PathBuf>,
    /// Namespace and name of the pod to show (default: the first pod of the manifests)
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pod: Option<PodName>,
    /// Namespace and name of the pod to ping (default: the second pod of the manifests)
    #[arg(long, value_name = "NAMESPACE/NAME")]
    partner: Option<PodName>,
    #[command(flatten)]
    plugins: Plugins,
}

/// Does it.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { files, pod, partner, plugins } = arguments;
    privilege::require("weft demo", "it makes network namespaces and interfaces, and removes them again")?;
    let started = Instant::now();
    let interrupt = Interrupt::watch()?;
    let weft_cni = WeftCni::find()?;
    let progress = Progress::beside(Format::Text);
    let tag = Tag::new();
    let script = examples::script(files, pod.as_ref(), partner.as_ref())?;
    let mut stage = Stage::new(tag, weft_cni, plugins.given(), progress);
    stage.clear()?;
    let before = Snapshot::take(stage.weft_cni(), stage.tag())?;
    progress.line(format!("a pretend host, {}, and two pods on it", stage.tag().host()));

    let played = play(&mut stage, &script, &interrupt).and_then(|()| interrupt.stop_here());
    let struck = stage.strike();
    if struck.is_ok() {
        progress.line(format!("\nremoved {} and all that was on it", stage.tag().host()));
    }
    before.tidy();
    let after = Snapshot::take(stage.weft_cni(), stage.tag());
    let compared = after.and_then(|after| compare(&before, &after, progress));
    let failures = [played, struck, compared].into_iter().filter_map(Result::err);
    match failures.reduce(|all, failure| all.also(Some(failure))) {
        Some(failure) => Err(failure.context("demo")),
        None => {
            progress.line(format!("\ndone in {:.1} s", started.elapsed().as_secs_f64()));
            Ok(())
        }
    }
}

/// Everything but the removal.
fn play(stage: &mut Stage, script: &examples::Script, interrupt: &Interrupt) -> Result<(), Failure> {
    stage.set()?;
    let fresh = stage.host_contents()?;
    for pod in [&script.pod, &script.partner] {
        interrupt.stop_here()?;
        stage.enter(&script.material, pod)?;
    }
    let [actor, partner] = stage.actors() else {
        return Err(Failure::new("two pods were attached, and the stage holds another number"));
    };
    interrupt.stop_here()?;
    show(actor, partner, stage.progress())?;
    stage.check()?;
    ping::across(stage, actor, partner, interrupt)?;
    interrupt.stop_here()?;
    stage.leave()?;
    snapshot::explain_remains(&fresh, &stage.host_contents()?, stage.progress())
}

fn show(actor: &Actor, partner: &Actor, progress: Progress) -> Result<(), Failure> {
    for Actor { pod, entry, .. } in [actor, partner] {
        progress.line(format!("\npod {pod}"));
        progress.line(attachments::table(entry).trim_end());
    }
    progress.line(format!("\nwhat is written to pod {} about it", actor.pod));
    progress.line(attachments::annotation(&actor.entry)?.trim_end());
    Ok(())
}

fn compare(before: &Snapshot, after: &Snapshot, progress: Progress) -> Result<(), Failure> {
    progress.line("\nthis machine, before and after");
    let differences = before.differences(after);
    progress.line(format!("  {}", before.summary()));
    for difference in &differences {
        progress.line(format!("  {}", plain(difference)));
    }
    match differences.len() {
        0 => {
            progress.line("  no difference");
            for remark in before.remarks(after) {
                progress.line(format!("  ({remark})"));
            }
            Ok(())
        }
        count => {
            let why = format!("this machine differs in {count} places from what it was before");
            Err(Failure::new(why)
                .next("they are listed above; something else on this machine may have made them"))
        }
    }
}
