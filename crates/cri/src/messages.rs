//! What the proxy looks at in CRI's own messages, and nothing else: clients' and the runtime's are decoded with these, never
//! encoded.
//!
//! Source: `k8s.io/cri-api/pkg/apis/runtime/v1/api.proto`.

use std::collections::BTreeMap;

use prost::Message;

use crate::network_api::SandboxNetwork;

/// Field of `PodSandboxConfig` in `RunPodSandboxRequest`.
pub const CONFIG: u32 = 1;
/// Field of the annotations in `PodSandboxConfig`.
pub const CONFIG_ANNOTATIONS: u32 = 7;

/// Request of `RunPodSandbox`.
#[derive(Clone, PartialEq, Message)]
pub struct RunPodSandboxRequest {
    /// The configuration of the sandbox.
    #[prost(message, optional, tag = "1")]
    pub config: Option<PodSandboxConfig>,
}

/// Configuration of a pod sandbox.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxConfig {
    /// Its annotations.
    #[prost(btree_map = "string, string", tag = "7")]
    pub annotations: BTreeMap<String, String>,
    /// Its part for Linux.
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxPodSandboxConfig>,
    /// Its networks (CRI Network API).
    #[prost(message, repeated, tag = "1001")]
    pub networks: Vec<SandboxNetwork>,
}

/// Its part for Linux.
#[derive(Clone, PartialEq, Message)]
pub struct LinuxPodSandboxConfig {
    /// The security context.
    #[prost(message, optional, tag = "2")]
    pub security_context: Option<SecurityContext>,
}

/// Security context of a sandbox.
#[derive(Clone, PartialEq, Message)]
pub struct SecurityContext {
    /// The namespaces.
    #[prost(message, optional, tag = "1")]
    pub namespace_options: Option<NamespaceOption>,
}

/// Which namespaces a sandbox has of its own.
#[derive(Clone, PartialEq, Message)]
pub struct NamespaceOption {
    /// 2: the node's.
    #[prost(int32, tag = "1")]
    pub network: i32,
}

impl PodSandboxConfig {
    /// Does it use the node's network?
    pub fn is_on_host(&self) -> bool {
        let context = self.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
        context.and_then(|context| context.namespace_options.as_ref()).is_some_and(|named| named.network == 2)
    }
}

/// Status of a pod sandbox.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxStatus {
    /// Its id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Its annotations.
    #[prost(btree_map = "string, string", tag = "8")]
    pub annotations: BTreeMap<String, String>,
}

/// Further address of a pod sandbox.
#[derive(Clone, PartialEq, Message)]
pub struct PodIp {
    /// The address.
    #[prost(string, tag = "1")]
    pub ip: String,
    /// The network it is on (CRI Network API).
    #[prost(string, tag = "2")]
    pub network_name: String,
}

/// Condition of a runtime.
#[derive(Clone, PartialEq, Message)]
pub struct Condition {
    /// Its type.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// Whether it is true.
    #[prost(bool, tag = "2")]
    pub holds: bool,
}

/// The answer to `RunPodSandbox`, and the request of `StopPodSandbox` and `RemovePodSandbox`.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxId {
    /// Its id.
    #[prost(string, tag = "1")]
    pub id: String,
}

/// Of `Status`.
#[derive(Clone, PartialEq, Message)]
pub struct StatusRequest {
    /// Whether `info` is wanted.
    #[prost(bool, tag = "1")]
    pub verbose: bool,
}

/// The answer, of which only the runtime's notes are looked at.
#[derive(Clone, PartialEq, Message)]
pub struct StatusInfo {
    /// Information for people, by name.
    #[prost(btree_map = "string, string", tag = "2")]
    pub info: BTreeMap<String, String>,
}
