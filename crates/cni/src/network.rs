//! Network: the list of plugin configurations that an administrator writes.
//!
//! This module reads no files; `runtime::load` does. A single plugin configuration is treated as a list with one
//! plugin. The bytes are kept as received (or, for a single configuration, the list around it), because caches and
//! journals must contain exactly what was executed.
//!
//! - Plugin configurations are kept unchanged; only `type` and `capabilities` are read.
//! - The highest supported version in `cniVersion` and `cniVersions` wins, and unknown versions are ignored. If none is
//!   supported, the error names all of them.
//! - A boolean may also be the string "true" or "false", in any letter case (trap 3).
//!
//! Source: SPEC 1.1.0 §1 (S3, S8, S22, S24, S34, S38, S39); libcni `libcni/conf.go` (L10, trap 3).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{Context, Error, code};
use crate::fold;
use crate::name::{NetworkName, PluginType};
use crate::object::Object;
use crate::version::{Triple, Version};

/// Network configuration.
#[derive(Clone, Debug)]
pub struct Network {
    /// Network name, under which all state is stored.
    pub name: NetworkName,
    /// CNI version to use when calling the plugins.
    pub version: Version,
    /// Whether CHECK must not be called.
    pub disable_check: bool,
    /// Whether GC must not be called.
    pub disable_gc: bool,
    /// Whether plugins come only from the list itself, and not from files in a directory named like the network.
    pub load_only_inlined_plugins: bool,
    /// Plugins in ADD order, as written; each has a valid `type`.
    pub plugins: Vec<Object>,
    bytes: Vec<u8>,
    /// Whether a plugin that is not in `bytes` was appended.
    is_appended: bool,
}

impl Network {
    /// Parses a list, or a single plugin configuration as a list with one plugin; `what` names the document in errors.
    ///
    /// # Errors
    /// Code 6: not a JSON object. Code 7: a key has the wrong type, or there is no name or no plugin. Code 1: no
    /// supported version.
    pub fn parse(bytes: &[u8], what: &str) -> Result<Network, Error> {
        let network = Network::parse_open(bytes, what)?;
        network.closed().context(what)
    }

    /// Parses like [`Network::parse`], but accepts a list without plugins, because they may follow from other files.
    pub fn parse_open(bytes: &[u8], what: &str) -> Result<Network, Error> {
        let object = Object::parse(bytes, what)?;
        match is_list(&object) {
            true => Network::of_list(&object, bytes.to_vec()),
            false => Network::of_single(object),
        }
        .context(what)
    }

    /// Builds the network from an object that is already parsed, for example after adding the name.
    pub fn from_object(object: Object) -> Result<Network, Error> {
        match is_list(&object) {
            true => Network::of_list(&object, object.to_json().into_bytes()).and_then(Network::closed),
            false => Network::of_single(object),
        }
    }

    fn of_list(list: &Object, bytes: Vec<u8>) -> Result<Network, Error> {
        let name = NetworkName::new(&list.text("name")?.unwrap_or_default())?;
        let plugins: Option<Vec<Object>> = match list.get("plugins") {
            None => None,
            Some(raw) => Some(plugins(raw)?),
        };
        let load_only_inlined_plugins = boolean(list, "loadOnlyInlinedPlugins")?;
        if plugins.is_none() && load_only_inlined_plugins {
            return Err(Error::config("loadOnlyInlinedPlugins: true: there is no plugins key"));
        }
        if plugins.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::key("plugins", "[]", "no plugins in list"));
        }
        Ok(Network {
            name,
            version: version(list)?,
            disable_check: boolean(list, "disableCheck")?,
            disable_gc: boolean(list, "disableGC")?,
            load_only_inlined_plugins,
            plugins: plugins.unwrap_or_default(),
            bytes,
            is_appended: false,
        })
    }

    fn of_single(plugin: Object) -> Result<Network, Error> {
        let name = NetworkName::new(&plugin.text("name")?.unwrap_or_default())?;
        let version = version(&plugin)?;
        check(&plugin)?;
        let bytes =
            format!(r#"{{"cniVersion":"{version}","name":"{name}","plugins":[{}]}}"#, plugin.to_json());
        Ok(Network {
            name,
            version,
            disable_check: false,
            disable_gc: false,
            load_only_inlined_plugins: true,
            plugins: vec![plugin],
            bytes: bytes.into_bytes(),
            is_appended: false,
        })
    }

    fn closed(self) -> Result<Network, Error> {
        match self.plugins.is_empty() {
            true => Err(Error::config("plugins: missing: a network needs at least one plugin")),
            false => Ok(self),
        }
    }

    /// Appends a plugin that is configured in a separate file.
    pub fn append(&mut self, plugin: Object) -> Result<(), Error> {
        check(&plugin)?;
        self.plugins.push(plugin);
        self.is_appended = true;
        Ok(())
    }

    /// Returns the list as received, without plugins from separate files.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the list including every plugin, for readers that cannot access the separate files.
    ///
    /// # Errors
    /// Code 999: the list has no JSON form.
    pub fn inlined(&self) -> Result<Cow<'_, [u8]>, Error> {
        if !self.is_appended {
            return Ok(Cow::Borrowed(&self.bytes));
        }
        let mut list = Object::parse(&self.bytes, self.name.as_str())?;
        for key in ["plugins", "loadOnlyInlinedPlugins"] {
            list.banish(key);
        }
        list.set("plugins", &self.plugins)?;
        list.set("loadOnlyInlinedPlugins", &true)?;
        Ok(Cow::Owned(list.to_json().into_bytes()))
    }

    /// Returns the capabilities that at least one plugin declares. The runtime's other arguments are not used.
    pub fn capabilities(&self) -> Result<BTreeSet<String>, Error> {
        let mut all = BTreeSet::new();
        for plugin in &self.plugins {
            all.extend(capabilities(plugin)?);
        }
        Ok(all)
    }

    /// Lists the plugins that this network needs, including IPAM plugins, without duplicates, in order of use.
    pub fn needs(&self) -> Result<Vec<PluginType>, Error> {
        self.needs_where(|_| true)
    }

    /// Like [`Network::needs`], but includes IPAM plugins only for those plugins that `uses_ipam_type` selects, because
    /// `ipam.type` may mean something else to other plugins.
    pub fn needs_where(
        &self,
        uses_ipam_type: impl Fn(&PluginType) -> bool,
    ) -> Result<Vec<PluginType>, Error> {
        let mut needs = Vec::new();
        for plugin in &self.plugins {
            let name = plugin_type(plugin)?;
            let ipam = if uses_ipam_type(&name) { ipam_type(plugin)? } else { None };
            for name in std::iter::once(name).chain(ipam) {
                if !needs.contains(&name) {
                    needs.push(name);
                }
            }
        }
        Ok(needs)
    }
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Ipam {
    r#type: String,
}

