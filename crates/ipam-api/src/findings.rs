//! Findings: inconsistencies in a cluster's addresses. This module only reports them.
//!
//! | kind | inconsistency |
//! |---|---|
//! | `invalid` | an object is invalid, for example edited manually |
//! | `orphan` | the pool of a block does not exist |
//! | `elsewhere` | the address store of a block is outside of the agent's `--address-stores` |
//! | `dead-node` | the node of a block is deleted or out of service |
//! | `duplicate` | two pods show the same address of a pool in their network-status, or two objects contain it |
//! | `outside` | a pod has an address outside of the reduced range of its pool, or an excluded one, until it is deleted |
//! | `stray` | a pod's address is in no leased object, or in a block of another node |
//! | `leaked` | the pod of a single address is deleted, and no claim keeps the address |

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use ipam::IpBlock;
use serde::Serialize;

use crate::cluster_snapshot::address_use::AddressUse;
use crate::cluster_snapshot::{ClusterSnapshot, Holder};
use crate::ip_objects::BlockObject;
use crate::store_name::other_directory;

/// Maximum number of objects that are reported to contain the same object; otherwise findings could grow with
/// the square of the object count.
const AROUND_MAX: usize = 8;

/// Inconsistency in the cluster's addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Finding kind, one word.
    pub what: &'static str,
    /// Object that the finding is about.
    pub object: String,
    /// Reason, one sentence.
    pub why: String,
}

