//! Where the plan of a sandbox comes from: the agent, a directory of manifests, or `weft plan --once`.
//!
//! This file fetches what the pure planner needs; what is decided is in [`npwg::plan`].
//!
//! Rules: a pod nobody knows is an error, never a pod without networks (M13); a call that names no pod at
//! all (not Kubernetes) gets the networks of every pod; uid and name must both fit, so that a pod that was created
//! anew under its old name is not taken for the old one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use cni::args::Args;
use cni::invocation::Call;
use cni::name::{ContainerId, IfName};
use cni::network::Network;
use cni::object::DOCUMENT_MAX;
use cni::runtime::load;
use cni::{Context, Error, code};
use npwg::configuration::{Flavour, NodeConfiguration, Place};
use npwg::definition::{Disk, Form, OnDisk};
use npwg::device::Devices;
use npwg::exchange::{self, Question};
use npwg::manifest::Manifest;
use npwg::metadata::{Definition, NetworkReference, Pod};
use npwg::plan::{self, Access, Plan, PodIdentity, Sandbox};

use super::agent;

/// Most manifest files read from one directory.
const MANIFESTS_MAX: usize = 10_000;
/// The capability under which container runtimes pass a pod's annotations (V11).
const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// Makes the plan for one sandbox.
pub(super) fn plan(
    node: &NodeConfiguration,
    call: &Call,
    sandbox: &Sandbox,
    flavour: Flavour,
) -> Result<Plan, Error> {
    plan_for(node, call, sandbox, flavour, named(call.args()))
}

/// The network every pod is attached to first, as a pod that selects nothing would get it.
pub(super) fn default_network(
    node: &NodeConfiguration,
    call: &Call,
    flavour: Flavour,
) -> Result<Network, Error> {
    let sandbox = Sandbox { container: ContainerId::new("none")?, ifname: IfName::new("eth0")? };
    let plan = plan_for(node, call, &sandbox, flavour, PodIdentity::default())?;
    match plan.delegates.first() {
        Some(delegate) => Network::parse(delegate.config.as_bytes(), &delegate.network),
        None => Err(Error::internal("the plan holds no network")),
    }
}

fn plan_for(
    node: &NodeConfiguration,
    call: &Call,
    sandbox: &Sandbox,
    flavour: Flavour,
    pod: PodIdentity,
) -> Result<Plan, Error> {
    if let Some(directory) = &node.manifest_dir {
        return from_manifests(node, &pod, sandbox, Path::new(directory));
    }
    let configuration = serde_json::value::to_raw_value(call.config.value())
        .map_err(|cause| Error::internal(format!("encode the configuration: {cause}")))?;
    let question = Question {
        version: exchange::VERSION,
        pod,
        container: sandbox.container.clone(),
        ifname: sandbox.ifname.clone(),
        configuration,
        multus: flavour == Flavour::Multus,
    };
    agent::plan(node, &question)
}

/// The pod that a runtime's `CNI_ARGS` name (V16).
fn named(args: &str) -> PodIdentity {
    let args = Args::scan(args);
    let value = |key| args.get(key).unwrap_or_default().to_owned();
    PodIdentity {
        namespace: value("K8S_POD_NAMESPACE"),
        name: value("K8S_POD_NAME"),
        uid: value("K8S_POD_UID"),
    }
}

/// Plans from a directory of YAML and JSON manifests.
fn from_manifests(
    node: &NodeConfiguration,
    named: &PodIdentity,
    sandbox: &Sandbox,
    directory: &Path,
) -> Result<Plan, Error> {
    let manifests = Manifests::read(directory).context("manifestDir")?;
    let pod = manifests.pod(node, named)?;
    let disk = read_disk(node)?;
    let request = plan::Request {
        pod: &pod,
        sandbox,
        node,
        definitions: &manifests.definitions,
        disk: &disk,
        devices: &Devices::new(),
        access: &Access::open(),
    };
    plan::plan(&request).map_err(|refusal| {
        let error = Error::from(refusal);
        match manifests.problems.is_empty() {
            true => error,
            false => error.details(format!("in the manifests: {}", manifests.problems.join("; "))),
        }
    })
}

