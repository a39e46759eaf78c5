//! Verification of the addresses in a network-status, which every user that can change the pod can write.
//!
//! - An address on a `weft-ipam` network counts if the pod's node leases an IPBlock with it, or if a claim in the pod's
//!   namespace keeps it. So a pod can at most forge an address that the same node leases.
//! - Addresses on other networks cannot be verified. A policy that selects a pod as a peer trusts the pod's authors.
//!
//! Source: `docs/security.md`; `docs/design/ipam.md`, IPBlock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use npwg::metadata::NetworkReference;
use npwg::pod_policies::PodNetworks;
use serde::Deserialize;
use serde_json::Value;

use crate::policy::peer_pods::PeerPod;
use kube_support::custom_resources::{IPBlock, NetworkAttachmentDefinition};
use kube_support::resource;
use kube_support::resources::{Key, Reduced};

/// IPAM plugin whose addresses are in IPBlocks.
const VERIFIED: &str = "weft-ipam";
/// Maximum number of address bits in a block (docs/design/ipam.md).
const BLOCK_BITS_MAX: u8 = 8;

/// Holder of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LeasedBlock {
    range: Option<IpNet>,
    node: String,
    /// Namespace of the claim that keeps a single address.
    claim_namespace: Option<String>,
}

/// IPBlock as the API returns it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct LeasedBlockObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: LeasedBlockSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct LeasedBlockSpec {
    range: String,
    node: String,
    claim: String,
}

/// Whether a network has addresses of `weft-ipam` only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IsVerified(pub(super) bool);

/// NetworkAttachmentDefinition as the API returns it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct VerifiedNetworkObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
}

/// Verifier of addresses.
#[derive(Debug, Default)]
pub(super) struct AddressVerifier {
    networks: BTreeSet<NetworkReference>,
    blocks: BTreeMap<String, LeasedBlock>,
    /// Names of the blocks with this range.
    ranges: BTreeMap<IpNet, BTreeSet<String>>,
    /// Pods by address, on verified networks.
    pods: BTreeMap<IpAddr, BTreeSet<Key>>,
    /// Addresses of each pod on verified networks, and the number of those that do not count.
    known: BTreeMap<Key, (BTreeSet<IpAddr>, u64)>,
    refused: u64,
}

// === impl AddressVerifier ===

impl AddressVerifier {
    /// Sets whether a network is verified. The result is whether that has changed.
    pub(super) fn set_network(&mut self, network: &NetworkReference, is_verified: bool) -> bool {
        if is_verified { self.networks.insert(network.clone()) } else { self.networks.remove(network) }
    }

    /// Adds, replaces or removes a block. The result are the pods with an address in it.
    pub(super) fn set_block(&mut self, name: &str, block: Option<&LeasedBlock>) -> BTreeSet<Key> {
        if self.blocks.get(name) == block {
            return BTreeSet::new();
        }
        let mut ranges = Vec::new();
        if let Some(range) = self.blocks.remove(name).and_then(|known| known.range) {
            if let Some(names) = self.ranges.get_mut(&range) {
                names.remove(name);
                if names.is_empty() {
                    self.ranges.remove(&range);
                }
            }
            ranges.push(range);
        }
        if let Some(block) = block {
            if let Some(range) = block.range {
                self.ranges.entry(range).or_default().insert(name.to_owned());
                ranges.push(range);
            }
            self.blocks.insert(name.to_owned(), block.clone());
        }
        let pods = ranges.iter().flat_map(|range| self.pods.range(range.network()..=range.broadcast()));
        pods.flat_map(|(_, pods)| pods).cloned().collect()
    }

