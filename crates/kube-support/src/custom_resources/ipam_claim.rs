//! IPAMClaim: addresses on an interface that outlive the pod, from the multi-network specification 1.3.
//!
//! Source: k8snetworkplumbingwg/ipamclaims v1alpha1.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Network and interface of the claim.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "k8s.cni.cncf.io",
    version = "v1alpha1",
    kind = "IPAMClaim",
    plural = "ipamclaims",
    namespaced,
    status = "IPAMClaimStatus",
    doc = "Claim of addresses that an interface keeps while its pods are deleted and recreated. A workload's controller \
           creates it; the IPAM plugin writes its status."
)]
#[schemars(extend("required" = ["interface", "network"]))]
#[serde(default, rename_all = "camelCase")]
pub struct IPAMClaimSpec {
    /// Name of the network.
    pub network: String,
    /// Name of the interface in the pod.
    pub interface: String,
}

/// Addresses of the claim.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[schemars(extend("required" = ["ips"]))]
#[serde(default, rename_all = "camelCase")]
pub struct IPAMClaimStatus {
    /// Addresses, IPv4 and IPv6, with the prefix length of their subnets.
    pub ips: Vec<String>,
    /// Pod that holds the addresses now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_pod: Option<OwnerPod>,
    /// Conditions of the claim; IPsAllocated is True if the addresses were allocated.
    // Kept unchanged: other programs write conditions, too.
    #[schemars(
        with = "Vec<ClaimCondition>",
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Value>,
}

/// Pod that holds the addresses of a claim.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[schemars(extend("required" = ["name"]))]
#[serde(default)]
pub struct OwnerPod {
    /// Name of the pod.
    pub name: String,
}

/// Condition as the Kubernetes API defines it.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[expect(dead_code, reason = "the schema is generated from it")]
struct ClaimCondition {
    /// Time of the last change of the status.
    #[schemars(extend("format" = "date-time"))]
    last_transition_time: String,
    /// Explanation for people; may be empty.
    #[schemars(length(max = 32768))]
    message: String,
    /// Generation of the claim that the condition describes.
    #[schemars(range(min = 0))]
    observed_generation: Option<i64>,
    /// Reason of the last change, one word.
    #[schemars(length(min = 1, max = 1024), regex(pattern = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"))]
    reason: String,
    /// True, False or Unknown.
    status: ConditionStatus,
    /// Type of the condition.
    #[schemars(
        length(max = 316),
        regex(
            pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
        )
    )]
    r#type: String,
}

#[derive(JsonSchema)]
#[expect(dead_code, reason = "the schema is generated from it")]
enum ConditionStatus {
    True,
    False,
    Unknown,
}
