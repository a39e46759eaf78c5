//! Snapshot of a cluster's addresses: pools, blocks, nodes, and pods with network-status.
//!
//! It changes nothing. [`super::findings`] reports inconsistencies in a snapshot.

pub(crate) mod address_use;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ipam::IpBlock;
use ipnet::IpNet;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use npwg::status::{NETWORK_NAME_MAX, NETWORK_STATUS};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::time::timeout;

use crate::cluster_snapshot::address_use::AddressUse;
use crate::ip_objects::{BlockObject, PoolObject};
use kube_support::api_error;
use kube_support::cache::{Cache, follow};
use kube_support::custom_resources::IPPoolStatus;
use kube_support::resources::{Key, NodeHealth, NodeObject, PodObject, Reduced};

/// Number of objects in a page.
const PAGE: u32 = 500;
/// Maximum number of addresses on a pod. A network-status is untrusted: every user that can change the pod
/// can write it.
const ADDRESSES_MAX: usize = 256;
/// Maximum length for an interface name, in bytes.
const INTERFACE_MAX: usize = 15;
/// Timeout for the first list of watched objects.
const LIST_MAX: Duration = Duration::from_secs(60);

/// Snapshot of a cluster.
#[derive(Debug, Default)]
pub struct ClusterSnapshot {
    /// All pools, valid or not.
    pub pools: Vec<PoolObject>,
    /// The blocks and single addresses.
    pub blocks: Vec<BlockObject>,
    /// Nodes by name, and whether each is out of service.
    pub nodes: BTreeMap<String, bool>,
    /// The pods, by namespace and name.
    pub pods: BTreeMap<Key, Holder>,
    /// The addresses that the pods show, by pool; computed once.
    pub(super) used: OnceLock<BTreeMap<String, BTreeSet<IpAddr>>>,
}

/// Pod and the addresses in the network-status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// Namespace that the pod is in.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    /// Pod uid.
    pub uid: String,
    /// Node that the pod is on.
    pub node: String,
    /// Address, interface and network for each attachment.
    pub addresses: Vec<(IpAddr, String, String)>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Shown {
    name: String,
    interface: String,
    ips: Vec<String>,
}

/// Why a snapshot could not be taken.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The API server refuses a list, or cannot be reached.
    #[error("list {kind}: {}", api_error::describe(.error))]
    List {
        /// Kind that was listed, in the plural.
        kind: &'static str,
        /// Error that the API server or the client reported.
        error: kube::Error,
    },
    /// Watched objects were not listed in time.
    #[error("list {kind}: no response within {} s", LIST_MAX.as_secs())]
    Late {
        /// Kind that was listed, in the plural.
        kind: &'static str,
    },
}

/// Returns every object of a kind; lists page by page.
async fn list<K>(api: Api<K>, kind: &'static str) -> Result<Vec<K>, SnapshotError>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let mut parameters = ListParams::default().limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = api.list(&parameters).await.map_err(|error| SnapshotError::List { kind, error })?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(all),
        }
    }
}

impl ClusterSnapshot {
    /// Lists everything. Blocks are listed before nodes and pods, so that the pods of a listed block are listed, too.
    pub async fn take(client: &Client) -> Result<ClusterSnapshot, SnapshotError> {
        let ClusterSnapshot { pools, blocks, .. } = ClusterSnapshot::of_objects(client).await?;
        Ok(ClusterSnapshot { pools, blocks, ..ClusterSnapshot::of_pods(client).await? })
    }

    /// Lists nodes and pods; the snapshot has no pools and no blocks.
    ///
    /// # Errors
    /// The API server refuses a list, or cannot be reached.
    pub async fn of_pods(client: &Client) -> Result<ClusterSnapshot, SnapshotError> {
        let nodes = list(Api::<NodeObject>::all(client.clone()), "nodes").await?;
        let pods = list(Api::<ShownPod>::all(client.clone()), "pods").await?;
        Ok(ClusterSnapshot {
            nodes: nodes.into_iter().map(|node| (node.name(), node.is_out_of_service())).collect(),
            pods: pods.into_iter().map(ShownPod::reduce).map(|pod| (pod.key(), pod)).collect(),
            ..ClusterSnapshot::default()
        })
    }

    /// Lists pools and blocks; takes pods and nodes from a watch, which may be slightly behind.
    pub async fn beside(client: &Client, followed: &Followed) -> Result<ClusterSnapshot, SnapshotError> {
        let snapshot = ClusterSnapshot::of_objects(client).await?;
        let node = |node: Arc<NodeHealth>| (node.name.clone(), node.is_out_of_service);
        let pod = |pod: Arc<Holder>| (pod.key(), Holder::clone(&pod));
        let nodes = followed.nodes.all().into_iter().map(node).collect();
        Ok(ClusterSnapshot { nodes, pods: followed.pods.all().into_iter().map(pod).collect(), ..snapshot })
    }

