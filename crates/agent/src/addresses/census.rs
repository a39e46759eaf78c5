//! What the cluster says about addresses, all at once, and what is wrong with it.
//!
//! Rules: it changes nothing; what cannot be read is named and counted, never left out; an address is doubled when two pods'
//! network-status show it in one address space, or when two objects hold it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;

use ipam::grid::addresses_of;
use ipam::registry::Object;
use ipnet::IpNet;
use kube::api::ListParams;
use kube::{Api, Client};
use npwg::status::NETWORK_STATUS;
use serde::{Deserialize, Serialize};

use super::elsewhere;
use super::objects::{BlockObject, PoolObject, PoolStatus};
use crate::agent::cluster::{Key, NodeObject, PodObject, Reduced};

/// Objects of a page.
const PAGE: u32 = 500;

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// The pools.
    pub(crate) pools: Vec<PoolObject>,
    /// The blocks and single addresses.
    pub(crate) blocks: Vec<BlockObject>,
    /// The nodes; is it out of service?
    pub(crate) nodes: BTreeMap<String, bool>,
    /// The pods, by namespace and name.
    pub(crate) pods: BTreeMap<Key, Holder>,
}

/// A pod, and the addresses its status shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Holder {
    /// Its namespace.
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
    /// Its uid.
    pub(crate) uid: String,
    /// Its node.
    pub(crate) node: String,
    /// Address, interface and network of each.
    pub(crate) addresses: Vec<(IpAddr, String, String)>,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finding {
    /// What kind: a word.
    pub(crate) what: &'static str,
    /// The object.
    pub(crate) object: String,
    /// One sentence.
    pub(crate) why: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Shown {
    name: String,
    interface: String,
    ips: Vec<String>,
}

/// Every object of a kind, page by page.
async fn list<K>(api: Api<K>, what: &str) -> Result<Vec<K>, String>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let mut parameters = ListParams::default().limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = api.list(&parameters).await.map_err(|error| format!("list {what}: {error}"))?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(all),
        }
    }
}

impl Census {
    /// Asks for everything. Blocks come before nodes and pods: what is held is looked at first.
    pub(crate) async fn take(client: &Client) -> Result<Census, String> {
        let pools = list(Api::<PoolObject>::all(client.clone()), "ippools").await?;
        let blocks = list(Api::<BlockObject>::all(client.clone()), "ipblocks").await?;
        let nodes = list(Api::<NodeObject>::all(client.clone()), "nodes").await?;
        let pods = list(Api::<PodObject>::all(client.clone()), "pods").await?;
        Ok(Census {
            pools,
            blocks,
            nodes: nodes.into_iter().map(|node| (node.name(), node.is_out_of_service())).collect(),
            pods: pods.into_iter().map(Holder::of).map(|pod| (pod.key(), pod)).collect(),
        })
    }

    /// The pool that an address is of, the smallest first.
    pub(crate) fn pools_of(&self, ip: IpAddr) -> Vec<&PoolObject> {
        self.ranges().into_iter().filter(|(range, _)| range.contains(&ip)).map(|(_, pool)| pool).collect()
    }

    /// The addresses of a pool that pods show.
    pub(crate) fn used_of(&self, pool: &str) -> BTreeSet<IpAddr> {
        let ranges = self.ranges();
        let named = |pool: &PoolObject| pool.metadata.name.clone().unwrap_or_default();
        let Some((own, _)) = ranges.iter().find(|(_, object)| named(object) == pool) else {
            return BTreeSet::new();
        };
        let shown = self.pods.values().flat_map(|pod| &pod.addresses).map(|(ip, ..)| *ip);
        let is_of = |ip: &IpAddr| {
            let smallest = || ranges.iter().find(|(range, _)| range.contains(ip));
            own.contains(ip) && smallest().is_some_and(|(range, _)| range == own)
        };
        shown.filter(is_of).collect()
    }

