//! Invariants of allocated addresses: one owner, the named address, the quarantine.

use std::net::IpAddr;

use ipam::AllocationKind;
use ipnet::IpNet;

use super::{Cluster, Owner, QUARANTINE};

impl Cluster {
    /// Records that an owner got an address, and checks that it may have it.
    pub(super) fn record_allocation(
        &mut self,
        index: usize,
        owner: &Owner,
        kind: AllocationKind,
        ip: IpAddr,
    ) {
        let seed = self.seed;
        self.counts.allocated += 1;
        let before = self.nodes[index].pods.insert(owner.clone(), Some(ip)).flatten();
        assert!(
            before.is_none_or(|known| known == ip),
            "seed {seed}: {owner:?} had {before:?} and is allocated {ip}"
        );
        // An address that was allocated before the window changed stays.
        assert!(self.shape.changes || self.filter.admits(ip), "seed {seed}: {ip} is not in the range");
        self.counts.imported += u64::from(owner.claim.starts_with('i'));
        {
            let mut server = self.api.server.lock().unwrap();
            server.shown.insert(ip);
            // An earlier, killed call of this pod leased it without a quarantine.
            if server.leased_in_quarantine.get(&IpNet::from(ip)) == Some(&owner.name) {
                self.released.remove(&ip);
            }
        }
        let holders = self.holders.entry(ip).or_default();
        holders.insert((index, owner.clone()));
        for (node, other) in holders.iter() {
            let shares = self.shape.shared && !owner.claim.is_empty() && owner.claim == other.claim;
            assert!(
                shares || (*node, other) == (index, owner),
                "seed {seed}, step {}: {ip} is held by {other:?} on n{node} and is allocated to {owner:?} on n{index}",
                self.steps
            );
        }
        if let AllocationKind::Address(named) | AllocationKind::AddressForClaim(named) = kind {
            assert_eq!(ip, named, "seed {seed}");
        }
        assert!(owner.restored.is_none_or(|known| known == ip), "seed {seed}: {owner:?} is allocated {ip}");
        self.since.entry((index, owner.clone())).or_insert(self.now);
        if let Some((released_at, end, last)) = self.released.remove(&ip)
            && kind == AllocationKind::Any
            && last != *owner
        {
            let now = self.now;
            assert!(now >= end, "seed {seed}: {ip} was released at {released_at} and is allocated at {now}");
        }
    }

    /// Records that an owner has no address from now on.
    pub(super) fn forget(&mut self, index: usize, owner: &Owner) {
        let since = self.since.remove(&(index, owner.clone()));
        if let Some(address) = self.nodes[index].pods.get_mut(owner)
            && let Some(ip) = address.take()
        {
            self.remove_holder(ip, index, owner);
            let is_deleted = self.deleted.iter().any(|net| net.contains(&ip));
            if is_deleted || self.nodes.iter().any(|node| node.clock_moved) {
                self.released.remove(&ip);
            } else {
                let held = since.map_or(0, |since| self.now - since);
                self.released.insert(ip, (self.now, self.now + QUARANTINE.min(held), owner.clone()));
            }
        }
        if !owner.claim.is_empty() {
            self.api.server.lock().unwrap().deleted_pods.insert(owner.name.clone());
        }
    }

    fn remove_holder(&mut self, ip: IpAddr, index: usize, owner: &Owner) {
        let holders = self.holders.entry(ip).or_default();
        holders.remove(&(index, owner.clone()));
        if holders.is_empty() {
            self.holders.remove(&ip);
            self.api.server.lock().unwrap().shown.remove(&ip);
        }
    }
}
