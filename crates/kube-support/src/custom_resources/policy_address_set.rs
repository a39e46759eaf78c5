//! PolicyAddressSet: addresses of the peers of a MultiNetworkPolicy. The policy controller creates the objects.

use kube::CustomResource;
use npwg::network_policy::{Direction, Protocol};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::multi_network_policy::PolicyProtocol;

/// Policy and the addresses of its peers.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "weft.dev",
    version = "v1alpha1",
    kind = "PolicyAddressSet",
    plural = "policyaddresssets",
    namespaced,
    shortname = "wpas",
    doc = "Addresses of the peers of the MultiNetworkPolicy with the same name. weft controller --policy creates, changes \
           and deletes these objects; there is no need to edit one.",
    printcolumn(
        name = "Generation",
        type_ = "integer",
        json_path = ".spec.policyGeneration",
        description = "Generation of the policy"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[schemars(extend("required" = ["policyUid", "policyGeneration"]))]
#[serde(default, rename_all = "camelCase")]
pub struct PolicyAddressSetSpec {
    /// Uid of the policy.
    pub policy_uid: String,
    /// Generation of the policy that the indexes of rules refer to.
    #[schemars(range(min = 0))]
    pub policy_generation: i64,
    /// Networks of the policy that the addresses are resolved for: NAMESPACE/NAME, sorted.
    #[schemars(length(max = 128), inner(length(max = 317)))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<String>,
    /// Sets of addresses, sorted by direction, rule, protocol and port. A set that is absent is empty.
    #[schemars(length(max = 8192))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<PeerAddresses>,
}

/// Addresses of the peers of one rule.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct PeerAddresses {
    /// Direction of the rule.
    pub direction: PolicyDirection,
    /// Index of the rule in its direction.
    #[schemars(range(min = 0, max = 255))]
    pub rule: i32,
    /// Protocol of the port.
    #[schemars(with = "PolicyProtocol")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<PolicyProtocol>,
    /// Number that these peers have for a named port of the rule. Absent for the rule's numbered ports.
    #[schemars(range(min = 1, max = 65535))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// Addresses in ascending order: ADDRESS, or FIRST-LAST for addresses that follow each other.
    #[schemars(length(max = 65536), inner(length(min = 2, max = 79)))]
    pub addresses: Vec<String>,
}

/// Direction of traffic, as seen by the selected pods.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyDirection {
    /// To the pods.
    Ingress,
    /// From the pods.
    Egress,
}

// === impl PolicyDirection ===

impl From<Direction> for PolicyDirection {
    fn from(direction: Direction) -> PolicyDirection {
        match direction {
            Direction::Ingress => PolicyDirection::Ingress,
            Direction::Egress => PolicyDirection::Egress,
        }
    }
}

impl From<PolicyDirection> for Direction {
    fn from(direction: PolicyDirection) -> Direction {
        match direction {
            PolicyDirection::Ingress => Direction::Ingress,
            PolicyDirection::Egress => Direction::Egress,
        }
    }
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
