//! The custom resources of the group `weft.dev`, and the objects of [`ipam::registry`] in them.
//!
//! Rules: an object that a hand has edited into nonsense is held by whoever it seems to be held by, and is never given;
//! texts that do not fit a label are hashed.
//!
//! Source: `deploy/crds/`; Kubernetes API conventions, names and labels.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam::{Holder, IpBlock, PoolLayout, pool_layout};
use ipnet::IpNet;
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::TypeMeta;
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha512};

use kube_support::resource;

/// The pool of a block.
pub(crate) const POOL_LABEL: &str = "weft.dev/pool";
/// The node that has it.
pub const NODE_LABEL: &str = "weft.dev/node";
/// The block that a single address lies in.
pub(crate) const WITHIN_LABEL: &str = "weft.dev/within";
/// What keeps a single address.
pub(crate) const CLAIM_LABEL: &str = "weft.dev/claim";
/// The node that is asked to give a single address up.
pub(crate) const ASKS_LABEL: &str = "weft.dev/asks";

/// Annotation: its node is taken for gone, and asked whether it is; the node's agent takes it away. Whatever else changes the
/// object does so, too.
pub const NOTICE: &str = "weft.dev/is-your-node-gone";

/// Finalizer of what is a node's, or kept for somebody: who deletes it by hand waits until it is not.
const IN_USE: &str = "weft.dev/in-use";

/// Annotation of a pool: how it was cut when it was first used, or [`BEGUN`].
const CUT: &str = "weft.dev/cut";
/// It is about to be cut, if no other pool has addresses of it.
const BEGUN: &str = "begun";

/// What stands there after how it was cut, where whoever makes a single address has its status say so before. A release that
/// does not know that leases nothing of such a pool.
const TOLD: &str = "; single addresses are told";
/// Beside the parts of a pool that have single addresses: the uid of the pool of which that is all.
const SINCE: &str = "since";
/// What stands at such a part.
const MADE: &str = "made";

/// Longest value of a label, in bytes.
const LABEL_MAX: usize = 63;

/// A pool.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolObject {
    /// Its kind.
    #[serde(flatten, default)]
    pub types: Option<TypeMeta>,
    /// Its name and versions.
    pub metadata: ObjectMeta,
    /// What was written.
    #[serde(default)]
    pub spec: PoolSpec,
    /// What the controller counted.
    #[serde(default, deserialize_with = "counted", skip_serializing_if = "Option::is_none")]
    pub status: Option<PoolStatus>,
}

/// What a pool is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PoolSpec {
    /// Its addresses, in CIDR notation.
    pub range: String,
    /// The addresses of a block, as a power of two; absent: by range and number of nodes, when it is first used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_bits: Option<u8>,
    /// The name of its address space; empty for the one that is everybody's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_name: String,
    /// Parts of the range that are never given: another pool's, or somebody's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}

/// How far a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Nobody has used it; or an older release did, which did not say so.
    No,
    /// It is about to be.
    Begun,
    /// Its range, blocks and address space are what they are.
    Done,
}

/// How full a pool is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PoolStatus {
    /// Addresses, as text: there may be 2^128.
    pub addresses: String,
    /// Blocks, as text.
    pub blocks: String,
    /// Blocks that nodes have.
    pub leased_blocks: u64,
    /// Single addresses that are leased or kept.
    pub single_addresses: u64,
    /// Nodes that have something.
    pub nodes: u64,
    /// Addresses that pods show in their network-status.
    pub used_addresses: u64,
    /// In percent: blocks leased, of all.
    pub leased_percent: u8,
    /// In which parts of it single addresses were ever made: [`PoolObject::told`].
    #[serde(skip_serializing)]
    pub singles: BTreeMap<String, String>,
}

/// A block, or a single address.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct BlockObject {
    /// Its kind.
    #[serde(flatten, default)]
    pub types: Option<TypeMeta>,
    /// Its name and versions.
    pub metadata: ObjectMeta,
    /// Whose it is.
    #[serde(default)]
    pub spec: BlockSpec,
}