/// Reads `type` from a plugin configuration.
pub fn plugin_type(plugin: &Object) -> Result<PluginType, Error> {
    PluginType::new(&plugin.text("type")?.unwrap_or_default()).context("type")
}

/// Reads `ipam.type` from a plugin configuration, if there is one.
pub fn ipam_type(plugin: &Object) -> Result<Option<PluginType>, Error> {
    match plugin.read::<Ipam>("ipam")?.unwrap_or_default().r#type.as_str() {
        "" => Ok(None),
        name => PluginType::new(name).context("ipam.type").map(Some),
    }
}

/// Lists the capabilities that a plugin configuration declares with `true`.
pub fn capabilities(plugin: &Object) -> Result<BTreeSet<String>, Error> {
    let declared = plugin.read::<BTreeMap<String, bool>>("capabilities")?.unwrap_or_default();
    Ok(declared.into_iter().filter(|(_, enabled)| *enabled).map(|(name, _)| name).collect())
}

/// Whether the object is a list. Only a list has `plugins`, and only a plugin has `type`; with neither, it is a list
/// without plugins.
fn is_list(object: &Object) -> bool {
    object.contains("plugins") || object.get("type").is_none()
}

/// Fails if the plugin configuration cannot be executed.
fn check(plugin: &Object) -> Result<(), Error> {
    plugin_type(plugin)?;
    capabilities(plugin)?;
    Ok(())
}

fn plugins(raw: &RawValue) -> Result<Vec<Object>, Error> {
    let list: Vec<Box<RawValue>> = serde_json::from_str(raw.get()).map_err(|_| {
        let value: Value = serde_json::from_str(raw.get()).unwrap_or_default();
        Error::key("plugins", fold::quote(&value), "expected a list")
    })?;
    let mut plugins = Vec::with_capacity(list.len());
    for (index, raw) in list.iter().enumerate() {
        let what = format!("plugins[{index}]");
        let plugin = Object::parse(raw.get().as_bytes(), &what)?;
        check(&plugin).context(what)?;
        plugins.push(plugin);
    }
    Ok(plugins)
}

/// Reads a boolean, which may also be a string in any letter case.
fn boolean(list: &Object, key: &str) -> Result<bool, Error> {
    match list.read::<Value>(key)? {
        None => Ok(false),
        Some(Value::Bool(value)) => Ok(value),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(other) => Err(Error::key(key, fold::quote(&other), "expected true or false")),
    }
}

/// Returns the highest supported version in `cniVersion` and `cniVersions` (S34).
fn version(list: &Object) -> Result<Version, Error> {
    let one = list.text("cniVersion")?;
    let many: Vec<String> = list.read("cniVersions")?.unwrap_or_default();
    if many.is_empty() && one.is_none() {
        return Ok(Version::ABSENT);
    }
    let mut best = None;
    let named = one.iter().map(|text| ("cniVersion", text)).chain(many.iter().map(|t| ("cniVersions", t)));
    for (key, text) in named {
        if Triple::parse(text).is_none() || text.is_empty() {
            return Err(Error::key(key, format!("{text:?}"), "not a version"));
        }
        best = best.max(Version::from_wire(text));
    }
    best.ok_or_else(|| {
        let given: Vec<&str> = one.iter().chain(&many).map(String::as_str).collect();
        let known: Vec<&str> = Version::ALL.iter().map(|v| v.as_str()).collect();
        Error::new(code::INCOMPATIBLE_VERSION, "incompatible CNI versions").details(format!(
            "config is {}, this runtime supports {}",
            given.join(", "),
            known.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests;
