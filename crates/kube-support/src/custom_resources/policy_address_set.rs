//! PolicyAddressSet: addresses of pods that MultiNetworkPolicy rules select. The policy controller creates the objects.

use kube::CustomResource;
use npwg::network_policy::Protocol;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::multi_network_policy::PolicyProtocol;

/// Selection of pods, and their addresses.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "weft.dev",
    version = "v1alpha1",
    kind = "PolicyAddressSet",
    plural = "policyaddresssets",
    namespaced,
    shortname = "wpas",
    doc = "Addresses of the pods that rules of MultiNetworkPolicies in the same namespace select. Rules with equal peers \
           share one object, whose name is a digest of networks and selectors. weft controller --policy creates, changes \
           and deletes these objects; there is no need to edit one.",
    printcolumn(
        name = "Selection",
        type_ = "string",
        json_path = ".spec.selection",
        description = "Networks and selectors of the rules"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicyAddressSetSpec {
    /// Networks and selectors of the rules as JSON, cut at 1,024 characters. Programs use the name of the object.
    #[schemars(length(max = 1024))]
    pub selection: String,
    /// Reason why the addresses do not fit, for example too many of them. The rules then allow no pod.
    #[schemars(length(max = 1024))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Addresses by port, sorted by protocol and port. A set that is absent is empty.
    #[schemars(length(max = 8192))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<PeerAddresses>,
}

/// Addresses of the selected pods.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct PeerAddresses {
    /// Protocol of the port.
    #[schemars(with = "PolicyProtocol")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<PolicyProtocol>,
    /// Number that these pods have for a named port of an egress rule. Absent for the numbered ports of rules.
    #[schemars(range(min = 1, max = 65535))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// Addresses in ascending order: ADDRESS, or FIRST-LAST for addresses that follow each other.
    #[schemars(length(max = 65536), inner(length(min = 2, max = 79)))]
    pub addresses: Vec<String>,
}

// === impl PolicyProtocol ===

impl From<Protocol> for PolicyProtocol {
    fn from(protocol: Protocol) -> PolicyProtocol {
        match protocol {
            Protocol::Tcp => PolicyProtocol::Tcp,
            Protocol::Udp => PolicyProtocol::Udp,
            Protocol::Sctp => PolicyProtocol::Sctp,
        }
    }
}

impl From<PolicyProtocol> for Protocol {
    fn from(protocol: PolicyProtocol) -> Protocol {
        match protocol {
            PolicyProtocol::Tcp => Protocol::Tcp,
            PolicyProtocol::Udp => Protocol::Udp,
            PolicyProtocol::Sctp => Protocol::Sctp,
        }
    }
}
