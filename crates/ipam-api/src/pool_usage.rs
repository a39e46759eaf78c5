//! Pool usage: how many allocatable addresses are used, in quarantine and free.
//!
//! - A subnet's network address, the broadcast address and the pool's exclusions never count.
//! - `used` are the addresses that pods show, nodes lease as single addresses, or claims keep.
//! - Addresses in quarantine are counted only if the cluster knows them, that is, released single addresses. Only the
//!   leasing node knows those inside a block.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipam::IpBlock;

use crate::clock::now;
use crate::cluster_snapshot::ClusterSnapshot;
use crate::ip_objects::PoolObject;

/// Quarantine for a network that does not set one, in milliseconds.
const QUARANTINE: u64 = 60_000;

/// Usage of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Number of addresses that can be allocated. A range of IPv6 can have more than 2^64.
    pub size: u128,
    /// Number of used addresses.
    pub used: u64,
    /// Number of addresses that are known to be in quarantine.
    pub quarantined: u64,
    /// Number of leased blocks by node.
    pub blocks: BTreeMap<String, u64>,
}

impl PoolUsage {
    /// Counts how a pool is used.
    pub fn of(snapshot: &ClusterSnapshot, pool: &PoolObject) -> PoolUsage {
        let name = pool.metadata.name.as_deref().unwrap_or_default();
        let mut usage = PoolUsage { size: size(pool), ..PoolUsage::default() };
        let mut used: BTreeSet<IpAddr> = snapshot.used_of(name).clone();
        let now = now();
        for object in snapshot.objects_of(name) {
            if !object.is_single_address() {
                *usage.blocks.entry(object.holder.node).or_default() += 1;
            } else if object.is_in_use() {
                used.insert(object.net.addr());
            } else if is_in_quarantine(&object, now) {
                usage.quarantined += 1;
            }
        }
        usage.blocks.remove("");
        usage.used = used.len() as u64;
        usage
    }

    /// Returns how many addresses are neither used nor in quarantine.
    pub fn free(&self) -> u128 {
        self.size.saturating_sub(u128::from(self.used)).saturating_sub(u128::from(self.quarantined))
    }
}

/// Returns how many addresses the pool can allocate; 0 if the spec is invalid.
fn size(pool: &PoolObject) -> u128 {
    pool.address_filter().map_or(0, |filter| filter.count())
}

fn is_in_quarantine(object: &IpBlock, now: u64) -> bool {
    object.holder.released_at > 0 && object.holder.released_at.saturating_add(QUARANTINE) > now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_usage_counts_more_than_64_bits() {
        let pool = serde_json::json!({ "metadata": { "name": "lan" }, "spec": { "range": "fd00:1::/56" } });
        let pool: PoolObject = serde_json::from_value(pool).unwrap();
        let usage = PoolUsage { used: 9, ..PoolUsage::of(&ClusterSnapshot::default(), &pool) };
        assert_eq!(usage.free(), usage.size - 9);
        assert!(usage.free() > 1 << 71, "{}", usage.free());
        // More used than there are: never below 0.
        assert_eq!(PoolUsage { size: 3, used: 9, ..PoolUsage::default() }.free(), 0);
    }
}