    /// Returns the networks of a pod with the addresses that count.
    pub(super) fn verify(&mut self, key: &Key, pod: Option<&PeerPod>) -> Option<Arc<PodNetworks>> {
        let (mut addresses, mut refused) = (BTreeSet::new(), 0);
        let verified = pod.map(|pod| {
            let mut networks = pod.networks.networks.clone();
            for (_, all) in networks.iter_mut().filter(|(network, _)| self.networks.contains(network)) {
                addresses.extend(all.iter().copied());
                let before = all.len();
                all.retain(|address| self.is_held(*address, &pod.node, &key.0));
                refused += (before - all.len()) as u64;
            }
            if refused == 0 {
                return Arc::clone(&pod.networks);
            }
            Arc::new(pod.networks.with_networks(networks))
        });
        self.record(key, addresses, refused);
        verified
    }

    /// Returns the number of addresses that do not count.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the verified networks.
    pub(super) fn networks(&self) -> impl Iterator<Item = &NetworkReference> {
        self.networks.iter()
    }

    /// Returns the names of all blocks.
    pub(super) fn blocks(&self) -> impl Iterator<Item = &String> {
        self.blocks.keys()
    }

    fn record(&mut self, key: &Key, addresses: BTreeSet<IpAddr>, refused: u64) {
        let (before, refused_before) = self.known.remove(key).unwrap_or_default();
        self.refused = self.refused - refused_before + refused;
        for address in before {
            if let Some(pods) = self.pods.get_mut(&address) {
                pods.remove(key);
                if pods.is_empty() {
                    self.pods.remove(&address);
                }
            }
        }
        for address in &addresses {
            self.pods.entry(*address).or_default().insert(key.clone());
        }
        if !addresses.is_empty() {
            self.known.insert(key.clone(), (addresses, refused));
        }
    }

    /// Whether a block with the address belongs to the node, or to a claim of the namespace.
    fn is_held(&self, address: IpAddr, node: &str, namespace: &str) -> bool {
        let length = if address.is_ipv4() { 32 } else { 128 };
        let ranges = (0..=BLOCK_BITS_MAX).filter_map(|bits| IpNet::new(address, length - bits).ok());
        let names = ranges.filter_map(|range| self.ranges.get(&range.trunc())).flatten();
        names.filter_map(|name| self.blocks.get(name)).any(|block| {
            !block.node.is_empty() && block.node == node
                || block.claim_namespace.as_deref().is_some_and(|known| known == namespace)
        })
    }
}

// === impl LeasedBlockObject ===

impl Reduced for LeasedBlockObject {
    type Form = LeasedBlock;

    fn reduce(self) -> LeasedBlock {
        let LeasedBlockObject { metadata: _, spec } = self;
        // KIND/NAMESPACE/…
        let claim_namespace = spec.claim.split('/').nth(1).filter(|name| !name.is_empty());
        LeasedBlock {
            range: spec.range.parse::<IpNet>().ok().map(|range| range.trunc()),
            claim_namespace: claim_namespace.map(str::to_owned),
            node: spec.node,
        }
    }
}

// === impl VerifiedNetworkObject ===

impl Reduced for VerifiedNetworkObject {
    type Form = IsVerified;

    fn reduce(self) -> IsVerified {
        let text = self.spec.get("config").and_then(Value::as_str).unwrap_or_default();
        let config: Value = serde_json::from_str(text).unwrap_or_default();
        let plugins = config.get("plugins").and_then(Value::as_array).into_iter().flatten();
        let types: Vec<&str> =
            plugins.chain([&config]).filter_map(|plugin| plugin.get("ipam")?.get("type")?.as_str()).collect();
        IsVerified(!types.is_empty() && types.iter().all(|name| *name == VERIFIED))
    }
}

resource!(LeasedBlockObject as IPBlock);
resource!(VerifiedNetworkObject as NetworkAttachmentDefinition);

#[cfg(test)]
mod tests {
    use npwg::metadata::Pod;
    use serde_json::json;

    use super::*;

    fn key(name: &str) -> Key {
        ("blue".to_owned(), name.to_owned())
    }