/// What the manifests of a directory hold.
#[derive(Default)]
struct Manifests {
    pods: Vec<Pod>,
    definitions: BTreeMap<NetworkReference, Definition>,
    problems: Vec<String>,
}

impl Manifests {
    fn read(directory: &Path) -> Result<Manifests, Error> {
        let mut manifests = Manifests::default();
        for path in manifest_files(directory)? {
            let text = read_text(&path)?;
            let Manifest { pods, definitions, problems, .. } = Manifest::parse(&text);
            manifests.pods.extend(pods.into_iter().map(|located| located.value.pod));
            let definitions = definitions.into_iter().map(|located| located.value);
            manifests.definitions.extend(definitions.map(|definition| (definition.reference(), definition)));
            let named = problems.iter().map(|problem| format!("{}: {}", path.display(), problem.fault));
            manifests.problems.extend(named);
        }
        Ok(manifests)
    }

    /// The pod of this identity; its annotations may come from the runtime instead of a manifest.
    fn pod(&self, node: &NodeConfiguration, named: &PodIdentity) -> Result<Pod, Error> {
        let PodIdentity { namespace, name, uid } = named;
        if name.is_empty() {
            return Ok(Pod { namespace: "default".to_owned(), ..Pod::default() });
        }
        let found = self.pods.iter().find(|pod| pod.namespace == *namespace && pod.name == *name);
        match found {
            Some(pod) if !pod.uid.is_empty() && !uid.is_empty() && pod.uid != *uid => {
                let why = format!("pod {namespace}/{name} has uid {}, the runtime asks for {uid}", pod.uid);
                Err(Error::new(code::UNKNOWN_CONTAINER, why))
            }
            Some(pod) => {
                Ok(Pod { uid: if pod.uid.is_empty() { uid.clone() } else { pod.uid.clone() }, ..pod.clone() })
            }
            None => match node.runtime_config.read(POD_ANNOTATIONS)? {
                Some(annotations) => Ok(Pod {
                    namespace: namespace.clone(),
                    name: name.clone(),
                    uid: uid.clone(),
                    annotations,
                    ..Pod::default()
                }),
                None => {
                    let why = format!(
                        "pod {namespace}/{name} is in no manifest, and the runtime passes no annotations"
                    );
                    Err(Error::new(code::UNKNOWN_CONTAINER, why))
                }
            },
        }
    }
}

/// The manifest files of a directory, by name.
fn manifest_files(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |cause| Error::io(format_args!("read {}", directory.display()), cause);
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        // Metadata follows links: a fifo would hang us.
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

/// The networks on disk that a plan may need.
fn read_disk(node: &NodeConfiguration) -> Result<Disk, Error> {
    let mut disk = Disk::default();
    for place in node.places() {
        let Place::Path(path) = place else { continue };
        let path = PathBuf::from(path);
        let (networks, faults) = match fs::metadata(&path) {
            Ok(meta) if meta.is_file() => match load::network(&path) {
                Ok(network) => (vec![(path, network)], Vec::new()),
                Err(error) => (Vec::new(), vec![(path, error)]),
            },
            _ => {
                let load::Directory { networks, faults } = load::Directory::read(&path)?;
                (networks, faults)
            }
        };
        for (path, network) in networks {
            let path = path.display().to_string();
            let form = Form::of(&path).unwrap_or(Form::List);
            if !disk.networks.iter().any(|known| known.path == path) {
                disk.networks.push(OnDisk { path, form, network });
            }
        }
        disk.unreadable.extend(faults.iter().map(|(path, error)| format!("{}: {error}", path.display())));
    }
    Ok(disk)
}
