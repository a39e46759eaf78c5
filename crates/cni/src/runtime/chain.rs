//! Executes a network's plugins, one after the other.
//!
//! This module keeps no state: the caller passes the ADD result to DEL and CHECK. [`super::Runtime`] keeps it in
//! libcni's cache, the meta-plugin in the journal.
//!
//! - Each plugin gets the configuration byte for byte as written, with the additions from [`derive()`].
//! - ADD goes forward, and each plugin gets the previous one's result. ADD stops at the first error and undoes nothing,
//!   because only the caller knows whether the attachment existed before.
//! - DEL goes backward and stops at the first error; the caller repeats it.
//! - GC continues after errors and returns all of them; STATUS returns the first one, unchanged.
//!
//! Source: SPEC 1.1.0 §3; libcni `libcni/api.go` (S8–S12, S16, S17, S27, S28, S32, S33, L4, L6–L8, L12).

use serde_json::value::RawValue;

use crate::environment::{self, Environment};
use crate::error::{Context, Error, code};
use crate::invocation::{Attachment, VALID_ATTACHMENTS, VALID_ATTACHMENTS_OLD, ValidAttachment};
use crate::invoke::Invoke;
use crate::network::{Network, capabilities, plugin_type};
use crate::object::Object;
use crate::result::Success;
use crate::version::{Verb, Version};

/// Attachment parameters, the same for ADD, CHECK and DEL.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// Container and interface.
    pub who: Attachment,
    /// Network namespace path; empty if the caller of a DEL no longer knows it.
    pub netns: String,
    /// `CNI_ARGS`.
    pub args: String,
    /// Values by capability name; each plugin gets those that it declares.
    pub capability_args: Object,
    /// Keys to put into `args.cni` in every plugin's configuration, where they replace existing ones.
    pub args_cni: Object,
    /// `CNI_PATH`.
    pub path: String,
}

impl Parameters {
    /// Returns the variables for a call with these parameters.
    pub fn environment(&self, verb: Verb) -> Environment {
        Environment {
            command: verb.as_str().to_owned(),
            container_id: self.who.container.to_string(),
            netns: self.netns.clone(),
            ifname: self.who.ifname.to_string(),
            args: self.args.clone(),
            path: self.path.clone(),
            // An executed plugin inherits this variable.
            netns_override: std::env::var(environment::NETNS_OVERRIDE).unwrap_or_default(),
        }
    }
}

/// ADD result in the network's version.
#[derive(Clone, Debug)]
pub struct Attached {
    /// Result as the last plugin printed it, including unknown keys, if it already had the network's version.
    pub raw: Box<RawValue>,
    /// The same result, parsed.
    pub success: Success,
}

impl Attached {
    /// Reads a plugin's output (or a cached result) and converts it to `version`.
    ///
    /// A result without a version is assumed to have `version`; `null` is the empty result (trap 4).
    pub fn read(bytes: &[u8], version: Version) -> Result<Attached, Error> {
        Attached::read_in(bytes, version, version)
    }

    /// Reads a result like [`Attached::read`], but a result without a version is assumed to have `absent`.
    pub fn read_in(bytes: &[u8], absent: Version, version: Version) -> Result<Attached, Error> {
        let (own, success) = Success::read(bytes, absent)?;
        if own != version {
            let value = success.to_value(version).context(format_args!("convert from {own} to {version}"))?;
            return Ok(Attached { raw: raw(&value)?, success });
        }
        let mut object = match bytes.trim_ascii() {
            b"null" => Object::default(),
            bytes => Object::parse(bytes, "result")?,
        };
        if object.text("cniVersion")?.is_none() {
            object.impose("cniVersion", raw(version.as_str())?);
        }
        Ok(Attached { raw: raw(&object)?, success })
    }
}

/// Attaches: calls every plugin in order.
///
/// # Errors
/// The first failing plugin's error with code and details; or why that plugin could not be run, or that the output is
/// invalid. Plugins before it have already acted, so the caller must decide whether to call DEL.
pub fn add(invoke: &dyn Invoke, network: &Network, parameters: &Parameters) -> Result<Attached, Error> {
    let environment = parameters.environment(Verb::Add);
    let mut previous: Option<Attached> = None;
    for plugin in &network.plugins {
        let previous_raw = previous.as_ref().map(|attached| &*attached.raw);
        let attached = derive(network, plugin, previous_raw, Some(parameters))
            .and_then(|config| run(invoke, plugin, &environment, &config))
            .and_then(|stdout| match stdout.iter().all(u8::is_ascii_whitespace) {
                true => Err(Error::new(code::DECODING_FAILURE, "the plugin printed no result")),
                false => Attached::read(&stdout, network.version),
            })
            .and_then(|attached| attached.success.check_indexes().map(|()| attached))
            .context(failed(plugin, "add"))?;
        previous = Some(attached);
    }
    previous.ok_or_else(|| Error::config("plugins: []: no plugins in list"))
}

