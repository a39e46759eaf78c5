//! Where a sandbox's plan comes from: a manifest directory if one is configured, else the agent, else `weft
//! plan --once`.
//!
//! If neither agent nor API server can be reached, this module plans a pod that selects nothing: the pod gets
//! the networks that the configuration names for every pod. It does not if the plan may depend on the
//! cluster:
//! - one of these networks is a NetworkAttachmentDefinition;
//! - one of them needs a port that another component creates;
//! - the pod has one of weft's annotations (`weft.dev/…`).
//!
//! The input is collected here; [`npwg::plan`] decides. [`Collection::pod`] identifies the pod.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use cni::args::Args;
use cni::invocation::Call;
use cni::name::{ContainerId, IfName};
use cni::network::Network;
use cni::object::DOCUMENT_MAX;
use cni::runtime::load;
use cni::{Context, Error, code};
use manifest::{Collection, Manifest};
use npwg::configuration::{Flavour, NodeConfiguration, Place};
use npwg::definition::Disk;
use npwg::plan::{self, Delegate, Plan, PodIdentity, Sandbox};
use npwg::selection::Annotation;
use plugin_support::log;
use rpc::message::Refusal;
use rpc::node_input::NodeInput;
use rpc::plan::{PlanRequest, Purpose};

use super::agent::{self, PlannedSandbox};
use super::history;
use crate::builtins;

/// Prefix that weft's annotations have. A pod with one is planned only by the agent or the planner process.
const OWN_PREFIX: &str = "weft.dev/";
/// Maximum number of manifest files that are read from one directory.
const MANIFESTS_MAX: usize = 10_000;

/// Returns the plan for one sandbox.
pub(super) fn plan(
    node: &NodeConfiguration,
    call: &Call,
    sandbox: &Sandbox,
    flavour: Flavour,
) -> Result<PlannedSandbox, Refusal> {
    plan_for(node, call, sandbox, flavour, &named(call.args()), Purpose::Attach)
}

/// Returns a plan for a sandbox whose networks are to be detached.
pub(super) fn plan_to_detach(
    node: &NodeConfiguration,
    call: &Call,
    sandbox: &Sandbox,
    flavour: Flavour,
) -> Result<PlannedSandbox, Error> {
    Ok(plan_for(node, call, sandbox, flavour, &named(call.args()), Purpose::Detach)?)
}

/// Returns the networks that a pod without a selection gets: the default network, then the others.
pub(super) fn networks_of_every_pod(
    node: &NodeConfiguration,
    call: &Call,
    flavour: Flavour,
) -> Result<Vec<Network>, Error> {
    let sandbox = Sandbox { container: ContainerId::new("none")?, ifname: IfName::new("eth0")? };
    let planned = plan_for(node, call, &sandbox, flavour, &PodIdentity::default(), Purpose::Attach)?;
    let delegates = planned.plan.delegates.iter();
    delegates.map(|delegate| Network::parse(delegate.config.as_bytes(), &delegate.network)).collect()
}

fn plan_for(
    node: &NodeConfiguration,
    call: &Call,
    sandbox: &Sandbox,
    flavour: Flavour,
    pod: &PodIdentity,
    purpose: Purpose,
) -> Result<PlannedSandbox, Refusal> {
    let disk = read_disk(node)?;
    if let Some(directory) = &node.manifest_dir {
        return Ok(PlannedSandbox::of(from_manifests(node, &disk, pod, sandbox, Path::new(directory))?));
    }
    let configuration = serde_json::value::to_raw_value(call.config.value())
        .map_err(|cause| Error::internal(format!("encode the configuration: {cause}")))?;
    let request = PlanRequest {
        pod: pod.clone(),
        container: sandbox.container.clone(),
        ifname: sandbox.ifname.clone(),
        node: NodeInput::new(configuration, flavour, &disk),
        began: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64),
        trace_parent: history::trace_parent().unwrap_or_default(),
        purpose,
    };
    let alone = || plan_without_cluster(node, &disk, pod, sandbox);
    match agent::plan(node, request, &alone) {
        Err(refusal) if refusal.error.code == code::TRY_AGAIN_LATER && !agent::is_there(node) => {
            alone().map(PlannedSandbox::of).ok_or(refusal)
        }
        asked => asked,
    }
}

