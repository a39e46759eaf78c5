//! `weft attach`: attaches one pod to networks without Kubernetes.
//!
//! The command first makes the plan from the given files, so a refusal names these files and comes before any change.
//! Then it copies the manifests into a private directory, and the meta-plugin makes the same plan from them.
//!
//! - Without `--netns` it creates a network namespace. `weft detach` removes it, because `CNI_ARGS` in the journal marks
//!   it as created by weft.
//! - A namespace that already has the name is replaced if a killed attach left it; else the command fails.
//! - If it fails or is interrupted, it undoes everything, and removes the namespace that it created.

use std::path::{Path, PathBuf};

use clap::Args;
use cni::name::{ContainerId, IfName};
use rpc::journal::Entry;

use crate::attachments::{self, network_count};
use crate::known_journals::JournalHandle;
use crate::leftover_namespaces::{self, NamedNamespace};
use crate::manifest_plan::{IFNAME, Inputs};
use crate::meta_plugin_config::MetaPlugin;
use crate::place::require_host;
use crate::pod_name::{PodName, PodSelection};
use crate::sandbox_operations::SandboxOperations;
use crate::trial_sandbox::{CREATED_NAMESPACE, is_created, lock_sandbox};
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::interrupt::Interrupt;
use cli_support::output;
use cli_support::output::{Format, Output, Progress};
use cli_support::terminal::plain;
use node_support::journal_reader::Journal;
use node_support::weft_cni::{Plugins, Subject, WeftCni};

/// Next step for a pod that lacks nothing but devices.
const ONLY_DEVICES: &str =
    "only the kubelet allocates devices, so weft attach cannot attach this pod; weft explain shows its plan";

/// Arguments of `weft attach`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft attach -f pod.yaml -f network.yaml
  weft attach my-pod -n my-namespace -f examples/
  weft attach -f pod.yaml -f networks/ --config 10-weft.conflist --pod default/web --netns /run/netns/blue

Without POD, the manifests must contain exactly one pod. Without a configuration in -f, in --config and in
/etc/cni/net.d, the default network is the bridge weft0 with 10.101.0.0/24. The pod and its networks are enough for a
first try. A network namespace that already has the default name is replaced if a killed attach left it. Only the first plugin of the meta-plugin's list, weft
itself, is executed. The journal is in cniDir of the configuration (default: /var/lib/weft).

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    #[command(flatten)]
    selection: PodSelection,
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

/// Runs `weft attach`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { selection, inputs, netns, container_id, plugins, output } = arguments;
    require_host("attach", "it creates network interfaces")?;
    let interrupt = Interrupt::watch()?;
    let weft_cni = WeftCni::find()?;
    let loaded = inputs.read()?;
    let pod = &match selection.selected()? {
        Some(pod) => pod,
        None => loaded.only_pod().map_err(|failure| failure.context("attach"))?,
    };
    let step = format!("attach {pod}");
    let plan = loaded.plan(pod).map_err(|failure| {
        // If it can be planned with placeholders, the pod only lacks its devices.
        let only_devices = loaded.expected_plan(pod).is_ok();
        let failure = failure.context(&step);
        if only_devices { failure.next(ONLY_DEVICES) } else { failure }
    })?;
    let progress = Progress::beside(output.format);
    print_header(progress, pod, plan.delegates.len(), &loaded.meta_plugin);

    let container = match container_id {
        Some(container) => container.clone(),
        None => pod.container_id()?,
    };
    let journal = Journal::at(&loaded.meta_plugin.journal());
    let named = NamedNamespace::before_lock(&container);
    let scratch = lock_sandbox(&container)?;
    let unfinished = refuse_attached(&journal, pod, &container)?;
    let manifests = scratch.manifests("manifests", loaded.manifests().map(|file| file.text.as_str()))?;
    let namespace = match netns {
        Some(path) => Namespace::given(path)?,
        None => {
            let journals = JournalHandle::with(Some(loaded.meta_plugin.clone()));
            let created = Namespace::create(&weft_cni, &named, &journals, unfinished.as_ref(), progress);
            created.map_err(|failure| failure.context(&step))?
        }
    };
    let operations = SandboxOperations {
        meta_plugin: loaded.meta_plugin.with("manifestDir", &manifests)?,
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
    let attached = attach(&operations, &interrupt);
    let entry = attached.map_err(|failure| {
        // A remaining entry belongs to a concurrent attach, or has changes that could not be undone. Both need the namespace.
        let is_needed =
            operations.journal.entry(&operations.subject.container).map_or(true, |entry| entry.is_some());
        failure.also(if is_needed { None } else { namespace.remove_if_created(&operations.weft_cni).err() })
    })?;
    print_result(output.format, &entry)
}