/// Whose a block is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BlockSpec {
    /// The pool.
    pub pool: String,
    /// Its addresses, in CIDR notation.
    pub range: String,
    /// The node; empty: nobody's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// The node's ledger.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ledger: String,
    /// Of a single address: pod uid, container and interface.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// Of a single address: what keeps it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub claim: String,
    /// When it became nobody's, in milliseconds since 1970. As wide as the API's: one that is none must not keep all
    /// others from being read.
    #[serde(skip_serializing_if = "is_zero")]
    pub freed: i64,
    /// How often it was taken over.
    #[serde(skip_serializing_if = "is_zero")]
    pub turn: i64,
    /// Of a single address: the node that has the block around it and is asked to give it up.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub asks: String,
    /// Who holds it there, as that node says.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub refused: String,
    /// Addresses in it that are not the node's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holes: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// What the controller counted; what a hand has made of it is counted anew.
fn counted<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PoolStatus>, D::Error> {
    Ok(serde_json::from_value(serde_json::Value::deserialize(from)?).ok())
}

/// A number as the API has them.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

// === the API ===

resource!(PoolObject, ClusterResourceScope, "IPPool", "ippools", "weft.dev", "v1alpha1");
resource!(BlockObject, ClusterResourceScope, "IPBlock", "ipblocks", "weft.dev", "v1alpha1");

/// Its kind, as the API wants it written.
pub(crate) fn kind_of<T: Resource<DynamicType = ()>>() -> Option<TypeMeta> {
    Some(TypeMeta { api_version: T::api_version(&()).into_owned(), kind: T::kind(&()).into_owned() })
}

// === names ===

/// A network as part of a name: `10.1.2.0-24`, of IPv6 all 32 digits.
pub fn name_of(net: IpNet) -> String {
    match net {
        IpNet::V4(net) => format!("{}-{}", net.network(), net.prefix_len()),
        IpNet::V6(net) => format!("{:032x}-{}", net.network().to_bits(), net.prefix_len()),
    }
}

/// The name of a pool's block.
pub fn block_name(pool: &str, net: IpNet) -> String {
    format!("{pool}.{}", name_of(net))
}

/// A text as a label's value.
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
    /// The object as it is written.
    pub fn of(pool: &str, grid: &PoolLayout, object: &IpBlock) -> BlockObject {
        let IpBlock { net, uid, version, holder, reserved } = object;
        let Holder { node, store, owner, claim, .. } = holder.clone();
        let (asks, refused) = (holder.transfer_requested_from.clone(), holder.transfer_refused_by.clone());
        let mut labels = BTreeMap::from([(POOL_LABEL.to_owned(), label(pool))]);
        if !node.is_empty() {
            labels.insert(NODE_LABEL.to_owned(), label(&node));
        }
        if !claim.is_empty() {
            labels.insert(CLAIM_LABEL.to_owned(), label(&claim));
        }
        if !asks.is_empty() {
            labels.insert(ASKS_LABEL.to_owned(), label(&asks));
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
            spec: BlockSpec {
                pool: pool.to_owned(),
                range: net.to_string(),
                node,
                ledger: store,
                owner,
                claim,
                freed: signed(holder.released_at),
                turn: signed(holder.generation),
                asks,
                refused,
                holes: reserved.iter().map(IpAddr::to_string).collect(),
            },
        }
    }

    /// The object as it is before it is removed.
    pub fn unused(pool: &str, grid: &PoolLayout, object: &IpBlock) -> BlockObject {
        let mut written = BlockObject::of(pool, grid, object);
        written.metadata.finalizers = None;
        written
    }

    /// Has somebody deleted it, who waits until it is nobody's?
    pub fn is_deleted(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// The same object with what it lacks: an earlier release does not write down that it is in use. Nothing where it lacks
    /// nothing, was deleted, or its node is being asked whether it is there, which any change would answer.
    pub fn in_use(&self) -> Option<BlockObject> {
        let ObjectMeta { finalizers, annotations, .. } = &self.metadata;
        let is_in_use = self.object().is_some_and(|object| object.is_in_use());
        let is_written = finalizers.as_ref().is_some_and(|all| all.iter().any(|known| known == IN_USE));
        let is_asked = annotations.as_ref().is_some_and(|all| all.contains_key(NOTICE));
        if !is_in_use || is_written || is_asked || self.is_deleted() {
            return None;
        }
        let mut in_use = self.clone();
        in_use.metadata.finalizers.get_or_insert_default().push(IN_USE.to_owned());
        Some(in_use)
    }

    /// The size of the blocks of its pool when it was made, as a power of two.
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

    /// What it says; nothing if its range is none or not the one of its name, or a number is negative.
    pub fn object(&self) -> Option<IpBlock> {
        let BlockObject { types: _, metadata, spec } = self;
        let net: IpNet = spec.range.parse().ok()?;
        let name = metadata.name.as_deref()?;
        if name != block_name(&spec.pool, net) || net != net.trunc() {
            return None;
        }
        let BlockSpec { node, ledger, owner, claim, freed, turn, asks, refused, holes, .. } = spec.clone();
        // A hole that cannot be read could be any address: none of the block is safe, and nothing is made of it.
        let holes = holes.iter().map(|ip| ip.parse().ok()).collect::<Option<Vec<IpAddr>>>()?;
        let (freed, turn) = (u64::try_from(freed).ok()?, u64::try_from(turn).ok()?);
        Some(IpBlock {
            net,
            uid: metadata.uid.clone()?,
            version: metadata.resource_version.clone()?,
            holder: Holder {
                node,
                store: ledger,
                owner,
                claim,
                released_at: freed,
                generation: turn,
                transfer_requested_from: asks,
                transfer_refused_by: refused,
            },
            reserved: holes,
        })
    }
}