/// Returns a plan for a pod that selects nothing, from the runtime's call alone; `None` if the plan depends
/// on the cluster.
fn plan_without_cluster(
    node: &NodeConfiguration,
    disk: &Disk,
    named: &PodIdentity,
    sandbox: &Sandbox,
) -> Option<Plan> {
    let all = Collection::default();
    let pod = all.pod(node, named).ok()?;
    let asks = |key: &String| {
        [Annotation::Networks.key(), Annotation::DefaultNetwork.key()].contains(&key.as_str())
            || key.starts_with(OWN_PREFIX)
    };
    if pod.annotations.keys().any(asks) || !plan::wanted(&pod, node).is_empty() {
        return None;
    }
    let plan = all.plan(node, disk, named, sandbox).ok()?;
    // Another component must create the port first.
    let takes_port = |delegate: &Delegate| {
        let network = Network::parse(delegate.config.as_bytes(), &delegate.network);
        network.and_then(|network| network.needs()).map_or(true, |needs| {
            needs
                .iter()
                .any(|plugin| builtins::find(plugin.as_str()).is_some_and(|plugin| plugin.needs_agent()))
        })
    };
    if plan.delegates.iter().any(takes_port) {
        return None;
    }
    log!("weft: no planner is reachable; the pod selects nothing and gets the networks of every pod");
    Some(plan)
}

/// Returns the pod that the runtime names in `CNI_ARGS` (V16).
pub(super) fn named(args: &str) -> PodIdentity {
    let args = Args::scan(args);
    let value = |key| args.get(key).unwrap_or_default().to_owned();
    PodIdentity {
        namespace: value("K8S_POD_NAMESPACE"),
        name: value("K8S_POD_NAME"),
        uid: value("K8S_POD_UID"),
    }
}

/// Reads the networks on disk that a plan may need.
fn read_disk(node: &NodeConfiguration) -> Result<Disk, Error> {
    let mut disk = Disk::default();
    for place in node.places() {
        if let Place::Path(path) = place {
            disk.add(load::Directory::at(Path::new(&path))?);
        }
    }
    Ok(disk)
}

/// Plans from a directory with YAML and JSON manifests. A file that cannot be read is skipped, and named in a
/// refusal.
fn from_manifests(
    node: &NodeConfiguration,
    disk: &Disk,
    named: &PodIdentity,
    sandbox: &Sandbox,
    directory: &Path,
) -> Result<Plan, Error> {
    let mut manifests = Collection::default();
    for path in manifest_files(directory).context("manifestDir")? {
        match read_text(&path) {
            Ok(text) => manifests.add(&path.display().to_string(), Manifest::parse(&text)),
            Err(error) => {
                log!("weft: manifestDir: skipped: {error}");
                manifests.problems.push(error.to_string());
            }
        }
    }
    manifests.plan(node, disk, named, sandbox)
}

/// Returns the manifest files in a directory, sorted by path.
fn manifest_files(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |cause| Error::io(format_args!("read {}", directory.display()), cause);
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        // `metadata` follows symbolic links. Reading a FIFO would block.
        if ["yaml", "yml", "json"].contains(&extension)
            && fs::metadata(&path).is_ok_and(|meta| meta.is_file())
        {
            files.push(path);
        }
        if files.len() > MANIFESTS_MAX {
            return Err(Error::config(format!(
                "{}: more than {MANIFESTS_MAX} manifests",
                directory.display()
            )));
        }
    }
    files.sort();
    Ok(files)
}

fn read_text(path: &Path) -> Result<String, Error> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(DOCUMENT_MAX as u64 + 1).read_to_end(&mut bytes))
        .map_err(|cause| Error::io(format_args!("read {}", path.display()), cause))?;
    if bytes.len() > DOCUMENT_MAX {
        return Err(Error::config(format!("{}: larger than {DOCUMENT_MAX} bytes", path.display())));
    }
    String::from_utf8(bytes).map_err(|_| Error::config(format!("{}: not UTF-8", path.display())))
}
