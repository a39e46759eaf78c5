//! IPBlock and IPPool objects (group `weft.dev`) for [`ipam::registry`].
//!
//! - A manually edited, invalid object still counts as held, and is never allocated.
//! - A string that does not fit a label is hashed.
//! - The pool status has the layout ([`RecordedLayout`]); separate requests write it. Each request carries the resource
//!   version of the pool whose spec it records, so it fails if the spec has changed meanwhile.
//! - A liveness probe is part of the IPBlock status, which is written with the object. Every change to the object
//!   removes the probe ([`BlockObject::of`] writes none), in one compare-and-swap.
//!
//! Source: [`kube_support::custom_resources`]; Kubernetes API conventions, names and labels.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam::{
    AddressFilter, AddressSpan, Holder, IpBlock, PoolLayout, Range, SPANS_MAX, TransferRequest, pool_layout,
};
use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use kube::core::TypeMeta;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha512};
use thiserror::Error;

use crate::imported_claim::ImportedClaim;
use kube_support::custom_resources::{
    IPBlock, IPBlockSpec, IPBlockStatus, IPBlockTransferRequest, IPPool, IPPoolSpec, IPPoolStatus,
    LayoutPhase, RecordedLayout,
};
use kube_support::resource;

/// IPBlock label with the pool name.
pub const POOL_LABEL: &str = "weft.dev/pool";
/// IPBlock label with the leasing node; on an imported address that no node leases, with the pod's node.
pub const NODE_LABEL: &str = "weft.dev/node";
/// Label of a single address with the surrounding block.
pub const WITHIN_LABEL: &str = "weft.dev/within";
/// Label of a single address with the claim that keeps it.
pub const CLAIM_LABEL: &str = "weft.dev/claim";
/// Label of a single address with the node that should transfer it.
pub const TRANSFER_LABEL: &str = "weft.dev/transfer-requested-from";

/// Label of an imported address with the pod. On a pool, it means that the pool has imported addresses.
pub const IMPORTED_LABEL: &str = "weft.dev/imported";

/// Finalizer for objects that a node leases or a claim keeps, and for pools with such objects: a manual deletion waits
/// until they are free.
pub const IN_USE: &str = "weft.dev/in-use";

/// Key beside the section records: uid of the pool for which the record is complete.
const POOL_UID: &str = "poolUid";
/// Value of such a section.
const RECORDED: &str = "recorded";

/// Maximum length of a label value, in bytes.
const LABEL_MAX: usize = 63;

/// Pool as it comes from the API.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct PoolObject {
    /// API version and kind.
    #[serde(flatten, default)]
    pub types: Option<TypeMeta>,
    /// Name and versions.
    pub metadata: ObjectMeta,
    /// Addresses and block size.
    #[serde(default)]
    pub spec: IPPoolSpec,
    /// Layout and counts. A subresource: a request that writes the object leaves it as it is.
    #[serde(default, skip_serializing)]
    pub status: Option<IPPoolStatus>,
}

/// State of a pool's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutState {
    /// The pool is not used yet.
    Unset,
    /// An agent checks whether another pool contains addresses of the pool.
    Pending,
    /// Range, block size and address space are fixed; the range of the spec may be smaller.
    Fixed,
    /// The spec has addresses that the fixed layout does not have, or another block size for a pool that has no blocks.
    Resized,
}

/// Block or single address as it comes from the API.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct BlockObject {
    /// API version and kind.
    #[serde(flatten, default)]
    pub types: Option<TypeMeta>,
    /// Name and versions.
    pub metadata: ObjectMeta,
    /// Addresses and holder.
    #[serde(default)]
    pub spec: IPBlockSpec,
    /// Liveness probe for the leasing node, if there is one.
    #[serde(default, deserialize_with = "status", skip_serializing_if = "Option::is_none")]
    pub status: Option<IPBlockStatus>,
}

/// Reads the block status. An unreadable status becomes none, because the rest of the list must stay readable.
fn status<'de, D: Deserializer<'de>>(from: D) -> Result<Option<IPBlockStatus>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(from)?).ok())
}

/// Returns a number as the signed type of the API.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

// === the API ===

resource!(PoolObject as IPPool);
resource!(BlockObject as IPBlock);

