//! MultiNetworkPolicy: which traffic may reach and leave pods on additional networks.
//!
//! These types serve only the definition; `npwg::network_policy` reads the objects. Versions v1beta1 and v1beta2 have
//! the same fields: multi-networkpolicy's definition has `endPort` in both, although the Go types for v1beta1 do not.
//!
//! Source: k8snetworkplumbingwg/multi-networkpolicy `scheme.yml`, v1beta1 and v1beta2; `networking.k8s.io/v1` NetworkPolicy.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Selected pods, and the traffic that is allowed for them on the networks of the annotation k8s.v1.cni.cncf.io/policy-for.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "k8s.cni.cncf.io",
    version = "v1beta2",
    kind = "MultiNetworkPolicy",
    plural = "multi-networkpolicies",
    singular = "multi-networkpolicy",
    namespaced,
    shortname = "multi-policy",
    doc = "Traffic that may reach and leave pods on their additional networks. weft enforces it where policy controller \
           and agents run with --policy."
)]
#[schemars(extend("required" = ["podSelector"]))]
#[serde(default, rename_all = "camelCase")]
pub struct MultiNetworkPolicySpec {
    /// Pods of the policy's namespace that the policy applies to; empty for all.
    pub pod_selector: PolicyLabelSelector,
    /// Directions that the policy isolates. If absent, Ingress, and Egress if there are egress rules.
    #[schemars(length(max = 2))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policy_types: Vec<PolicyType>,
    /// Rules for traffic to the pods, each of which allows traffic.
    #[schemars(length(max = 256))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<IngressRule>,
    /// Rules for traffic from the pods, each of which allows traffic.
    #[schemars(length(max = 256))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<EgressRule>,
}

/// Direction of traffic.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum PolicyType {
    Ingress,
    Egress,
}

/// Rule for traffic to the pods.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressRule {
    /// Sources of the traffic; empty for all.
    #[schemars(length(max = 256))]
    pub from: Vec<PolicyPeer>,
    /// Ports of the pods; empty for all traffic.
    #[schemars(length(max = 256))]
    pub ports: Vec<PolicyPort>,
}

/// Rule for traffic from the pods.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EgressRule {
    /// Destinations of the traffic; empty for all.
    #[schemars(length(max = 256))]
    pub to: Vec<PolicyPeer>,
    /// Ports of the destinations; empty for all traffic.
    #[schemars(length(max = 256))]
    pub ports: Vec<PolicyPort>,
}

/// Source or destination of traffic: selectors, or a block of addresses.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicyPeer {
    /// Labels of pods; with namespaceSelector in its namespaces, else in the policy's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<PolicyLabelSelector>,
    /// Labels of namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<PolicyLabelSelector>,
    /// Block of addresses; cannot be combined with selectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_block: Option<AddressBlock>,
}

/// Block of addresses.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[schemars(extend("required" = ["cidr"]))]
#[serde(default)]
pub struct AddressBlock {
    /// Addresses in CIDR notation.
    #[schemars(length(min = 4, max = 49))]
    pub cidr: String,
    /// Parts of the block that do not count.
    #[schemars(length(max = 256), inner(length(min = 4, max = 49)))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<String>,
}

/// Port of the destination.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicyPort {
    /// Protocol; TCP if absent.
    #[schemars(with = "PolicyProtocol")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<PolicyProtocol>,
    /// Number of the port, or name of a container's port; absent for all ports of the protocol.
    #[schemars(with = "Value", extend("x-kubernetes-int-or-string" = true))]
    #[serde(skip_serializing_if = "Value::is_null")]
    pub port: Value,
    /// Last port of a range that begins with port.
    #[schemars(range(min = 1, max = 65535))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_port: Option<i32>,
}

/// Transport protocol.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum PolicyProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// Conditions on labels, all of which must be true.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicyLabelSelector {
    /// Labels with their values.
    #[schemars(extend("maxProperties" = 256))]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Conditions on single labels.
    #[schemars(length(max = 256))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<LabelRequirement>,
}

/// Condition on one label.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub struct LabelRequirement {
    /// Key of the label.
    #[schemars(length(max = 317))]
    pub key: String,
    /// In, NotIn, Exists or DoesNotExist.
    pub operator: LabelOperator,
    /// Values for In and NotIn.
    #[schemars(length(max = 256), inner(length(max = 63)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// Comparison with the values of a requirement.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum LabelOperator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}
