//! Messages between `weft` and the commands of `weft-cni` that look at running sandboxes.
//!
//! `weft` reads the journal and decides which sandboxes to look at; `weft-cni` enters their namespaces. A request is the
//! standard input of the command, the answer its output. Nothing is changed.

use serde::{Deserialize, Serialize};

/// Maximum number of interfaces of one request for counters.
pub const INTERFACES_MAX: usize = 16_384;

/// Network namespace of a sandbox, as the journal has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxNamespace {
    /// Path, as the runtime passed it.
    pub netns: String,
    /// Identity of the namespace, because the path may lead to another one later. Empty if unknown.
    #[serde(default)]
    pub namespace: String,
}

/// Interfaces of one sandbox whose counters are requested.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CountersRequest {
    /// The sandbox.
    pub sandbox: SandboxNamespace,
    /// Names of its interfaces.
    pub interfaces: Vec<String>,
}

/// Counters of an interface; `None` in an answer if the interface or its namespace is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceCounters {
    /// Received traffic.
    pub received: Traffic,
    /// Sent traffic.
    pub sent: Traffic,
}

/// Traffic in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Number of bytes.
    pub bytes: u64,
    /// Number of packets.
    pub packets: u64,
    /// Number of faulty packets.
    pub errors: u64,
    /// Number of dropped packets.
    pub dropped: u64,
}
