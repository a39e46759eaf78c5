//! The messages of the CRI Network API, as `proto/podnetwork.proto` has them.
//!
//! They are written down with prost's derive; `tests` holds each field of them against the .proto. As JSON and YAML, for people, their
//! fields have the names of the .proto.

pub mod conflist;
#[cfg(test)]
mod tests;
pub mod validation;

use std::collections::BTreeMap;
use std::fmt;

use prost::Message;
use serde::{Deserialize, Serialize};

/// Creates or replaces a network.
pub const SET: &str = "/runtime.v1.RuntimeService/SetPodNetwork";
/// Removes one.
pub const REMOVE: &str = "/runtime.v1.RuntimeService/RemovePodNetwork";
/// Lists all.
pub const LIST: &str = "/runtime.v1.RuntimeService/ListPodNetwork";

/// Socket on which the CRI proxy listens by default.
pub const PROXY_SOCKET: &str = "/run/weft/cri.sock";

/// The network found in the directory of CNI configurations on disk.
pub const FALLBACK: &str = "_fallback";

/// Which network.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkMetadata {
    /// With `namespace`, what sandboxes refer to.
    #[prost(string, tag = "1")]
    pub name: String,
    /// May be empty.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Which object of this name; may be empty.
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Orders writers: an older one is refused; 0 writes unconditionally.
    #[prost(uint32, tag = "4")]
    pub generation: u32,
}

/// One plugin of a network.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CniPlugin {
    /// Its program.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// The parameters it takes from a sandbox.
    #[prost(string, repeated, tag = "2")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<String>,
    /// Its other keys: JSON text; what is none is a string.
    #[prost(btree_map = "string, string", tag = "3")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

/// A CNI configuration list.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CniConfig {
    /// Its version of the protocol.
    #[prost(string, tag = "1")]
    pub cni_version: String,
    /// Its CNI name; empty: `metadata.name`.
    #[prost(string, tag = "2")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_name: String,
    /// Must CHECK be left out?
    #[prost(bool, tag = "3")]
    pub disable_check: bool,
    /// The plugins, in order.
    #[prost(message, repeated, tag = "4")]
    pub plugins: Vec<CniPlugin>,
}

/// Addresses of a network.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IpRange {
    /// As a prefix.
    #[prost(string, tag = "1")]
    pub cidr: String,
}

/// A network as somebody wants it.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkConfig {
    /// Which one.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<NetworkMetadata>,
    /// For plugins that declare `ipRanges`.
    #[prost(message, repeated, tag = "2")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ip_ranges: Vec<IpRange>,
    /// 0: CNIv1.
    #[prost(int32, tag = "3")]
    #[serde(skip_serializing_if = "is_zero")]
    pub network_type: i32,
    /// The plugins.
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

/// `SetPodNetwork`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SetRequest {
    /// What to store.
    #[prost(message, optional, tag = "1")]
    pub config: Option<NetworkConfig>,
}

/// `SetPodNetwork`'s reply.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SetReply {
    /// What is stored now.
    #[prost(message, optional, tag = "1")]
    pub network: Option<Network>,
}

/// `RemovePodNetwork`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RemoveRequest {
    /// Which one; a uid, where given, must match.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<NetworkMetadata>,
    /// In use: wait for its last sandbox, and let no new one in.
    #[prost(bool, tag = "2")]
    pub drain: bool,
}

/// Nothing.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Empty {}

/// How a network is.
#[derive(Clone, PartialEq, Eq, Message, Serialize)]
pub struct NetworkStatus {
    /// Can sandboxes be attached and detached?
    #[prost(bool, tag = "1")]
    pub sandbox_management: bool,
    /// Are those that are attached as they were?
    #[prost(bool, tag = "2")]
    pub connectivity: bool,
    /// Does it go with its last sandbox?
    #[prost(bool, tag = "1001")]
    #[serde(skip_serializing_if = "is_false")]
    pub draining: bool,
}

/// A network as it is.
#[derive(Clone, PartialEq, Eq, Message, Serialize)]
pub struct Network {
    /// As it is stored.
    #[prost(message, optional, tag = "1")]
    pub config: Option<NetworkConfig>,
    /// How it is.
    #[prost(message, optional, tag = "2")]
    pub status: Option<NetworkStatus>,
}

/// `ListPodNetwork`'s reply.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListReply {
    /// All of them.
    #[prost(message, repeated, tag = "1")]
    pub networks: Vec<Network>,
}

/// One network of a sandbox, in `PodSandboxConfig.networks`.
#[derive(Clone, PartialEq, Eq, Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxNetwork {
    /// Empty: `eth0` for the first, `net1`, `net2`, … for the others.
    #[prost(string, tag = "1")]
    pub interface_name: String,
    /// `name` or `namespace/name`.
    #[prost(string, tag = "2")]
    pub network_name: String,
    /// Values for capabilities of its plugins; JSON text, what is none is a string.
    #[prost(btree_map = "string, string", tag = "3")]
    pub parameters: BTreeMap<String, String>,
}

/// How sandboxes call a network: `name` or `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// May be empty.
    pub namespace: String,
    /// Is not.
    pub name: String,
}

impl Name {
    /// As a sandbox writes it.
    pub fn read(text: &str) -> Name {
        let (namespace, name) = text.split_once('/').unwrap_or(("", text));
        Name { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Of a network.
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