/// Returns API version and kind, as an object must contain them.
pub fn kind_of<T: Resource<DynamicType = ()>>() -> Option<TypeMeta> {
    Some(TypeMeta { api_version: T::api_version(&()).into_owned(), kind: T::kind(&()).into_owned() })
}

// === names ===

/// Returns a network as part of a name: `10.1.2.0-24`; IPv6 has all 32 digits.
pub fn name_of(net: IpNet) -> String {
    match net {
        IpNet::V4(net) => format!("{}-{}", net.network(), net.prefix_len()),
        IpNet::V6(net) => format!("{:032x}-{}", net.network().to_bits(), net.prefix_len()),
    }
}

/// Returns the name of a pool's block.
pub fn block_name(pool: &str, net: IpNet) -> String {
    format!("{pool}.{}", name_of(net))
}

/// Returns a pod's namespace and name as a label value.
pub(crate) fn label_of_pod(namespace: &str, pod: &str) -> String {
    label(&format!("{namespace}/{pod}"))
}

/// Returns a string as a label value.
pub fn label(text: &str) -> String {
    let word = |byte: u8| byte.is_ascii_alphanumeric();
    let bytes = text.as_bytes();
    let plain = text.len() <= LABEL_MAX
        && bytes.first().is_some_and(|byte| word(*byte))
        && bytes.last().is_some_and(|byte| word(*byte))
        && bytes.iter().all(|byte| word(*byte) || b"-_.".contains(byte));
    if plain {
        return text.to_owned();
    }
    let digest = Sha512::digest(text.as_bytes());
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

// === impl BlockObject ===

impl BlockObject {
    /// Returns the object as it is written: without a liveness probe.
    pub fn of(pool: &str, grid: &PoolLayout, object: &IpBlock) -> BlockObject {
        let IpBlock { net, uid, version, holder, reserved } = object;
        let Holder { node, store, owner, claim, transfer_requested_from, transfer_refused_by, .. } =
            holder.clone();
        let mut labels = BTreeMap::from([(POOL_LABEL.to_owned(), label(pool))]);
        if !node.is_empty() {
            labels.insert(NODE_LABEL.to_owned(), label(&node));
        }
        if !claim.is_empty() {
            labels.insert(CLAIM_LABEL.to_owned(), label(&claim));
        }
        if let Some(imported) = ImportedClaim::parse(&claim) {
            labels.insert(IMPORTED_LABEL.to_owned(), label_of_pod(&imported.namespace, &imported.pod));
            if node.is_empty() && !imported.node.is_empty() {
                labels.insert(NODE_LABEL.to_owned(), label(&imported.node));
            }
        }
        if !transfer_requested_from.is_empty() {
            labels.insert(TRANSFER_LABEL.to_owned(), label(&transfer_requested_from));
        }
        if let Some(block) = grid.block_of(net.addr()).filter(|block| block != net) {
            labels.insert(WITHIN_LABEL.to_owned(), name_of(block));
        }
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        BlockObject {
            types: kind_of::<BlockObject>(),
            metadata: ObjectMeta {
                name: Some(block_name(pool, *net)),
                uid: given(uid),
                resource_version: given(version),
                labels: Some(labels),
                finalizers: object.is_in_use().then(|| vec![IN_USE.to_owned()]),
                ..ObjectMeta::default()
            },
            spec: IPBlockSpec {
                pool: pool.to_owned(),
                range: net.to_string(),
                node,
                address_store: store,
                owner,
                claim,
                released_at: signed(holder.released_at),
                generation: signed(holder.generation),
                transfer_requested_from,
                transfer_refused_by,
                reserved_addresses: reserved.iter().map(IpAddr::to_string).collect(),
                transfer_requests: holder.transfer_requests.iter().map(written_request).collect(),
            },
            status: None,
        }
    }

    /// Returns the object without a finalizer, as it must be written before deletion.
    pub fn unused(pool: &str, grid: &PoolLayout, object: &IpBlock) -> BlockObject {
        let mut written = BlockObject::of(pool, grid, object);
        written.metadata.finalizers = None;
        written
    }

    /// Whether the object is being deleted and waits for the finalizer.
    pub fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether the object has no transfer request for `node`, or a refusal.
    pub(crate) fn answers(&self, node: &str) -> bool {
        let IPBlockSpec { transfer_requests, transfer_requested_from, transfer_refused_by, .. } = &self.spec;
        let is_waiting = !transfer_requested_from.is_empty() && transfer_refused_by.is_empty();
        !is_waiting && !transfer_requests.iter().any(|request| request.node == node)
    }

    /// Returns the object with the finalizer, if it is in use and somebody removed the finalizer. `None` for an object
    /// that is deleted or probed: any change would answer the probe.
    pub fn in_use(&self) -> Option<BlockObject> {
        let is_in_use = self.object().is_some_and(|object| object.is_in_use());
        let finalizers = &self.metadata.finalizers;
        let is_written = finalizers.as_ref().is_some_and(|all| all.iter().any(|known| known == IN_USE));
        if !is_in_use || is_written || self.is_probed() || self.is_deleted() {
            return None;
        }
        let mut in_use = self.clone();
        in_use.metadata.finalizers.get_or_insert_default().push(IN_USE.to_owned());
        Some(in_use)
    }

    /// Whether the leasing node's agent is probed.
    pub fn is_probed(&self) -> bool {
        self.status.as_ref().is_some_and(IPBlockStatus::is_probed)
    }

    /// Adds a liveness probe.
    pub fn set_probe(&mut self, now: Timestamp) {
        let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        self.status.get_or_insert_default().node_liveness_probe = Value::String(now);
    }

    /// Removes the liveness probe.
    pub fn remove_probe(&mut self) {
        self.status = None;
    }

    /// Returns the pool's block size at the time when the object was created, as a power of two.
    pub fn bits(&self) -> Option<u8> {
        let net: IpNet = self.spec.range.parse().ok()?;
        if net.prefix_len() < net.max_prefix_len() {
            return Some(net.max_prefix_len() - net.prefix_len());
        }
        let within = self.metadata.labels.as_ref().and_then(|labels| labels.get(WITHIN_LABEL));
        let Some(within) = within else { return Some(0) };
        let length: u8 = within.rsplit_once('-')?.1.parse().ok()?;
        net.max_prefix_len().checked_sub(length)
    }

    /// Returns the block. `None` if the range is invalid or differs from the name, or a number is negative.
    pub fn object(&self) -> Option<IpBlock> {
        let BlockObject { types: _, metadata, spec, status: _ } = self;
        let net: IpNet = spec.range.parse().ok()?;
        let name = metadata.name.as_deref()?;
        if name != block_name(&spec.pool, net) || net != net.trunc() {
            return None;
        }
        let IPBlockSpec { node, address_store, owner, claim, .. } = spec.clone();
        // An unreadable reserved address could be any address: no address of the block is safe.
        let reserved = spec.reserved_addresses.iter().map(|ip| ip.parse().ok());
        let reserved = reserved.collect::<Option<Vec<IpAddr>>>()?;
        Some(IpBlock {
            net,
            uid: metadata.uid.clone()?,
            version: metadata.resource_version.clone()?,
            holder: Holder {
                node,
                store: address_store,
                owner,
                claim,
                released_at: u64::try_from(spec.released_at).ok()?,
                generation: u64::try_from(spec.generation).ok()?,
                transfer_requested_from: spec.transfer_requested_from.clone(),
                transfer_refused_by: spec.transfer_refused_by.clone(),
                transfer_requests: spec.transfer_requests.iter().filter_map(read_request).collect(),
            },
            reserved,
        })
    }
}

/// Returns a transfer request as it is written.
pub(crate) fn written_request(request: &TransferRequest) -> IPBlockTransferRequest {
    let TransferRequest { node, store, addresses, quarantine, requested_at } = request;
    IPBlockTransferRequest {
        node: node.clone(),
        address_store: store.clone(),
        addresses: addresses.iter().map(AddressSpan::to_string).collect(),
        quarantine: signed(*quarantine),
        requested_at: signed(*requested_at),
    }
}

/// Reads a transfer request; `None` if it is invalid or too long.
fn read_request(written: &IPBlockTransferRequest) -> Option<TransferRequest> {
    let IPBlockTransferRequest { node, address_store, addresses, quarantine, requested_at } = written;
    let spans = addresses.iter().map(|text| AddressSpan::parse(text));
    let is_legal = !node.is_empty() && addresses.len() <= SPANS_MAX;
    Some(TransferRequest {
        node: Some(node.clone()).filter(|_| is_legal)?,
        store: address_store.clone(),
        addresses: spans.collect::<Option<_>>()?,
        quarantine: u64::try_from(*quarantine).ok()?,
        requested_at: u64::try_from(*requested_at).ok()?,
    })
}

/// Error of an invalid pool.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("pool {pool}: {fault}")]
pub struct PoolError {
    /// Pool name.
    pub pool: String,
    /// The fault of the pool.
    pub fault: PoolFault,
}

/// Fault of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PoolFault {
    /// The spec was changed after the pool was first used.
    #[error(
        "spec: range, blockBits and networkName are {now:?} and were {recorded:?} when it was first used: restore them, or, \
         when no pod has an address of it, delete its IPBlocks and the pool and create it again"
    )]
    Changed {
        /// The layout of the spec.
        now: String,
        /// The layout that was recorded.
        recorded: String,
    },
    /// The recorded layout cannot be read.
    #[error(
        "status.layout cannot be read: when no pod has an address of the pool, delete its IPBlocks and the pool and create it \
         again"
    )]
    RecordUnreadable,
    /// The range is not a network.
    #[error("spec.range: {0:?}: not a network")]
    Range(String),
    /// The range has host bits set.
    #[error("spec.range: {range}: has host bits set: the network is {network}")]
    HostBits {
        /// The range.
        range: String,
        /// The network that contains it.
        network: IpNet,
    },
    /// The block size is too large.
    #[error("spec.blockBits: {0}: at most {most}", most = pool_layout::BITS_MAX)]
    BlockBits(u8),
    /// The block size is missing.
    #[error("spec.blockBits: missing")]
    NoBlockBits,
    /// An excluded entry is not a network.
    #[error("spec.exclude: {0:?}: not a network")]
    Exclude(String),
}

