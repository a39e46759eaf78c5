//! Metrics for each pool: size, usage, and blocks by node.
//!
//! - The number of time series is bounded: further pools and nodes are counted together as `other`.

use std::collections::BTreeMap;

use ipam_api::pool_usage::PoolUsage;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Maximum number of pools with separate series.
const POOLS_MAX: usize = 100;
/// Maximum number of pool and node pairs with a separate series.
const NODES_MAX: usize = 1_000;
/// Label of the pools and nodes that are counted together.
const OTHER: &str = "other";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct PoolLabels {
    pool: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct NodeLabels {
    pool: String,
    node: String,
}

/// Metrics of all pools.
#[derive(Default)]
pub(crate) struct PoolMetrics {
    size: Family<PoolLabels, Gauge>,
    used: Family<PoolLabels, Gauge>,
    free: Family<PoolLabels, Gauge>,
    quarantined: Family<PoolLabels, Gauge>,
    blocks: Family<NodeLabels, Gauge>,
}

/// Returns the use of a pool with a block, for the reference of metrics.
pub(crate) fn example() -> PoolUsage {
    PoolUsage { size: 1, blocks: BTreeMap::from([("NODE".to_owned(), 1)]), ..PoolUsage::default() }
}

impl PoolMetrics {
    /// Registers the metrics.
    pub(crate) fn register(registry: &mut Registry) -> PoolMetrics {
        let all = PoolMetrics::default();
        let gauges = [
            ("pool_size", "Number of addresses of a pool that can be allocated", &all.size),
            ("pool_used", "Number of used addresses of a pool", &all.used),
            ("pool_free", "Number of addresses of a pool that are neither used nor in quarantine", &all.free),
            (
                "pool_quarantined",
                "Number of released single addresses of a pool in quarantine",
                &all.quarantined,
            ),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        registry.register("pool_blocks", "Number of blocks of a pool that a node leases", all.blocks.clone());
        all
    }

    /// Replaces all values.
    pub(crate) fn set(&self, pools: &BTreeMap<String, PoolUsage>) {
        for gauge in [&self.size, &self.used, &self.free, &self.quarantined] {
            gauge.clear();
        }
        self.blocks.clear();
        let signed = |number: u128| i64::try_from(number).unwrap_or(i64::MAX);
        let mut series = 0;
        for (name, usage) in bounded(pools) {
            let labels = PoolLabels { pool: name.clone() };
            self.size.get_or_create(&labels).set(signed(usage.size));
            self.used.get_or_create(&labels).set(signed(usage.used.into()));
            self.free.get_or_create(&labels).set(signed(usage.free()));
            self.quarantined.get_or_create(&labels).set(signed(usage.quarantined.into()));
            for (node, count) in usage.blocks {
                series += 1;
                let node = if series <= NODES_MAX { node } else { OTHER.to_owned() };
                self.blocks
                    .get_or_create(&NodeLabels { pool: name.clone(), node })
                    .inc_by(signed(count.into()));
            }
        }
    }
}

/// Returns the use of at most [`POOLS_MAX`] pools, and of the others together.
fn bounded(pools: &BTreeMap<String, PoolUsage>) -> BTreeMap<String, PoolUsage> {
    let mut bounded = BTreeMap::new();
    for (at, (name, usage)) in pools.iter().enumerate() {
        if at < POOLS_MAX {
            bounded.insert(name.clone(), usage.clone());
        } else {
            add(bounded.entry(OTHER.to_owned()).or_default(), usage);
        }
    }
    bounded
}

/// Adds the usage of another pool.
fn add(usage: &mut PoolUsage, other: &PoolUsage) {
    usage.size = usage.size.saturating_add(other.size);
    usage.used += other.used;
    usage.quarantined += other.quarantined;
    for (node, count) in &other.blocks {
        *usage.blocks.entry(node.clone()).or_default() += count;
    }
}

#[cfg(test)]
mod tests {
    use ipam_api::clock::now;
    use ipam_api::cluster_snapshot::ClusterSnapshot;
    use ipam_api::ip_objects::PoolObject;
    use prometheus_client::encoding::text;

    use super::*;

    fn page(pools: &BTreeMap<String, PoolUsage>) -> String {
        let mut registry = Registry::default();
        let metrics = PoolMetrics::register(&mut registry);
        metrics.set(pools);
        metrics.set(pools);
        let mut page = String::new();
        text::encode(&mut page, &registry).unwrap();
        page
    }

    #[test]
    fn pool_metrics_count_size_used_free_and_blocks() {
        let object = |name: &str, range: &str, node: &str, released_at: u64| {
            serde_json::from_value(serde_json::json!({
                "metadata": { "name": name, "uid": "u", "resourceVersion": "1" },
                "spec": { "pool": "p", "range": range, "node": node, "releasedAt": released_at },
            }))
            .unwrap()
        };
        let pool: PoolObject = serde_json::from_value(serde_json::json!({
            "metadata": { "name": "p" }, "spec": { "range": "10.0.0.0/28", "exclude": ["10.0.0.8/30"] },
        }))
        .unwrap();
        let mut snapshot = ClusterSnapshot::default();
        snapshot.blocks.extend([
            object("p.10.0.0.0-30", "10.0.0.0/30", "n1", 0),
            object("p.10.0.0.5-32", "10.0.0.5/32", "n2", 0),
            object("p.10.0.0.6-32", "10.0.0.6/32", "", now()),
            object("p.10.0.0.7-32", "10.0.0.7/32", "", 1),
        ]);
        let usage = PoolUsage::of(&snapshot, &pool);
        let page = page(&BTreeMap::from([("p".to_owned(), usage)]));
        for line in [
            "pool_size{pool=\"p\"} 10",
            "pool_used{pool=\"p\"} 1",
            "pool_free{pool=\"p\"} 8",
            "pool_quarantined{pool=\"p\"} 1",
            "pool_blocks{pool=\"p\",node=\"n1\"} 1",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}: {page}");
        }
    }

    #[test]
    fn pool_metrics_have_a_bounded_number_of_series() {
        let blocks: BTreeMap<String, u64> = (0..50).map(|node| (format!("n{node}"), 2)).collect();
        let usage = PoolUsage { size: 5, used: 1, quarantined: 0, blocks };
        let pools = (0..POOLS_MAX + 50).map(|pool| (format!("p{pool:03}"), usage.clone())).collect();
        let page = page(&pools);
        let count = |name: &str| page.lines().filter(|line| line.starts_with(name)).count();
        assert_eq!(count("pool_size{"), POOLS_MAX + 1);
        assert!(page.contains("pool_size{pool=\"other\"} 250"), "{page}");
        assert!(count("pool_blocks{") <= NODES_MAX + POOLS_MAX + 1);
    }
}
