//! Asks plugins which versions they support, before any attachment.
//!
//! Source: SPEC 1.1.0 §2 "VERSION", §5 "Version"; libcni `ValidateNetworkList`, `GetVersionInfo`, `PluginDecoder` (S4,
//! L11).

use std::collections::BTreeSet;

use crate::environment::Environment;
use crate::error::{Context, Error, code};
use crate::fold;
use crate::invoke::Invoke;
use crate::name::PluginType;
use crate::network::{Network, plugin_type};
use crate::version::{Verb, Version};

/// Answer from a 0.1.0 plugin to an unknown command. The code is not defined, so the message must be compared.
const NO_VERSION_COMMAND: &str = "unknown CNI_COMMAND: VERSION";

/// Value for variables that plugins with old libraries require even for VERSION.
const DUMMY: &str = "dummy";

#[derive(Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Report {
    cni_version: String,
    supported_versions: Vec<String>,
}

/// Returns the versions that a plugin reports, as the plugin writes them.
///
/// # Errors
/// The plugin cannot be run, or the report is empty.
pub fn versions(invoke: &dyn Invoke, plugin: &PluginType, path: &str) -> Result<Vec<String>, Error> {
    let environment = Environment {
        command: Verb::Version.as_str().to_owned(),
        netns: DUMMY.to_owned(),
        ifname: DUMMY.to_owned(),
        path: path.to_owned(),
        ..Environment::default()
    };
    let stdin = format!(r#"{{"cniVersion":"{}"}}"#, Version::LATEST);
    let stdout = match invoke.invoke(plugin, &environment, stdin.as_bytes()) {
        Ok(stdout) => stdout,
        Err(error) if error.msg == NO_VERSION_COMMAND => return Ok(texts(&[Version::V0_1_0])),
        Err(error) => return Err(error),
    };
    let Report { cni_version, supported_versions } = fold::from_slice(&stdout, "version report")?;
    let silent = |key: &str| Error::new(code::DECODING_FAILURE, format!("version report: {key} is missing"));
    match (cni_version.as_str(), supported_versions.as_slice()) {
        ("", _) => Err(silent("cniVersion")),
        ("0.2.0", []) => Ok(texts(&[Version::V0_1_0, Version::V0_2_0])),
        (_, []) => Err(silent("supportedVersions")),
        _ => Ok(supported_versions),
    }
}

/// Checks that every plugin in the network exists and supports the network's version; returns the capabilities that it
/// declares.
///
/// # Errors
/// All findings, not only the first one.
pub fn validate(invoke: &dyn Invoke, network: &Network, path: &str) -> Result<BTreeSet<String>, Error> {
    let wanted = network.version.as_str();
    let one = |name: PluginType| {
        let speaks = versions(invoke, &name, path).context(&name)?;
        match speaks.iter().any(|version| version == wanted) {
            true => Ok(()),
            false => Err(Error::new(
                code::INCOMPATIBLE_VERSION,
                format!("plugin {name} does not support config version {wanted:?}"),
            )
            .details(format!("it supports {}", speaks.join(", ")))),
        }
    };
    let errors: Vec<Error> =
        network.plugins.iter().filter_map(|plugin| plugin_type(plugin).and_then(one).err()).collect();
    match Error::join(errors) {
        None => network.capabilities(),
        Some(error) => Err(error),
    }
}

fn texts(versions: &[Version]) -> Vec<String> {
    versions.iter().map(|version| version.as_str().to_owned()).collect()
}

#[cfg(test)]
mod tests;
