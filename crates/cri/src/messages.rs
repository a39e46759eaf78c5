//! CRI messages with only the fields that the proxy reads. Messages of clients and of the runtime are decoded with these
//! types, and never encoded from them.
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
    /// Configuration of the sandbox.
    #[prost(message, optional, tag = "1")]
    pub config: Option<PodSandboxConfig>,
}

/// Configuration of a pod sandbox.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxConfig {
    /// Annotations.
    #[prost(btree_map = "string, string", tag = "7")]
    pub annotations: BTreeMap<String, String>,
    /// Part for Linux.
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxPodSandboxConfig>,
    /// Networks (CRI Network API).
    #[prost(message, repeated, tag = "1001")]
    pub networks: Vec<SandboxNetwork>,
}

/// Part of a sandbox configuration for Linux.
#[derive(Clone, PartialEq, Message)]
pub struct LinuxPodSandboxConfig {
    /// Security context.
    #[prost(message, optional, tag = "2")]
    pub security_context: Option<SecurityContext>,
}

/// Security context of a sandbox.
#[derive(Clone, PartialEq, Message)]
pub struct SecurityContext {
    /// Namespaces.
    #[prost(message, optional, tag = "1")]
    pub namespace_options: Option<NamespaceOption>,
}

/// Namespaces of a sandbox.
#[derive(Clone, PartialEq, Message)]
pub struct NamespaceOption {
    /// Network namespace; 2: the node's.
    #[prost(int32, tag = "1")]
    pub network: i32,
}

impl PodSandboxConfig {
    /// Whether the sandbox uses the node's network.
    pub fn is_on_host(&self) -> bool {
        let context = self.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
        context.and_then(|context| context.namespace_options.as_ref()).is_some_and(|named| named.network == 2)
    }
}

/// Status of a pod sandbox.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxStatus {
    /// Id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Annotations.
    #[prost(btree_map = "string, string", tag = "8")]
    pub annotations: BTreeMap<String, String>,
}

/// Further address of a pod sandbox.
#[derive(Clone, PartialEq, Message)]
pub struct PodIp {
    /// Address.
    #[prost(string, tag = "1")]
    pub ip: String,
    /// Network of the address (CRI Network API).
    #[prost(string, tag = "2")]
    pub network_name: String,
}

/// Condition of a runtime.
#[derive(Clone, PartialEq, Message)]
pub struct Condition {
    /// Type.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// Whether it is true.
    #[prost(bool, tag = "2")]
    pub holds: bool,
}

/// Response to `RunPodSandbox`, and request of `StopPodSandbox` and `RemovePodSandbox`.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxId {
    /// Id of the sandbox.
    #[prost(string, tag = "1")]
    pub id: String,
}

/// Request of `Status`.
#[derive(Clone, PartialEq, Message)]
pub struct StatusRequest {
    /// Whether `info` is requested.
    #[prost(bool, tag = "1")]
    pub verbose: bool,
}

/// Response to `Status`, of which only `info` is read.
#[derive(Clone, PartialEq, Message)]
pub struct StatusInfo {
    /// Information for people, by name.
    #[prost(btree_map = "string, string", tag = "2")]
    pub info: BTreeMap<String, String>,
}
