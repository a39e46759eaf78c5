//! A network: the list of plugin configurations that an administrator writes.
//!
//! Pure: files are `runtime::load`'s business. A single plugin's configuration is read as a list of
//! one. The bytes are kept as they came (of a single configuration: the list around it), because
//! caches and journals must hold what was executed.
//!
//! Rules:
//! - plugin configurations stay untouched objects; of them only `type` and `capabilities` are looked at;
//! - of `cniVersion` and `cniVersions` the highest version we speak counts; what we do not know is skipped,
//!   but if nothing is left it is an error naming all of them;
//! - a boolean may be the text "true" or "false" in any letter case (trap 3).
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

/// A network's configuration.
#[derive(Clone, Debug)]
pub struct Network {
    /// Its name: the identity of everything stored for it.
    pub name: NetworkName,
    /// The protocol version to speak with its plugins.
    pub version: Version,
    /// CHECK must not be called.
    pub disable_check: bool,
    /// GC must not be called.
    pub disable_gc: bool,
    /// Plugins come from the list alone, not from files in a directory named like the network.
    pub load_only_inlined_plugins: bool,
    /// The plugins in the order of an ADD, as written; each has a valid `type`.
    pub plugins: Vec<Object>,
    bytes: Vec<u8>,
    /// Was a plugin appended that `bytes` does not have?
    is_appended: bool,
}

impl Network {
    /// Reads a list, or a single plugin's configuration as a list of one; `what` names the document in errors.
    ///
    /// # Errors
    /// 6 not a JSON object · 7 a key of the wrong form, no name, no plugin · 1 no version we speak.
    pub fn parse(bytes: &[u8], what: &str) -> Result<Network, Error> {
        let network = Network::parse_open(bytes, what)?;
        network.closed().context(what)
    }

    /// [`Network::parse`], but a list may have no plugins yet: they may stand in files beside it.
    pub fn parse_open(bytes: &[u8], what: &str) -> Result<Network, Error> {
        let object = Object::parse(bytes, what)?;
        match is_list(&object) {
            true => Network::of_list(&object, bytes.to_vec()),
            false => Network::of_single(object),
        }
        .context(what)
    }

    /// A network of an object that is already taken apart, for instance after its name was filled in.
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
            return Err(Error::config("loadOnlyInlinedPlugins: true: there is no plugins key to load from"));
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

    /// Appends a plugin that was configured in a file of its own.
    pub fn append(&mut self, plugin: Object) -> Result<(), Error> {
        check(&plugin)?;
        self.plugins.push(plugin);
        self.is_appended = true;
        Ok(())
    }

    /// The list as it came: without plugins that have files of their own.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The list with every plugin in it, for who has not their files.
    ///
    /// # Errors
    /// Our own fault, if it cannot be said in JSON.
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

    /// The capabilities that at least one plugin declares: what of a runtime's arguments is used at all.
    pub fn capabilities(&self) -> Result<BTreeSet<String>, Error> {
        let mut all = BTreeSet::new();
        for plugin in &self.plugins {
            all.extend(capabilities(plugin)?);
        }
        Ok(all)
    }

    /// The plugins that must be found to run this network, IPAM included, each once, in order of use.
    pub fn needs(&self) -> Result<Vec<PluginType>, Error> {
        let mut needs = Vec::new();
        for plugin in &self.plugins {
            for name in std::iter::once(plugin_type(plugin)?).chain(ipam_type(plugin)?) {
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

/// The `type` of one plugin's configuration.
pub fn plugin_type(plugin: &Object) -> Result<PluginType, Error> {
    PluginType::new(&plugin.text("type")?.unwrap_or_default()).context("type")
}

/// The `ipam.type` of one plugin's configuration, if it has any.
pub fn ipam_type(plugin: &Object) -> Result<Option<PluginType>, Error> {
    match plugin.read::<Ipam>("ipam")?.unwrap_or_default().r#type.as_str() {
        "" => Ok(None),
        name => PluginType::new(name).context("ipam.type").map(Some),
    }
}

/// The capabilities that one plugin's configuration declares with `true`.
pub fn capabilities(plugin: &Object) -> Result<BTreeSet<String>, Error> {
    let declared = plugin.read::<BTreeMap<String, bool>>("capabilities")?.unwrap_or_default();
    Ok(declared.into_iter().filter(|(_, enabled)| *enabled).map(|(name, _)| name).collect())
}

/// Only a list has `plugins`, only a plugin has `type`; with neither it is a list whose plugins are elsewhere.
fn is_list(object: &Object) -> bool {
    object.contains("plugins") || object.get("type").is_none()
}

/// Is this something that can be executed?
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

/// `true`, `false`, or their names as text in any letter case.
fn boolean(list: &Object, key: &str) -> Result<bool, Error> {
    match list.read::<Value>(key)? {
        None => Ok(false),
        Some(Value::Bool(value)) => Ok(value),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(other) => Err(Error::key(key, fold::quote(&other), "expected true or false")),
    }
}

/// The highest version we speak out of `cniVersion` and `cniVersions` (S34).
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
