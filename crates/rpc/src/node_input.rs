//! Part of a request that describes the node: the meta-plugin's configuration and the networks on disk.
//!
//! The agent reads no file on the node, so every request that may lead to a plan contains a [`NodeInput`].

use std::borrow::Cow;

use cni::error::Error;
use cni::network::Network;
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::definition::{Disk, Form, OnDisk};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Facts that a plan needs from the node: the meta-plugin's configuration and the networks on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeInput {
    /// The meta-plugin's configuration as the runtime passed it, `runtimeConfig` included, byte for byte.
    pub configuration: Box<RawValue>,
    /// The name by which the meta-plugin was called.
    pub flavour: Flavour,
    /// The networks on the node's disk.
    pub files: Vec<NetworkFile>,
    /// The files that could not be read, as `path: why`.
    pub unreadable: Vec<String>,
}

/// Network on the node's disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkFile {
    /// File path.
    pub path: String,
    /// Configuration list, including plugins in a sub-directory. A single configuration becomes a list with
    /// one plugin.
    pub text: String,
}

// === impl NodeInput ===

impl NodeInput {
    /// Returns the input for these networks.
    pub fn new(configuration: Box<RawValue>, flavour: Flavour, disk: &Disk) -> NodeInput {
        let (files, unreadable) = (NetworkFile::all(disk), disk.unreadable.clone());
        NodeInput { configuration, flavour, files, unreadable }
    }

    /// Returns the meta-plugin's configuration.
    ///
    /// # Errors
    /// Those that [`NodeConfiguration::read`] returns.
    pub fn configuration(&self) -> Result<NodeConfiguration, Error> {
        NodeConfiguration::read(self.configuration.get().as_bytes(), self.flavour)
    }

    /// Returns the networks on the node's disk. An invalid network is reported like a file that could not be read.
    pub fn disk(&self) -> Disk {
        let mut disk = Disk { networks: Vec::new(), unreadable: self.unreadable.clone() };
        for NetworkFile { path, text } in &self.files {
            match Network::parse(text.as_bytes(), path) {
                Ok(network) => {
                    let form = Form::of(path).unwrap_or(Form::List);
                    disk.networks.push(OnDisk { path: path.clone(), form, network });
                }
                Err(error) => disk.unreadable.push(error.to_string()),
            }
        }
        disk
    }
}

// === impl NetworkFile ===

impl NetworkFile {
    /// Returns the files from which networks were read.
    pub fn all(disk: &Disk) -> Vec<NetworkFile> {
        let file = |on: &OnDisk| {
            let whole = on.network.inlined().unwrap_or(Cow::Borrowed(on.network.bytes()));
            NetworkFile { path: on.path.clone(), text: String::from_utf8_lossy(&whole).into_owned() }
        };
        disk.networks.iter().map(file).collect()
    }
}

#[cfg(test)]
mod tests {
    use cni::object::Object;

    use super::*;

    #[test]
    fn node_input_contains_the_networks_on_disk() {
        let text = r#"{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"bridge","x":1.50}]}"#;
        let file = |path: &str, text: &str| NetworkFile { path: path.to_owned(), text: text.to_owned() };
        let node = NodeInput {
            configuration: RawValue::from_string("{}".to_owned()).unwrap(),
            flavour: Flavour::Weft,
            files: vec![file("/n/a.conflist", text), file("/n/b.conf", "{")],
            unreadable: vec!["/n/c.conf: no".to_owned()],
        };
        let disk = node.disk();
        assert_eq!(NetworkFile::all(&disk), [file("/n/a.conflist", text)]);
        assert_eq!(disk.unreadable.len(), 2, "{:?}", disk.unreadable);
    }

    // Requirements: S39
    #[test]
    fn node_input_list_contains_plugins_of_its_directory() -> Result<(), Error> {
        let own = Object::parse(br#"{"type":"tuning","mtu":1.50}"#, "own")?;
        for text in [
            r#"{"cniVersion":"1.0.0","name":"a","x":1.50,"plugins":[{"type":"bridge"}]}"#,
            r#"{"cniVersion":"1.0.0","name":"a","x":1.50}"#,
        ] {
            let mut network = Network::parse_open(text.as_bytes(), "a")?;
            let inlined = network.plugins.len();
            network.append(own.clone())?;
            let on = OnDisk { path: "/n/a.conflist".into(), form: Form::List, network };
            let disk = Disk { networks: vec![on], ..Disk::default() };
            let sent = NetworkFile::all(&disk).remove(0).text;
            let read = Network::parse(sent.as_bytes(), "a")?;
            assert_eq!((read.plugins.len(), read.load_only_inlined_plugins), (inlined + 1, true), "{sent}");
            assert!(
                sent.contains(r#"{"type":"tuning","mtu":1.50}"#) && sent.contains(r#""x":1.50"#),
                "{sent}"
            );
        }
        Ok(())
    }
}
