//! Network windows: the addresses that each network may allocate, and warnings about windows that are too
//! small.
//!
//! | kind | warning |
//! |---|---|
//! | `nearly-full` | at most a tenth of the window's addresses is free |
//! | `few` | there are fewer than four addresses for each node, so that the network uses single addresses |
//! | `uneven` | a network has an IPv6 window that is smaller than its IPv4 window, and so limits its pods |
//! | `outside` | a pod on the network has an address outside of the window: the definition was changed |
//!
//! Network and broadcast address, gateway and exclusions are not in a window. Each pod has one address from
//! each range set.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipam::AddressFilter;

use crate::cluster_snapshot::ClusterSnapshot;
use crate::findings::Finding;

/// Minimum number of addresses for each node; with fewer, a window has no blocks.
const FOR_NODE: u128 = 4;
/// Divisor for a window: the part that is free if it is nearly full.
const NEARLY: u128 = 10;

/// Window for one of a network's range sets.
#[derive(Clone, Debug)]
pub struct NetworkWindow {
    /// The definition's namespace and name.
    pub network: String,
    /// Range set index.
    pub set: usize,
    /// Addresses that the network may allocate, by pool.
    pub filters: Vec<(String, AddressFilter)>,
}

impl NetworkWindow {
    /// Returns how many addresses it has.
    fn size(&self) -> u128 {
        self.filters.iter().map(|(_, filter)| filter.count()).fold(0, u128::saturating_add)
    }

    fn admits(&self, ip: IpAddr) -> bool {
        self.filters.iter().any(|(_, filter)| filter.admits(ip))
    }

    fn is_ipv6(&self) -> bool {
        self.filters.iter().any(|(_, filter)| filter.range.subnet().addr().is_ipv6())
    }

    fn ranges(&self) -> String {
        self.filters.iter().map(|(_, filter)| filter.range.to_string()).collect::<Vec<_>>().join(", ")
    }
}

impl ClusterSnapshot {
    /// Returns warnings about these windows.
    pub fn window_warnings(&self, windows: &[NetworkWindow]) -> Vec<Finding> {
        let mut by_network: BTreeMap<&str, Vec<&NetworkWindow>> = BTreeMap::new();
        for window in windows {
            by_network.entry(&window.network).or_default().push(window);
        }
        let mut warnings = Vec::new();
        for (network, sets) in by_network {
            let object = format!("network-attachment-definition {network}");
            let warn = |(what, why)| Finding { what, object: object.clone(), why };
            warnings.extend(sets.iter().filter_map(|set| self.small(set)).map(warn));
            warnings.extend(uneven(&sets).map(warn));
            warnings.extend(self.outside(network, &sets));
        }
        warnings
    }

    /// Returns kind and reason, if a window is too small.
    fn small(&self, window: &NetworkWindow) -> Option<(&'static str, String)> {
        let (size, nodes) = (window.size(), self.nodes.len() as u128);
        let used: std::collections::BTreeSet<IpAddr> = window
            .filters
            .iter()
            .flat_map(|(pool, filter)| {
                let shown = self.used_of(pool).iter().copied();
                let single =
                    self.objects_of(pool).filter(|object| object.is_single_address() && object.is_in_use());
                let single = single.map(|object| object.net.addr());
                shown.chain(single).filter(|ip| filter.admits(*ip)).collect::<Vec<_>>()
            })
            .collect();
        let used = used.len() as u128;
        let (ranges, free) = (window.ranges(), size.saturating_sub(used));
        if free.saturating_mul(NEARLY) <= size {
            let why = format!(
                "{used} of the {size} addresses of {ranges} are used, {free} are free: enlarge the range"
            );
            return Some(("nearly-full", why));
        }
        (size < FOR_NODE * nodes).then(|| {
            let why = format!(
                "{ranges} has {size} addresses for {nodes} nodes, fewer than {FOR_NODE} for each: it has no blocks, and each ADD and \
                 DEL sends requests to the API server; enlarge the range if more pods than {size} are expected"
            );
            ("few", why)
        })
    }

    /// Returns warnings about pods that have addresses outside the network's windows.
    fn outside(&self, network: &str, sets: &[&NetworkWindow]) -> Vec<Finding> {
        let mut found = Vec::new();
        for pod in self.pods.values() {
            for (ip, _, shown) in &pod.addresses {
                let is_of_pool = || {
                    let pools = self.pools_of(*ip);
                    let mut names = pools.iter().filter_map(|pool| pool.metadata.name.as_deref());
                    names.any(|name| {
                        self.objects_of(name)
                            .any(|object| object.net.contains(ip) && object.holder.node == pod.node)
                    })
                };
                if shown == network && !sets.iter().any(|set| set.admits(*ip)) && is_of_pool() {
                    let ranges = sets.iter().map(|set| set.ranges()).collect::<Vec<_>>().join(", ");
                    found.push(Finding {
                        what: "outside",
                        object: format!("pod {}/{}", pod.namespace, pod.name),
                        why: format!(
                            "{ip} of {network} is not among the addresses of the definition ({ranges}): it is released when the \
                             pod is deleted"
                        ),
                    });
                }
            }
        }
        found
    }
}