/// Detaches: calls every plugin in reverse order, even those that ADD did not reach; stops at the first error.
///
/// `last` is the ADD result, if it is known; plugins before 0.4.0 do not get it.
pub fn del(
    invoke: &dyn Invoke,
    network: &Network,
    parameters: &Parameters,
    last: Option<&Attached>,
) -> Result<(), Error> {
    detach(invoke, network, parameters, last).try_for_each(|outcome| outcome)
}

/// Plugin whose DEL failed.
#[derive(Clone, Debug)]
pub struct PluginFailure<'a> {
    /// Plugin configuration in the list.
    pub plugin: &'a Object,
    /// The plugin's error, or the reason why it could not be run.
    pub error: Error,
}

/// Detaches like [`del`], but continues after an error and returns all of them.
///
/// For a caller that records what failed and calls again; the plugins that succeeded are then called again, too.
pub fn del_all<'a>(
    invoke: &'a dyn Invoke,
    network: &'a Network,
    parameters: &'a Parameters,
    last: Option<&'a Attached>,
) -> Vec<PluginFailure<'a>> {
    let outcomes = network.plugins.iter().rev().zip(detach(invoke, network, parameters, last));
    let failed =
        outcomes.filter_map(|(plugin, outcome)| Some(PluginFailure { plugin, error: outcome.err()? }));
    failed.collect()
}

/// Returns an iterator that calls one plugin's DEL for each item.
fn detach<'a>(
    invoke: &'a dyn Invoke,
    network: &'a Network,
    parameters: &'a Parameters,
    last: Option<&'a Attached>,
) -> impl Iterator<Item = Result<(), Error>> {
    let environment = parameters.environment(Verb::Del);
    let last = last.filter(|_| network.version >= Version::V0_4_0).map(|attached| &*attached.raw);
    network.plugins.iter().rev().map(move |plugin| {
        derive(network, plugin, last, Some(parameters))
            .and_then(|config| run(invoke, plugin, &environment, &config))
            .map(|_| ())
            .context(failed(plugin, "delete"))
    })
}

/// Checks: calls every plugin in order, each with the final ADD result.
///
/// Succeeds without a call if the network disables CHECK. Error: code 1 if the network's version has no CHECK.
pub fn check(
    invoke: &dyn Invoke,
    network: &Network,
    parameters: &Parameters,
    last: Option<&Attached>,
) -> Result<(), Error> {
    if network.version < Verb::Check.since() {
        return Err(Error::new(
            code::INCOMPATIBLE_VERSION,
            format!(
                "configuration version {:?} does not support the CHECK command",
                network.version.as_str()
            ),
        ));
    }
    if network.disable_check {
        return Ok(());
    }
    let environment = parameters.environment(Verb::Check);
    for plugin in &network.plugins {
        derive(network, plugin, last.map(|attached| &*attached.raw), Some(parameters))
            .and_then(|config| run(invoke, plugin, &environment, &config))
            .context(failed(plugin, "check"))?;
    }
    Ok(())
}

/// Attachments that GC must keep.
#[derive(Clone, Copy, Debug)]
pub enum Keep<'a> {
    /// These attachments and no others.
    Only(&'a [ValidAttachment]),
    /// The caller passes no list: plugins get none, and remove nothing that belongs to a known attachment.
    Unspecified,
}

