//! Multus's configuration, and the one that makes weft do the same.
//!
//! Rules: every key keeps its meaning; where weft's default is another one, it is written out; a key of the daemon,
//! which weft has none of, is left out and named; so is one that nobody knows, which Multus did not heed either.
//!
//! A default network that is written out, as Multus makes it of a node's own file, is named by that file again.
//!
//! With a daemon paths are written as its container sees them, below `/host`.
//!
//! Source: Multus `pkg/types/types.go`, `pkg/server/config/generator.go`, `deployments/`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cni::name::NetworkName;
use cni::network::{Network, plugin_type};
use cni::object::Object;
use cni::runtime::load::{self, Directory};
use cni::{Context, Error};
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::refusal::{Reason, Step, Warning};
use npwg::status::StatusStyle;
use serde_json::Value;

use crate::meta_plugin_config::MetaPlugin;
use cli_support::failure::Failure;

/// Where Multus remembers what it attached, unless told otherwise.
const CNI_DIR: &str = "/var/lib/cni/multus";
/// Its plugin with and without a daemon.
const TYPES: [&str; 2] = ["multus", "multus-shim"];
/// Where the daemon's container sees the node's files.
const MOUNTED: &str = "/host";
/// By it the runtime passes a pod's annotations.
const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// Keys of the daemon, and of the credentials that go with Multus.
const OF_MULTUS_ALONE: &[&str] = &[
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
/// Keys with a path that may be one of the daemon's container.
const PATHS: &[&str] = &["binDir", "clusterNetwork", "confDir", "readinessindicatorfile"];

/// What was read, and what it comes to.
#[derive(Debug)]
pub(super) struct Configuration {
    /// Name of its network.
    pub(super) name: NetworkName,
    /// How it writes the status.
    pub(super) style: StatusStyle,
    /// Where its plugins are.
    pub(super) bin_dir: String,
    /// What it remembers.
    pub(super) cni_dir: PathBuf,
    /// The list for weft.
    pub(super) text: String,
    /// What a person should know of the difference.
    pub(super) notes: Vec<String>,
    /// Keys that are not understood.
    pub(super) left_out: Vec<String>,
}

impl Configuration {
    /// Reads it and makes the other of it.
    pub(super) fn read(
        config: Option<&Path>,
        conf_dir: &Path,
        daemon_config: Option<&Path>,
    ) -> Result<Configuration, Failure> {
        let (path, network) = match config {
            Some(path) => (path.to_owned(), load::network(path)?),
            None => first(conf_dir)?,
        };
        let file = path.display().to_string();
        let is_multus =
            |plugin: &Object| plugin_type(plugin).is_ok_and(|name| TYPES.contains(&name.as_str()));
        let Some((multus, others)) = network.plugins.split_first().filter(|(first, _)| is_multus(first))
        else {
            return Err(Failure::new(format!("{file}: its plugin is neither multus nor multus-shim")));
        };
        let mut notes = vec![format!("{file} is that of Multus")];
        let mut plugin = multus.clone();
        if let Some(daemon) = daemon_config {
            overlay(&mut plugin, daemon)?;
            notes.push(format!("{} counts before it", daemon.display()));
        }
        let cni_dir = plugin.text("cniDir")?.filter(|text| !text.is_empty());
        let cni_dir = cni_dir.map_or_else(|| CNI_DIR.to_owned(), |text| on_the_node(&text).unwrap_or(text));
        translate(&mut plugin, &mut notes)?;
        let left_out = leave_out(&mut plugin);
        refer(&mut plugin, conf_dir, &mut notes)?;
        let text = list(&network, &plugin, others).context(&file)?;
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

fn first(conf_dir: &Path) -> Result<(PathBuf, Network), Failure> {
    let directory = Directory::read(conf_dir)?;
    let is_multus = |(_, network): &&(PathBuf, Network)| {
        let name = network.plugins.first().and_then(|plugin| plugin_type(plugin).ok());
        name.is_some_and(|name| TYPES.contains(&name.as_str()))
    };
    let found = directory.networks.iter().filter(is_multus).min_by(|(a, _), (b, _)| a.cmp(b));
    // One that cannot be read may be meant, if it comes before.
    directory.is_first(found.map(|(path, _)| path.as_path()))?;
    found.cloned().ok_or_else(|| {
        Failure::new(format!("no configuration of Multus is in {}", conf_dir.display()))
            .next("name it with --config")
    })
}

/// The daemon's keys count before those of the plugin.
fn overlay(plugin: &mut Object, daemon: &Path) -> Result<(), Error> {
    let step = daemon.display();
    let bytes = std::fs::read(daemon).map_err(|cause| Error::io(format_args!("read {step}"), cause))?;
    for (key, value) in Object::parse(&bytes, &step.to_string())?.iter() {
        // Who is called, and by which name, the plugin's own says.
        if !matches!(key, "name" | "type" | "cniVersion") {
            plugin.impose(key, value.to_owned());
        }
    }
    Ok(())
}

/// Makes the plugin's keys those of weft.
fn translate(plugin: &mut Object, notes: &mut Vec<String>) -> Result<(), Error> {
    for key in OF_MULTUS_ALONE.iter().filter(|key| plugin.contains(key)) {
        notes.push(format!("{key} is left out: weft has no use for it"));
    }
    for key in OF_MULTUS_ALONE {
        plugin.banish(key);
    }
    if let Some(directory) = plugin.text("cniConf")? {
        notes.push("cniConf is what a release of Multus wrote for confDir".to_owned());
        plugin.banish("cniConf");
        if !plugin.contains("confDir") {
            plugin.set("confDir", &directory)?;
        }
    }
    plugin.banish("cniDir");
    for key in PATHS {
        let Some(text) = plugin.text(key)? else { continue };
        if let Some(path) = on_the_node(&text) {
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

/// Takes out what nobody knows; a line for each.
fn leave_out(plugin: &mut Object) -> Vec<String> {
    let warnings = NodeConfiguration::read(plugin.to_json().as_bytes(), Flavour::Multus);
    // What else is wrong is told when the whole is read.
    let warnings = warnings.map(|read| read.warnings).unwrap_or_default();
    let mut lines = Vec::new();
    for Warning { event, fault } in warnings {
        let (Reason::UnknownKey, [Step::Key(key)]) = (event, fault.path.steps()) else { continue };
        let hint = if fault.cure.is_empty() { String::new() } else { format!(": {}", fault.cure) };
        lines.push(format!("{key}: nobody knows this key, and Multus does not heed it{hint}"));
        plugin.banish(key);
    }
    lines
}

/// Names the file of a default network that is written out. Multus writes it out by itself, from a file that is made for each
/// node, with the subnet of its pods: in the configuration of all nodes it would give them all that one's.
fn refer(plugin: &mut Object, conf_dir: &Path, notes: &mut Vec<String>) -> Result<(), Failure> {
    let has_other = plugin.text("clusterNetwork")?.is_some_and(|name| !name.is_empty());
    let delegates = plugin.read::<Vec<Value>>("delegates")?.unwrap_or_default();
    let Some(default) = delegates.first().filter(|_| !has_other) else { return Ok(()) };
    let is_it = |(_, network): &&(PathBuf, Network)| {
        serde_json::from_slice::<Value>(network.bytes()).is_ok_and(|other| other == *default)
    };
    let networks = Directory::read(conf_dir)?.networks;
    match networks.iter().find(is_it).filter(|_| delegates.len() == 1) {
        Some((path, _)) => {
            notes.push(format!(
                "delegates: the default network is that of {}: clusterNetwork names it, because each node has its own",
                path.display()
            ));
            plugin.banish("delegates");
            plugin.set("clusterNetwork", &path.display().to_string())?;
        }
        None => notes.push(
            "delegates: the default network is written out as this node has it, and every node that gets this \
             configuration will have the same: compare it with another node's"
                .to_owned(),
        ),
    }
    Ok(())
}

/// A path of the daemon's container as the node has it, if it is one.
fn on_the_node(text: &str) -> Option<String> {
    let rest = text.strip_prefix(MOUNTED).filter(|rest| rest.starts_with('/'))?;
    (!Path::new(text).exists()).then(|| rest.to_owned())
}

fn list(network: &Network, plugin: &Object, others: &[Object]) -> Result<String, Error> {
    let plugins: Vec<&Object> = std::iter::once(plugin).chain(others).collect();
    let mut list = Object::default();
    list.set("cniVersion", network.version.as_str())?;
    list.set("name", network.name.as_str())?;
    list.set("plugins", &plugins)?;
    let mut text = cni::result::pretty(&list)?;
    text.push(b'\n');
    String::from_utf8(text).map_err(|cause| Error::internal(cause.to_string()))
}
