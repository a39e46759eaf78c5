//! Resolution from a NetworkAttachmentDefinition to plugins, by the specification's four rules in this order:
//!
//! 1. `spec.config` exists: that text; no other rule is tried.
//! 2. A list on disk (`.conflist`; the specification says `.configlist`) with the definition's name.
//! 3. A single configuration on disk (`.conf`, `.json`, `.config`) with that name.
//! 4. Otherwise the request fails.
//!
//! An empty or blank `config` counts as absent (C17), and so does `null` (M29). A list is preferred to a
//! single configuration, whatever the file names are. If a file cannot be read, only the error under rule 4
//! mentions it.
//!
//! Source: multi-network specification, 3.2, 3.4.1, 3.4.2.

use cni::error::Error;
use cni::network::{Network, ipam_type, plugin_type};
use cni::object::Object;
use cni::runtime::load;

use crate::metadata::{Definition, NetworkReference, SpecConfig};
use crate::refusal::{Fault, KeyPath, Refusal};
use crate::rule::Rule;

/// Networks found on disk, sorted by path. The caller reads the files.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// Networks that could be read.
    pub networks: Vec<OnDisk>,
    /// Errors for the others, as `path: why`.
    pub unreadable: Vec<String>,
}

/// One network on disk.
#[derive(Clone, Debug)]
pub struct OnDisk {
    /// File path.
    pub path: String,
    /// Whether it is a list or a single configuration.
    pub form: Form,
    /// The network, including plugins in a sub-directory.
    pub network: Network,
}

/// Whether a file contains a configuration list or a single plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Configuration list: `.conflist`, `.configlist`.
    List,
    /// Single plugin: `.conf`, `.config`, `.json`.
    Single,
}

impl Form {
    /// Returns the form that a file name implies, or `None` if it is not a network configuration's name.
    pub fn of(path: &str) -> Option<Form> {
        match path.rsplit_once('.')?.1 {
            "conflist" | "configlist" => Some(Form::List),
            "conf" | "config" | "json" => Some(Form::Single),
            _ => None,
        }
    }
}

impl Disk {
    /// Adds what a file or directory contains; a path that is already known keeps the earlier content.
    pub fn add(&mut self, loaded: load::Directory) {
        let load::Directory { networks, faults } = loaded;
        for (path, network) in networks {
            let path = path.display().to_string();
            let form = Form::of(&path).unwrap_or(Form::List);
            if !self.networks.iter().any(|known| known.path == path) {
                self.networks.push(OnDisk { path, form, network });
            }
        }
        self.unreadable.extend(faults.iter().map(|(path, error)| format!("{}: {error}", path.display())));
    }

    /// Returns the network with this `name` from files directly in `directory`: the first list, else the first single
    /// configuration.
    pub fn find(&self, directory: &str, name: &str) -> Option<&OnDisk> {
        let named = |on: &&OnDisk| on.network.name.as_str() == name;
        let list = self.within(directory).filter(named).find(|on| on.form == Form::List);
        list.or_else(|| self.within(directory).find(named))
    }

    /// Returns the network in the file `path`, or the first one in the directory `path`.
    pub fn at(&self, path: &str) -> Option<&OnDisk> {
        let exact = self.networks.iter().find(|on| on.path == path);
        exact.or_else(|| self.within(path).next())
    }

    /// Returns the networks in files directly in `directory`.
    pub fn within(&self, directory: &str) -> impl Iterator<Item = &OnDisk> {
        let directory = directory.trim_end_matches('/');
        let parent =
            |on: &OnDisk| on.path.rsplit_once('/').map(|(parent, _)| parent.trim_end_matches('/').to_owned());
        self.networks.iter().filter(move |on| parent(on).is_some_and(|parent| parent == directory))
    }
}

/// Network that a definition resolves to.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The plugins to execute.
    pub network: Network,
    /// Where they come from: `spec.config` or a file.
    pub origin: Origin,
}

/// Where a network's configuration comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Rule 1: the definition.
    Definition,
    /// Rule 2: a list on disk.
    List(String),
    /// Rule 3: a single configuration on disk.
    Single(String),
}