/// Sends every plugin the list of valid attachments; continues after errors.
///
/// Succeeds without a call if the network disables GC or the version has none.
pub fn gc(invoke: &dyn Invoke, network: &Network, keep: Keep<'_>, path: &str) -> Result<(), Error> {
    if network.disable_gc || network.version < Verb::Gc.since() {
        return Ok(());
    }
    let environment = bare(Verb::Gc, path);
    let one = |plugin: &Object| {
        let mut config = derive(network, plugin, None, None)?;
        for key in [VALID_ATTACHMENTS, VALID_ATTACHMENTS_OLD] {
            match keep {
                Keep::Only(valid) => config.impose(key, raw(valid)?),
                Keep::Unspecified => config.banish(key),
            }
        }
        run(invoke, plugin, &environment, &config).map(|_| ())
    };
    let errors = network.plugins.iter().filter_map(|plugin| one(plugin).context(failed(plugin, "gc")).err());
    Error::join(errors.collect()).map_or(Ok(()), Err)
}

/// Asks every plugin in order whether it could serve an ADD.
///
/// Returns the first error unchanged, because the error code is the result. Succeeds without a call if the network's
/// version has no STATUS.
pub fn status(invoke: &dyn Invoke, network: &Network, path: &str) -> Result<(), Error> {
    if network.version < Verb::Status.since() {
        return Ok(());
    }
    let environment = bare(Verb::Status, path);
    for plugin in &network.plugins {
        let config = derive(network, plugin, None, None).context(failed(plugin, "status"))?;
        run(invoke, plugin, &environment, &config)?;
    }
    Ok(())
}

/// Derives the configuration that one plugin gets (§3 "Deriving request configuration"). It is as written, except that
/// - `name` and `cniVersion` are the network's;
/// - `prevResult` is `previous`, and absent without it;
/// - `runtimeConfig` contains the capability arguments that the plugin declares, if there are any;
/// - `args.cni` contains the keys from the parameters;
/// - `capabilities` is left out, because it is only for the runtime.
pub fn derive(
    network: &Network,
    plugin: &Object,
    previous: Option<&RawValue>,
    parameters: Option<&Parameters>,
) -> Result<Object, Error> {
    let mut config = plugin.clone();
    config.impose("cniVersion", raw(network.version.as_str())?);
    config.impose("name", raw(network.name.as_str())?);
    match previous {
        Some(previous) => config.impose("prevResult", previous.to_owned()),
        None => config.banish("prevResult"),
    }
    if let Some(parameters) = parameters {
        let declared = capabilities(plugin)?;
        let mut runtime_config = Object::default();
        let wanted = parameters.capability_args.iter().filter(|(name, _)| declared.contains(*name));
        for (name, value) in wanted {
            runtime_config.set_raw(name, value.to_owned());
        }
        if !runtime_config.is_empty() {
            config.impose("runtimeConfig", raw(&runtime_config)?);
        }
        if !parameters.args_cni.is_empty() {
            let args = with_args_cni(plugin, &parameters.args_cni)?;
            config.impose("args", raw(&args)?);
        }
    }
    config.banish("capabilities");
    Ok(config)
}

/// Returns the plugin's `args` with the additions to `cni`.
fn with_args_cni(plugin: &Object, added: &Object) -> Result<Object, Error> {
    let mut args = plugin.read_object("args")?.unwrap_or_default();
    let mut cni = args.read_object("cni").context("args")?.unwrap_or_default();
    for (key, value) in added.iter() {
        cni.impose(key, value.to_owned());
    }
    args.impose("cni", raw(&cni)?);
    Ok(args)
}

fn run(
    invoke: &dyn Invoke,
    plugin: &Object,
    environment: &Environment,
    config: &Object,
) -> Result<Vec<u8>, Error> {
    invoke.invoke(&plugin_type(plugin)?, environment, config.to_json().as_bytes())
}

/// Returns the variables for a call that concerns a whole network: all are set, most of them empty (L3).
fn bare(verb: Verb, path: &str) -> Environment {
    Environment { command: verb.as_str().to_owned(), path: path.to_owned(), ..Environment::default() }
}

/// Returns the same wording as libcni, because people search logs for it: `plugin type="bridge" name="mine" failed
/// (add)`.
fn failed(plugin: &Object, verb: &str) -> String {
    let text = |key| plugin.text(key).ok().flatten().unwrap_or_default();
    let name = match text("name") {
        name if name.is_empty() => String::new(),
        name => format!(" name={name:?}"),
    };
    format!("plugin type={:?}{name} failed ({verb})", text("type"))
}

fn raw<T: serde::Serialize + ?Sized>(value: &T) -> Result<Box<RawValue>, Error> {
    serde_json::value::to_raw_value(value).map_err(|cause| Error::internal(format!("encode JSON: {cause}")))
}

#[cfg(test)]
mod tests;
