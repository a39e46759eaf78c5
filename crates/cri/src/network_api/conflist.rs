//! Converts an API network into the CNI configuration list that is executed, and a list on disk into an API message.
//!
//! A value that is valid JSON stays exactly as it was written; any other text becomes a string. Lists on disk are
//! executed from the bytes in the file, so the message is only a view.
//!
//! Source: `proto/podnetwork.proto`; CNI SPEC 1.1.0, section 1.

use std::collections::BTreeMap;

use cni::network::{self, Network};
use cni::object::Object;
use cni::{Error, Version};
use serde_json::value::RawValue;

use super::{CniConfig, CniPlugin, NetworkConfig};

/// Plugin keys that `parameters` must not contain, because the message has separate fields for them or the runtime sets
/// them.
pub(crate) const RESERVED: &[&str] = &[
    "type",
    "name",
    "cniVersion",
    "capabilities",
    "prevResult",
    "runtimeConfig",
    "cni.dev/valid-attachments",
];

/// Renders the configuration list as JSON.
///
/// # Errors
/// A value cannot be encoded (an internal error).
pub fn render(config: &CniConfig, name: &str) -> Result<String, Error> {
    let mut list = Object::default();
    list.set("cniVersion", &config.cni_version)?;
    list.set("name", if config.network_name.is_empty() { name } else { &config.network_name })?;
    if config.disable_check {
        list.set("disableCheck", &true)?;
    }
    let plugins = config.plugins.iter().map(plugin).collect::<Result<Vec<_>, _>>()?;
    list.set("plugins", &plugins)?;
    Ok(list.to_json())
}

fn plugin(written: &CniPlugin) -> Result<Box<RawValue>, Error> {
    let CniPlugin { r#type: kind, capabilities, parameters } = written;
    let mut object = Object::default();
    object.set("type", kind)?;
    if !capabilities.is_empty() {
        let declared: BTreeMap<&String, bool> = capabilities.iter().map(|name| (name, true)).collect();
        object.set("capabilities", &declared)?;
    }
    for (key, text) in parameters {
        object.set_raw(key, value(text)?);
    }
    let json = object.to_json();
    RawValue::from_string(json).map_err(|cause| Error::internal(format!("encode plugin {kind}: {cause}")))
}

/// Converts a parameter value: valid JSON stays as it is, any other text becomes a string.
pub fn value(text: &str) -> Result<Box<RawValue>, Error> {
    match RawValue::from_string(text.trim().to_owned()) {
        Ok(raw) => Ok(raw),
        Err(_) => serde_json::value::to_raw_value(text)
            .map_err(|cause| Error::internal(format!("encode {text:?}: {cause}"))),
    }
}

/// Converts a network from disk into an API message without metadata.
///
/// # Errors
/// A plugin has no valid `type`.
pub fn view(network: &Network) -> Result<NetworkConfig, Error> {
    let plugins = network.plugins.iter().map(view_of_plugin).collect::<Result<Vec<_>, _>>()?;
    Ok(NetworkConfig {
        metadata: None,
        ip_ranges: Vec::new(),
        network_type: 0,
        cniv1_config: Some(CniConfig {
            cni_version: Version::as_str(network.version).to_owned(),
            network_name: network.name.to_string(),
            disable_check: network.disable_check,
            plugins,
        }),
    })
}

fn view_of_plugin(plugin: &Object) -> Result<CniPlugin, Error> {
    let parameters = plugin
        .iter()
        .filter(|(key, _)| !RESERVED.contains(key))
        .map(|(key, value)| (key.to_owned(), value.get().to_owned()))
        .collect();
    Ok(CniPlugin {
        r#type: network::plugin_type(plugin)?.to_string(),
        capabilities: network::capabilities(plugin)?.into_iter().collect(),
        parameters,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflist_round_trips_through_its_view() {
        let text = r#"{"cniVersion":"1.0.0","name":"red","disableCheck":true,"plugins":[{"type":"bridge","capabilities":{"mac":true},"bridge":"br1","ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]]},"mtu":1400},{"type":"tuning"}]}"#;
        let network = Network::parse(text.as_bytes(), "test").unwrap();
        let view = view(&network).unwrap().cniv1_config.unwrap();
        assert_eq!(view.plugins[0].parameters["mtu"], "1400");
        assert_eq!(render(&view, "other").unwrap(), text);
        let unnamed = CniConfig { network_name: String::new(), ..view };
        assert!(render(&unnamed, "other").unwrap().contains(r#""name":"other""#));
    }

    #[test]
    fn conflist_parameter_is_json_or_a_string() {
        for (text, expected) in
            [("br0", r#""br0""#), ("1", "1"), (" {\"a\": 1}", "{\"a\": 1}"), ("", r#""""#), ("{", r#""{""#)]
        {
            assert_eq!(value(text).unwrap().get(), expected);
        }
    }
}
