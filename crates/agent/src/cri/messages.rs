//! What the proxy looks at in CRI's own messages, and nothing else: clients' and the runtime's are decoded with these, never
//! encoded.
//!
//! Source: `k8s.io/cri-api/pkg/apis/runtime/v1/api.proto`.

use std::collections::BTreeMap;

use prost::Message;

use crate::cri::network_api::SandboxNetwork;

/// Field of `PodSandboxConfig` in `RunPodSandboxRequest`.
pub(crate) const CONFIG: u32 = 1;
/// Field of the annotations in `PodSandboxConfig`.
pub(crate) const CONFIG_ANNOTATIONS: u32 = 7;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RunPodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) config: Option<PodSandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandboxConfig {
    #[prost(btree_map = "string, string", tag = "7")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[prost(message, optional, tag = "8")]
    pub(crate) linux: Option<LinuxPodSandboxConfig>,
    #[prost(message, repeated, tag = "1001")]
    pub(crate) networks: Vec<SandboxNetwork>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LinuxPodSandboxConfig {
    #[prost(message, optional, tag = "2")]
    pub(crate) security_context: Option<SecurityContext>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SecurityContext {
    #[prost(message, optional, tag = "1")]
    pub(crate) namespace_options: Option<NamespaceOption>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NamespaceOption {
    /// 2: the node's.
    #[prost(int32, tag = "1")]
    pub(crate) network: i32,
}

impl PodSandboxConfig {
    /// Does it use the node's network?
    pub(crate) fn is_on_host(&self) -> bool {
        let context = self.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
        context.and_then(|context| context.namespace_options.as_ref()).is_some_and(|named| named.network == 2)
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandboxStatus {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(btree_map = "string, string", tag = "8")]
    pub(crate) annotations: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodIp {
    #[prost(string, tag = "1")]
    pub(crate) ip: String,
    #[prost(string, tag = "2")]
    pub(crate) network_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Condition {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(bool, tag = "2")]
    pub(crate) holds: bool,
}

/// The answer to `RunPodSandbox`, and the request of `StopPodSandbox` and `RemovePodSandbox`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSandboxId {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

/// Of `Status`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusRequest {
    #[prost(bool, tag = "1")]
    pub(crate) verbose: bool,
}

/// The answer, of which only the runtime's notes are looked at.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusInfo {
    #[prost(btree_map = "string, string", tag = "2")]
    pub(crate) info: BTreeMap<String, String>,
}