/// The status that says that single addresses were made in these parts of a pool, beside what it says already; `since`: the
/// pool of which that is all.
pub(crate) fn made_in(parts: impl IntoIterator<Item = u16>, since: Option<&str>) -> serde_json::Value {
    let parts = parts.into_iter().map(|part| (part.to_string(), MADE));
    let since = since.map(|since| (SINCE.to_owned(), since));
    serde_json::json!({ "singles": parts.chain(since).collect::<BTreeMap<_, _>>() })
}

// === impl PoolObject ===

impl PoolObject {
    /// How far it is.
    ///
    /// # Errors
    /// It is not any more what it was when it was cut: what was leased of it would be leased again.
    pub fn cut(&self) -> Result<Cut, String> {
        let annotations = self.metadata.annotations.as_ref();
        match annotations.and_then(|all| all.get(CUT)).map(String::as_str) {
            None => Ok(Cut::No),
            Some(BEGUN) => Ok(Cut::Begun),
            Some(was) if was.strip_suffix(TOLD).unwrap_or(was) == self.as_cut() => Ok(Cut::Done),
            Some(was) => Err(format!(
                "pool {}: spec: range, blockBits and networkName are {:?} and were {was:?} when it was first used: put them back, or, \
                 when nobody has an address of it, delete its IPBlocks and the pool and make it anew",
                self.metadata.name.as_deref().unwrap_or_default(),
                self.as_cut(),
                was = was.strip_suffix(TOLD).unwrap_or(was)
            )),
        }
    }

    /// Writes down how far it is.
    pub(crate) fn set_cut(&mut self, cut: Cut) {
        let text = self.as_cut();
        let annotations = self.metadata.annotations.get_or_insert_default();
        match cut {
            Cut::No => annotations.remove(CUT),
            Cut::Begun => annotations.insert(CUT.to_owned(), BEGUN.to_owned()),
            Cut::Done => annotations.insert(CUT.to_owned(), text),
        };
    }

    /// Writes down, of a pool that is cut, that [`PoolObject::told`] is all.
    pub(crate) fn set_told(&mut self) {
        let annotations = self.metadata.annotations.get_or_insert_default();
        annotations.entry(CUT.to_owned()).and_modify(|cut| cut.push_str(TOLD));
    }

