//! `weft attach`: the meta-plugin's work for one pod, without Kubernetes.
//!
//! The plan is made first, from the files as they are named, so a refusal speaks of them and comes before anything is
//! made. Then the meta-plugin gets the manifests in one private directory and makes the same plan from them.
//!
//! Rules: who brings no network namespace gets one, which `weft detach` removes; whatever fails, or is interrupted,
//! is undone, down to that namespace; the mark in `CNI_ARGS` by which `detach` knows it is in the journal.

use std::path::{Path, PathBuf};

use clap::Args;
use cni::name::{ContainerId, IfName};
use rpc::journal::Entry;

use crate::attachments;
use crate::manifest_plan::{IFNAME, Inputs};
use crate::meta_plugin_config::MetaPlugin;
use crate::pod_name::{PodName, namespace_path};
use crate::scratch::Scratch;
use crate::work::Work;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::interrupt::Interrupt;
use cli_support::output;
use cli_support::output::{Format, Output, Progress};
use cli_support::privilege;
use cli_support::terminal::plain;
use node_support::journal_reader::Journal;
use node_support::weft_cni::{Plugins, Subject, WeftCni};

/// In `CNI_ARGS`: the namespace was made for this sandbox alone.
pub(crate) const OWN_NAMESPACE: &str = "WEFT_NETNS=own";

/// The private directory of an attach; there is one at a time for each sandbox.
pub(crate) fn turn(container: &ContainerId) -> Result<Scratch, Failure> {
    Scratch::new(
        &format!("weft-attach-{container}"),
        &format!("container {container} is being attached just now"),
    )
}

/// What `weft attach` is told.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft attach -f examples/ --pod my-namespace/my-pod
  weft attach -f pod.yaml -f networks/ --config 10-weft.conflist --pod default/web --netns /run/netns/blue

Network namespaces named /run/netns/weft-* belong to weft. Only the first plugin of the meta-plugin's list, weft
itself, is executed. The journal is in cniDir of the configuration (default: /var/lib/weft).

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Namespace and name of the pod, which one of the manifests must contain
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pod: PodName,
    #[command(flatten)]
    inputs: Inputs,
    /// Path to the network namespace of the pod (default: a new one at /run/netns/weft-CONTAINER-ID)
    #[arg(long, value_name = "PATH")]
    netns: Option<PathBuf>,
    /// Container ID of the sandbox (default: NAMESPACE_NAME of the pod)
    #[arg(long, value_name = "ID", value_parser = ContainerId::new)]
    container_id: Option<ContainerId>,
    #[command(flatten)]
    plugins: Plugins,
    #[command(flatten)]
    output: Output,
}

/// Does it.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { pod, inputs, netns, container_id, plugins, output } = arguments;
    privilege::require("weft attach", "it makes network interfaces")?;
    let interrupt = Interrupt::watch()?;
    let weft_cni = WeftCni::find()?;
    let material = inputs.read()?;
    let step = format!("attach {pod}");
    let plan = material.plan(pod).map_err(|failure| failure.context(&step))?;
    let progress = Progress::beside(output.format);
    announce(progress, pod, plan.delegates.len(), &material.meta_plugin);

    let container = match container_id {
        Some(container) => container.clone(),
        None => pod.container_id()?,
    };
    let journal = Journal::at(&material.meta_plugin.journal());
    let scratch = turn(&container)?;
    refuse_attached(&journal, pod, &container)?;
    let manifests = scratch.manifests("manifests", material.manifests().map(|file| file.text.as_str()))?;
    let namespace = Namespace::provide(&weft_cni, netns.as_deref(), &container, progress)?;
    let work = Work {
        meta_plugin: material.meta_plugin.with("manifestDir", &manifests)?,
        subject: Subject {
            ifname: IfName::new(IFNAME)?,
            args: cni_args(pod, &container, &namespace),
            path: plugins.given().map_or_else(|| weft_cni.plugin_path(), str::to_owned),
            netns: namespace.path.clone(),
            container,
        },
        weft_cni,
        journal,
        progress,
    };
    let attached = attach(&work, &interrupt);
    let entry = attached.map_err(|failure| {
        // Of another attach at the same time, or what could not be undone: it needs its namespace.
        let needed = work.journal.entry(&work.subject.container).map_or(true, |entry| entry.is_some());
        failure.also(if needed { None } else { namespace.withdraw(&work.weft_cni).err() })
    })?;
    report(output.format, &entry)
}

