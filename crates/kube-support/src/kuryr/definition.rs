//! NetworkAttachmentDefinitions for Neutron networks: those with Kuryr's annotation, or with the plugin
//! `neutron`.

use std::collections::{BTreeMap, BTreeSet};

use manifest::lint::kuryr::KURYR_CONFIG;
use npwg::metadata::{Definition, NetworkReference, SpecConfig};
use serde_json::{Value, json};

/// Plugin name.
pub const PLUGIN: &str = "neutron";

/// Adds a configuration to Kuryr's definitions that have none for the plugin. Returns the names of all
/// Neutron networks.
pub fn complete(definitions: &mut BTreeMap<NetworkReference, Definition>) -> BTreeSet<String> {
    let mut networks = BTreeSet::new();
    for (reference, definition) in definitions {
        if !definition.annotations.contains_key(KURYR_CONFIG) {
            continue;
        }
        networks.insert(reference.to_string());
        if !is_of_plugin(&definition.config) {
            let config = json!({ "cniVersion": "1.0.0", "name": definition.name, "type": PLUGIN });
            definition.config = SpecConfig::Text(config.to_string());
        }
    }
    networks
}

/// Whether a definition's configuration contains the plugin.
pub fn is_of_plugin(config: &SpecConfig) -> bool {
    let SpecConfig::Text(text) = config else { return false };
    let read: Value = serde_json::from_str(text).unwrap_or_default();
    plugins(&read).any(|plugin| plugin["type"] == PLUGIN)
}

/// Returns the plugins in a configuration list, and the configuration itself.
pub fn plugins(config: &Value) -> impl Iterator<Item = &Value> {
    let list = config["plugins"].as_array().into_iter().flatten();
    list.chain(std::iter::once(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(name: &str, annotated: bool, config: &str) -> (NetworkReference, Definition) {
        let annotations = annotated.then(|| (KURYR_CONFIG.to_owned(), "{}".to_owned())).into_iter().collect();
        let config = if config.is_empty() { SpecConfig::Absent } else { SpecConfig::Text(config.to_owned()) };
        let definition = Definition { namespace: "n".into(), name: name.into(), annotations, config };
        (definition.reference(), definition)
    }

    #[test]
    fn kuryr_definition_without_plugin_is_completed() {
        let own = r#"{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"neutron","timeout":5}]}"#;
        let mut definitions = BTreeMap::from([
            definition("bare", true, ""),
            definition("own", true, own),
            definition("other", false, r#"{"type":"bridge"}"#),
        ]);
        let networks = complete(&mut definitions);
        assert_eq!(networks.into_iter().collect::<Vec<_>>(), ["n/bare", "n/own"]);
        let config = |name: &str| definitions[&NetworkReference::new("n", name)].config.clone();
        assert!(matches!(config("bare"), SpecConfig::Text(text) if text.contains(r#""type":"neutron""#)));
        assert_eq!(config("own"), SpecConfig::Text(own.to_owned()));
        assert_eq!(config("other"), SpecConfig::Text(r#"{"type":"bridge"}"#.to_owned()));
    }
}