/// Returns a definition's name in messages.
pub fn subject(reference: &NetworkReference) -> String {
    format!("network-attachment-definition {reference}")
}

/// Resolves `definition` to plugins; rules 2 and 3 look in `directory`, which is `confDir`.
///
/// # Errors
/// A refusal that fails the attachment: `config` is not a CNI network, no network on disk has the name, or
/// the network calls the meta-plugin.
pub fn resolve(definition: &Definition, disk: &Disk, directory: &str) -> Result<Resolved, Refusal> {
    let subject = subject(&definition.reference());
    let resolved = match &definition.config {
        SpecConfig::Structured(json) => {
            let fault = Fault::new(Rule::ConfigNotAString, &subject, "must be a string that contains JSON")
                .at(config_path())
                .showing(json)
                .hint("write \"config: |\" and the JSON on indented lines below it");
            return Err(Refusal::failed(fault));
        }
        SpecConfig::Text(text) if !text.trim().is_empty() => Resolved {
            network: inline(&definition.name, text).map_err(|error| {
                let fault = Fault::new(Rule::MalformedConfig, &subject, error.to_string());
                Refusal::failed(fault.at(config_path()))
            })?,
            origin: Origin::Definition,
        },
        SpecConfig::Text(_) | SpecConfig::Absent => on_disk(definition, disk, directory, &subject)?,
    };
    refuse_meta_plugin(&resolved.network, &subject)?;
    Ok(resolved)
}

/// Returns the path `spec.config`.
pub fn config_path() -> KeyPath {
    KeyPath::root().key("spec").key("config")
}

/// Reads `spec.config`; a missing name becomes the definition's (3.4.2), an existing one is kept.
pub fn inline(name: &str, text: &str) -> Result<Network, Error> {
    let mut object = Object::parse(text.as_bytes(), "config")?;
    if object.text("name")?.is_some() {
        return Network::parse(text.as_bytes(), "config");
    }
    object.impose("name", raw(name)?);
    Network::from_object(object)
}

fn raw(text: &str) -> Result<Box<serde_json::value::RawValue>, Error> {
    serde_json::value::to_raw_value(text)
        .map_err(|cause| Error::internal(format!("encode {text:?}: {cause}")))
}

fn on_disk(
    definition: &Definition,
    disk: &Disk,
    directory: &str,
    subject: &str,
) -> Result<Resolved, Refusal> {
    if let Some(found) = disk.find(directory, &definition.name) {
        let path = found.path.clone();
        let origin = match found.form {
            Form::List => Origin::List(path),
            Form::Single => Origin::Single(path),
        };
        return Ok(Resolved { network: found.network.clone(), origin });
    }
    let mut reason =
        format!("has no spec.config, and no network named {:?} is in {directory}", definition.name);
    if !disk.unreadable.is_empty() {
        reason.push_str(&format!(" (could not be read: {})", disk.unreadable.join("; ")));
    }
    Err(Refusal::failed(Fault::new(Rule::ConfigNotFound, subject, reason)))
}

/// Meta-plugins, which attach all networks for a pod, and `weft-cni`, which is no plugin under that name.
pub const META_PLUGINS: &[&str] = &["weft", "weft-cni", "multus", "multus-shim"];

/// Refuses a network that has a meta-plugin as plugin or as IPAM plugin. The meta-plugin would attach the
/// same pod again without end, with the definition's settings instead of the node's.
pub fn refuse_meta_plugin(network: &Network, subject: &str) -> Result<(), Refusal> {
    for (index, plugin) in network.plugins.iter().enumerate() {
        let path = KeyPath::root().key("plugins").index(index);
        // An invalid plugin object is refused by the code that reads it.
        let names = [
            (plugin_type(plugin).ok(), path.key("type")),
            (ipam_type(plugin).ok().flatten(), path.key("ipam").key("type")),
        ];
        for (name, path) in names {
            let Some(name) = name.filter(|name| META_PLUGINS.contains(&name.as_str())) else { continue };
            let fault = Fault::new(
                Rule::RecursiveNetwork,
                subject,
                "would attach the pod's networks again, without end",
            )
            .at(path)
            .showing(&format!("{:?}", name.as_str()));
            return Err(Refusal::failed(fault.hint("name the plugin that creates the interface")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