    /// The pools whose range can be read, the smallest first.
    fn ranges(&self) -> Vec<(IpNet, &PoolObject)> {
        let range = |pool: &PoolObject| pool.spec.range.parse::<IpNet>().ok();
        let mut ranges: Vec<_> = self.pools.iter().filter_map(|pool| Some((range(pool)?, pool))).collect();
        ranges.sort_by_key(|(range, _)| u8::MAX - range.prefix_len());
        ranges
    }

    /// Pool and addresses of each object that makes sense.
    fn leased(&self) -> HashSet<(&str, IpNet)> {
        let net = |block: &BlockObject| block.object().map(|object| object.net);
        self.blocks.iter().filter_map(|block| Some((block.spec.pool.as_str(), net(block)?))).collect()
    }

    /// The objects of a pool that make sense.
    pub(crate) fn objects_of(&self, pool: &str) -> impl Iterator<Item = Object> {
        self.blocks.iter().filter(move |block| block.spec.pool == pool).filter_map(BlockObject::object)
    }

    /// How full a pool is.
    pub(crate) fn status_of(&self, pool: &PoolObject) -> PoolStatus {
        let name = pool.metadata.name.as_deref().unwrap_or_default();
        let grid = pool.grid().ok().flatten();
        let mut status = PoolStatus::default();
        let mut nodes = BTreeSet::new();
        let mut leased = 0_u128;
        for object in self.objects_of(name) {
            let block = grid.is_some_and(|grid| grid.block_of(object.net.addr()) == Some(object.net));
            let held = !object.holder.node.is_empty();
            if block && held {
                status.leased_blocks += 1;
                leased = leased.saturating_add(addresses_of(object.net));
            }
            if object.is_single() && (held || !object.holder.claim.is_empty()) {
                status.single_addresses += 1;
            }
            if held {
                nodes.insert(object.holder.node);
            }
        }
        status.nodes = nodes.len() as u64;
        status.used_addresses = self.used_of(name).len() as u64;
        if let Some(grid) = grid {
            let all = addresses_of(grid.subnet());
            status.addresses = all.to_string();
            status.blocks = grid.count().to_string();
            status.leased_percent = u8::try_from(leased.saturating_mul(100) / all.max(1)).unwrap_or(100);
        }
        status
    }

    /// Is a node of this name gone, or known to be off?
    pub(crate) fn is_off(&self, node: &str) -> bool {
        self.nodes.get(node).copied().unwrap_or(true)
    }

