//! CRI Network API messages, as in `proto/podnetwork.proto`.
//!
//! They use prost's derive macros, so that a build needs no protobuf compiler; `tests` compares every field with the
//! .proto. As JSON and YAML, the fields have the names from the .proto.

pub mod conflist;
#[cfg(test)]
mod tests;
pub mod validation;

use std::collections::BTreeMap;
use std::fmt;

use prost::Message;
use serde::{Deserialize, Serialize};

/// Method that creates or replaces a network.
pub const SET: &str = "/runtime.v1.RuntimeService/SetPodNetwork";
/// Method that removes a network.
pub const REMOVE: &str = "/runtime.v1.RuntimeService/RemovePodNetwork";
/// Method that lists all networks.
pub const LIST: &str = "/runtime.v1.RuntimeService/ListPodNetwork";

/// Default socket of the CRI proxy.
pub const PROXY_SOCKET: &str = "/run/weft/cri.sock";

/// Name under which the proxy lists the network configured in the node's CNI directory.
pub const FALLBACK: &str = "_fallback";

/// Identifies a network.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkMetadata {
    /// Network name; sandboxes refer to the network by `name`, or by `namespace/name`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Namespace; may be empty.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Uid of the Kubernetes object; may be empty.
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Generation. An older one than the stored one is rejected; 0 always overwrites.
    #[prost(uint32, tag = "4")]
    pub generation: u32,
}

/// Plugin in a network.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CniPlugin {
    /// Program name, for example `macvlan`.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// Capabilities: the parameters that the plugin accepts from a sandbox, for example `ips`.
    #[prost(string, repeated, tag = "2")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// All other plugin fields. A value that is valid JSON is used as it is; any other text becomes a string.
    #[prost(btree_map = "string, string", tag = "3")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

/// CNI configuration list.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CniConfig {
    /// CNI version, for example `1.1.0`.
    #[prost(string, tag = "1")]
    pub cni_version: String,
    /// CNI network name; `metadata.name` if empty.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_name: String,
    /// Whether CHECK is disabled for this network.
    #[prost(bool, tag = "3")]
    pub disable_check: bool,
    /// Plugins in the order in which ADD executes them.
    #[prost(message, repeated, tag = "4")]
    pub plugins: Vec<CniPlugin>,
}

/// Address range for a network.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IpRange {
    /// Range as a prefix, for example `10.1.0.0/24`.
    #[prost(string, tag = "1")]
    pub cidr: String,
}

/// Network configuration.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkConfig {
    /// Name, namespace, uid and generation.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<NetworkMetadata>,
    /// Ranges for plugins that declare the `ipRanges` capability.
    #[prost(message, repeated, tag = "2")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ip_ranges: Vec<IpRange>,
    /// Network type; 0 (CNIv1) is the only one.
    #[prost(int32, tag = "3")]
    #[serde(skip_serializing_if = "is_zero")]
    pub network_type: i32,
    /// Configuration list to execute.
    #[prost(message, optional, tag = "4")]
    pub cniv1_config: Option<CniConfig>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
fn is_false(truth: &bool) -> bool {
    !truth
}

/// Request to create or replace a network.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SetRequest {
    /// Network to store.
    #[prost(message, optional, tag = "1")]
    pub config: Option<NetworkConfig>,
}

/// Response with the stored network.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SetReply {
    /// Network as stored.
    #[prost(message, optional, tag = "1")]
    pub network: Option<Network>,
}

/// Request to remove a network.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RemoveRequest {
    /// Network to remove; if a uid is given, it must match the stored one.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<NetworkMetadata>,
    /// Whether to drain a network that is in use: it accepts no new sandbox and is removed with the last one.
    #[prost(bool, tag = "2")]
    pub drain: bool,
}

/// Empty message, for requests and responses without fields.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Empty {}

/// Network status.
#[derive(Clone, PartialEq, Eq, Message, Serialize)]
pub struct NetworkStatus {
    /// Whether sandboxes can be attached and detached; false, for example, if a plugin is not installed.
    #[prost(bool, tag = "1")]
    pub sandbox_management: bool,
    /// Whether all attached sandboxes still match their attachments (no drift).
    #[prost(bool, tag = "2")]
    pub connectivity: bool,
    /// Whether the network is draining: it is removed with its last sandbox.
    #[prost(bool, tag = "1001")]
    #[serde(skip_serializing_if = "is_false")]
    pub draining: bool,
}

/// Network and its status.
#[derive(Clone, PartialEq, Eq, Message, Serialize)]
pub struct Network {
    /// Configuration as stored.
    #[prost(message, optional, tag = "1")]
    pub config: Option<NetworkConfig>,
    /// Current status.
    #[prost(message, optional, tag = "2")]
    pub status: Option<NetworkStatus>,
}

/// Response with all networks.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListReply {
    /// All networks.
    #[prost(message, repeated, tag = "1")]
    pub networks: Vec<Network>,
}

/// Network that a sandbox requests, in `PodSandboxConfig.networks`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxNetwork {
    /// Interface name; if empty, `eth0` for the first network and `net1`, `net2`, … for the others.
    #[prost(string, tag = "1")]
    pub interface_name: String,
    /// Network to attach: `name` or `namespace/name`.
    #[prost(string, tag = "2")]
    pub network_name: String,
    /// Values for plugin capabilities. A value that is valid JSON is used as it is; any other text becomes a string.
    #[prost(btree_map = "string, string", tag = "3")]
    pub parameters: BTreeMap<String, String>,
}

/// Network name as sandboxes write it: `name` or `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Namespace; may be empty.
    pub namespace: String,
    /// Network name; never empty.
    pub name: String,
}

impl Name {
    /// Parses a name in the form that sandboxes use.
    pub fn read(text: &str) -> Name {
        let (namespace, name) = text.split_once('/').unwrap_or(("", text));
        Name { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Returns the name under which sandboxes find this network.
    pub fn of(metadata: &NetworkMetadata) -> Name {
        Name { namespace: metadata.namespace.clone(), name: metadata.name.clone() }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}
