//! Multus configuration, and conversion into an equivalent weft configuration.
//!
//! - Every option keeps the same meaning. If weft has a different default, Multus's value is written out.
//! - Options of the Multus daemon, and unknown options, which Multus ignores too, are left out and named.
//! - Multus copies the node's default network into `delegates`. The result names that file in `clusterNetwork` instead,
//!   because every node has a different one.
//! - Paths of a daemon configuration that begin with `/host` (the node's file system in the container) are converted.
//!
//! Source: Multus `pkg/types/types.go`, `pkg/server/config/generator.go`, `deployments/`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cni::name::NetworkName;
use cni::network::Network;
use cni::object::Object;
use cni::runtime::load::{self, Directory};
use cni::{Context, Error, Version};
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::refusal::{Reason, Step, Warning};
use npwg::status::StatusStyle;
use serde_json::Value;

use super::saved_files::{SavedFiles, is_of_multus};
use crate::meta_plugin_config::MetaPlugin;
use cli_support::failure::Failure;

/// Default directory for Multus state.
const CNI_DIR: &str = "/var/lib/cni/multus";
/// Mount point of the node's file system in the daemon container.
const MOUNTED: &str = "/host";
/// Capability with which the runtime passes the annotations of a pod.
const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// Options for the Multus daemon and credentials.
const MULTUS_ONLY_OPTIONS: &[&str] = &[
    "chrootDir",
    "cniConfigDir",
    "connectionLimit",
    "daemonSocketDir",
    "enablePprof",
    "forceCNIVersion",
    "kubeconfig",
    "metricsPort",
    "multusAutoconfigDir",
    "multusConfigFile",
    "multusMasterCNI",
    "overrideNetworkName",
    "perNodeCertificate",
    "socketDir",
];
/// Oldest CNI version of a converted configuration.
const OLDEST_VERSION: Version = Version::V1_0_0;
/// Options whose paths may be those of the daemon's container.
const PATHS: &[&str] = &["binDir", "clusterNetwork", "confDir", "readinessindicatorfile"];

/// Multus configuration and the converted one.
#[derive(Debug)]
pub(super) struct Configuration {
    /// Network name.
    pub(super) name: NetworkName,
    /// Form of the network-status.
    pub(super) style: StatusStyle,
    /// Plugin directory.
    pub(super) bin_dir: String,
    /// Directory with the Multus state.
    pub(super) cni_dir: PathBuf,
    /// Configuration list for weft.
    pub(super) text: String,
    /// Remarks on the differences, for the operator.
    pub(super) notes: Vec<String>,
    /// Unknown options that were left out.
    pub(super) left_out: Vec<String>,
}

impl Configuration {
    /// Reads and converts the configuration.
    pub(super) fn read(
        config: Option<&Path>,
        conf_dir: &Path,
        saved: &SavedFiles,
        daemon_config: Option<&Path>,
    ) -> Result<Configuration, Failure> {
        let (path, network) = match config {
            Some(path) => (path.to_owned(), load::network(path)?),
            None => first(conf_dir, saved)?,
        };
        let file = path.display().to_string();
        let Some((multus, others)) = network.plugins.split_first().filter(|_| is_of_multus(&network)) else {
            return Err(Failure::new(format!("{file}: type: neither multus nor multus-shim")));
        };
        let mut notes = vec![format!("{file} is the configuration of Multus")];
        let mut plugin = multus.clone();
        if let Some(daemon) = daemon_config {
            overlay(&mut plugin, daemon)?;
            notes.push(format!("{} takes precedence over it", daemon.display()));
        }
        let cni_dir = plugin.text("cniDir")?.filter(|text| !text.is_empty());
        let cni_dir = cni_dir.map_or_else(|| CNI_DIR.to_owned(), |text| node_path(&text).unwrap_or(text));
        translate(&mut plugin, &mut notes)?;
        let left_out = remove_unknown_options(&mut plugin);
        refer_to_default_network(&mut plugin, conf_dir, &mut notes)?;
        let version = network.version.max(OLDEST_VERSION);
        if version != network.version {
            let why = "runtimes call CHECK since 0.4.0; each network keeps its own version";
            notes.push(format!("cniVersion: {} becomes {version}: {why}", network.version));
        }
        let text = list(&network, version, &plugin, others).context(&file)?;
        let read_back = Network::parse(text.as_bytes(), &file)?;
        let found = MetaPlugin::read(&read_back, &path)?;
        Ok(Configuration {
            name: network.name,
            style: found.node.status,
            bin_dir: found.node.bin_dir,
            cni_dir: cni_dir.into(),
            text,
            notes,
            left_out,
        })
    }
}

/// Returns the first Multus configuration in the runtime's directory, else the saved one.
fn first(conf_dir: &Path, saved: &SavedFiles) -> Result<(PathBuf, Network), Failure> {
    for directory in [conf_dir, saved.directory()] {
        let directory = Directory::read(directory)?;
        let found = directory.networks.iter().filter(|(_, network)| is_of_multus(network));
        let found = found.min_by(|(a, _), (b, _)| a.cmp(b));
        // An unreadable file that sorts before it is an error, because it may be the one.
        directory.is_first(found.map(|(path, _)| path.as_path()))?;
        if let Some(found) = found {
            return Ok(found.clone());
        }
    }
    let (here, kept) = (conf_dir.display(), saved.directory().display());
    Err(Failure::new(format!("no configuration of Multus in {here}, and none saved in {kept}"))
        .next("name it with --config"))
}