/// Returns the pool status that records single addresses in these sections, in addition to those already recorded.
/// `complete_for` is the uid of the pool for which the record is complete.
pub fn record_of(sections: impl IntoIterator<Item = u16>, complete_for: Option<&str>) -> Value {
    let sections = sections.into_iter().map(|section| (section.to_string(), RECORDED));
    let complete_for = complete_for.map(|uid| (POOL_UID.to_owned(), uid));
    json!({ "singleAddressBlocks": sections.chain(complete_for).collect::<BTreeMap<_, _>>() })
}

// === impl PoolObject ===

impl PoolObject {
    /// Whether the pool is being deleted and waits for the finalizer.
    pub fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether the pool has the in-use finalizer.
    pub fn has_finalizer(&self) -> bool {
        self.metadata.finalizers.as_ref().is_some_and(|all| all.iter().any(|known| known == IN_USE))
    }

    /// Returns the pool with the finalizer; `None` if it has one already, or is deleted.
    pub fn in_use(&self) -> Option<PoolObject> {
        if self.has_finalizer() || self.is_deleted() {
            return None;
        }
        let mut in_use = self.clone();
        in_use.metadata.finalizers.get_or_insert_default().push(IN_USE.to_owned());
        Some(in_use)
    }

    /// Returns the pool without the finalizer.
    pub fn unused(&self) -> PoolObject {
        let mut unused = self.clone();
        unused.metadata.finalizers.get_or_insert_default().retain(|known| known != IN_USE);
        unused
    }