    /// What is wrong.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        self.spoilt(&mut findings);
        self.doubled_objects(&mut findings);
        self.doubled_addresses(&mut findings);
        findings
    }

    /// Objects that make no sense, and those of nodes that are gone.
    fn spoilt(&self, findings: &mut Vec<Finding>) {
        for pool in &self.pools {
            let object = format!("ippool {}", pool.metadata.name.as_deref().unwrap_or_default());
            let wrong = pool.grid().map(drop).and_then(|()| pool.exclude().map(drop));
            findings.extend(wrong.err().map(|why| Finding { what: "spoilt", object, why }));
        }
        for block in &self.blocks {
            let name = block.metadata.name.as_deref().unwrap_or_default();
            let finding = |what, why: String| Finding { what, object: format!("ipblock {name}"), why };
            if block.object().is_none() {
                findings.push(finding("spoilt", "its spec was edited and makes no sense".to_owned()));
            }
            if !self.pools.iter().any(|pool| pool.metadata.name.as_deref() == Some(block.spec.pool.as_str()))
            {
                findings.push(finding("orphan", format!("its pool {} is not there", block.spec.pool)));
            }
            let node = &block.spec.node;
            if let Some(directory) = elsewhere(&block.spec.ledger) {
                findings.push(finding(
                    "elsewhere",
                    format!(
                        "its ledger on node {node} is in {directory} (ipam.dataDir), which is not its agent's \
                         --ledgers: other networks of the pool have none of its addresses"
                    ),
                ));
            }
            if !node.is_empty() && self.is_off(node) {
                findings.push(finding(
                    "dead-node",
                    format!("node {node}, which has it, is gone or out of service"),
                ));
            }
        }
    }

    /// Two objects with the same address, neither a hole in the other.
    fn doubled_objects(&self, findings: &mut Vec<Finding>) {
        let space = |pool: &str| {
            let found = self.pools.iter().find(|object| object.metadata.name.as_deref() == Some(pool));
            found.map(|pool| pool.spec.network_name.clone()).unwrap_or_default()
        };
        let mut all: Vec<(String, Object, &BlockObject)> = Vec::new();
        for block in &self.blocks {
            all.extend(block.object().map(|object| (space(&block.spec.pool), object, block)));
        }
        all.sort_by(|(a, one, _), (b, other, _)| {
            (a, one.net.network(), one.net.prefix_len()).cmp(&(
                b,
                other.net.network(),
                other.net.prefix_len(),
            ))
        });
        // Sorted like this, whatever holds an object comes before it.
        let mut around: Vec<&(String, Object, &BlockObject)> = Vec::new();
        for entry in &all {
            let (space, object, block) = entry;
            around.retain(|(other, outer, _)| other == space && outer.net.contains(&object.net));
            for (_, outer, holder) in &around {
                let hole = object.is_single() && outer.holes.contains(&object.net.addr());
                // One that is asked for is not had yet.
                let asked = !object.holder.asks.is_empty() || !object.holder.refused.is_empty();
                let both = !asked && !object.is_nobodys() && !outer.holder.node.is_empty();
                if both && !hole {
                    let name = |block: &BlockObject| block.metadata.name.clone().unwrap_or_default();
                    let why = format!("{} is in {}, too", object.net, name(holder));
                    findings.push(Finding {
                        what: "doubled",
                        object: format!("ipblock {}", name(block)),
                        why,
                    });
                }
            }
            around.push(entry);
        }
    }

    /// Two pods with the same address of a pool, and addresses of a pool that no object has leased.
    fn doubled_addresses(&self, findings: &mut Vec<Finding>) {
        let mut seen: BTreeMap<(IpAddr, &str), &Holder> = BTreeMap::new();
        let leased = self.leased();
        // Each object is read once, however many addresses there are.
        let mut lengths: BTreeMap<&str, BTreeSet<u8>> = BTreeMap::new();
        for (pool, net) in &leased {
            lengths.entry(pool).or_default().insert(net.prefix_len());
        }
        let pools = self.ranges();
        for pod in self.pods.values() {
            for (ip, _, network) in &pod.addresses {
                let Some((_, pool)) = pools.iter().find(|(range, _)| range.contains(ip)) else { continue };
                let name = pool.metadata.name.as_deref().unwrap_or_default();
                let object = format!("pod {}/{}", pod.namespace, pod.name);
                if let Some(other) = seen.insert((*ip, network), pod)
                    && other.uid != pod.uid
                {
                    let why = format!("{ip} of {network} is {}/{}'s, too", other.namespace, other.name);
                    findings.push(Finding { what: "doubled", object: object.clone(), why });
                }
                let mut lengths = lengths.get(name).into_iter().flatten();
                let around = |length: &u8| {
                    IpNet::new(*ip, *length).is_ok_and(|net| leased.contains(&(name, net.trunc())))
                };
                if !lengths.any(around) {
                    let why = format!("{ip} of {network} is in pool {name}, and nobody has leased it");
                    findings.push(Finding { what: "stray", object, why });
                }
            }
        }
    }
}

impl Holder {
    fn key(&self) -> Key {
        (self.namespace.clone(), self.name.clone())
    }

