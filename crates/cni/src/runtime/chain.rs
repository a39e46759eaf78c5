//! Running the plugins of a network, one after the other.
//!
//! Nothing is remembered here: who calls DEL or CHECK brings the result of the ADD. [`super::Runtime`]
//! keeps it in libcni's cache; the meta-plugin keeps it in its journal.
//!
//! Rules:
//! - each plugin gets its own configuration, byte for byte, plus what [`derive()`] adds;
//! - ADD goes forward, each plugin seeing the result of the one before; it stops at the first error and
//!   undoes nothing: only the caller knows whether the attachment was there before;
//! - DEL goes backward and stops at the first error; it is meant to be repeated;
//! - GC goes on after errors and returns them all; STATUS returns the first, untouched.
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

/// What an attachment is made with: the same for ADD, CHECK and DEL.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// Container and interface.
    pub who: Attachment,
    /// Path of the network namespace; empty if the caller of a DEL no longer knows it.
    pub netns: String,
    /// `CNI_ARGS`.
    pub args: String,
    /// Values by capability name; a plugin gets those it declares.
    pub capability_args: Object,
    /// Keys for `args.cni` of every plugin's configuration; they win over the configuration's own.
    pub args_cni: Object,
    /// `CNI_PATH`.
    pub path: String,
}

impl Parameters {
    /// The variables of a call with these parameters.
    pub fn environment(&self, verb: Verb) -> Environment {
        Environment {
            command: verb.as_str().to_owned(),
            container_id: self.who.container.to_string(),
            netns: self.netns.clone(),
            ifname: self.who.ifname.to_string(),
            args: self.args.clone(),
            path: self.path.clone(),
            // As a program inherits it from us.
            netns_override: std::env::var(environment::NETNS_OVERRIDE).unwrap_or_default(),
        }
    }
}

/// The result of an ADD, in the version of its network.
#[derive(Clone, Debug)]
pub struct Attached {
    /// As the last plugin printed it, if that was in the network's version; keys we do not know included.
    pub raw: Box<RawValue>,
    /// The same, understood.
    pub success: Success,
}

impl Attached {
    /// Reads what a plugin printed (or a cache kept) and brings it into `version`.
    ///
    /// A result without a version is in `version`; `null` is the empty result (trap 4).
    pub fn read(bytes: &[u8], version: Version) -> Result<Attached, Error> {
        Attached::read_in(bytes, version, version)
    }

    /// The same; a result without a version is in `absent`.
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

/// Attaches: every plugin in order.
///
/// # Errors
/// The first failing plugin's own error, code and details kept, or why it could not be run or understood.
/// Plugins before it have acted: the caller decides about DEL.
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
            .context(failed(plugin, "add"))?;
        previous = Some(attached);
    }
    previous.ok_or_else(|| Error::config("plugins: []: no plugins in list"))
}

/// Detaches: every plugin in reverse order, also those an ADD never came to; the first failure ends it.
///
/// `last` is the result of the ADD, if it is known; plugins before 0.4.0 do not get it.
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
    /// Configuration of the plugin in its list.
    pub plugin: &'a Object,
    /// Error of the plugin, or the reason why it could not be run.
    pub error: Error,
}

/// Detaches like [`del`], but a failure does not stop the other plugins; all failures are returned.
///
/// For a caller that records what failed and calls again: the plugins that succeeded are then called again.
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

/// DEL of one plugin after the other, last first, each when its outcome is taken.
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

/// Checks: every plugin in order, each with the final result of the ADD.
///
/// Success without a call if the network disables it; code 1 if its version has no CHECK.
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

/// What a GC keeps.
#[derive(Clone, Copy, Debug)]
pub enum Keep<'a> {
    /// These attachments, and nothing else.
    Only(&'a [ValidAttachment]),
    /// The caller does not say: plugins get no list, and drop nothing of a known attachment.
    Unsaid,
}

/// Tells every plugin which attachments are still valid, whatever the others answer.
///
/// Success without a call if the network disables it or its version has no GC.
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
                Keep::Unsaid => config.banish(key),
            }
        }
        run(invoke, plugin, &environment, &config).map(|_| ())
    };
    let errors = network.plugins.iter().filter_map(|plugin| one(plugin).context(failed(plugin, "gc")).err());
    Error::join(errors.collect()).map_or(Ok(()), Err)
}

/// Asks every plugin in order whether it could serve an ADD.
///
/// The first error is returned untouched, its code being the answer. Success without a call if the
/// network's version has no STATUS.
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

/// The configuration one plugin gets (§3 "Deriving request configuration"): as written, but
/// - `name` and `cniVersion` are the network's;
/// - `prevResult` is `previous`, and absent without it;
/// - `runtimeConfig` holds the capability arguments it declared, if there are any;
/// - `args.cni` gets the parameters' keys;
/// - `capabilities` is left out: it is the runtime's business.
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

/// The plugin's `args`, its `cni` part completed.
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

/// The variables of a call about a whole network: all set, most to nothing (L3).
fn bare(verb: Verb, path: &str) -> Environment {
    Environment { command: verb.as_str().to_owned(), path: path.to_owned(), ..Environment::default() }
}

/// `plugin type="bridge" name="mine" failed (add)`: libcni's wording, which people search logs for.
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
