//! Configuration that a plugin receives on stdin.
//!
//! The bytes are kept, because a plugin passes them on when it calls another plugin (IPAM). This module reads the
//! fields that all plugins have in common; each plugin decodes the others with [`Config::decode`].
//!
//! Source: SPEC 1.1.0 §1 and §3; libcni `pkg/types.PluginConf` (S3, S5, S27, R8, K4).

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Context, Error, code};
use crate::fold;
use crate::name::NetworkName;
use crate::object::DOCUMENT_MAX;
use crate::result::{Dns, Success};
use crate::shallow;
use crate::version::Version;
use crate::wording;

/// Maximum size of a configuration for DEL and GC, in bytes. It must have room for a configuration, another plugin's
/// result as `prevResult`, and the runtime's arguments.
pub const REMOVAL_MAX: usize = 4 * DOCUMENT_MAX;

/// Maximum nesting in levels that every plugin can read. Decoders refuse 128 levels.
pub const NESTING_MAX: usize = 100;

/// Plugin configuration with validated common fields.
#[derive(Clone, Debug)]
pub struct Config {
    /// CNI version for this call.
    pub version: Version,
    /// Network name.
    pub name: NetworkName,
    bytes: Vec<u8>,
    value: Value,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Head {
    #[serde(rename = "cniVersion")]
    cni_version: String,
    name: String,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Ipam {
    ipam: IpamType,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct IpamType {
    r#type: String,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct DnsField {
    dns: Dns,
}

impl Config {
    /// Reads the configuration for a plugin that supports `versions`.
    ///
    /// # Errors
    /// In this order (K4): code 6, not JSON; code 7, name missing or malformed; code 1, version not in `versions`.
    pub fn read(bytes: Vec<u8>, versions: &[Version]) -> Result<Config, Error> {
        check_length(&bytes, DOCUMENT_MAX)?;
        Config::new(
            serde_json::from_slice(&bytes).map_err(|cause| not_json(&bytes, &cause))?,
            bytes,
            versions,
        )
    }

    /// Reads the configuration for DEL or GC, for a plugin that supports `versions`.
    ///
    /// A removal must not fail because a value that the plugin never reads is too large or nested too deeply. Values
    /// below [`NESTING_MAX`] levels are therefore read as `null`, and the document may have up to [`REMOVAL_MAX`]
    /// bytes.
    ///
    /// # Errors
    /// The same as for [`Config::read`].
    pub fn read_for_removal(bytes: Vec<u8>, versions: &[Version]) -> Result<Config, Error> {
        check_length(&bytes, REMOVAL_MAX)?;
        Config::new(
            shallow::parse(&bytes, NESTING_MAX).map_err(|cause| not_json(&bytes, &cause))?,
            bytes,
            versions,
        )
    }

    fn new(value: Value, bytes: Vec<u8>, versions: &[Version]) -> Result<Config, Error> {
        if !value.is_object() {
            let why = "network configuration is not a JSON object";
            return Err(Error::new(code::DECODING_FAILURE, why));
        }
        let Head { cni_version, name } = fold::from_value(&value, "")?;
        let name = NetworkName::new(&name)?;
        let version = Version::from_wire(&cni_version).filter(|v| versions.contains(v));
        let Some(version) = version else {
            let known: Vec<String> = versions.iter().map(|v| format!("{:?}", v.as_str())).collect();
            return Err(Error::new(code::INCOMPATIBLE_VERSION, "incompatible CNI versions")
                .details(format!("config is {cni_version:?}, plugin supports [{}]", known.join(" "))));
        };
        Ok(Config { version, name, bytes, value })
    }

    /// Returns the configuration as received.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the configuration as JSON.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Decodes the plugin's own fields. Keys match in any letter case; unknown keys are ignored. Errors (code 7) name
    /// key and value.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        fold::from_value(&self.value, "")
    }

    /// Returns `ipam.type`; empty if the network has no IPAM plugin.
    pub fn ipam_type(&self) -> Result<String, Error> {
        Ok(self.decode::<Ipam>()?.ipam.r#type)
    }

    /// Returns a capability's value (see [`crate::capability`]) if the runtime passed one.
    ///
    /// # Errors
    /// Code 7, with key and value: a plugin must act on a declared capability, or fail.
    pub fn capability<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Error> {
        let section = member(&self.value, "runtimeConfig").filter(|section| !section.is_null());
        if let Some(section) = section.filter(|section| !section.is_object()) {
            return Err(Error::key("runtimeConfig", fold::quote(section), "expected an object"));
        }
        match section.and_then(|section| member(section, name)).filter(|value| !value.is_null()) {
            None => Ok(None),
            Some(value) => fold::from_value(value, name).context("runtimeConfig").map(Some),
        }
    }

    /// Returns the configured `dns`.
    pub fn dns(&self) -> Result<Dns, Error> {
        Ok(self.decode::<DnsField>()?.dns)
    }

    /// Whether the configuration sets `dns`, as Go decides it: a list counts although it is empty, `null` does not.
    pub fn sets_dns(&self) -> bool {
        let Some(dns) = member(&self.value, "dns") else { return false };
        let is_list = |key: &str| member(dns, key).is_some_and(Value::is_array);
        let has_domain =
            || member(dns, "domain").and_then(Value::as_str).is_some_and(|text| !text.is_empty());
        ["nameservers", "search", "options"].into_iter().any(is_list) || has_domain()
    }

    /// Returns the result of the previous plugin, or of the last ADD.
    ///
    /// It must have the configuration's version; a result without a version is assumed to have it (R8).
    pub fn prev_result(&self) -> Result<Option<Success>, Error> {
        let Some(value) = member(&self.value, "prevResult").filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        let (version, success) = Success::from_value(value, self.version).context("prevResult")?;
        if version != self.version {
            return Err(Error::new(
                code::INCOMPATIBLE_VERSION,
                format!("prevResult is in version {version}, the configuration in {}", self.version),
            ));
        }
        Ok(Some(success))
    }

    /// Like [`Config::prev_result`], but fails if there is none; for plugins that only work after another plugin.
    pub fn require_prev_result(&self) -> Result<Success, Error> {
        self.prev_result()?.ok_or_else(|| {
            let why = "prevResult is missing: this plugin must be called after another one in a list";
            Error::config(why).at("prevResult")
        })
    }
}

fn check_length(bytes: &[u8], limit: usize) -> Result<(), Error> {
    if bytes.len() <= limit {
        return Ok(());
    }
    let why = format!("network configuration is larger than {limit} bytes");
    Err(Error::new(code::DECODING_FAILURE, why))
}

fn not_json(bytes: &[u8], cause: &serde_json::Error) -> Error {
    let why = wording::syntax_error(bytes, cause);
    Error::new(code::DECODING_FAILURE, format!("network configuration is not valid JSON: {why}"))
}

/// Finds a key, first by exact match and then in any letter case; if there are several, the last one counts.
fn member<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    let map = value.as_object()?;
    let folded = || map.iter().rev().find(|(known, _)| fold::same(known, key)).map(|(_, value)| value);
    map.get(key).or_else(folded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, Error> {
        Config::read(text.as_bytes().to_vec(), Version::ALL)
    }

    // Requirements: K4
    #[test]
    fn config_checks_have_an_order() {
        assert_eq!(read("{").unwrap_err().code, 6);
        assert_eq!(read("[]").unwrap_err().code, 6);
        assert_eq!(read(r#"{"cniVersion":"9.9.9"}"#).unwrap_err().code, 7);
        assert_eq!(read(r#"{"cniVersion":"9.9.9","name":"-"}"#).unwrap_err().code, 7);
        let error =
            Config::read(br#"{"cniVersion":"9.9.9","name":"n"}"#.to_vec(), &Version::ALL[..2]).unwrap_err();
        assert_eq!(error.code, 1);
        assert_eq!(error.details, r#"config is "9.9.9", plugin supports ["0.1.0" "0.2.0"]"#);
    }

    #[test]
    fn removal_reads_a_configuration_that_is_too_deep_or_too_large() -> Result<(), Error> {
        let nested = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        let deep = format!(r#"{{"cniVersion":"1.0.0","name":"n","args":{{"cni":{{"a":{nested},"b":1}}}}}}"#);
        assert_eq!(read(&deep).unwrap_err().code, 6);
        let config = Config::read_for_removal(deep.into_bytes(), Version::ALL)?;
        assert_eq!(config.value()["args"]["cni"]["b"], 1);
        let large = format!(r#"{{"cniVersion":"1.0.0","name":"n","a":"{}"}}"#, "a".repeat(DOCUMENT_MAX));
        assert_eq!(read(&large).unwrap_err().code, 6);
        Config::read_for_removal(large.into_bytes(), Version::ALL)?;
        Ok(())
    }

    // Requirements: trap 4
    #[test]
    fn config_without_cni_version_is_0_1_0() -> Result<(), Error> {
        assert_eq!(read(r#"{"name":"n"}"#)?.version, Version::V0_1_0);
        Ok(())
    }

    // Requirements: S6
    #[test]
    fn config_unknown_keys_are_ignored() -> Result<(), Error> {
        let config =
            read(r#"{"cniVersion":"1.0.0","name":"n","dnss":1,"dns":{"domain":"d","x.example/y":[]}}"#)?;
        assert_eq!(config.dns()?.domain, "d");
        Ok(())
    }

    #[test]
    fn config_runtime_config_that_is_no_object_is_refused() -> Result<(), Error> {
        for text in ["[]", "[null]", "7", "\"x\""] {
            let config = read(&format!(r#"{{"cniVersion":"1.0.0","name":"n","runtimeConfig":{text}}}"#))?;
            let error = config.capability::<String>("mac").unwrap_err().to_string();
            assert!(error.contains(&format!("runtimeConfig: {text}: expected an object")), "{error}");
        }
        let absent = read(r#"{"cniVersion":"1.0.0","name":"n","runtimeConfig":null}"#)?;
        assert_eq!(absent.capability::<String>("mac")?, None);
        Ok(())
    }

    // Requirements: R8
    #[test]
    fn config_prev_result_is_in_its_version() -> Result<(), Error> {
        let conf = r#"{"cniVersion":"1.0.0","name":"n","prevResult":{"ips":[{"address":"10.0.0.2/24"}]}}"#;
        assert_eq!(read(conf)?.require_prev_result()?.ips.len(), 1);
        let other = r#"{"cniVersion":"1.0.0","name":"n","prevResult":{"cniVersion":"0.4.0"}}"#;
        assert_eq!(read(other)?.prev_result().unwrap_err().code, 1);
        let none = read(r#"{"cniVersion":"1.0.0","name":"n","prevResult":null}"#)?;
        assert_eq!(none.prev_result()?, None);
        assert_eq!(none.require_prev_result().unwrap_err().code, 7);
        Ok(())
    }

    #[test]
    fn config_common_fields_match_without_case() -> Result<(), Error> {
        let conf =
            read(r#"{"CNIVersion":"1.0.0","Name":"n","IPAM":{"Type":"static"},"DNS":{"Domain":"d"}}"#)?;
        assert_eq!((conf.ipam_type()?.as_str(), conf.dns()?.domain.as_str()), ("static", "d"));
        Ok(())
    }
}
