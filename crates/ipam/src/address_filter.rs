//! Which addresses of a pool a network may have: a range of it, less what is excluded, less the gateway.
//!
//! Several networks may have filters on one pool: uniqueness is the pool's.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::number::number;
use crate::pool_layout::Grid;
use crate::range::Range;

/// The addresses of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// From first to last, never the gateway.
    pub range: Range,
    /// Never these.
    pub exclude: Vec<IpNet>,
}

impl Filter {
    /// May this address be given?
    pub fn admits(&self, ip: IpAddr) -> bool {
        self.range.contains(ip)
            && self.range.gateway() != Some(ip)
            && !self.exclude.iter().any(|net| net.contains(&ip))
    }

    /// The first address at or after this number that may be given.
    fn next(&self, from: u128) -> Option<u128> {
        let (first, last) = self.range.bounds();
        let mut at = from.max(first);
        while at <= last {
            let ip = self.range.family().address(at);
            if let Some(net) = self.exclude.iter().find(|net| net.contains(&ip)) {
                at = number(net.broadcast()).checked_add(1)?;
            } else if self.range.gateway() == Some(ip) {
                at = at.checked_add(1)?;
            } else {
                return Some(at);
            }
        }
        None
    }

    /// Is there no address at all?
    pub fn is_empty(&self) -> bool {
        self.next(0).is_none()
    }

    /// Is there an address for us in this block?
    pub fn meets(&self, block: IpNet) -> bool {
        self.next(number(block.network())).is_some_and(|ip| ip <= number(block.broadcast()))
    }

    /// The blocks with addresses for us, each once, beginning somewhere.
    pub fn blocks<'a>(&'a self, grid: &'a Grid, seed: u64) -> impl Iterator<Item = IpNet> + 'a {
        let (first, last) = self.range.bounds();
        let index = |number| grid.index_of(self.range.family().address(number));
        let span = index(first).zip(index(last));
        let (low, count) = span.map_or((0, 0), |(low, high)| (low, (high - low).saturating_add(1)));
        // As wide as an IPv6 range is; of 0 it is the first.
        let (near, far) = (spread(seed), spread(spread(seed)));
        let start = (u128::from(far) << 64 | u128::from(near)) % count.max(1);
        let parts = [(low + start, count - start), (low, start)];
        parts.into_iter().flat_map(move |(from, count)| self.blocks_from(grid, from, count))
    }

    /// The blocks with addresses for us among `count` from the one with this number on; what is excluded is stepped over at once.
    fn blocks_from<'a>(
        &'a self,
        grid: &'a Grid,
        from: u128,
        count: u128,
    ) -> impl Iterator<Item = IpNet> + 'a {
        let mut at = (count > 0).then_some(from);
        let last = from.saturating_add(count.saturating_sub(1));
        std::iter::from_fn(move || {
            let next = self.next(number(grid.block(at?)?.network()))?;
            let index = grid.index_of(self.range.family().address(next)).filter(|index| *index <= last)?;
            at = index.checked_add(1);
            grid.block(index)
        })
    }

    /// The addresses of a block that may be given, in order.
    pub fn addresses(&self, block: IpNet) -> impl Iterator<Item = IpAddr> {
        let last = number(block.broadcast());
        let mut at = Some(number(block.network()));
        std::iter::from_fn(move || {
            let found = self.next(at?).filter(|found| *found <= last)?;
            at = found.checked_add(1);
            Some(self.range.family().address(found))
        })
    }
}

/// Neighbouring seeds far apart, in every bit: the finalizer of SplitMix64.
fn spread(seed: u64) -> u64 {
    let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(subnet: &str, first: &str, last: &str, gateway: &str, exclude: &[&str]) -> Filter {
        let ip = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
        let range = Range::between(subnet.parse().unwrap(), ip(first), ip(last)).unwrap();
        let range = match ip(gateway) {
            Some(gateway) => range.with_gateway(gateway).unwrap(),
            None => range,
        };
        Filter { range, exclude: exclude.iter().map(|net| net.parse().unwrap()).collect() }
    }

    #[test]
    fn what_is_excluded_is_never_given() {
        let filter = filter(
            "10.0.0.0/28",
            "",
            "10.0.0.12",
            "10.0.0.1",
            &["10.0.0.4/30", "10.0.0.9/32", "10.0.0.12/32"],
        );
        let all: Vec<String> =
            filter.addresses("10.0.0.0/28".parse().unwrap()).map(|ip| ip.to_string()).collect();
        assert_eq!(all, ["10.0.0.2", "10.0.0.3", "10.0.0.8", "10.0.0.10", "10.0.0.11"]);
        for last in 0..16 {
            let ip = IpAddr::from([10, 0, 0, last]);
            assert_eq!(filter.admits(ip), all.contains(&ip.to_string()), "{ip}");
        }
        assert!(
            !filter.meets("10.0.0.4/30".parse().unwrap()) && filter.meets("10.0.0.8/30".parse().unwrap())
        );
    }

    #[test]
    fn excludes_may_swallow_everything() {
        assert!(filter("10.0.0.0/29", "", "", "", &["10.0.0.0/29"]).is_empty());
        assert!(filter("10.0.0.0/30", "", "", "10.0.0.1", &["10.0.0.2/32"]).is_empty());
        assert!(filter("::/0", "", "", "", &["::/1", "8000::/1"]).is_empty());
        assert!(!filter("fd00::/64", "", "", "", &["fd00::/65"]).is_empty());
    }

    #[test]
    fn blocks_are_those_with_addresses_each_once_from_anywhere() {
        let grid = Grid::new("10.0.0.0/24".parse().unwrap(), 4);
        let filter = filter("10.0.0.0/24", "10.0.0.20", "10.0.0.100", "", &["10.0.0.48/28"]);
        for seed in [0, 3, 99] {
            let mut blocks: Vec<String> = filter.blocks(&grid, seed).map(|net| net.to_string()).collect();
            blocks.sort();
            let expected = ["10.0.0.16/28", "10.0.0.32/28", "10.0.0.64/28", "10.0.0.80/28", "10.0.0.96/28"];
            assert_eq!(blocks, expected);
        }
        assert_eq!(self::filter("10.0.0.0/24", "", "", "", &["10.0.0.0/24"]).blocks(&grid, 7).count(), 0);
        let six = Grid::new("fd00::/64".parse().unwrap(), 8);
        let wide = self::filter("fd00::/64", "", "", "", &[]);
        assert!(wide.blocks(&six, u64::MAX).next().is_some());
    }

    #[test]
    fn a_block_is_found_behind_whatever_is_excluded_and_anywhere_in_a_large_range() {
        let six = Grid::new("fd00:6::/64".parse().unwrap(), 8);
        for exclude in
            [&["fd00:6::/65"][..], &["fd00:6::8000:0:0:0/65"], &["fd00:6::/66", "fd00:6::8000:0:0:0/65"]]
        {
            let filter = filter("fd00:6::/64", "", "", "", exclude);
            for seed in [0, 1, 99, u64::MAX] {
                let block = filter.blocks(&six, seed).next().unwrap();
                assert!(filter.meets(block), "{exclude:?}: {block}");
            }
        }
        let whole = Grid::new("fd00::/16".parse().unwrap(), 8);
        let wide = filter("fd00::/16", "", "", "", &[]);
        let first = |seed| wide.blocks(&whole, seed).next().unwrap().network().to_string();
        let high: std::collections::BTreeSet<String> =
            (1..9).map(|seed| first(seed)[..9].to_owned()).collect();
        assert!(high.len() > 4, "every node begins elsewhere, in the high bits, too: {high:?}");
    }
}
