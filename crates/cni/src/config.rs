//! The configuration one plugin gets on stdin.
//!
//! The bytes are kept: a plugin that delegates (to IPAM) hands on what it got. Fields common to all
//! plugins are read here; a plugin decodes its own with [`Config::decode`].
//!
//! Source: SPEC 1.1.0 §1 and §3; libcni `pkg/types.PluginConf` (S3, S5, S27, R8, K4).

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Context, Error, code};
use crate::fold;
use crate::name::NetworkName;
use crate::object::DOCUMENT_MAX;
use crate::result::{Dns, Success};
use crate::version::Version;

/// A plugin's configuration, checked as far as every plugin needs it.
#[derive(Clone, Debug)]
pub struct Config {
    /// The protocol version to speak.
    pub version: Version,
    /// The network's name.
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
    /// Reads stdin for a plugin that speaks `versions`.
    ///
    /// # Errors
    /// 6 not JSON · 7 name missing or malformed · 1 version not in `versions`, in this order (K4).
    pub fn read(bytes: Vec<u8>, versions: &[Version]) -> Result<Config, Error> {
        if bytes.len() > DOCUMENT_MAX {
            return Err(Error::new(
                code::DECODING_FAILURE,
                format!("network configuration is larger than {DOCUMENT_MAX} bytes"),
            ));
        }
        let value: Value = serde_json::from_slice(&bytes).map_err(|cause| {
            Error::new(code::DECODING_FAILURE, format!("network configuration is not valid JSON: {cause}"))
        })?;
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

    /// The configuration as it came.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The configuration as JSON.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The plugin's own fields; keys fold, unknown ones are ignored. Errors (code 7) name key and value.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        fold::from_value(&self.value, "")
    }

    /// `ipam.type`, empty if the network has no address management.
    pub fn ipam_type(&self) -> Result<String, Error> {
        Ok(self.decode::<Ipam>()?.ipam.r#type)
    }

    /// The value of a capability (see [`crate::capability`]) that the runtime filled in.
    ///
    /// # Errors
    /// Code 7 naming key and value: a plugin must act on what it declared, or fail.
    pub fn capability<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Error> {
        let section = member(&self.value, "runtimeConfig");
        match section.and_then(|section| member(section, name)).filter(|value| !value.is_null()) {
            None => Ok(None),
            Some(value) => fold::from_value(value, name).context("runtimeConfig").map(Some),
        }
    }

    /// The configured `dns`.
    pub fn dns(&self) -> Result<Dns, Error> {
        Ok(self.decode::<DnsField>()?.dns)
    }

    /// The result of the plugin before this one, or of the last ADD.
    ///
    /// It must be in the configuration's version; without a version of its own it is taken to be (R8).
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

    /// [`Config::prev_result`] for a plugin that only works after another one.
    pub fn require_prev_result(&self) -> Result<Success, Error> {
        self.prev_result()?.ok_or_else(|| {
            Error::config("prevResult is missing: this plugin must be called after another one in a list")
        })
    }
}

/// The value of a key: of its exact name, else of a name that folds to it, the last one.
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
    fn the_checks_come_in_order() {
        assert_eq!(read("{").unwrap_err().code, 6);
        assert_eq!(read("[]").unwrap_err().code, 6);
        assert_eq!(read(r#"{"cniVersion":"9.9.9"}"#).unwrap_err().code, 7);
        assert_eq!(read(r#"{"cniVersion":"9.9.9","name":"-"}"#).unwrap_err().code, 7);
        let error =
            Config::read(br#"{"cniVersion":"9.9.9","name":"n"}"#.to_vec(), &Version::ALL[..2]).unwrap_err();
        assert_eq!(error.code, 1);
        assert_eq!(error.details, r#"config is "9.9.9", plugin supports ["0.1.0" "0.2.0"]"#);
    }

    // Requirements: trap 4
    #[test]
    fn no_version_is_0_1_0() -> Result<(), Error> {
        assert_eq!(read(r#"{"name":"n"}"#)?.version, Version::V0_1_0);
        Ok(())
    }

    // Requirements: S6
    #[test]
    fn keys_of_others_are_passed_over() -> Result<(), Error> {
        let config =
            read(r#"{"cniVersion":"1.0.0","name":"n","dnss":1,"dns":{"domain":"d","x.example/y":[]}}"#)?;
        assert_eq!(config.dns()?.domain, "d");
        Ok(())
    }

    // Requirements: R8
    #[test]
    fn a_prev_result_is_in_the_configurations_version() -> Result<(), Error> {
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
    fn common_fields_fold() -> Result<(), Error> {
        let conf =
            read(r#"{"CNIVersion":"1.0.0","Name":"n","IPAM":{"Type":"static"},"DNS":{"Domain":"d"}}"#)?;
        assert_eq!((conf.ipam_type()?.as_str(), conf.dns()?.domain.as_str()), ("static", "d"));
        Ok(())
    }
}
