//! IPPool: addresses that are unique in the cluster, split into blocks that nodes lease.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Addresses of the pool and the way it is split into blocks.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "weft.dev",
    version = "v1alpha1",
    kind = "IPPool",
    plural = "ippools",
    shortname = "wpool",
    status = "IPPoolStatus",
    doc = "Pool of addresses that are unique in the cluster, split into blocks that nodes lease. The first pod of a \
           network creates the pool of its range; create one yourself to choose the size of its blocks.",
    printcolumn(
        name = "Range",
        type_ = "string",
        json_path = ".spec.range",
        description = "Addresses of the pool"
    ),
    printcolumn(
        name = "Network",
        type_ = "string",
        json_path = ".spec.networkName",
        description = "Address space of the pool"
    ),
    printcolumn(
        name = "Leased",
        type_ = "integer",
        json_path = ".status.leasedBlocks",
        description = "Number of blocks that nodes lease"
    ),
    printcolumn(
        name = "Blocks",
        type_ = "string",
        json_path = ".status.blocks",
        description = "Number of blocks"
    ),
    printcolumn(
        name = "Nodes",
        type_ = "integer",
        json_path = ".status.nodes",
        description = "Number of nodes that lease a block or a single address"
    ),
    printcolumn(
        name = "Used",
        type_ = "integer",
        json_path = ".status.usedAddresses",
        description = "Number of addresses that pods show in their network-status"
    ),
    printcolumn(
        name = "Percent",
        type_ = "integer",
        json_path = ".status.leasedPercent",
        description = "Leased part of the addresses that can be allocated, in percent"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[schemars(extend("required" = ["range"]))]
#[serde(default, rename_all = "camelCase")]
pub struct IPPoolSpec {
    /// Addresses of the pool, in CIDR notation without host bits. May be enlarged or reduced while the pool is used, and
    /// replaced by another range when nothing is leased.
    #[schemars(length(min = 3, max = 43))]
    pub range: String,
    /// Size of a block: it has 2^blockBits addresses. If absent, chosen by range and number of nodes when the pool is first
    /// used. Fixed from then on, unless it is 0.
    #[schemars(range(min = 0, max = 8))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_bits: Option<u8>,
    /// Name of the address space; empty for the default one. Pools of one space have no address in common. Fixed once the
    /// pool is used.
    #[schemars(length(max = 128))]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_name: String,
    /// Networks and addresses of the range that are never allocated.
    #[schemars(length(max = 1000), inner(length(max = 43)))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

/// State of the pool: its layout, and the counts of `weft controller --ipam`.
#[derive(Clone, Debug, Default, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IPPoolStatus {
    /// Number of addresses that can be allocated, as a string: there may be nearly 2^128.
    pub addresses: String,
    /// Number of blocks, as a string.
    pub blocks: String,
    /// Number of blocks that nodes lease.
    #[schemars(with = "i64")]
    pub leased_blocks: u64,
    /// Number of single addresses that are leased or kept.
    #[schemars(with = "i64")]
    pub single_addresses: u64,
    /// Number of nodes that lease a block or a single address.
    #[schemars(with = "i64")]
    pub nodes: u64,
    /// Number of addresses that pods show in their network-status.
    #[schemars(with = "i64")]
    pub used_addresses: u64,
    /// Leased part of the addresses that can be allocated, in percent.
    #[schemars(with = "i64")]
    pub leased_percent: u8,
    /// Range, block size and address space of the pool when it was first used, or when its range was enlarged. While block
    /// size or address space of the spec differ from it, nothing is leased.
    #[serde(skip_serializing)]
    pub layout: Option<RecordedLayout>,
    /// Sections of the pool in which single addresses were ever created. A node that leases a block in another section
    /// does not look for single addresses in it. The key `poolUid` has the uid of the pool for which the record is complete.
    #[schemars(with = "BTreeMap<String, SectionRecord>")]
    #[serde(skip_serializing)]
    pub single_address_blocks: BTreeMap<String, String>,
}

/// Layout of a pool as its status records it.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[schemars(extend("required" = ["phase"]))]
#[serde(default, rename_all = "camelCase")]
pub struct RecordedLayout {
    /// Pending: an agent checks whether another pool has addresses of this one. Fixed: the pool is in use.
    pub phase: LayoutPhase,
    /// Addresses of the pool, as spec.range was.
    #[schemars(length(max = 43))]
    pub range: String,
    /// Size of a block, as spec.blockBits was.
    #[schemars(range(min = 0, max = 8))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_bits: Option<u8>,
    /// Address space, as spec.networkName was.
    #[schemars(length(max = 128))]
    // Omitted if it is empty: some API servers reject an empty string in a patch as null.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_name: String,
    /// Whether single addresses may lack the label of their block, because the pool had no blocks before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unlabelled_addresses: bool,
}

/// Phase of a pool's layout.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
pub enum LayoutPhase {
    /// An agent checks whether another pool has addresses of this one.
    Pending,
    /// The pool is in use.
    Fixed,
    /// A value that cannot be read: nothing is leased of the pool.
    #[default]
    #[schemars(skip)]
    #[serde(other)]
    Unreadable,
}

/// Value of the record of a section.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "the schema is generated from it")]
struct SectionRecord(#[schemars(length(max = 64))] String);

/// Counts of a status. Unlike the layout they may be lost, because the controller counts again.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Counts {
    addresses: String,
    blocks: String,
    leased_blocks: u64,
    single_addresses: u64,
    nodes: u64,
    used_addresses: u64,
    leased_percent: u8,
}

// === impl IPPoolStatus ===

impl<'de> Deserialize<'de> for IPPoolStatus {
    /// Reads a status leniently: counts that cannot be read are zero, a layout that cannot be read is
    /// [`LayoutPhase::Unreadable`], and a record of single addresses that cannot be read is missing.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<IPPoolStatus, D::Error> {
        let written = Value::deserialize(from)?;
        let counts: Counts = lenient(&written).unwrap_or_default();
        let layout = written.get("layout").filter(|layout| !layout.is_null());
        let Counts {
            addresses,
            blocks,
            leased_blocks,
            single_addresses,
            nodes,
            used_addresses,
            leased_percent,
        } = counts;
        Ok(IPPoolStatus {
            addresses,
            blocks,
            leased_blocks,
            single_addresses,
            nodes,
            used_addresses,
            leased_percent,
            layout: layout.map(|layout| lenient(layout).unwrap_or_default()),
            single_address_blocks: written.get("singleAddressBlocks").and_then(lenient).unwrap_or_default(),
        })
    }
}

fn lenient<T: DeserializeOwned>(value: &Value) -> Option<T> {
    T::deserialize(value).ok()
}