    /// Returns the state of the layout.
    ///
    /// # Errors
    /// Block size or address space of the spec differ from the layout that was recorded when the pool was first used, so
    /// leased addresses would be leased again. Or the record cannot be read.
    pub fn layout_state(&self) -> Result<LayoutState, PoolError> {
        let Some(recorded) = self.recorded_layout() else { return Ok(LayoutState::Unset) };
        match recorded.phase {
            LayoutPhase::Pending => Ok(LayoutState::Pending),
            LayoutPhase::Fixed => self.change_of(recorded),
            LayoutPhase::Unreadable => Err(self.fault(PoolFault::RecordUnreadable)),
        }
    }

    /// Returns the state of a fixed layout: the range may change; the block size only while there are no blocks.
    fn change_of(&self, recorded: &RecordedLayout) -> Result<LayoutState, PoolError> {
        let now = self.layout_now();
        let changed = || {
            let (now, recorded) = (summary(&now), summary(recorded));
            Err(self.fault(PoolFault::Changed { now, recorded }))
        };
        let is_same_size = now.block_bits == recorded.block_bits;
        if now.network_name != recorded.network_name || !is_same_size && recorded.block_bits != Some(0) {
            return changed();
        }
        match (network(&now.range), network(&recorded.range)) {
            (Some(range), Some(all)) if is_same_size && all.contains(&range) => Ok(LayoutState::Fixed),
            (Some(_), Some(_)) => Ok(LayoutState::Resized),
            _ => changed(),
        }
    }

