//! State of Multus, converted into journal entries.
//!
//! Multus keeps the delegates of a sandbox, in order, in `CNIDIR/CONTAINER_ID`. libcni caches each attachment in
//! `CNIDIR/results/`: configuration as executed, arguments and result.
//!
//! - The cached configuration takes precedence over the planned one.
//! - An attachment that only the cache has was added to the running pod. It is taken down with the pod.
//! - File names and contents are validated before use.
//!
//! Source: Multus `pkg/multus/multus.go` (`saveDelegates`, `getIfname`), `pkg/types/types.go` (`DelegateNetConf`).

mod delegates;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use cni::Error;
use cni::args::Args;
use cni::name::{ContainerId, IfName};
use cni::network::Network;
use cni::runtime::cache::{Cache, Entry as Cached};
use cni::runtime::chain::Attached;
use npwg::device::DeviceInfo;
use npwg::outcome::Outcome;
use npwg::plan::{
    Decision, DefaultRouteAction, Delegate, DeviceInfoFile, PLAN_VERSION, Plan, PodIdentity, Role, Verify,
};
use npwg::status;
use rpc::journal::{self, Attachment, Entry, State};

use super::configuration::Configuration;
use cli_support::failure::Failure;
use cli_support::privilege;
use delegates::Planned;

/// Name of libcni's cache directory.
const RESULTS: &str = "results";
/// Directory of device information files.
const DEVICES: &str = "/k8s.cni.cncf.io/devinfo/cni/";

/// Journal entries, and errors.
#[derive(Debug, Default)]
pub(super) struct ImportedSandboxes {
    /// Entries of the sandboxes.
    pub(super) entries: Vec<Entry>,
    /// Reasons why files or sandboxes cannot be imported.
    pub(super) faults: Vec<String>,
}

/// One attachment of a sandbox.
struct ImportedAttachment {
    delegate: Delegate,
    version: cni::Version,
    result: Option<Attached>,
}

/// Reads the state of Multus in `directory`.
pub(super) fn read(directory: &Path, configuration: &Configuration) -> Result<ImportedSandboxes, Failure> {
    let read_failure = |cause| privilege::refused(&format!("read {}", directory.display()), &cause);
    let mut imported = ImportedSandboxes::default();
    let cache = Cache::new(directory);
    let mut cached_by_container: BTreeMap<ContainerId, Vec<Cached>> = BTreeMap::new();
    let mut cached_names = BTreeSet::new();
    for cached in cache.attachments(None)? {
        let who = &cached.parameters.who;
        cached_names.insert(format!("{}-{}-{}", cached.network, who.container, who.ifname));
        cached_by_container.entry(who.container.clone()).or_default().push(cached);
    }
    for name in names(&directory.join(RESULTS)).map_err(read_failure)? {
        if !cached_names.contains(&name) {
            imported.faults.push(format!("{RESULTS}/{name}: not an entry of libcni's cache"));
        }
    }
    let mut planned: BTreeMap<ContainerId, Vec<Planned>> = BTreeMap::new();
    for name in names(directory).map_err(read_failure)? {
        let read = ContainerId::new(&name).and_then(|id| Ok((id, delegates::read(&directory.join(&name))?)));
        match read {
            Ok((container, delegates)) => drop(planned.insert(container, delegates)),
            Err(error) => imported.faults.push(format!("{name}: {error}")),
        }
    }
    let containers: BTreeSet<ContainerId> =
        cached_by_container.keys().chain(planned.keys()).cloned().collect();
    for container in containers {
        let planned = planned.remove(&container).unwrap_or_default();
        let cached = cached_by_container.remove(&container).unwrap_or_default();
        match entry(&container, planned, cached, &cache, configuration) {
            Ok(entry) => imported.entries.push(entry),
            Err(error) => imported.faults.push(format!("container {container}: {error}")),
        }
    }
    Ok(imported)
}

/// Returns the names of the files in a directory, sorted. Hidden files are incomplete and are left out.
fn names(directory: &Path) -> std::io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    Ok(names)
}

