//! Messages of the CRI Network API, as in `proto/podnetwork.proto`.
//!
//! They are written with prost's derive; `tests` compares each field with the .proto. As JSON and YAML, for people, their
//! fields have the names of the .proto.

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

/// Name of the network in the directory of CNI configurations on disk.
pub const FALLBACK: &str = "_fallback";

/// Identity of a network.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkMetadata {
    /// Name; with `namespace`, sandboxes refer to it.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Namespace; may be empty.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Uid of the object; may be empty.
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Generation: an older one is refused; 0 writes unconditionally.
    #[prost(uint32, tag = "4")]
    pub generation: u32,
}

/// Plugin of a network.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CniPlugin {
    /// Name of its program.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// Capabilities: the parameters that it takes from a sandbox.
    #[prost(string, repeated, tag = "2")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// Its other fields: JSON text; other text is a string.
    #[prost(btree_map = "string, string", tag = "3")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

/// CNI configuration list.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CniConfig {
    /// Version of the CNI protocol.
    #[prost(string, tag = "1")]
    pub cni_version: String,
    /// CNI name; empty: `metadata.name`.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_name: String,
    /// Whether CHECK is disabled.
    #[prost(bool, tag = "3")]
    pub disable_check: bool,
    /// Plugins, in order.
    #[prost(message, repeated, tag = "4")]
    pub plugins: Vec<CniPlugin>,
}

/// Addresses of a network.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IpRange {
    /// Prefix.
    #[prost(string, tag = "1")]
    pub cidr: String,
}

/// Configuration of a network.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkConfig {
    /// Identity.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<NetworkMetadata>,
    /// Ranges for plugins that declare `ipRanges`.
    #[prost(message, repeated, tag = "2")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ip_ranges: Vec<IpRange>,
    /// Type; 0: CNIv1.
    #[prost(int32, tag = "3")]
    #[serde(skip_serializing_if = "is_zero")]
    pub network_type: i32,
    /// Configuration list.
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

/// Request of `SetPodNetwork`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SetRequest {
    /// Network to store.
    #[prost(message, optional, tag = "1")]
    pub config: Option<NetworkConfig>,
}

/// Response to `SetPodNetwork`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SetReply {
    /// Network as stored.
    #[prost(message, optional, tag = "1")]
    pub network: Option<Network>,
}

/// Request of `RemovePodNetwork`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RemoveRequest {
    /// Network to remove; a uid, if given, must match.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<NetworkMetadata>,
    /// Whether a network in use is removed with its last sandbox and accepts no new one.
    #[prost(bool, tag = "2")]
    pub drain: bool,
}

/// Empty message.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Empty {}

/// Status of a network.
#[derive(Clone, PartialEq, Eq, Message, Serialize)]
pub struct NetworkStatus {
    /// Whether sandboxes can be attached and detached.
    #[prost(bool, tag = "1")]
    pub sandbox_management: bool,
    /// Whether attached sandboxes are unchanged.
    #[prost(bool, tag = "2")]
    pub connectivity: bool,
    /// Whether the network is removed with its last sandbox.
    #[prost(bool, tag = "1001")]
    #[serde(skip_serializing_if = "is_false")]
    pub draining: bool,
}

/// Network with its status.
#[derive(Clone, PartialEq, Eq, Message, Serialize)]
pub struct Network {
    /// Configuration as stored.
    #[prost(message, optional, tag = "1")]
    pub config: Option<NetworkConfig>,
    /// Status.
    #[prost(message, optional, tag = "2")]
    pub status: Option<NetworkStatus>,
}

/// Response to `ListPodNetwork`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListReply {
    /// All networks.
    #[prost(message, repeated, tag = "1")]
    pub networks: Vec<Network>,
}

/// Network of a sandbox, in `PodSandboxConfig.networks`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxNetwork {
    /// Interface; empty: `eth0` for the first, `net1`, `net2`, … for the others.
    #[prost(string, tag = "1")]
    pub interface_name: String,
    /// Network: `name` or `namespace/name`.
    #[prost(string, tag = "2")]
    pub network_name: String,
    /// Values for capabilities of its plugins: JSON text; other text is a string.
    #[prost(btree_map = "string, string", tag = "3")]
    pub parameters: BTreeMap<String, String>,
}

/// Name of a network for sandboxes: `name` or `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Namespace; may be empty.
    pub namespace: String,
    /// Name; not empty.
    pub name: String,
}

impl Name {
    /// Parses the name as a sandbox writes it.
    pub fn read(text: &str) -> Name {
        let (namespace, name) = text.split_once('/').unwrap_or(("", text));
        Name { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Returns the name of a network.
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
