//! CRI messages, reduced to the fields that the proxy reads.
//!
//! Client and runtime messages are decoded into these types but never encoded from them, because fields that are
//! missing here would be lost. [`crate::wire`] edits messages instead.
//!
//! Source: `k8s.io/cri-api/pkg/apis/runtime/v1/api.proto`.

use std::collections::BTreeMap;

use prost::Message;

use crate::network_api::SandboxNetwork;

/// Number of the `PodSandboxConfig` field in `RunPodSandboxRequest`.
pub const CONFIG: u32 = 1;
/// Number of the annotations field in `PodSandboxConfig`.
pub const CONFIG_ANNOTATIONS: u32 = 7;

/// Request to start a sandbox.
#[derive(Clone, PartialEq, Message)]
pub struct RunPodSandboxRequest {
    /// Sandbox configuration.
    #[prost(message, optional, tag = "1")]
    pub config: Option<PodSandboxConfig>,
}

/// Configuration that the kubelet sends for a pod sandbox.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxConfig {
    /// Pod annotations; the kubelet passes all of them.
    #[prost(btree_map = "string, string", tag = "7")]
    pub annotations: BTreeMap<String, String>,
    /// Settings that exist only on Linux.
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxPodSandboxConfig>,
    /// Networks to attach (CRI Network API).
    #[prost(message, repeated, tag = "1001")]
    pub networks: Vec<SandboxNetwork>,
}

/// Sandbox settings that exist only on Linux.
#[derive(Clone, PartialEq, Message)]
pub struct LinuxPodSandboxConfig {
    /// Security context, which contains the namespace modes.
    #[prost(message, optional, tag = "2")]
    pub security_context: Option<SecurityContext>,
}

/// Sandbox security context.
#[derive(Clone, PartialEq, Message)]
pub struct SecurityContext {
    /// Namespace modes.
    #[prost(message, optional, tag = "1")]
    pub namespace_options: Option<NamespaceOption>,
}

/// Namespace modes of a sandbox.
#[derive(Clone, PartialEq, Message)]
pub struct NamespaceOption {
    /// Network namespace mode; 2 (`NODE`) means that the pod uses the host network.
    #[prost(int32, tag = "1")]
    pub network: i32,
}

impl PodSandboxConfig {
    /// Whether the sandbox uses the host network, so that no networks are attached to it.
    pub fn is_on_host(&self) -> bool {
        let context = self.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
        context.and_then(|context| context.namespace_options.as_ref()).is_some_and(|named| named.network == 2)
    }
}

/// Pod sandbox status.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxStatus {
    /// Sandbox id that the runtime assigned.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Annotations that the sandbox was created with.
    #[prost(btree_map = "string, string", tag = "8")]
    pub annotations: BTreeMap<String, String>,
}

/// Additional pod address, besides the first one.
#[derive(Clone, PartialEq, Message)]
pub struct PodIp {
    /// IP address as text.
    #[prost(string, tag = "1")]
    pub ip: String,
    /// Name of the network that the address belongs to (CRI Network API).
    #[prost(string, tag = "2")]
    pub network_name: String,
}

/// Runtime condition, as in the `Status` response.
#[derive(Clone, PartialEq, Message)]
pub struct Condition {
    /// Condition type, for example `NetworkReady`.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// Whether the condition is true.
    #[prost(bool, tag = "2")]
    pub holds: bool,
}

/// Sandbox id alone: the `RunPodSandbox` response, and the request for `StopPodSandbox` and `RemovePodSandbox`.
#[derive(Clone, PartialEq, Message)]
pub struct PodSandboxId {
    /// Sandbox id.
    #[prost(string, tag = "1")]
    pub id: String,
}

/// Request for the runtime status.
#[derive(Clone, PartialEq, Message)]
pub struct StatusRequest {
    /// Whether the response should include `info`.
    #[prost(bool, tag = "1")]
    pub verbose: bool,
}

/// `Status` response, reduced to `info`.
#[derive(Clone, PartialEq, Message)]
pub struct StatusInfo {
    /// Runtime-specific text for people, by name.
    #[prost(btree_map = "string, string", tag = "2")]
    pub info: BTreeMap<String, String>,
}