/// Attaches, and takes it back if somebody wants us to stop.
fn attach(work: &Work, interrupt: &Interrupt) -> Result<Entry, Failure> {
    let stop_here = || interrupt.stop_here().map_err(|stopped| stopped.context("attach"));
    stop_here()?;
    let entry = work.attach()?;
    stop_here().map_err(|stopped| stopped.also(work.detach(&entry).err()))?;
    Ok(entry)
}

fn announce(progress: Progress, pod: &PodName, count: usize, meta_plugin: &MetaPlugin) {
    let MetaPlugin { file, left_out, .. } = meta_plugin;
    progress.line(plain(&format!("pod {pod}: {count} networks, by {file}")));
    if !left_out.is_empty() {
        let line = format!("not run are the plugins after weft in {file}: {}", left_out.join(", "));
        progress.line(format!("  {}", plain(&line)));
    }
}

/// Better said before a namespace is made; the meta-plugin has the last word.
fn refuse_attached(journal: &Journal, pod: &PodName, container: &ContainerId) -> Result<(), Failure> {
    match journal.entry(container)? {
        Some(entry) if entry.complete => {
            let why = format!("attach {pod}: it is attached already, as container {container}");
            Err(Failure::new(why).next("weft detach comes first; weft list shows it"))
        }
        _ => Ok(()),
    }
}

fn cni_args(pod: &PodName, container: &ContainerId, namespace: &Namespace) -> String {
    let PodName { namespace: of_pod, name } = pod;
    let mut args = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={of_pod};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={container}"
    );
    if namespace.origin == Origin::Own {
        args.push(';');
        args.push_str(OWN_NAMESPACE);
    }
    args
}

fn report(format: Format, entry: &Entry) -> Result<(), Failure> {
    match format {
        Format::Json => output::print_json(&attachments::sandbox(entry)),
        Format::Text => {
            let (table, annotation) = (attachments::table(entry), attachments::annotation(entry)?);
            output::print(&format!("\n{table}\n{annotation}"))
        }
    }
}

/// The sandbox's network namespace.
#[derive(Clone, Debug)]
struct Namespace {
    path: String,
    origin: Origin,
}

/// Where a namespace comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The caller brought it.
    Brought,
    /// It was made for the sandbox.
    Own,
}

impl Namespace {
    fn provide(
        weft_cni: &WeftCni,
        brought: Option<&Path>,
        container: &ContainerId,
        progress: Progress,
    ) -> Result<Namespace, Failure> {
        if let Some(path) = brought {
            let path = std::path::absolute(path)
                .map_err(|cause| Failure::new(format!("--netns {}: {cause}", path.display())))?;
            return Ok(Namespace { path: path.display().to_string(), origin: Origin::Brought });
        }
        let path = namespace_path(container);
        // One of this name with no sandbox in it is what an attach that was killed has left.
        let is_there = Path::new(&path).try_exists();
        match is_there.map_err(|cause| privilege::refused(&format!("look at {path}"), &cause))? {
            true => progress.line(format!("  found {path}, left by an earlier attempt")),
            false => {
                weft_cni.create(&path)?;
                progress.line(format!("  made {path}"));
            }
        }
        Ok(Namespace { path, origin: Origin::Own })
    }

    /// Removes it if it is the sandbox's own.
    fn withdraw(&self, weft_cni: &WeftCni) -> Result<(), Failure> {
        match self.origin {
            Origin::Brought => Ok(()),
            Origin::Own => weft_cni.delete(&self.path),
        }
    }
}