    /// Lists the pods in a namespace.
    pub async fn pods_of(client: &Client, namespace: &str) -> Result<Vec<Holder>, SnapshotError> {
        let pods = list(Api::<ShownPod>::namespaced(client.clone(), namespace), "pods").await?;
        Ok(pods.into_iter().map(ShownPod::reduce).collect())
    }

    async fn of_objects(client: &Client) -> Result<ClusterSnapshot, SnapshotError> {
        let pools = list(Api::<PoolObject>::all(client.clone()), "ippools").await?;
        let blocks = list(Api::<BlockObject>::all(client.clone()), "ipblocks").await?;
        Ok(ClusterSnapshot { pools, blocks, ..ClusterSnapshot::default() })
    }

    /// Returns the pool with this name.
    pub fn pool(&self, name: &str) -> Option<&PoolObject> {
        self.pools.iter().find(|pool| pool.metadata.name.as_deref() == Some(name))
    }

    /// Returns the pools whose range contains an address, the smallest first.
    pub fn pools_of(&self, ip: IpAddr) -> Vec<&PoolObject> {
        self.ranges().into_iter().filter(|(range, _)| range.contains(&ip)).map(|(_, pool)| pool).collect()
    }

    /// Returns the pool addresses that pods show.
    pub fn used_of(&self, pool: &str) -> &BTreeSet<IpAddr> {
        static NONE: BTreeSet<IpAddr> = BTreeSet::new();
        let count = || {
            let mut used: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
            for AddressUse { ip, pools, .. } in AddressUse::all(self) {
                for pool in pools {
                    used.entry(pool.to_owned()).or_default().insert(ip);
                }
            }
            used
        };
        self.used.get_or_init(count).get(pool).unwrap_or(&NONE)
    }

    /// Returns the pools with a valid range, the smallest first.
    pub(super) fn ranges(&self) -> Vec<(IpNet, &PoolObject)> {
        // Addresses of a range that was reduced are held until their pods are deleted.
        let range = |pool: &PoolObject| {
            let spec = pool.spec.range.parse::<IpNet>().ok();
            pool.recorded_range().filter(|all| spec.is_some_and(|spec| all.contains(&spec))).or(spec)
        };
        let mut ranges: Vec<_> = self.pools.iter().filter_map(|pool| Some((range(pool)?, pool))).collect();
        ranges.sort_by_key(|(range, _)| u8::MAX - range.prefix_len());
        ranges
    }

    /// Returns a pool's valid objects.
    pub fn objects_of(&self, pool: &str) -> impl Iterator<Item = IpBlock> {
        self.blocks.iter().filter(move |block| block.spec.pool == pool).filter_map(BlockObject::object)
    }

    /// Returns a pool's status: layout and usage.
    pub fn status_of(&self, pool: &PoolObject) -> IPPoolStatus {
        let name = pool.metadata.name.as_deref().unwrap_or_default();
        let grid = pool.grid().ok().flatten();
        // Layout and record of single addresses are kept as they are.
        let IPPoolStatus { layout, single_address_blocks, .. } = pool.status.clone().unwrap_or_default();
        let mut status = IPPoolStatus { layout, single_address_blocks, ..IPPoolStatus::default() };
        let mut nodes = BTreeSet::new();
        let mut leased = Vec::new();
        for object in self.objects_of(name) {
            let block = grid.is_some_and(|grid| grid.block_of(object.net.addr()) == Some(object.net));
            let held = !object.holder.node.is_empty();
            if block && held {
                status.leased_blocks += 1;
            }
            if held || !object.holder.claim.is_empty() {
                leased.push(object.net);
            }
            if object.is_single_address() && (held || !object.holder.claim.is_empty()) {
                status.single_addresses += 1;
            }
            if held {
                nodes.insert(object.holder.node);
            }
        }
        status.nodes = nodes.len() as u64;
        status.used_addresses = self.used_of(name).len() as u64;
        if let Some(grid) = grid {
            status.blocks = grid.block_count().to_string();
        }
        if let Some(filter) = pool.address_filter() {
            let all = filter.count();
            // A single address may be in a block of another node.
            let leased = IpNet::aggregate(&leased);
            let leased = leased.into_iter().fold(0_u128, |sum, net| sum.saturating_add(filter.count_in(net)));
            status.addresses = all.to_string();
            status.leased_percent = percent(leased, all);
        }
        status
    }

    /// Whether a node is gone or out of service.
    pub fn is_off(&self, node: &str) -> bool {
        self.nodes.get(node).copied().unwrap_or(true)
    }
}

// === watched pods and nodes ===

/// Watched pods and nodes in reduced form: the whole objects in a large cluster are gigabytes.
pub struct Followed {
    pods: Arc<Cache<Holder>>,
    nodes: Arc<Cache<NodeHealth>>,
}