/// Attaches the networks, and detaches them if the command was interrupted.
fn attach(operations: &SandboxOperations, interrupt: &Interrupt) -> Result<Entry, Failure> {
    let stop_here = || interrupt.stop_here().map_err(|stopped| stopped.context("attach"));
    stop_here()?;
    let entry = operations.attach()?;
    stop_here().map_err(|stopped| stopped.also(operations.detach(&entry).err()))?;
    Ok(entry)
}

fn print_header(progress: Progress, pod: &PodName, count: usize, meta_plugin: &MetaPlugin) {
    let MetaPlugin { file, later_plugins, .. } = meta_plugin;
    progress.line(plain(&format!("pod {pod}: {}, configured by {file}", network_count(count))));
    if !later_plugins.is_empty() {
        let line = format!("skipped plugins after weft in {file}: {}", later_plugins.join(", "));
        progress.line(format!("  {}", plain(&line)));
    }
}

/// Refuses a pod that is already attached, before a namespace is created. The meta-plugin checks it again.
/// Returns the entry if an earlier attach did not finish.
fn refuse_attached(
    journal: &Journal,
    pod: &PodName,
    container: &ContainerId,
) -> Result<Option<Entry>, Failure> {
    match journal.entry(container)? {
        Some(entry) if entry.complete => {
            let why = format!("attach {pod}: already attached as container {container}");
            Err(Failure::new(why).next("run weft detach first; weft list shows the attachments"))
        }
        unfinished => Ok(unfinished),
    }
}

fn cni_args(pod: &PodName, container: &ContainerId, namespace: &Namespace) -> String {
    let PodName { namespace: pod_namespace, name } = pod;
    let mut args = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE={pod_namespace};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={container}"
    );
    if namespace.origin == Origin::Created {
        args.push(';');
        args.push_str(CREATED_NAMESPACE);
    }
    args
}

fn print_result(format: Format, entry: &Entry) -> Result<(), Failure> {
    match format {
        Format::Json | Format::Yaml => output::print_document(format, &attachments::document(entry)),
        Format::Text | Format::Wide => {
            let (table, annotation) = (attachments::table(entry), attachments::annotation(entry)?);
            output::print(&format!("\n{table}\n{annotation}"))
        }
    }
}

/// Network namespace that a sandbox gets.
#[derive(Clone, Debug)]
struct Namespace {
    path: String,
    origin: Origin,
}

/// Where a network namespace comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// Given with `--netns`.
    Given,
    /// Created for this sandbox.
    Created,
}

impl Namespace {
    fn given(path: &Path) -> Result<Namespace, Failure> {
        let path = std::path::absolute(path)
            .map_err(|cause| Failure::new(format!("--netns {}: {cause}", path.display())))?;
        Ok(Namespace { path: path.display().to_string(), origin: Origin::Given })
    }

    /// Creates the namespace, or finds the one from an unfinished attach, which can already contain interfaces.
    fn create(
        weft_cni: &WeftCni,
        named: &NamedNamespace,
        journals: &[JournalHandle],
        unfinished: Option<&Entry>,
        progress: Progress,
    ) -> Result<Namespace, Failure> {
        let path = named.path();
        let namespace = Namespace { path: path.to_owned(), origin: Origin::Created };
        let exists = named.exists()?;
        let unfinished = unfinished.filter(|entry| entry.netns == path && is_created(entry));
        let is_another =
            unfinished.map(|entry| leftover_namespaces::is_another(weft_cni, entry)).transpose()?;
        if exists && is_another == Some(false) {
            progress.line(format!("  reusing {path}, left by an interrupted attach"));
            return Ok(namespace);
        }
        if exists {
            if let Some(reason) = named.reason_to_keep(weft_cni, journals)? {
                let next = format!(
                    "if a pod of weft list uses it, run weft detach for that; else attach to it with --netns {path}, or, \
                     if no process needs it, delete it"
                );
                return Err(Failure::new(format!("namespace {path} already exists: {reason}")).next(next));
            }
            weft_cni.delete(path)?;
            progress.line(format!("  removed {path}, left by an interrupted attach"));
        }
        weft_cni.create(path)?;
        progress.line(format!("  created {path}"));
        Ok(namespace)
    }

    /// Removes the namespace if it was created for the sandbox.
    fn remove_if_created(&self, weft_cni: &WeftCni) -> Result<(), Failure> {
        match self.origin {
            Origin::Given => Ok(()),
            Origin::Created => weft_cni.delete(&self.path),
        }
    }
}