    fn of(object: PodObject) -> Holder {
        let pod = object.reduce();
        let shown: Vec<Shown> = pod
            .annotations
            .get(NETWORK_STATUS)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let addresses = shown.into_iter().flat_map(|Shown { name, interface, ips }| {
            let ips = ips.into_iter().filter_map(|ip| ip.split('/').next().and_then(|ip| ip.parse().ok()));
            ips.map(move |ip| (ip, interface.clone(), name.clone())).collect::<Vec<_>>()
        });
        let addresses = addresses.collect();
        Holder { namespace: pod.namespace, name: pod.name, uid: pod.uid, node: pod.node_name, addresses }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn census(blocks: &[(&str, &str, &[&str])], pods: &[(&str, &str)]) -> Census {
        let pool = json!({ "metadata": { "name": "p" }, "spec": { "range": "10.0.0.0/16", "blockBits": 8 } });
        let block = |(range, node, holes): &(&str, &str, &[&str])| {
            let name = format!("p.{}", range.replace('/', "-"));
            let meta = json!({ "name": name, "uid": "u", "resourceVersion": "1" });
            serde_json::from_value(
                json!({ "metadata": meta, "spec": { "pool": "p", "range": range, "node": node, "holes": holes } }),
            )
            .unwrap()
        };
        let pod = |(name, ip): &(&str, &str)| Holder {
            name: (*name).into(),
            uid: (*name).into(),
            addresses: vec![(ip.parse().unwrap(), "net1".into(), "n".into())],
            ..Holder::default()
        };
        Census {
            pools: vec![serde_json::from_value(pool).unwrap()],
            blocks: blocks.iter().map(block).collect(),
            nodes: BTreeMap::from([("n1".into(), false), ("n2".into(), false), ("off".into(), true)]),
            pods: pods.iter().map(pod).map(|pod| (pod.key(), pod)).collect(),
        }
    }

    fn whats(census: &Census) -> Vec<&'static str> {
        census.findings().iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn what_is_right_has_no_findings_and_is_counted() {
        let census = census(
            &[("10.0.0.0/24", "n1", &["10.0.0.9"]), ("10.0.0.9/32", "n2", &[]), ("10.0.3.0/24", "n2", &[])],
            &[("a", "10.0.0.1"), ("b", "10.0.0.9"), ("c", "192.0.2.1")],
        );
        assert_eq!(census.findings(), []);
        let status = census.status_of(&census.pools[0]);
        assert_eq!((status.leased_blocks, status.single_addresses, status.nodes), (2, 1, 2));
        assert_eq!((status.blocks.as_str(), status.leased_percent, status.used_addresses), ("256", 0, 2));
    }

    #[test]
    fn each_wrong_thing_is_found() {
        let doubled = census(&[("10.0.0.0/24", "n1", &[]), ("10.0.0.9/32", "n2", &[])], &[]);
        assert_eq!(whats(&doubled), ["doubled"]);
        let twice = census(&[("10.0.0.0/24", "n1", &[])], &[("a", "10.0.0.1"), ("b", "10.0.0.1")]);
        assert_eq!(whats(&twice), ["doubled"]);
        assert_eq!(whats(&census(&[], &[("a", "10.0.0.1")])), ["stray"]);
        assert_eq!(
            whats(&census(&[("10.0.0.0/24", "off", &[]), ("10.0.1.0/24", "gone", &[])], &[])),
            ["dead-node"; 2]
        );
        assert_eq!(whats(&census(&[("10.0.0.1/24", "n1", &[])], &[])), ["spoilt"]);
        let mut placed = census(&[("10.0.0.0/24", "n1", &[])], &[]);
        placed.blocks[0].spec.ledger = super::super::placed("p", "/srv/ledgers");
        assert_eq!(whats(&placed), ["elsewhere"]);
        assert!(placed.findings()[0].why.contains("on node n1 is in /srv/ledgers (ipam.dataDir)"));
        let mut orphan = census(&[("10.0.0.0/24", "n1", &[])], &[]);
        orphan.pools.clear();
        assert_eq!(whats(&orphan), ["orphan"]);
    }
}