impl Default for Followed {
    fn default() -> Followed {
        Followed { pods: Arc::new(Cache::new("pods")), nodes: Arc::new(Cache::new("nodes")) }
    }
}

impl Followed {
    /// Keeps both up to date; never ends.
    pub fn follow(&self, client: &Client) -> impl Future<Output = ()> + use<> {
        let all = watcher::Config::default();
        let pods = follow(client.clone(), Api::<ShownPod>::all, all.clone(), Arc::clone(&self.pods));
        let nodes = follow(client.clone(), Api::<NodeObject>::all, all, Arc::clone(&self.nodes));
        async move {
            tokio::join!(pods, nodes);
        }
    }

    /// Waits until both were listed once.
    ///
    /// # Errors
    /// One of them was not listed in time.
    pub async fn listed(&self) -> Result<(), SnapshotError> {
        let unlisted = |kind| SnapshotError::Late { kind };
        timeout(LIST_MAX, self.pods.synced()).await.map_err(|_| unlisted(self.pods.kind()))?;
        timeout(LIST_MAX, self.nodes.synced()).await.map_err(|_| unlisted(self.nodes.kind()))
    }
}

/// Identity of a pod, and the addresses that it shows.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
struct ShownPod(PodObject);

impl Resource for ShownPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        PodObject::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        PodObject::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        PodObject::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        PodObject::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

impl Reduced for ShownPod {
    type Form = Holder;

    fn reduce(self) -> Holder {
        Holder::of(self.0)
    }
}

impl Holder {
    fn key(&self) -> Key {
        (self.namespace.clone(), self.name.clone())
    }

    /// Whether the pod shows this address.
    pub fn shows(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|(shown, ..)| *shown == ip)
    }

    fn of(object: PodObject) -> Holder {
        let is_over = object.is_over();
        let pod = object.reduce();
        let shown: Vec<Shown> = pod
            .annotations
            .get(NETWORK_STATUS)
            .filter(|_| !is_over)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let is_valid =
            |entry: &Shown| entry.name.len() <= NETWORK_NAME_MAX && entry.interface.len() <= INTERFACE_MAX;
        let addresses = shown.into_iter().filter(is_valid).flat_map(|Shown { name, interface, ips }| {
            let ips = ips.into_iter().filter_map(|ip| ip.split('/').next().and_then(|ip| ip.parse().ok()));
            ips.map(move |ip| (ip, interface.clone(), name.clone()))
        });
        let addresses = addresses.take(ADDRESSES_MAX).collect();
        Holder { namespace: pod.namespace, name: pod.name, uid: pod.uid, node: pod.node_name, addresses }
    }
}

/// Returns a part of a whole in percent, rounded down: 100 means that nothing is left.
fn percent(part: u128, whole: u128) -> u8 {
    let share = match part.checked_mul(100) {
        Some(hundredfold) => hundredfold / whole.max(1),
        None => part / (whole / 100).max(1),
    };
    u8::try_from(share.min(100)).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completed_pod_has_no_addresses_in_the_snapshot() {
        for (phase, count) in [("Running", 1), ("Pending", 1), ("Succeeded", 0), ("Failed", 0)] {
            let shown = serde_json::json!([{ "name": "a/net", "interface": "net1", "ips": ["10.0.0.2"] }]);
            let pod = serde_json::json!({ "metadata": { "name": "p", "namespace": "a", "uid": "u",
                "annotations": { NETWORK_STATUS: shown.to_string() } }, "status": { "phase": phase } });
            let holder = Holder::of(serde_json::from_value(pod).unwrap());
            assert_eq!((holder.addresses.len(), holder.uid.as_str()), (count, "u"), "{phase}");
        }
    }

    #[test]
    fn network_status_of_a_pod_is_limited_in_the_snapshot() {
        let ips: Vec<String> =
            (0..20_000).map(|host: u32| format!("10.0.{}.{}", host / 256, host % 256)).collect();
        for (name, interface, count) in [
            ("net".to_owned(), "net1".to_owned(), ADDRESSES_MAX),
            ("n".repeat(NETWORK_NAME_MAX), "i".repeat(INTERFACE_MAX), ADDRESSES_MAX),
            ("n".repeat(NETWORK_NAME_MAX + 1), "net1".to_owned(), 0),
            ("net".to_owned(), "i".repeat(INTERFACE_MAX + 1), 0),
        ] {
            let shown = serde_json::json!([{ "name": name, "interface": interface, "ips": ips }]);
            let pod = serde_json::json!({ "metadata": { "name": "p", "namespace": "a", "uid": "u",
                "annotations": { NETWORK_STATUS: shown.to_string() } } });
            let holder = Holder::of(serde_json::from_value(pod).unwrap());
            assert_eq!(holder.addresses.len(), count, "{name} {interface}");
        }
    }
}
