//! NetworkAttachmentDefinition: plugins, IPAM plugin and ranges, and the configuration as written.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_support::custom_resources::NetworkAttachmentDefinition;
use kube_support::resource;
use kube_support::resources::Reduced;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::rows::{Row, name};
use super::{identity, lenient};

/// Maximum number of plugins, and of ranges.
const PARTS_MAX: usize = 16;
/// Maximum length of a configuration that the page shows, in bytes.
const CONFIGURATION_MAX: usize = 8192;

/// NetworkAttachmentDefinition as the API returns it.
#[derive(Clone, Debug, Deserialize)]
pub(in super::super) struct DefinitionObject {
    metadata: ObjectMeta,
    #[serde(default, deserialize_with = "lenient")]
    spec: Value,
}

/// Returns the plugins of a configuration, in order.
fn plugins(configuration: &Value) -> Vec<&Value> {
    let list = configuration.get("plugins").and_then(Value::as_array);
    list.map_or_else(|| vec![configuration], |list| list.iter().take(PARTS_MAX).collect())
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the ranges of an IPAM configuration as they are written.
fn ranges(ipam: &Value) -> Vec<String> {
    let single = std::slice::from_ref(ipam);
    let sets = ipam.get("ranges").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let inside = sets.iter().flat_map(|set| set.as_array().map_or(std::slice::from_ref(set), Vec::as_slice));
    let of_each = single.iter().chain(inside).filter_map(|range| {
        let written = ["subnet", "range"].iter().find_map(|key| range.get(key).and_then(Value::as_str));
        written.map(name)
    });
    of_each.take(PARTS_MAX).collect()
}

impl Reduced for DefinitionObject {
    type Form = Row;

    fn reduce(self) -> Row {
        let (namespace, network) = identity(&self.metadata);
        let written = text(&self.spec, "config");
        let configuration: Value = serde_json::from_str(written).unwrap_or_default();
        let all = if configuration.is_object() { plugins(&configuration) } else { Vec::new() };
        let chain: Vec<String> = all.iter().map(|plugin| name(text(plugin, "type"))).collect();
        let ipam = all.iter().find_map(|plugin| plugin.get("ipam")).unwrap_or(&Value::Null);
        let shown = if written.len() <= CONFIGURATION_MAX { written } else { "" };
        let fault = match (written.is_empty(), configuration.is_object()) {
            (true, _) => Some("the configuration is in a file of each node"),
            (false, false) => Some("spec.config is not a JSON object"),
            (false, true) => None,
        };
        Row::of(&json!({
            "k": [namespace, network],
            "chain": chain,
            "ipam": name(text(ipam, "type")),
            "ranges": ranges(ipam),
            "space": name(text(ipam, "network_name")),
            "config": cni::text::plain(shown),
            "bytes": written.len(),
            "note": fault,
        }))
    }
}

resource!(DefinitionObject as NetworkAttachmentDefinition);