impl ClusterSnapshot {
    /// Returns all findings.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        self.invalid_objects(&mut findings);
        self.duplicate_objects(&mut findings);
        self.duplicate_and_stray_addresses(&mut findings);
        self.leaked_addresses(&mut findings);
        findings
    }

    /// Adds invalid objects, and objects whose node is gone.
    fn invalid_objects(&self, findings: &mut Vec<Finding>) {
        for pool in &self.pools {
            let object = format!("ippool {}", pool.metadata.name.as_deref().unwrap_or_default());
            let wrong = pool.grid().map(drop).and_then(|()| pool.exclude().map(drop));
            findings.extend(wrong.err().map(|error| Finding {
                what: "invalid",
                object,
                why: error.to_string(),
            }));
        }
        for block in &self.blocks {
            let name = block.metadata.name.as_deref().unwrap_or_default();
            let finding = |what, why: String| Finding { what, object: format!("ipblock {name}"), why };
            if block.object().is_none() {
                findings.push(finding("invalid", "its spec was edited and is invalid".to_owned()));
            }
            if self.pool(&block.spec.pool).is_none() {
                findings.push(finding("orphan", format!("its pool {} does not exist", block.spec.pool)));
            }
            let node = &block.spec.node;
            if let Some(directory) = other_directory(&block.spec.address_store) {
                findings.push(finding(
                    "elsewhere",
                    format!(
                        "its address store on node {node} is in {directory} (ipam.dataDir), not in the agent's \
                         --address-stores: other networks of the pool cannot use its addresses"
                    ),
                ));
            }
            if !node.is_empty() && self.is_off(node) {
                findings.push(finding("dead-node", format!("its node {node} is gone or out of service")));
            }
        }
    }

    /// Adds pairs of objects that share an address which is not reserved in the outer one.
    fn duplicate_objects(&self, findings: &mut Vec<Finding>) {
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
        // In this order an object follows the objects that contain it.
        let mut around: Vec<&(String, IpBlock, &BlockObject)> = Vec::new();
        for entry in &all {
            let (space, object, block) = entry;
            around.retain(|(other, outer, _)| other == space && outer.net.contains(&object.net));
            let mut reported = 0;
            for (_, outer, holder) in around.iter().rev() {
                let reserved = object.is_single_address() && outer.reserved.contains(&object.net.addr());
                // A requested address is not leased yet.
                let asked = !object.holder.transfer_requested_from.is_empty()
                    || !object.holder.transfer_refused_by.is_empty();
                let both = !asked && !object.is_free() && !outer.holder.node.is_empty();
                if both && !reserved && reported < AROUND_MAX {
                    reported += 1;
                    let name = |block: &BlockObject| block.metadata.name.clone().unwrap_or_default();
                    let why = format!("{} is also in {}", object.net, name(holder));
                    findings.push(Finding {
                        what: "duplicate",
                        object: format!("ipblock {}", name(block)),
                        why,
                    });
                }
            }
            around.push(entry);
        }
    }

    /// Adds pairs of pods that have the same pool address, and addresses that another node holds.
    fn duplicate_and_stray_addresses(&self, findings: &mut Vec<Finding>) {
        let mut seen: BTreeMap<(IpAddr, Vec<&str>, &str), &Holder> = BTreeMap::new();
        for AddressUse { pod, ip, network, pools, lessor } in AddressUse::all(self) {
            let Some(pool) = pools.first().copied() else { continue };
            let object = format!("pod {}/{}", pod.namespace, pod.name);
            // If the node leases the address from several pools, only the network tells which pool it is.
            let apart = if pools.len() > 1 { network } else { "" };
            if let Some(other) = seen.insert((ip, pools, apart), pod)
                && other.uid != pod.uid
                && !lessor.is_some_and(|lessor| lessor.is_shared && other.namespace == pod.namespace)
            {
                let why =
                    format!("{ip} of {network} is also an address of {}/{}", other.namespace, other.name);
                findings.push(Finding { what: "duplicate", object: object.clone(), why });
            }
            let why = match lessor {
                None => format!("{ip} of {network} is in pool {pool}, and no node has leased it"),
                // A single address moves with its claim.
                Some(lessor) if !lessor.is_single && lessor.node != pod.node && !self.is_off(&pod.node) => {
                    let holder = match lessor.node {
                        "" => "not leased".to_owned(),
                        node => format!("leased by node {node}"),
                    };
                    format!("{ip} of {network} is {holder}, and its pod is on node {}", pod.node)
                }
                Some(lessor) if !lessor.node.is_empty() => {
                    let is_outside = |net: &ipnet::IpNet| net.contains(&ip);
                    let pool = self
                        .pool(pool)
                        .filter(|pool| pool.exclude().is_ok_and(|exclude| exclude.iter().any(is_outside)));
                    let Some(pool) = pool else { continue };
                    let why = format!(
                        "{ip} of {network} is outside of spec.range {} of pool {}, or excluded: it is released when the pod is \
                         deleted",
                        pool.spec.range,
                        pool.metadata.name.as_deref().unwrap_or_default()
                    );
                    findings.push(Finding { what: "outside", object, why });
                    continue;
                }
                Some(_) => continue,
            };
            findings.push(Finding { what: "stray", object, why });
        }
    }

    /// Adds single addresses whose pod is gone and that no claim keeps.
    fn leaked_addresses(&self, findings: &mut Vec<Finding>) {
        let uids = self.uids();
        for block in &self.blocks {
            let Some(IpBlock { net, holder, .. }) = block.object() else { continue };
            let uid = holder.owner.split('/').next().unwrap_or_default();
            let is_held = !holder.node.is_empty() && holder.claim.is_empty() && !self.is_off(&holder.node);
            if is_held && !uid.is_empty() && !uids.contains(uid) {
                let object = format!("ipblock {}", block.metadata.name.as_deref().unwrap_or_default());
                let why = format!(
                    "node {} has {net} for container {}, whose pod is gone: its DEL or the runtime's GC releases it",
                    holder.node, holder.owner
                );
                findings.push(Finding { what: "leaked", object, why });
            }
        }
    }

    /// Returns all pod uids.
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
        let block = |(range, node, reserved): &(&str, &str, &[&str])| {
            let name = format!("p.{}", range.replace('/', "-"));
            let meta = json!({ "name": name, "uid": "u", "resourceVersion": "1" });
            serde_json::from_value(
                json!({ "metadata": meta, "spec": { "pool": "p", "range": range, "node": node, "reservedAddresses": reserved } }),
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
    fn findings_are_empty_for_a_consistent_cluster_which_is_counted() {
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
    fn full_pool_is_100_percent_of_its_usable_addresses() {
        let full = |range: &str, blocks: &[(&str, &str, &[&str])]| {
            let mut snapshot = snapshot(blocks, &[]);
            snapshot.pools[0].spec.range = range.to_owned();
            snapshot.pools[0].spec.block_bits = Some(2);
            let status = snapshot.status_of(&snapshot.pools[0]);
            (status.addresses.clone(), status.leased_percent)
        };
        let quarters = |from: u8| format!("10.0.0.{from}/30");
        let nets: Vec<String> = (0..4).map(|at| quarters(at * 4)).collect();
        let all: Vec<(&str, &str, &[&str])> = nets.iter().map(|net| (net.as_str(), "n1", &[][..])).collect();
        assert_eq!(full("10.0.0.0/28", &all), ("14".to_owned(), 100));
        assert_eq!(full("10.0.0.0/28", &all[..2]), ("14".to_owned(), 50));
        let singles: Vec<String> = (1..7).map(|at| format!("10.0.0.{at}/32")).collect();
        let mut of_29: Vec<(&str, &str, &[&str])> =
            singles.iter().map(|net| (net.as_str(), "n1", &[][..])).collect();
        assert_eq!(full("10.0.0.0/29", &of_29), ("6".to_owned(), 100), "single addresses");
        // A block, of which another node leases one address.
        of_29.push(("10.0.0.0/30", "n2", &[]));
        assert_eq!(full("10.0.0.0/29", &of_29), ("6".to_owned(), 100));
        assert_eq!(full("10.0.0.0/29", &of_29[5..]), ("6".to_owned(), 66));
        assert_eq!(full("10.0.0.1/29", &of_29).1, 0, "a range with host bits is invalid");
    }

    #[test]
    fn address_belongs_to_the_pool_whose_block_its_node_leases() {
        let mut snapshot = snapshot(&[("10.0.0.0/24", "n1", &[])], &[("a", "10.0.0.1"), ("b", "10.0.0.1")]);
        // Another address space with the same range, whose block the other node leases.
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
        // On one node with both blocks, only the networks tell the pools apart.
        for block in &mut snapshot.blocks {
            block.spec.node = "n1".into();
        }
        snapshot.pods.get_mut(&key("b")).unwrap().node = "n1".into();
        assert_eq!(whats(&snapshot), ["duplicate"]);
        snapshot.pods.get_mut(&key("b")).unwrap().addresses[0].2 = "other".into();
        assert_eq!(snapshot.findings(), []);
    }

    #[test]
    fn finding_duplicate_is_limited_for_each_object() {
        let mut snapshot = snapshot(&[("10.0.0.0/24", "n1", &[])], &[]);
        for number in 0..100 {
            let mut block = snapshot.blocks[0].clone();
            block.spec.pool = format!("p{number}");
            block.metadata.name = Some(format!("p{number}.10.0.0.0-24"));
            let mut pool = snapshot.pools[0].clone();
            pool.metadata.name = Some(block.spec.pool.clone());
            snapshot.pools.push(pool);
            snapshot.blocks.push(block);
        }
        let found = whats(&snapshot);
        assert!(found.iter().all(|what| *what == "duplicate"), "{found:?}");
        assert_eq!(found.len(), (1..AROUND_MAX).sum::<usize>() + AROUND_MAX * (100 - AROUND_MAX + 1));
    }

    #[test]
    fn finding_duplicate_covers_two_networks_of_one_pool() {
        let mut snapshot = snapshot(&[("10.0.0.0/24", "n1", &[])], &[("a", "10.0.0.1"), ("b", "10.0.0.1")]);
        snapshot.pods.get_mut(&(String::new(), "b".to_owned())).unwrap().addresses[0].2 = "other".into();
        assert_eq!(whats(&snapshot), ["duplicate"]);
    }

    #[test]
    fn finding_stray_or_leaked_depends_on_node_and_pod() {
        let mut stray = snapshot(&[("10.0.0.0/24", "n2", &[])], &[("a", "10.0.0.1")]);
        assert_eq!(whats(&stray), ["stray"]);
        assert!(stray.findings()[0].why.contains("is leased by node n2, and its pod is on node n1"));
        // Pods of a deleted node are listed until they are removed.
        stray.nodes.remove("n1");
        assert_eq!(stray.findings(), []);
        let mut single = snapshot(&[("10.0.0.9/32", "n1", &[])], &[("a", "10.0.0.9")]);
        single.blocks[0].spec.owner = "a/c1/net1".into();
        assert_eq!(single.findings(), []);
        single.blocks[0].spec.owner = "gone/c1/net1".into();
        assert_eq!(whats(&single), ["leaked"]);
        single.blocks[0].spec.claim = "pod/x/y".into();
        assert_eq!(single.findings(), []);
    }

    #[test]
    fn finding_duplicate_is_not_reported_during_a_live_migration() {
        let pods = [("source", "10.0.0.9"), ("target", "10.0.0.9")];
        let mut migrated = snapshot(&[("10.0.0.9/32", "n1", &[])], &pods);
        for (claim, findings) in
            [("vm//fedora/n/net1", 0), ("claim//fedora.n", 0), ("pod//fedora/n/net1", 1), ("", 1)]
        {
            migrated.blocks[0].spec.claim = claim.into();
            assert_eq!(whats(&migrated), vec!["duplicate"; findings], "{claim:?}");
        }
        migrated.blocks[0].spec.claim = "vm//fedora/n/net1".into();
        migrated.pods.get_mut(&(String::new(), "target".to_owned())).unwrap().namespace = "other".into();
        assert_eq!(whats(&migrated), ["duplicate"], "a pod of another namespace");
    }

    #[test]
    fn finding_outside_names_the_reduced_range() {
        let mut reduced = snapshot(&[("10.0.0.0/24", "n1", &[])], &[("a", "10.0.0.1"), ("b", "10.0.0.200")]);
        let layout = json!({ "layout": { "phase": "Fixed", "range": "10.0.0.0/16", "blockBits": 8 } });
        reduced.pools[0].status = Some(serde_json::from_value(layout).unwrap());
        assert_eq!(reduced.findings(), []);
        reduced.pools[0].spec.range = "10.0.0.0/25".into();
        assert_eq!(whats(&reduced), ["outside"]);
        let finding = &reduced.findings()[0];
        assert!(finding.object == "pod /b" && finding.why.contains("10.0.0.200"), "{finding:?}");
        // All addresses of the layout count as used, but not as free.
        assert_eq!(reduced.used_of("p").len(), 2);
    }

    #[test]
    fn findings_cover_each_kind() {
        let duplicate = snapshot(&[("10.0.0.0/24", "n1", &[]), ("10.0.0.9/32", "n2", &[])], &[]);
        assert_eq!(whats(&duplicate), ["duplicate"]);
        let twice = snapshot(&[("10.0.0.0/24", "n1", &[])], &[("a", "10.0.0.1"), ("b", "10.0.0.1")]);
        assert_eq!(whats(&twice), ["duplicate"]);
        assert_eq!(whats(&snapshot(&[], &[("a", "10.0.0.1")])), ["stray"]);
        assert_eq!(
            whats(&snapshot(&[("10.0.0.0/24", "off", &[]), ("10.0.1.0/24", "gone", &[])], &[])),
            ["dead-node"; 2]
        );
        assert_eq!(whats(&snapshot(&[("10.0.0.1/24", "n1", &[])], &[])), ["invalid"]);
        let mut placed = snapshot(&[("10.0.0.0/24", "n1", &[])], &[]);
        placed.blocks[0].spec.address_store = crate::store_name::name_in_directory("p", "/srv/stores");
        assert_eq!(whats(&placed), ["elsewhere"]);
        assert!(placed.findings()[0].why.contains("on node n1 is in /srv/stores (ipam.dataDir)"));
        let mut orphan = snapshot(&[("10.0.0.0/24", "n1", &[])], &[]);
        orphan.pools.clear();
        assert_eq!(whats(&orphan), ["orphan"]);
    }
}