    /// Returns the recorded range, also while the layout is being changed.
    pub(crate) fn recorded_range(&self) -> Option<IpNet> {
        network(&self.recorded_layout()?.range)
    }

    /// Whether single addresses may lack the block label.
    pub fn has_unlabelled_addresses(&self) -> bool {
        self.recorded_layout().is_some_and(|recorded| recorded.unlabelled_addresses)
    }

    fn recorded_layout(&self) -> Option<&RecordedLayout> {
        self.status.as_ref()?.layout.as_ref()
    }

    /// Returns the status that records this layout state for the present spec.
    pub fn layout_status(&self, state: LayoutState) -> Value {
        match state {
            LayoutState::Unset => json!({ "layout": null }),
            LayoutState::Pending => json!({ "layout": { "phase": LayoutPhase::Pending } }),
            LayoutState::Fixed => json!({ "layout": self.layout_now() }),
            // The recorded layout stays, as it was before a change that was given up.
            LayoutState::Resized => json!({ "layout": { "phase": LayoutPhase::Fixed } }),
        }
    }

    /// Returns the pool sections in which single addresses may have been created; `None` if there is no record, or if
    /// it belongs to an earlier pool with this name.
    pub fn recorded_sections(&self) -> Option<BTreeSet<u16>> {
        let singles = &self.status.as_ref()?.single_address_blocks;
        let complete_for = singles.get(POOL_UID).filter(|uid| Some(*uid) == self.metadata.uid.as_ref());
        complete_for.map(|_| singles.keys().filter_map(|section| section.parse().ok()).collect())
    }

    /// Returns an error about this pool.
    pub(crate) fn fault(&self, fault: PoolFault) -> PoolError {
        PoolError { pool: self.metadata.name.clone().unwrap_or_default(), fault }
    }

    fn layout_now(&self) -> RecordedLayout {
        let IPPoolSpec { range, block_bits, network_name, exclude: _ } = self.spec.clone();
        RecordedLayout {
            phase: LayoutPhase::Fixed,
            range,
            block_bits,
            network_name,
            unlabelled_addresses: false,
        }
    }

    /// Returns the layout of present leases: the fixed one, otherwise the one in the spec, if it is valid and the block
    /// size is known.
    ///
    /// # Errors
    /// A field is invalid, or was changed after the layout was fixed.
    pub fn grid(&self) -> Result<Option<PoolLayout>, PoolError> {
        let of_spec = self.grid_of_spec()?;
        match (self.layout_state()?, self.recorded_layout()) {
            (LayoutState::Fixed | LayoutState::Resized, Some(recorded)) => {
                let range = network(&recorded.range);
                Ok(range.zip(recorded.block_bits).map(|(range, bits)| PoolLayout::new(range, bits)))
            }
            _ => Ok(of_spec),
        }
    }

    /// Returns the layout of the spec, if the block size is known.
    ///
    /// # Errors
    /// A field is invalid, or was changed after the layout was fixed.
    pub(crate) fn grid_of_spec(&self) -> Result<Option<PoolLayout>, PoolError> {
        self.layout_state()?;
        let IPPoolSpec { range, block_bits, .. } = &self.spec;
        let net: IpNet = range.parse().map_err(|_| self.fault(PoolFault::Range(range.clone())))?;
        if net != net.trunc() {
            let (range, network) = (range.clone(), net.trunc());
            return Err(self.fault(PoolFault::HostBits { range, network }));
        }
        match block_bits {
            Some(bits) if *bits > pool_layout::BITS_MAX => Err(self.fault(PoolFault::BlockBits(*bits))),
            bits => Ok(bits.map(|bits| PoolLayout::new(net, bits))),
        }
    }