    /// The parts of it in which single addresses may have been made; nothing where nobody is sure to have said so. What is
    /// there of another pool of the name, or was left out by a cluster whose definition does not know it, says nothing.
    pub fn told(&self) -> Option<BTreeSet<u16>> {
        let annotations = self.metadata.annotations.as_ref()?;
        let is_told = annotations.get(CUT).is_some_and(|cut| cut.ends_with(TOLD));
        is_told.then(|| self.parts()).flatten()
    }

    /// The same, of a pool that is about to be cut.
    pub fn parts(&self) -> Option<BTreeSet<u16>> {
        let singles = &self.status.as_ref()?.singles;
        let since = singles.get(SINCE).filter(|since| Some(*since) == self.metadata.uid.as_ref());
        since.map(|_| singles.keys().filter_map(|part| part.parse().ok()).collect())
    }

    fn as_cut(&self) -> String {
        let PoolSpec { range, block_bits, network_name, exclude: _ } = &self.spec;
        let bits = block_bits.map_or_else(|| "-".to_owned(), |bits| bits.to_string());
        format!("{range} {bits} {network_name}").trim_end().to_owned()
    }

    /// How it is cut, if its spec can be read and the size is known.
    ///
    /// # Errors
    /// Which key is wrong, or was changed since it was cut.
    pub fn grid(&self) -> Result<Option<PoolLayout>, String> {
        self.cut()?;
        let name = self.metadata.name.as_deref().unwrap_or_default();
        let PoolSpec { range, block_bits, .. } = &self.spec;
        let net: IpNet =
            range.parse().map_err(|_| format!("pool {name}: spec.range: {range:?}: not a network"))?;
        if net != net.trunc() {
            return Err(format!(
                "pool {name}: spec.range: {range}: has host bits set: the network is {}",
                net.trunc()
            ));
        }
        match block_bits {
            Some(bits) if *bits > pool_layout::BITS_MAX => {
                Err(format!("pool {name}: spec.blockBits: {bits}: at most {}", pool_layout::BITS_MAX))
            }
            bits => Ok(bits.map(|bits| PoolLayout::new(net, bits))),
        }
    }

