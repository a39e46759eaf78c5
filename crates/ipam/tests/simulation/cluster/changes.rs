//! Changes of the network: its range, its window, the number of nodes, drained nodes, and imported addresses.
//!
//! The layout of the pool is changed as the agents do it: pending, list of the leases, fixed. Each request has faults, and
//! an interrupted change is continued by the next one.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipam::pool_layout::{address_count, nth};
use ipam::registry::{PoolState, create_object};
use ipam::{AddressFilter, Holder, IpBlock, PoolLayout, Range, Registry};
use ipnet::IpNet;

use super::super::api_server::{Api, Task, block_on};
use super::{Cluster, poll};

/// Number of addresses of the largest range.
const RANGE_MAX: u128 = 128;
/// Number of addresses from which a range without blocks gets blocks.
const BLOCKS_MIN: u128 = 64;

impl Cluster {
    /// Changes something, sometimes.
    pub(super) fn random_change(&mut self, node: usize) {
        match self.random.below(6_000) {
            0 if self.operator.is_none() => {
                let layout = self.enlarged();
                self.counts.enlarged += u64::from(layout != self.layout);
                self.operator = Some(change_layout(self.api.clone(), layout));
            }
            1..20 => self.change_window(),
            20..24 => self.present = (self.present + 1).min(self.nodes.len()),
            24..34 => self.nodes[node].is_drained = !self.nodes[node].is_drained,
            34..60 if self.shape.claims > 0 && self.operator.is_none() => {
                let claim = format!("i{}", self.random.below(self.shape.claims));
                let host = self.random.below(u64::MAX);
                let ip = nth(self.layout.subnet(), u128::from(host) % address_count(self.layout.subnet()));
                if self.filter.admits(ip) {
                    let api = self.api.with_layout(self.layout);
                    self.operator = Some(import(api, ip.into(), self.layout, claim));
                }
            }
            _ => {}
        }
    }

    /// Uses the layout that was fixed last.
    pub(super) fn read_layout(&mut self) {
        let fixed = self.api.server.lock().unwrap().layout;
        if let Some(layout) = fixed.filter(|layout| *layout != self.layout) {
            self.layout = layout;
            self.set_whole_window();
        }
    }

    /// Ends a change of the layout. The server must have no faults.
    pub(super) fn end_change(&mut self) {
        while self.operator.is_some() {
            poll(&mut self.operator);
        }
        if self.api.server.lock().unwrap().layout.is_none() {
            let layout = self.enlarged();
            block_on(change_layout(self.api.clone(), layout));
        }
        self.read_layout();
    }

    /// The network may allocate its whole range.
    pub(super) fn set_whole_window(&mut self) {
        let range = Range::between(self.layout.subnet(), None, None).unwrap();
        self.filter = Arc::new(AddressFilter::new(range, &[]));
    }

    /// Layout with twice as many addresses. A pool without blocks may get blocks.
    fn enlarged(&self) -> PoolLayout {
        let subnet = self.layout.subnet();
        let larger = subnet.supernet().filter(|larger| address_count(*larger) <= RANGE_MAX).unwrap_or(subnet);
        let bits =
            if address_count(larger) >= BLOCKS_MIN { self.layout.bits().max(2) } else { self.layout.bits() };
        PoolLayout::new(larger, bits)
    }

    /// The definition gets other bounds and exclusions: a few addresses, or most of them.
    fn change_window(&mut self) {
        let subnet = self.layout.subnet();
        let size = address_count(subnet) as u64;
        let first = self.random.below(size / 2);
        let last = first + 2 + self.random.below(size - first - 2);
        let (first, last) = (nth(subnet, first.into()), nth(subnet, last.into()));
        let exclude: Vec<IpNet> = (0..self.random.below(3))
            .map(|_| IpNet::from(nth(subnet, self.random.below(size).into())))
            .collect();
        let range = Range::between(subnet, Some(first), Some(last));
        let filter = range.ok().map(|range| AddressFilter::new(range, &exclude));
        match filter.filter(|filter| !filter.is_empty()) {
            Some(filter) if !self.random.once_in(3) => self.filter = Arc::new(filter),
            _ => self.set_whole_window(),
        }
    }
}

/// Changes the layout of the pool. If it ends early, the pool stays pending.
fn change_layout(api: Api, layout: PoolLayout) -> Task<()> {
    Box::pin(async move {
        if api.begin_change().await.is_err() {
            return;
        }
        let Ok(all) = api.list().await else { return };
        let fits = |object: &IpBlock| {
            object.is_single_address() || layout.block_of(object.net.addr()) == Some(object.net)
        };
        assert!(all.iter().all(fits), "{layout:?}: {all:?}");
        let singles: BTreeSet<IpNet> =
            all.iter().filter(|object| object.is_single_address()).map(|object| object.net).collect();
        let _ = api.fix_layout(layout, singles).await;
    })
}

/// Creates the object that keeps an address for a claim, unless a node has leased the block around it.
fn import(api: Api, net: IpNet, layout: PoolLayout, claim: String) -> Task<()> {
    Box::pin(async move {
        let holder = Holder { claim, ..Holder::default() };
        let Ok(object) = create_object(&api, net, &holder).await else { return };
        let is_leased = match layout.block_of(net.addr()).filter(|block| *block != net) {
            Some(block) => !matches!(api.read(block).await, Ok(None)),
            None => false,
        };
        if is_leased || !matches!(api.pool_state(net).await, Ok(PoolState::SingleAddressesPossible)) {
            let _ = api.delete(&object).await;
        }
    })
}