    /// Returns the addresses that are never allocated: the exclusions, and the part of the layout outside the range.
    ///
    /// # Errors
    /// An entry is invalid.
    pub fn exclude(&self) -> Result<Vec<IpNet>, PoolError> {
        let mut all = self.exclusions()?;
        if let (Some(layout), Some(range)) = (self.recorded_range(), network(&self.spec.range)) {
            all.extend(beside(layout, range));
        }
        Ok(all)
    }

    /// Returns the addresses that the pool can allocate; `None` if the spec is invalid.
    pub fn address_filter(&self) -> Option<AddressFilter> {
        let subnet = self.spec.range.parse().ok()?;
        let range = Range::of_any_size(subnet, None, None).ok()?;
        Some(AddressFilter::new(range, &self.exclude().ok()?))
    }

    /// Returns the exclusions of the spec.
    ///
    /// # Errors
    /// An entry is invalid.
    pub(crate) fn exclusions(&self) -> Result<Vec<IpNet>, PoolError> {
        let read = |text: &String| {
            text.parse::<IpNet>()
                .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
                .map_err(|_| self.fault(PoolFault::Exclude(text.clone())))
        };
        self.spec.exclude.iter().map(read).collect()
    }
}

/// Returns a network without host bits.
fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().filter(|net: &IpNet| *net == net.trunc())
}

/// Returns the parts of `net` outside `inner`.
pub(crate) fn beside(net: IpNet, inner: IpNet) -> Vec<IpNet> {
    if inner.contains(&net) {
        return Vec::new();
    }
    if !net.contains(&inner) {
        return vec![net];
    }
    let halves = (net.prefix_len()..inner.prefix_len()).filter_map(|length| {
        let half = IpNet::new(inner.addr(), length).ok()?.trunc();
        half.subnets(length + 1).ok()?.find(|half| !half.contains(&inner))
    });
    halves.collect()
}