    fn pod(node: &str, address: &str) -> PeerPod {
        let status = json!([{ "name": "blue/net", "interface": "net1", "ips": [address], "dns": {} }]);
        let annotations = [
            ("k8s.v1.cni.cncf.io/networks".to_owned(), "net".to_owned()),
            (npwg::status::NETWORK_STATUS.to_owned(), status.to_string()),
        ];
        let pod = Pod {
            namespace: "blue".into(),
            name: "a".into(),
            annotations: annotations.into(),
            ..Pod::default()
        };
        PeerPod { networks: Arc::new(PodNetworks::attached(&pod)), node: node.to_owned() }
    }

    fn block(range: &str, node: &str, claim: &str) -> LeasedBlock {
        let object = json!({ "metadata": { "name": range }, "spec": { "pool": "p", "range": range, "node": node,
            "claim": claim } });
        serde_json::from_value::<LeasedBlockObject>(object).unwrap().reduce()
    }

    #[test]
    fn network_policy_address_outside_of_node_blocks_is_ignored() {
        let mut verifier = AddressVerifier::default();
        let counts = |verifier: &mut AddressVerifier, node: &str, address: &str| {
            let verified = verifier.verify(&key("a"), Some(&pod(node, address))).unwrap();
            !verified.networks[0].1.is_empty()
        };
        assert!(counts(&mut verifier, "one", "10.0.0.1"), "the network is not verified");
        assert!(verifier.set_network(&NetworkReference::new("blue", "net"), true));
        assert!(!counts(&mut verifier, "one", "10.0.0.1"));
        assert_eq!(verifier.refused(), 1);
        let changed = verifier.set_block("b", Some(&block("10.0.0.0/28", "one", "")));
        assert_eq!(changed, BTreeSet::from([key("a")]));
        assert!(counts(&mut verifier, "one", "10.0.0.1") && !counts(&mut verifier, "two", "10.0.0.1"));
        assert!(!counts(&mut verifier, "one", "10.0.0.16") && !counts(&mut verifier, "", "10.0.0.1"));
        // A single address that a claim keeps moves with its pod.
        verifier.set_block("c", Some(&block("10.0.0.1/32", "one", "vm/blue/fedora")));
        assert!(counts(&mut verifier, "two", "10.0.0.1"));
        verifier.set_block("c", Some(&block("10.0.0.1/32", "one", "vm/red/fedora")));
        assert!(!counts(&mut verifier, "two", "10.0.0.1"));
        assert!(verifier.set_block("c", None).contains(&key("a")));
        assert_eq!(verifier.verify(&key("a"), None), None);
        assert!(verifier.pods.is_empty() && verifier.known.is_empty() && verifier.refused() == 0);
        verifier.set_block("b", None);
        assert!(verifier.ranges.is_empty() && verifier.blocks.is_empty());
    }

    #[test]
    fn network_policy_addresses_are_verified_on_weft_ipam_networks() {
        for (config, expected) in [
            (json!({ "type": "bridge", "ipam": { "type": "weft-ipam", "range": "10.0.0.0/24" } }), true),
            (
                json!({ "plugins": [{ "type": "macvlan", "ipam": { "type": "weft-ipam" } }, { "type": "tuning" }] }),
                true,
            ),
            (
                json!({ "plugins": [{ "ipam": { "type": "weft-ipam" } }, { "ipam": { "type": "static" } }] }),
                false,
            ),
            (json!({ "type": "bridge", "ipam": { "type": "host-local" } }), false),
            (json!({ "type": "bridge", "ipam": {} }), false),
            (json!([]), false),
        ] {
            let spec = json!({ "config": config.to_string() });
            let object = json!({ "metadata": { "name": "net" }, "spec": spec });
            let network = serde_json::from_value::<VerifiedNetworkObject>(object).unwrap();
            assert_eq!(network.reduce(), IsVerified(expected), "{config}");
        }
    }
}