/// Returns a warning if a network's IPv6 window is smaller than the IPv4 window.
fn uneven(sets: &[&NetworkWindow]) -> Option<(&'static str, String)> {
    let smallest =
        |is_ipv6: bool| sets.iter().filter(|set| set.is_ipv6() == is_ipv6).min_by_key(|set| set.size());
    let (v4, v6) = (smallest(false)?, smallest(true)?);
    (v6.size() < v4.size()).then(|| {
        let (few, many) = (v6.size(), v4.size());
        let why = format!(
            "{} has {few} addresses and {} has {many}: each pod has one of both, so there are {few} pods at most; enlarge the \
             IPv6 range",
            v6.ranges(),
            v4.ranges()
        );
        ("uneven", why)
    })
}

#[cfg(test)]
mod tests {
    use ipam::Range;
    use serde_json::json;

    use super::*;
    use crate::cluster_snapshot::Holder;

    fn window(set: usize, range: &str, exclude: &[&str]) -> NetworkWindow {
        let range = Range::between(range.parse().unwrap(), None, None).unwrap();
        let exclude: Vec<_> = exclude.iter().map(|net| net.parse().unwrap()).collect();
        let filters = vec![("p".to_owned(), AddressFilter::new(range, &exclude))];
        NetworkWindow { network: "blue/net".into(), set, filters }
    }

    fn snapshot(pods: usize, nodes: usize) -> ClusterSnapshot {
        let pool = json!({ "metadata": { "name": "p" }, "spec": { "range": "10.0.0.0/24", "blockBits": 8 } });
        let block = json!({ "metadata": { "name": "p.10.0.0.0-24", "uid": "u", "resourceVersion": "1" },
            "spec": { "pool": "p", "range": "10.0.0.0/24", "node": "n0" } });
        let pod = |at: usize| {
            let addresses = vec![(IpAddr::from([10, 0, 0, at as u8 + 1]), "net1".into(), "blue/net".into())];
            let (namespace, name) = ("blue".to_owned(), format!("p{at}"));
            let key = (namespace.clone(), name.clone());
            (key, Holder { namespace, uid: name.clone(), name, node: "n0".into(), addresses })
        };
        ClusterSnapshot {
            pools: vec![serde_json::from_value(pool).unwrap()],
            blocks: vec![serde_json::from_value(block).unwrap()],
            nodes: (0..nodes).map(|node| (format!("n{node}"), false)).collect(),
            pods: (0..pods).map(pod).collect(),
            ..ClusterSnapshot::default()
        }
    }

    #[test]
    fn window_warnings_count_usable_addresses() {
        let whats = |snapshot: &ClusterSnapshot, windows: &[NetworkWindow]| {
            let found = snapshot.window_warnings(windows);
            found.iter().map(|finding| (finding.what, finding.why.clone())).collect::<Vec<_>>()
        };
        assert_eq!(whats(&snapshot(3, 3), &[window(0, "10.0.0.0/24", &[])]), []);
        // 14 addresses without network and broadcast address, 13 used.
        let full = whats(&snapshot(13, 3), &[window(0, "10.0.0.0/28", &[])]);
        assert!(full[0].0 == "nearly-full" && full[0].1.starts_with("13 of the 14 addresses"), "{full:?}");
        // The exclusion leaves six for three nodes.
        let few = whats(&snapshot(1, 3), &[window(0, "10.0.0.0/28", &["10.0.0.8/29"])]);
        assert!(few[0].0 == "few" && few[0].1.contains("has 7 addresses for 3 nodes"), "{few:?}");
        let uneven = whats(&snapshot(0, 1), &[window(0, "10.0.0.0/24", &[]), window(1, "fd00::/125", &[])]);
        assert_eq!(uneven.iter().map(|(what, _)| *what).collect::<Vec<_>>(), ["uneven"]);
        assert!(uneven[0].1.contains("has 7 addresses and"), "{uneven:?}");
        let usual = [window(0, "10.0.0.0/24", &[]), window(1, "fd00::/64", &[])];
        assert_eq!(whats(&snapshot(0, 1), &usual), []);
    }

    #[test]
    fn window_warnings_name_pods_outside_of_a_reduced_window() {
        let found = snapshot(9, 1).window_warnings(&[window(0, "10.0.0.0/29", &[])]);
        let outside: Vec<_> = found.iter().filter(|finding| finding.what == "outside").collect();
        assert_eq!(
            outside.iter().map(|finding| &*finding.object).collect::<Vec<_>>(),
            ["pod blue/p6", "pod blue/p7", "pod blue/p8"]
        );
    }
}