/// Converts one sandbox.
fn entry(
    container: &ContainerId,
    planned: Vec<Planned>,
    mut cached: Vec<Cached>,
    cache: &Cache,
    configuration: &Configuration,
) -> Result<Entry, Error> {
    let ifname = default_interface(&planned, &cached)?;
    let runtime = cached.iter().find(|cached| cached.parameters.who.ifname == ifname).or(cached.first());
    let Some(runtime) = runtime else {
        return Err(Error::config("not in libcni's cache: its ADD is running, or failed"));
    };
    let (args, netns) = (runtime_args(&runtime.parameters.args), runtime.parameters.netns.clone());
    let pod = pod_identity(&args)?;
    let mut links = Vec::new();
    for (index, delegate) in planned.into_iter().enumerate() {
        let name = delegate.interface(index, &ifname)?;
        let at = cached
            .iter()
            .position(|one| one.parameters.who.ifname == name && one.network == delegate.network.name);
        let executed = at.map(|at| cached.remove(at));
        links.push(link(index == 0, name, Some(delegate), executed, cache, &args)?);
    }
    // Attachments without a planned delegate were added later. Without any, the interface of the default network comes first.
    cached.sort_by_key(|one| (one.parameters.who.ifname != ifname, one.parameters.who.ifname.clone()));
    for executed in cached {
        let name = executed.parameters.who.ifname.clone();
        links.push(link(links.is_empty(), name, None, Some(executed), cache, &args)?);
    }
    let (delegates, rest): (Vec<Delegate>, Vec<_>) = links
        .into_iter()
        .map(|ImportedAttachment { delegate, version, result }| (delegate, (version, result)))
        .unzip();
    let plan = Plan {
        version: PLAN_VERSION,
        pod,
        container: container.clone(),
        status: configuration.style,
        delegates,
        refused: Vec::new(),
        warnings: Vec::new(),
        note: cni::object::Object::default(),
    };
    let network_status = network_status_entries(&plan, &rest);
    let attachments = rest.into_iter().map(|(_, result)| attachment(result)).collect();
    Ok(Entry {
        version: journal::VERSION,
        network: configuration.name.to_string(),
        container_id: container.clone(),
        netns,
        namespace: String::new(),
        ifname,
        args,
        path: configuration.bin_dir.clone(),
        plan,
        attachments,
        network_status,
        complete: true,
        changing: false,
        replaced: false,
    })
}

fn attachment(result: Option<Attached>) -> Attachment {
    let state = if result.is_some() { State::Attached } else { State::Planned };
    Attachment { state, result: result.map(|attached| attached.raw), ..Attachment::default() }
}

/// Returns the default network's interface: the one in the cached attachment, else `eth0`.
fn default_interface(planned: &[Planned], cached: &[Cached]) -> Result<IfName, Error> {
    let default = planned.first();
    let taken: Vec<&str> = planned.iter().filter_map(|other| other.requested.as_deref()).collect();
    let of_default = |one: &&Cached| {
        let name = one.parameters.who.ifname.as_str();
        default.is_some_and(|default| one.network == default.network.name)
            && !taken.contains(&name)
            && !name.starts_with("net")
    };
    match cached.iter().find(of_default) {
        Some(one) => Ok(one.parameters.who.ifname.clone()),
        None => IfName::new("eth0"),
    }
}

