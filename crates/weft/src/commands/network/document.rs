//! Files for `weft network set`: networks in the CRI Network API's form, or CNI configuration lists.
//!
//! YAML and JSON are accepted, and each document is one network. A parameter that is a structure is converted
//! into the JSON string that the API requires; a string stays as it is.

use std::io::Read;
use std::path::PathBuf;

use cni::network::Network;
use cni::object::DOCUMENT_MAX;

use serde_json::Value;

use cli_support::failure::{Exit, Failure};
use cri::network_api::{Name, NetworkConfig, NetworkMetadata, conflist};

/// File name that means stdin.
const STDIN: &str = "-";

/// Returns every network in the files, with the label that messages use for it.
pub(super) fn read(files: &[PathBuf], name: Option<&str>) -> Result<Vec<(String, NetworkConfig)>, Failure> {
    let mut networks = Vec::new();
    for file in files {
        let text = text(file)?;
        let wrong = |why: &dyn std::fmt::Display| {
            Failure::new(format!("{}: {why}", file.display())).exit(Exit::Usage)
        };
        let documents = manifest::values(&text).map_err(|why| wrong(&why))?;
        for (index, document) in documents.into_iter().enumerate() {
            let label = match index {
                0 => file.display().to_string(),
                index => format!("{} (document {})", file.display(), index + 1),
            };
            networks.push((label, network(document, name).map_err(|why| wrong(&why))?));
        }
    }
    match (networks.len(), name) {
        (0, _) => Err(Failure::new("the files contain no network").exit(Exit::Usage)),
        (2.., Some(_)) => {
            Err(Failure::new("--name: the files contain several networks; --name requires exactly one")
                .exit(Exit::Usage))
        }
        _ => Ok(networks),
    }
}

fn text(file: &PathBuf) -> Result<String, Failure> {
    let failed = |why: &dyn std::fmt::Display| Failure::new(format!("read {}: {why}", file.display()));
    let mut bytes = Vec::new();
    let limit = 4 * DOCUMENT_MAX as u64;
    let read = match file.as_os_str() == STDIN {
        true => std::io::stdin().lock().take(limit + 1).read_to_end(&mut bytes),
        false => std::fs::File::open(file).and_then(|open| open.take(limit + 1).read_to_end(&mut bytes)),
    };
    read.map_err(|cause| failed(&cause))?;
    if bytes.len() as u64 > limit {
        return Err(failed(&format_args!("larger than {limit} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| failed(&"not UTF-8"))
}

/// Reason why a document is not a network.
#[derive(Debug, thiserror::Error)]
enum NetworkError {
    /// The document is neither a network nor a configuration list.
    #[error("not a network: expected metadata and cniv1_config, or a CNI configuration list")]
    Recognize,
    /// The document does not have the API's form, or the configuration list is invalid or cannot be expressed there.
    #[error(transparent)]
    Invalid(#[from] cni::Error),
}

fn network(document: Value, name: Option<&str>) -> Result<NetworkConfig, NetworkError> {
    if document.get("plugins").is_some() || document.get("type").is_some() {
        return from_list(&document, name);
    }
    // A Kubernetes object has a kind.
    if !document.is_object() || document.get("kind").is_some() {
        return Err(NetworkError::Recognize);
    }
    let mut document = document;
    let plugins = document.get_mut("cniv1_config").and_then(|config| config.get_mut("plugins"));
    for plugin in plugins.and_then(Value::as_array_mut).into_iter().flatten() {
        let parameters = plugin.get_mut("parameters").and_then(Value::as_object_mut);
        for value in parameters.into_iter().flat_map(|parameters| parameters.values_mut()) {
            if !value.is_string() {
                *value = Value::String(value.to_string());
            }
        }
    }
    let mut config: NetworkConfig = cni::fold::strict(&document, "")?;
    if let Some(name) = name {
        let Name { namespace, name } = Name::read(name);
        let metadata = config.metadata.get_or_insert_default();
        *metadata = NetworkMetadata { name, namespace, ..metadata.clone() };
    }
    Ok(config)
}

/// Converts a CNI configuration list, or a single plugin's configuration.
fn from_list(document: &Value, name: Option<&str>) -> Result<NetworkConfig, NetworkError> {
    let network = match document.get("plugins") {
        Some(_) => Network::parse(document.to_string().as_bytes(), "network"),
        None => {
            let mut list = serde_json::Map::new();
            for key in ["cniVersion", "name"] {
                document.get(key).map(|value| list.insert(key.to_owned(), value.clone()));
            }
            list.insert("plugins".to_owned(), Value::Array(vec![document.clone()]));
            Network::parse(Value::Object(list).to_string().as_bytes(), "network")
        }
    };
    let network = network?;
    let view = conflist::view(&network)?;
    let Name { namespace, name } = Name::read(name.unwrap_or(network.name.as_str()));
    let metadata = NetworkMetadata { name, namespace, ..NetworkMetadata::default() };
    Ok(NetworkConfig { metadata: Some(metadata), ..view })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_document_parameters_become_json_and_lists_networks() {
        let yaml = "metadata: {name: red}\ncniv1_config:\n  cni_version: 1.0.0\n  plugins:\n  - type: bridge\n    parameters:\n      bridge: br1\n      mtu: 1400\n      ipam: {type: host-local}\n";
        let document = manifest::values(yaml).unwrap().remove(0);
        let config = network(document, None).unwrap();
        let plugin = &config.cniv1_config.as_ref().unwrap().plugins[0];
        assert_eq!(plugin.parameters["bridge"], "br1");
        assert_eq!(plugin.parameters["mtu"], "1400");
        assert_eq!(plugin.parameters["ipam"], r#"{"type":"host-local"}"#);
        let list = r#"{"cniVersion":"1.0.0","name":"blue","plugins":[{"type":"ptp","mtu":9000}]}"#;
        let document = manifest::values(list).unwrap().remove(0);
        let config = network(document, Some("ns/other")).unwrap();
        assert_eq!(Name::of(&config.metadata.unwrap()).to_string(), "ns/other");
        assert_eq!(config.cniv1_config.unwrap().network_name, "blue");
        for wrong in ["a: 1", "[]", "metadata: {nam: x}", "7", "kind: Pod"] {
            let document = manifest::values(wrong).unwrap().remove(0);
            assert!(network(document, None).is_err(), "{wrong}");
        }
    }
}