fn summary(layout: &RecordedLayout) -> String {
    let RecordedLayout { range, block_bits, network_name, .. } = layout;
    let bits = block_bits.map_or_else(|| "-".to_owned(), |bits| bits.to_string());
    format!("{range} {bits} {network_name}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(net: &str) -> IpBlock {
        let holder =
            Holder { node: "n1".into(), store: "l".into(), claim: "pod/a/b".into(), ..Holder::default() };
        let (uid, version) = ("u".into(), "7".into());
        IpBlock {
            net: net.parse().unwrap(),
            uid,
            version,
            holder,
            reserved: vec!["10.0.0.9".parse().unwrap()],
        }
    }

    #[test]
    fn ipblock_object_that_is_written_reads_back() {
        let grid = PoolLayout::new("10.0.0.0/16".parse().unwrap(), 8);
        for net in ["10.0.0.0/24", "10.0.3.7/32"] {
            let written = BlockObject::of("p", &grid, &object(net));
            let text = serde_json::to_string(&written).unwrap();
            let read: BlockObject = serde_json::from_str(&text).unwrap();
            assert_eq!(read.object(), Some(object(net)), "{text}");
            let within = read.metadata.labels.unwrap().get(WITHIN_LABEL).cloned();
            assert_eq!(within.is_some(), net.ends_with("32"));
        }
        assert_eq!(name_of("fd00::100/120".parse().unwrap()), "fd000000000000000000000000000100-120");
    }

    #[test]
    fn finalizer_is_on_an_object_in_use_and_restored_unless_probed() {
        let grid = PoolLayout::new("10.0.0.0/16".parse().unwrap(), 8);
        let finalizers = |object: &BlockObject| object.metadata.finalizers.clone().unwrap_or_default();
        let own = object("10.0.3.7/32");
        let now = BlockObject::of("p", &grid, &own);
        assert_eq!(finalizers(&now), [IN_USE]);
        assert!(now.in_use().is_none());
        let mut removed = BlockObject::unused("p", &grid, &own);
        assert_eq!(finalizers(&removed), [""; 0]);
        assert_eq!(removed.in_use().map(|object| finalizers(&object)), Some(vec![IN_USE.to_owned()]));
        removed.set_probe(Timestamp::UNIX_EPOCH);
        assert!(removed.in_use().is_none(), "the write would answer the probe");
        let free = BlockObject::of("p", &grid, &IpBlock { holder: Holder::default(), ..own });
        assert!(finalizers(&free).is_empty() && free.in_use().is_none());
    }

    #[test]
    fn liveness_probe_is_removed_by_every_other_change() {
        let grid = PoolLayout::new("10.0.0.0/16".parse().unwrap(), 8);
        let mut probed = BlockObject::of("p", &grid, &object("10.0.0.0/24"));
        assert!(!probed.is_probed());
        probed.set_probe(Timestamp::UNIX_EPOCH);
        let written = serde_json::to_value(&probed).unwrap();
        assert_eq!(written["status"]["nodeLivenessProbe"], json!("1970-01-01T00:00:00Z"));
        let mut read: BlockObject = serde_json::from_value(written).unwrap();
        assert!(read.is_probed());
        let changed = BlockObject::of("p", &grid, &read.object().unwrap());
        assert_eq!(serde_json::to_value(&changed).unwrap().get("status"), None);
        read.remove_probe();
        assert_eq!(serde_json::to_value(&read).unwrap().get("status"), None);
        // An unreadable status does not make the object unreadable.
        let mut invalid = serde_json::to_value(&changed).unwrap();
        invalid["status"] = json!("x");
        let invalid: BlockObject = serde_json::from_value(invalid).unwrap();
        assert!(!invalid.is_probed() && invalid.object().is_some());
    }

    #[test]
    fn invalid_ipblock_object_is_no_block() {
        let grid = PoolLayout::new("10.0.0.0/16".parse().unwrap(), 8);
        let good = BlockObject::of("p", &grid, &object("10.0.0.0/24"));
        let edits: [fn(&mut BlockObject); 7] = [
            |object| object.spec.generation = -1,
            |object| object.spec.released_at = -1,
            |object| object.spec.range = "10.0.0.0".into(),
            |object| object.spec.range = "10.0.1.0/24".into(),
            |object| object.spec.range = "10.0.0.1/24".into(),
            |object| object.spec.reserved_addresses = vec!["x".into()],
            |object| object.spec.pool = "q".into(),
        ];
        for edit in edits {
            let mut object = good.clone();
            edit(&mut object);
            assert_eq!(object.object(), None, "{object:?}");
        }
    }

    /// Returns the pool after a request has written these fields of its status.
    fn recorded(pool: &PoolObject, fields: &Value) -> PoolObject {
        let status = serde_json::from_value(fields.clone()).unwrap();
        PoolObject { status: Some(status), ..pool.clone() }
    }

    #[test]
    fn pool_edited_after_first_use_has_no_layout_until_restored() {
        let spec = r#"{ "range": "10.0.0.0/24", "blockBits": 4, "networkName": "red" }"#;
        let text = format!(r#"{{ "metadata": {{ "name": "p" }}, "spec": {spec} }}"#);
        let mut pool: PoolObject = serde_json::from_str(&text).unwrap();
        for state in [LayoutState::Unset, LayoutState::Pending, LayoutState::Fixed] {
            pool = recorded(&pool, &pool.layout_status(state));
            assert_eq!(pool.layout_state(), Ok(state));
        }
        let edits: [fn(&mut IPPoolSpec); 4] = [
            |spec| spec.block_bits = Some(3),
            |spec| spec.block_bits = None,
            |spec| spec.range = "10.0.0.0".into(),
            |spec| spec.network_name = "blue".into(),
        ];
        for edit in edits {
            let mut edited = pool.clone();
            edit(&mut edited.spec);
            let why = edited.grid().unwrap_err().to_string();
            assert!(why.contains("were \"10.0.0.0/24 4 red\" when it was first used"), "{why}");
        }
        pool.spec.exclude.push("10.0.0.0/28".into());
        assert_eq!(pool.grid().unwrap().unwrap().bits(), 4, "the exclusions may change");
        let unreadable = recorded(&pool, &json!({ "layout": { "phase": "Other" } }));
        assert!(unreadable.grid().unwrap_err().to_string().contains("status.layout cannot be read"));
        let written = serde_json::to_value(&pool).unwrap();
        assert_eq!(written.get("status"), None, "a subresource");
    }

    #[test]
    fn pool_range_change_keeps_the_layout_of_its_leases() {
        let pool = |range: &str, bits: u8, now: &str, now_bits: Option<u8>| -> PoolObject {
            let layout = json!({ "phase": "Fixed", "range": range, "blockBits": bits });
            let spec = json!({ "range": now, "blockBits": now_bits });
            let object = json!({ "metadata": { "name": "p" }, "spec": spec, "status": { "layout": layout } });
            serde_json::from_value(object).unwrap()
        };
        for (range, bits, now, now_bits, state) in [
            ("10.0.0.0/29", 0, "10.0.0.0/29", Some(0), LayoutState::Fixed),
            ("10.0.0.0/29", 0, "10.0.0.0/28", Some(0), LayoutState::Resized),
            ("10.0.0.0/29", 0, "10.0.0.0/16", None, LayoutState::Resized),
            ("10.0.0.0/29", 0, "10.0.0.0/16", Some(8), LayoutState::Resized),
            ("10.0.0.0/24", 4, "10.0.0.0/23", Some(4), LayoutState::Resized),
            ("10.0.0.0/24", 4, "10.7.0.0/24", Some(4), LayoutState::Resized),
            ("10.0.0.0/24", 4, "10.0.0.0/29", Some(4), LayoutState::Fixed),
        ] {
            let pool = pool(range, bits, now, now_bits);
            assert_eq!(pool.layout_state(), Ok(state), "{range} {now}");
            let leased = PoolLayout::new(range.parse().unwrap(), bits);
            assert_eq!(pool.grid().unwrap(), Some(leased), "{range} {now}");
        }
        let shrunk = pool("10.0.0.0/24", 4, "10.0.0.32/27", Some(4));
        let excluded: Vec<String> = shrunk.exclude().unwrap().iter().map(IpNet::to_string).collect();
        assert_eq!(excluded, ["10.0.0.128/25", "10.0.0.64/26", "10.0.0.0/27"]);
        assert_eq!(pool("10.0.0.0/24", 4, "10.0.0.0/23", Some(4)).exclude(), Ok(Vec::new()));
        let moved = pool("10.0.0.0/24", 4, "10.7.0.0/24", Some(4));
        assert_eq!(moved.exclude(), Ok(vec!["10.0.0.0/24".parse().unwrap()]));
        let given_up = recorded(&moved, &moved.layout_status(LayoutState::Resized));
        assert_eq!(given_up.status.unwrap().layout.unwrap().phase, LayoutPhase::Fixed);
    }

    #[test]
    fn single_address_record_counts_if_it_is_complete_for_this_pool() {
        let sections = |uid: &str, status: &Value| {
            let text = json!({ "metadata": { "name": "p", "uid": uid }, "spec": {}, "status": status });
            serde_json::from_value::<PoolObject>(text).unwrap().recorded_sections()
        };
        let complete = record_of([3, 500], Some("u"));
        assert_eq!(sections("u", &complete), Some(BTreeSet::from([3, 500])));
        assert_eq!(sections("v", &complete), None, "of another pool of the name");
        assert_eq!(sections("u", &record_of([3], None)), None, "earlier records are unknown");
        assert_eq!(sections("u", &json!({})), None);
    }

    #[test]
    fn ipblock_object_tells_the_block_size_of_its_pool() {
        let grid = PoolLayout::new("10.0.0.0/16".parse().unwrap(), 8);
        for (net, grid, bits) in [
            ("10.0.0.0/24", grid, 8),
            ("10.0.3.7/32", grid, 8),
            ("10.0.3.7/32", PoolLayout::new("10.0.0.0/16".parse().unwrap(), 0), 0),
            ("fd00::7/128", PoolLayout::new("fd00::/64".parse().unwrap(), 3), 3),
        ] {
            assert_eq!(BlockObject::of("p", &grid, &object(net)).bits(), Some(bits), "{net}");
        }
    }

    #[test]
    fn label_is_valid_and_distinguishes_long_strings() {
        let long = "x".repeat(64);
        for text in ["n1", &long, "a/b", "", "-a", "10.0.0.0-24"] {
            let label = label(text);
            assert!(label.len() <= LABEL_MAX && !label.contains('/') && !label.starts_with('-'), "{label}");
        }
        assert_ne!(label(&long), label(&"x".repeat(65)));
    }
}
