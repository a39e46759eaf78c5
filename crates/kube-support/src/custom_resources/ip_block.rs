//! IPBlock: a block that a node leases from a pool, or a single address in one. Agents create the objects.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Addresses of the object and their holder.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "weft.dev",
    version = "v1alpha1",
    kind = "IPBlock",
    plural = "ipblocks",
    shortname = "wblock",
    status = "IPBlockStatus",
    doc = "Block of an IPPool that a node leases, or a single address of the pool. Node agents create, change and delete \
           these objects; there is no need to edit one.",
    printcolumn(
        name = "Range",
        type_ = "string",
        json_path = ".spec.range",
        description = "Addresses of the object"
    ),
    printcolumn(
        name = "Node",
        type_ = "string",
        json_path = ".spec.node",
        description = "Node that leases it"
    ),
    printcolumn(
        name = "Claim",
        type_ = "string",
        json_path = ".spec.claim",
        description = "Claim that keeps a single address"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[schemars(extend("required" = ["pool", "range"]))]
#[serde(default, rename_all = "camelCase")]
pub struct IPBlockSpec {
    /// Name of the IPPool.
    pub pool: String,
    /// Addresses, in CIDR notation. The name of the object contains the same.
    pub range: String,
    /// Node that leases the object; empty if it is free.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Address store of the node that contains it: the directory below /var/lib/weft/ipam, or NAME@DIRECTORY.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub address_store: String,
    /// Holder of a single address: uid of the pod, container and interface, separated by slashes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// Claim that keeps a single address when its pod is deleted.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub claim: String,
    /// Time at which the object became free, in milliseconds since 1970.
    // Signed like the API's integers: a negative number must not make the list unreadable.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "is_zero")]
    pub released_at: i64,
    /// Number of times the object changed its holder.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: i64,
    /// For a single address: node that leases the block around it and is asked to transfer the address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub transfer_requested_from: String,
    /// For a single address that was not transferred: its holder on that node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub transfer_refused_by: String,
    /// Addresses of a block that its node may not allocate, because another node holds them as single addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reserved_addresses: Vec<String>,
    /// For a block: requests of other nodes for any address of this node's blocks. An unreadable list counts as empty.
    #[serde(deserialize_with = "readable", skip_serializing_if = "Vec::is_empty")]
    pub transfer_requests: Vec<IPBlockTransferRequest>,
}

/// Request of another node for any address of a node's blocks.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IPBlockTransferRequest {
    /// Node that needs an address.
    pub node: String,
    /// Address store of that node.
    pub address_store: String,
    /// Addresses that it may allocate, as FIRST-LAST.
    pub addresses: Vec<String>,
    /// Quarantine of a released address, in milliseconds.
    #[schemars(range(min = 0))]
    pub quarantine: i64,
    /// Time of the request, in milliseconds since 1970.
    #[schemars(range(min = 0))]
    pub requested_at: i64,
}

/// Reads requests; unreadable ones must not make the list of objects unreadable.
fn readable<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<IPBlockTransferRequest>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(from)?).unwrap_or_default())
}

/// State of the object. It is written together with the rest of the object.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IPBlockStatus {
    /// Time at which the controller probed the node's agent because it considers the node lost. The agent removes the
    /// field, as does every other change of the object. If the field is still set after 30 seconds, the controller
    /// releases the block.
    // Any value that is not null counts: see `IPBlockStatus::is_probed`.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    #[serde(skip_serializing_if = "Value::is_null")]
    pub node_liveness_probe: Value,
}

impl IPBlockStatus {
    /// Whether the node's agent is probed.
    pub fn is_probed(&self) -> bool {
        !self.node_liveness_probe.is_null()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}
