//! What is wrong with the addresses of a cluster.
//!
//! Rules: what cannot be read is named, never left out; an address is doubled when two pods' network-status show it of one
//! pool, or when two objects hold it; stray when the object around it is nobody's, or another node's than its pod's;
//! leaked when its pod is gone. Nothing is done about any of it here.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use ipam::IpBlock;
use serde::Serialize;

use crate::cluster_snapshot::address_use::AddressUse;
use crate::cluster_snapshot::{ClusterSnapshot, Holder};
use crate::ip_objects::BlockObject;
use crate::store_name::elsewhere;

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// What kind: a word.
    pub what: &'static str,
    /// The object.
    pub object: String,
    /// One sentence.
    pub why: String,
}

impl ClusterSnapshot {
    /// What is wrong.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        self.spoilt(&mut findings);
        self.doubled_objects(&mut findings);
        self.astray(&mut findings);
        self.leaked(&mut findings);
        findings
    }

    /// Objects that make no sense, and those of nodes that are gone.
    fn spoilt(&self, findings: &mut Vec<Finding>) {
        for pool in &self.pools {
            let object = format!("ippool {}", pool.metadata.name.as_deref().unwrap_or_default());
            let wrong = pool.grid().map(drop).and_then(|()| pool.exclude().map(drop));
            findings.extend(wrong.err().map(|error| Finding {
                what: "spoilt",
                object,
                why: error.to_string(),
            }));
        }
        for block in &self.blocks {
            let name = block.metadata.name.as_deref().unwrap_or_default();
            let finding = |what, why: String| Finding { what, object: format!("ipblock {name}"), why };
            if block.object().is_none() {
                findings.push(finding("spoilt", "its spec was edited and makes no sense".to_owned()));
            }
            if self.pool(&block.spec.pool).is_none() {
                findings.push(finding("orphan", format!("its pool {} is not there", block.spec.pool)));
            }
            let node = &block.spec.node;
            if let Some(directory) = elsewhere(&block.spec.address_store) {
                findings.push(finding(
                    "elsewhere",
                    format!(
                        "its ledger on node {node} is in {directory} (ipam.dataDir), which is not its agent's \
                         --address-stores: other networks of the pool have none of its addresses"
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
        let space =
            |pool: &str| self.pool(pool).map(|pool| pool.spec.network_name.clone()).unwrap_or_default();
        let mut all: Vec<(String, IpBlock, &BlockObject)> = Vec::new();
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
        let mut around: Vec<&(String, IpBlock, &BlockObject)> = Vec::new();
        for entry in &all {
            let (space, object, block) = entry;
            around.retain(|(other, outer, _)| other == space && outer.net.contains(&object.net));
            for (_, outer, holder) in &around {
                let hole = object.is_single_address() && outer.reserved.contains(&object.net.addr());
                // One that is asked for is not had yet.
                let asked = !object.holder.transfer_requested_from.is_empty()
                    || !object.holder.transfer_refused_by.is_empty();
                let both = !asked && !object.is_free() && !outer.holder.node.is_empty();
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

    /// Two pods with the same address of a pool, and addresses that are not their pod's node's.
    fn astray(&self, findings: &mut Vec<Finding>) {
        let mut seen: BTreeMap<(IpAddr, Vec<&str>, &str), &Holder> = BTreeMap::new();
        for AddressUse { pod, ip, network, pools, lessor } in AddressUse::all(self) {
            let Some(pool) = pools.first().copied() else { continue };
            let object = format!("pod {}/{}", pod.namespace, pod.name);
            // Which of several pools it is of, if a node has that address of each, only the network can tell.
            let apart = if pools.len() > 1 { network } else { "" };
            if let Some(other) = seen.insert((ip, pools, apart), pod)
                && other.uid != pod.uid
            {
                let why = format!("{ip} of {network} is {}/{}'s, too", other.namespace, other.name);
                findings.push(Finding { what: "doubled", object: object.clone(), why });
            }
            let why = match lessor {
                None => format!("{ip} of {network} is in pool {pool}, and nobody has leased it"),
                // Single addresses move with what keeps them.
                Some(lessor) if !lessor.is_single && lessor.node != pod.node && !self.is_off(&pod.node) => {
                    let owner =
                        if lessor.node.is_empty() { "nobody's" } else { &format!("node {}'s", lessor.node) };
                    format!("{ip} of {network} is {owner}, and its pod is on node {}", pod.node)
                }
                Some(_) => continue,
            };
            findings.push(Finding { what: "stray", object, why });
        }
    }

    /// Single addresses whose pod is gone, and that nothing keeps.
    fn leaked(&self, findings: &mut Vec<Finding>) {
        let uids = self.uids();
        for block in &self.blocks {
            let Some(IpBlock { net, holder, .. }) = block.object() else { continue };
            let uid = holder.owner.split('/').next().unwrap_or_default();
            let is_held = !holder.node.is_empty() && holder.claim.is_empty() && !self.is_off(&holder.node);
            if is_held && !uid.is_empty() && !uids.contains(uid) {
                let object = format!("ipblock {}", block.metadata.name.as_deref().unwrap_or_default());
                let why = format!(
                    "node {} has {net} for container {}, whose pod is gone: its DEL or the runtime's GC gives it back",
                    holder.node, holder.owner
                );
                findings.push(Finding { what: "leaked", object, why });
            }
        }
    }

    /// Of every pod.
    pub fn uids(&self) -> HashSet<&str> {
        self.pods.values().map(|pod| pod.uid.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn snapshot(blocks: &[(&str, &str, &[&str])], pods: &[(&str, &str)]) -> ClusterSnapshot {
        let pool = json!({ "metadata": { "name": "p" }, "spec": { "range": "10.0.0.0/16", "blockBits": 8 } });
        let block = |(range, node, holes): &(&str, &str, &[&str])| {
            let name = format!("p.{}", range.replace('/', "-"));
            let meta = json!({ "name": name, "uid": "u", "resourceVersion": "1" });
            serde_json::from_value(
                json!({ "metadata": meta, "spec": { "pool": "p", "range": range, "node": node, "reservedAddresses": holes } }),
            )
            .unwrap()
        };
        let pod = |(name, ip): &(&str, &str)| Holder {
            name: (*name).into(),
            uid: (*name).into(),
            node: "n1".into(),
            addresses: vec![(ip.parse().unwrap(), "net1".into(), "n".into())],
            ..Holder::default()
        };
        ClusterSnapshot {
            pools: vec![serde_json::from_value(pool).unwrap()],
            blocks: blocks.iter().map(block).collect(),
            nodes: BTreeMap::from([("n1".into(), false), ("n2".into(), false), ("off".into(), true)]),
            pods: pods.iter().map(pod).map(|pod| ((String::new(), pod.name.clone()), pod)).collect(),
            ..ClusterSnapshot::default()
        }
    }

    fn whats(snapshot: &ClusterSnapshot) -> Vec<&'static str> {
        snapshot.findings().iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn what_is_right_has_no_findings_and_is_counted() {
        let snapshot = snapshot(
            &[("10.0.0.0/24", "n1", &["10.0.0.9"]), ("10.0.0.9/32", "n2", &[]), ("10.0.3.0/24", "n2", &[])],
            &[("a", "10.0.0.1"), ("b", "10.0.0.9"), ("c", "192.0.2.1")],
        );
        assert_eq!(snapshot.findings(), []);
        let status = snapshot.status_of(&snapshot.pools[0]);
        assert_eq!((status.leased_blocks, status.single_addresses, status.nodes), (2, 1, 2));
        assert_eq!((status.blocks.as_str(), status.leased_percent, status.used_addresses), ("256", 0, 2));
    }

    #[test]
    fn an_address_is_of_the_pool_whose_block_its_node_has() {
        let mut snapshot = snapshot(&[("10.0.0.0/24", "n1", &[])], &[("a", "10.0.0.1"), ("b", "10.0.0.1")]);
        // Another address space with the same range, of which the other node has the block.
        let mut pool = snapshot.pools[0].clone();
        pool.metadata.name = Some("red-p".into());
        pool.spec.network_name = "red".into();
        snapshot.pools.push(pool);
        let mut block = snapshot.blocks[0].clone();
        block.metadata.name = Some("red-p.10.0.0.0-24".into());
        (block.spec.pool, block.spec.node) = ("red-p".into(), "n2".into());
        snapshot.blocks.push(block);
        let key = |name: &str| (String::new(), name.to_owned());
        snapshot.pods.get_mut(&key("b")).unwrap().node = "n2".into();
        assert_eq!(snapshot.findings(), []);
        assert_eq!(["p", "red-p"].map(|pool| snapshot.used_of(pool).len()), [1, 1]);
        // On one node that has both blocks, only the networks tell them apart.
        for block in &mut snapshot.blocks {
            block.spec.node = "n1".into();
        }
        snapshot.pods.get_mut(&key("b")).unwrap().node = "n1".into();
        assert_eq!(whats(&snapshot), ["doubled"]);
        snapshot.pods.get_mut(&key("b")).unwrap().addresses[0].2 = "other".into();
        assert_eq!(snapshot.findings(), []);
    }

    #[test]
    fn two_networks_of_one_pool_have_no_address_in_common() {
        let mut snapshot = snapshot(&[("10.0.0.0/24", "n1", &[])], &[("a", "10.0.0.1"), ("b", "10.0.0.1")]);
        snapshot.pods.get_mut(&(String::new(), "b".to_owned())).unwrap().addresses[0].2 = "other".into();
        assert_eq!(whats(&snapshot), ["doubled"]);
    }

    #[test]
    fn an_address_of_another_nodes_block_is_astray_and_one_of_a_pod_that_is_gone_leaked() {
        let mut astray = snapshot(&[("10.0.0.0/24", "n2", &[])], &[("a", "10.0.0.1")]);
        assert_eq!(whats(&astray), ["stray"]);
        assert!(astray.findings()[0].why.contains("is node n2's, and its pod is on node n1"));
        // Pods of a node that is gone are shown until somebody removes them.
        astray.nodes.remove("n1");
        assert_eq!(astray.findings(), []);
        let mut single = snapshot(&[("10.0.0.9/32", "n1", &[])], &[("a", "10.0.0.9")]);
        single.blocks[0].spec.owner = "a/c1/net1".into();
        assert_eq!(single.findings(), []);
        single.blocks[0].spec.owner = "gone/c1/net1".into();
        assert_eq!(whats(&single), ["leaked"]);
        single.blocks[0].spec.claim = "pod/x/y".into();
        assert_eq!(single.findings(), []);
    }

    #[test]
    fn each_wrong_thing_is_found() {
        let doubled = snapshot(&[("10.0.0.0/24", "n1", &[]), ("10.0.0.9/32", "n2", &[])], &[]);
        assert_eq!(whats(&doubled), ["doubled"]);
        let twice = snapshot(&[("10.0.0.0/24", "n1", &[])], &[("a", "10.0.0.1"), ("b", "10.0.0.1")]);
        assert_eq!(whats(&twice), ["doubled"]);
        assert_eq!(whats(&snapshot(&[], &[("a", "10.0.0.1")])), ["stray"]);
        assert_eq!(
            whats(&snapshot(&[("10.0.0.0/24", "off", &[]), ("10.0.1.0/24", "gone", &[])], &[])),
            ["dead-node"; 2]
        );
        assert_eq!(whats(&snapshot(&[("10.0.0.1/24", "n1", &[])], &[])), ["spoilt"]);
        let mut placed = snapshot(&[("10.0.0.0/24", "n1", &[])], &[]);
        placed.blocks[0].spec.address_store = crate::store_name::placed("p", "/srv/ledgers");
        assert_eq!(whats(&placed), ["elsewhere"]);
        assert!(placed.findings()[0].why.contains("on node n1 is in /srv/ledgers (ipam.dataDir)"));
        let mut orphan = snapshot(&[("10.0.0.0/24", "n1", &[])], &[]);
        orphan.pools.clear();
        assert_eq!(whats(&orphan), ["orphan"]);
    }
}