/// Overwrites plugin options with those in the daemon configuration.
fn overlay(plugin: &mut Object, daemon: &Path) -> Result<(), Error> {
    let step = daemon.display();
    let bytes = std::fs::read(daemon).map_err(|cause| Error::io(format_args!("read {step}"), cause))?;
    for (key, value) in Object::parse(&bytes, &step.to_string())?.iter() {
        // The plugin configuration determines the called program and its name.
        if !matches!(key, "name" | "type" | "cniVersion") {
            plugin.impose(key, value.to_owned());
        }
    }
    Ok(())
}

/// Converts plugin options to weft options.
fn translate(plugin: &mut Object, notes: &mut Vec<String>) -> Result<(), Error> {
    for key in MULTUS_ONLY_OPTIONS.iter().filter(|key| plugin.contains(key)) {
        notes.push(format!("{key} is left out: weft does not need it"));
    }
    for key in MULTUS_ONLY_OPTIONS {
        plugin.banish(key);
    }
    if let Some(directory) = plugin.text("cniConf")? {
        notes.push("cniConf is the name of confDir in an old release of Multus".to_owned());
        plugin.banish("cniConf");
        if !plugin.contains("confDir") {
            plugin.set("confDir", &directory)?;
        }
    }
    plugin.banish("cniDir");
    for key in PATHS {
        let Some(text) = plugin.text(key)? else { continue };
        if let Some(path) = node_path(&text) {
            notes.push(format!("{key}: {text} is {path} on the node"));
            plugin.banish(key);
            plugin.set(key, &path)?;
        }
    }
    let mut capabilities = plugin.read::<BTreeMap<String, bool>>("capabilities")?.unwrap_or_default();
    capabilities.insert(POD_ANNOTATIONS.to_owned(), true);
    for (key, value) in [("invalidAnnotation", "fail"), ("statusKeys", "multus")] {
        if !plugin.contains(key) {
            plugin.set(key, value)?;
        }
    }
    plugin.banish("type");
    plugin.set("type", "weft")?;
    plugin.banish("capabilities");
    plugin.set("capabilities", &capabilities)?;
    plugin.banish("cniVersion");
    plugin.banish("name");
    Ok(())
}

/// Removes unknown options and returns a line for each.
fn remove_unknown_options(plugin: &mut Object) -> Vec<String> {
    let warnings = NodeConfiguration::read(plugin.to_json().as_bytes(), Flavour::Multus);
    // Other errors are reported when the result is validated.
    let warnings = warnings.map(|read| read.warnings).unwrap_or_default();
    let mut lines = Vec::new();
    for Warning { event, fault } in warnings {
        let (Reason::UnknownKey, [Step::Key(key)]) = (event, fault.path.steps()) else { continue };
        let hint = if fault.hint.is_empty() { String::new() } else { format!(": {}", fault.hint) };
        lines.push(format!("{key}: unknown option, ignored by Multus{hint}"));
        plugin.banish(key);
    }
    lines
}

/// Replaces `delegates` by the file of the default network. Multus copies that file into the Multus configuration, and
/// the file contains one node's pod subnet, so a configuration for all nodes must not contain the copy.
fn refer_to_default_network(
    plugin: &mut Object,
    conf_dir: &Path,
    notes: &mut Vec<String>,
) -> Result<(), Failure> {
    let has_other = plugin.text("clusterNetwork")?.is_some_and(|name| !name.is_empty());
    if has_other && plugin.get("delegates").is_some() {
        notes.push("delegates: left out, because Multus ignores it beside clusterNetwork".to_owned());
        plugin.banish("delegates");
    }
    let delegates = plugin.read::<Vec<Value>>("delegates")?.unwrap_or_default();
    let Some(default) = delegates.first() else { return Ok(()) };
    let is_default = |(_, network): &&(PathBuf, Network)| {
        serde_json::from_slice::<Value>(network.bytes()).is_ok_and(|other| other == *default)
    };
    let networks = Directory::read(conf_dir)?.networks;
    match networks.iter().find(is_default).filter(|_| delegates.len() == 1) {
        Some((path, _)) => {
            notes.push(format!(
                "delegates: replaced by clusterNetwork {}, because each node has its own default network",
                path.display()
            ));
            plugin.banish("delegates");
            plugin.set("clusterNetwork", &path.display().to_string())?;
        }
        None => notes.push(
            "delegates: contains the default network of this node, and every node with this \
             configuration will use it; compare it with the default network of another node"
                .to_owned(),
        ),
    }
    Ok(())
}

/// Returns the path on the node for a path of the daemon's container; `None` if it is another path.
fn node_path(text: &str) -> Option<String> {
    let rest = text.strip_prefix(MOUNTED).filter(|rest| rest.starts_with('/'))?;
    (!Path::new(text).exists()).then(|| rest.to_owned())
}

fn list(network: &Network, version: Version, plugin: &Object, others: &[Object]) -> Result<String, Error> {
    let plugins: Vec<&Object> = std::iter::once(plugin).chain(others).collect();
    let mut list = Object::default();
    list.set("cniVersion", version.as_str())?;
    list.set("name", network.name.as_str())?;
    list.set("plugins", &plugins)?;
    let mut text = cni::result::pretty(&list)?;
    text.push(b'\n');
    String::from_utf8(text).map_err(|cause| Error::internal(cause.to_string()))
}
