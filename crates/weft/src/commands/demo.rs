//! `weft demo`: attaches two pods on this machine, shows the result, and removes everything again.
//!
//! The pods are on a *simulated host*, which is a network namespace. Bridges, forwarding and packet filters
//! are created there, so the machine's own are never touched. All names contain the run's tag, so several
//! demos can run concurrently.
//!
//! - A failure or an interrupt ends in the same removal. It follows the journal and reports each failure.
//! - The machine is compared before and after. A difference is a failure.

mod demo_host;
mod examples;
mod ping;
mod run_tag;
mod snapshot;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;

use crate::attachments;
use crate::commands::demo::run_tag::{PREFIX, RunTag};
use crate::pod_name::PodName;
use crate::scratch::Scratch;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::interrupt::Interrupt;
use cli_support::output::{Format, Progress};
use cli_support::privilege;
use cli_support::terminal::plain;
use demo_host::{AttachedPod, DemoHost};
use node_support::weft_cni::{Plugins, WeftCni};
use snapshot::Snapshot;

/// Arguments of `weft demo`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft demo
  weft demo -f my-networks/ --pod default/web --partner default/db

The demonstration requires root and weft-cni, but no cluster, no configuration and no other plugin. In manifests,
`/run/weft-example` is replaced by a directory of this run.

{EXIT_CODES} A ping without a reply is a failure, and so is a machine that differs afterwards."))]
pub(crate) struct Arguments {
    /// File or directory with manifests, or with the configuration of the meta-plugin; may be repeated (default: the built-in
    /// examples/)
    #[arg(short = 'f', long = "file", value_name = "FILE|DIR")]
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

/// Runs `weft demo`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { files, pod, partner, plugins } = arguments;
    privilege::require("weft demo", "it creates and removes network namespaces and interfaces")?;
    let started = Instant::now();
    let interrupt = Interrupt::watch()?;
    let weft_cni = WeftCni::find()?;
    let progress = Progress::beside(Format::Text);
    let tag = RunTag::new();
    let demo = examples::load(files, pod.as_ref(), partner.as_ref())?;
    let mut demo_host = DemoHost::new(tag, weft_cni, plugins.given(), progress);
    demo_host.remove_abandoned()?;
    let before = Snapshot::take(demo_host.weft_cni(), demo_host.tag())?;
    progress.line(format!("simulated host {} with two pods", demo_host.tag().host()));

    let result = run_demo(&mut demo_host, &demo, &interrupt).and_then(|()| interrupt.stop_here());
    let removed = demo_host.remove_all();
    if removed.is_ok() {
        progress.line(format!("\nremoved {} and everything on it", demo_host.tag().host()));
    }
    before.remove_cache_directories();
    let after = Snapshot::take(demo_host.weft_cni(), demo_host.tag());
    let comparison = after.and_then(|after| print_differences(&before, &after, progress));
    let failures = [result, removed, comparison].into_iter().filter_map(Result::err);
    match failures.reduce(|all, failure| all.also(Some(failure))) {
        Some(failure) => Err(failure.context("demo")),
        None => {
            progress.line(format!("\ndone in {:.1} s", started.elapsed().as_secs_f64()));
            Ok(())
        }
    }
}

/// Returns the directory names that killed runs left.
pub(super) fn abandoned_runs() -> Vec<String> {
    Scratch::abandoned_names(PREFIX)
}

/// Whether the run's directory exists to which a network namespace with this name belongs.
pub(super) fn has_directory(namespace: &str) -> bool {
    // Names of runs contain no `_`, those of a pod's sandbox do.
    let is_of_run = namespace.starts_with(PREFIX) && !namespace.contains('_');
    let run = namespace.rsplit_once('-').map(|(run, _)| run);
    is_of_run && run.is_some_and(|run| Path::new("/run").join(run).is_dir())
}

/// Removes what a killed run left.
pub(super) fn remove_abandoned_run(
    weft_cni: &WeftCni,
    name: &str,
    progress: Progress,
) -> Result<(), Failure> {
    DemoHost::new(RunTag::new(), weft_cni.clone(), None, progress).remove_abandoned_runs(name)
}

/// Runs the demonstration without the removal.
fn run_demo(
    demo_host: &mut DemoHost,
    demo: &examples::DemoInputs,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    demo_host.create()?;
    let fresh = demo_host.host_contents()?;
    for pod in [&demo.pod, &demo.partner] {
        interrupt.stop_here()?;
        demo_host.attach(&demo.loaded, pod)?;
    }
    let [pod, partner] = demo_host.pods() else {
        return Err(Failure::new("expected two attached pods"));
    };
    interrupt.stop_here()?;
    print_pods(pod, partner, demo_host.progress())?;
    demo_host.check()?;
    ping::ping_all(demo_host, pod, partner, interrupt)?;
    interrupt.stop_here()?;
    demo_host.detach_all()?;
    snapshot::check_remaining(&fresh, &demo_host.host_contents()?, demo_host.progress())
}

fn print_pods(pod: &AttachedPod, partner: &AttachedPod, progress: Progress) -> Result<(), Failure> {
    for AttachedPod { pod, entry, .. } in [pod, partner] {
        progress.line(format!("\npod {pod}"));
        progress.line(attachments::table(entry).trim_end());
    }
    progress.line(format!("\nannotation written to pod {}", pod.pod));
    progress.line(attachments::annotation(&pod.entry)?.trim_end());
    Ok(())
}

fn print_differences(before: &Snapshot, after: &Snapshot, progress: Progress) -> Result<(), Failure> {
    progress.line("\nthis machine before and after the demo");
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
            let why = format!("this machine changed in {count} places during the demo");
            Err(Failure::new(why)
                .next("the changes are listed above; other software on this machine may have made them"))
        }
    }
}