    /// What is never given of it.
    ///
    /// # Errors
    /// Which entry is wrong.
    pub fn exclude(&self) -> Result<Vec<IpNet>, String> {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        let read = |text: &String| {
            text.parse::<IpNet>()
                .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
                .map_err(|_| format!("pool {name}: spec.exclude: {text:?}: not a network"))
        };
        self.spec.exclude.iter().map(read).collect()
    }
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
    fn what_is_written_reads_back() {
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
    fn what_is_in_use_says_so_also_if_an_earlier_release_wrote_it() {
        let grid = PoolLayout::new("10.0.0.0/16".parse().unwrap(), 8);
        let finalizers = |object: &BlockObject| object.metadata.finalizers.clone().unwrap_or_default();
        let own = object("10.0.3.7/32");
        let now = BlockObject::of("p", &grid, &own);
        assert_eq!(finalizers(&now), [IN_USE]);
        assert!(now.in_use().is_none());
        let before = BlockObject::unused("p", &grid, &own);
        assert_eq!(finalizers(&before), [""; 0]);
        assert_eq!(before.in_use().map(|object| finalizers(&object)), Some(vec![IN_USE.to_owned()]));
        let mut asked = before;
        asked.metadata.annotations = Some(BTreeMap::from([(NOTICE.to_owned(), String::new())]));
        assert!(asked.in_use().is_none(), "it would be an answer");
        let nobodys = IpBlock { holder: Holder::default(), ..own };
        let nobodys = BlockObject::of("p", &grid, &nobodys);
        assert!(finalizers(&nobodys).is_empty() && nobodys.in_use().is_none());
    }

    #[test]
    fn what_a_hand_has_spoilt_is_nothing() {
        let grid = PoolLayout::new("10.0.0.0/16".parse().unwrap(), 8);
        let good = BlockObject::of("p", &grid, &object("10.0.0.0/24"));
        let spoilt: [fn(&mut BlockObject); 7] = [
            |object| object.spec.turn = -1,
            |object| object.spec.freed = -1,
            |object| object.spec.range = "10.0.0.0".into(),
            |object| object.spec.range = "10.0.1.0/24".into(),
            |object| object.spec.range = "10.0.0.1/24".into(),
            |object| object.spec.holes = vec!["x".into()],
            |object| object.spec.pool = "q".into(),
        ];
        for spoil in spoilt {
            let mut object = good.clone();
            spoil(&mut object);
            assert_eq!(object.object(), None, "{object:?}");
        }
    }

    #[test]
    fn a_pool_that_was_edited_after_it_was_cut_has_no_grid_until_it_is_put_back() {
        let spec = r#"{ "range": "10.0.0.0/24", "blockBits": 4, "networkName": "red" }"#;
        let text = format!(r#"{{ "metadata": {{ "name": "p" }}, "spec": {spec} }}"#);
        let mut pool: PoolObject = serde_json::from_str(&text).unwrap();
        assert_eq!(pool.cut(), Ok(Cut::No));
        pool.set_cut(Cut::Begun);
        assert_eq!(pool.cut(), Ok(Cut::Begun));
        pool.set_cut(Cut::Done);
        assert_eq!(pool.cut(), Ok(Cut::Done));
        let edits: [fn(&mut PoolSpec); 4] = [
            |spec| spec.block_bits = Some(3),
            |spec| spec.block_bits = None,
            |spec| spec.range = "10.0.0.0/23".into(),
            |spec| spec.network_name = "blue".into(),
        ];
        for edit in edits {
            let mut edited = pool.clone();
            edit(&mut edited.spec);
            let why = edited.grid().unwrap_err();
            assert!(why.contains("were \"10.0.0.0/24 4 red\" when it was first used"), "{why}");
        }
        pool.spec.exclude.push("10.0.0.0/28".into());
        assert_eq!(pool.grid().unwrap().unwrap().bits(), 4, "what is left out may change");
    }

    #[test]
    fn where_single_addresses_are_is_known_of_a_pool_that_says_so_since_it_was_cut_and_of_no_other() {
        let told = |uid: &str, cut: &str, since: &str| {
            let text = serde_json::json!({
                "metadata": { "name": "p", "uid": uid, "annotations": { CUT: cut } },
                "spec": { "range": "10.0.0.0/24", "blockBits": 4 },
                "status": made_in([3, 500], (!since.is_empty()).then_some(since)),
            });
            let pool: PoolObject = serde_json::from_value(text).unwrap();
            (pool.cut(), pool.told())
        };
        let (plain, whole) = ("10.0.0.0/24 4", format!("10.0.0.0/24 4{TOLD}"));
        assert_eq!(told("u", &whole, "u"), (Ok(Cut::Done), Some(BTreeSet::from([3, 500]))));
        assert_eq!(told("u", plain, "u"), (Ok(Cut::Done), None), "a release that says nothing uses it, too");
        assert_eq!(told("v", &whole, "u"), (Ok(Cut::Done), None), "of another pool");
        assert_eq!(told("u", &whole, ""), (Ok(Cut::Done), None), "not kept");
        let (cut, none) = told("u", &format!("10.0.0.0/24 5{TOLD}"), "u");
        assert!(cut.unwrap_err().contains("were \"10.0.0.0/24 5\" when it was first used"));
        assert!(none.is_some());
    }

    #[test]
    fn an_object_says_of_which_blocks_its_pool_was() {
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
    fn a_label_is_legal_and_tells_long_texts_apart() {
        let long = "x".repeat(64);
        for text in ["n1", &long, "a/b", "", "-a", "10.0.0.0-24"] {
            let label = label(text);
            assert!(label.len() <= LABEL_MAX && !label.contains('/') && !label.starts_with('-'), "{label}");
        }
        assert_ne!(label(&long), label(&"x".repeat(65)));
    }
}