fn link(
    is_default: bool,
    ifname: IfName,
    planned: Option<Planned>,
    executed: Option<Cached>,
    cache: &Cache,
    runtime: &str,
) -> Result<ImportedAttachment, Error> {
    let network = match (&executed, &planned) {
        (Some(Cached { config, network, .. }), _) => Network::parse(config, network.as_str())?,
        (None, Some(planned)) => planned.network.clone(),
        (None, None) => return Err(Error::internal("attachment without configuration")),
    };
    let result = match &executed {
        Some(Cached { parameters, .. }) => cache.result(&network.name, &parameters.who, network.version)?,
        None => None,
    };
    let label = planned.map_or_else(|| network.name.to_string(), |planned| planned.label);
    let role = match (is_default, label.contains('/')) {
        (true, _) => Role::Default,
        (false, true) => Role::Selected,
        (false, false) => Role::Every,
    };
    let parameters = executed.map(|executed| executed.parameters);
    let args = parameters.as_ref().map_or_else(Vec::new, |parameters| added_args(&parameters.args, runtime));
    let runtime_config = parameters.map(|parameters| parameters.capability_args).unwrap_or_default();
    let file = runtime_config.text("CNIDeviceInfoFile")?.filter(|path| is_device_file(path));
    let config = String::from_utf8(network.bytes().to_vec())
        .map_err(|_| Error::config(format!("network {}: not UTF-8", network.name)))?;
    let because =
        Decision { what: "network".to_owned(), value: label.clone(), why: "Multus attached it".to_owned() };
    let delegate = Delegate {
        network: label,
        role,
        config_name: network.name.clone(),
        config,
        ifname,
        runtime_config,
        args,
        verify: Verify::default(),
        asked: None,
        default_route: DefaultRouteAction::Untouched,
        policy: None,
        device_info: file.map(|path| DeviceInfoFile { copy_from: None, path }),
        because: vec![because],
    };
    Ok(ImportedAttachment { delegate, version: network.version, result })
}

/// Whether a path is a device information file of Multus, which is removed with the attachment.
fn is_device_file(path: &str) -> bool {
    let rest = ["/var/run", "/run"].iter().find_map(|start| path.strip_prefix(start)?.strip_prefix(DEVICES));
    rest.is_some_and(|name| !name.is_empty() && !name.contains('/'))
}

/// Returns the arguments of the runtime without those that Multus added for one network.
fn runtime_args(args: &str) -> String {
    let args = Args::scan(args);
    let mut unique: Vec<String> = Vec::new();
    for (key, value) in args.pairs().filter(|(key, _)| key.starts_with("K8S_") || *key == "IgnoreUnknown") {
        let pair = format!("{key}={value}");
        // Multus repeats the arguments of the runtime.
        if !unique.contains(&pair) {
            unique.push(pair);
        }
    }
    unique.join(";")
}

/// Returns the pairs of `args` that Multus added to those of the runtime.
fn added_args(args: &str, runtime: &str) -> Vec<(String, String)> {
    let (args, runtime) = (Args::scan(args), Args::scan(runtime));
    let new = args.pairs().filter(|(key, value)| runtime.get(key) != Some(value) && *key != "IgnoreUnknown");
    new.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn pod_identity(args: &str) -> Result<PodIdentity, Error> {
    let args = Args::scan(args);
    let value = |key| args.get(key).unwrap_or_default().to_owned();
    let pod = PodIdentity {
        namespace: value("K8S_POD_NAMESPACE"),
        name: value("K8S_POD_NAME"),
        uid: value("K8S_POD_UID"),
    };
    match pod.namespace.is_empty() || pod.name.is_empty() {
        true => Err(Error::config("CNI_ARGS in libcni's cache do not name the pod")),
        false => Ok(pod),
    }
}

fn network_status_entries(plan: &Plan, rest: &[(cni::Version, Option<Attached>)]) -> Vec<status::Entry> {
    let outcomes: Vec<Outcome> = rest
        .iter()
        .map(|(version, result)| Outcome {
            version: Some(*version),
            result: result.as_ref().map(|attached| attached.success.clone()),
        })
        .collect();
    let device = |delegate: &Delegate| {
        let file = delegate.device_info.as_ref()?;
        DeviceInfo::read(&fs::read(&file.path).ok()?).ok()
    };
    let attachments: Vec<status::Attachment<'_>> = plan
        .delegates
        .iter()
        .zip(&outcomes)
        .map(|(delegate, outcome)| status::Attachment {
            delegate,
            outcome,
            device_info: device(delegate),
            added_by: String::new(),
        })
        .collect();
    status::entries(plan, &attachments)
}
