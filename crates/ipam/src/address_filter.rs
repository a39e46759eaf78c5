//! Address filter: the pool addresses that one network may allocate.
//!
//! A filter is a range in the pool minus the gateway and the excluded networks. Several networks may have filters on
//! one pool; addresses are unique in the pool.
//!
//! - A subnet's network address and an IPv4 subnet's broadcast address are never admitted, even if the range
//!   names them. In IPv6 the network address is the anycast address that all routers in the subnet share (RFC
//!   4291, 2.6.1). A subnet with one or two addresses has neither (RFC 3021, RFC 6164).
//! - Excluded networks are sorted and disjoint, so that a lookup takes logarithmic time.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::address_span::AddressSpan;
use crate::number::number;
use crate::pool_layout::PoolLayout;
use crate::range::{Range, RangeError, hosts};

/// Addresses that a network may allocate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "FilterFields", into = "FilterFields")]
pub struct AddressFilter {
    /// Range and the gateway, which is never allocated.
    pub range: Range,
    /// Networks that are never allocated from, sorted and disjoint.
    exclude: Vec<IpNet>,
}

/// JSON form; reading it checks the range.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FilterFields {
    subnet: IpNet,
    first: IpAddr,
    last: IpAddr,
    gateway: Option<IpAddr>,
    exclude: Vec<IpNet>,
}

impl TryFrom<FilterFields> for AddressFilter {
    type Error = RangeError;

    fn try_from(fields: FilterFields) -> Result<AddressFilter, RangeError> {
        let FilterFields { subnet, first, last, gateway, exclude } = fields;
        let range = Range::of_any_size(subnet, Some(first), Some(last))?;
        let range = match gateway {
            Some(gateway) => range.with_gateway(gateway)?,
            None => range,
        };
        Ok(AddressFilter::new(range, &exclude))
    }
}

impl From<AddressFilter> for FilterFields {
    fn from(AddressFilter { range, exclude }: AddressFilter) -> FilterFields {
        let (subnet, gateway) = (range.subnet(), range.gateway());
        FilterFields { subnet, first: range.first(), last: range.last(), gateway, exclude }
    }
}

impl AddressFilter {
    /// Returns a filter for a range without some networks.
    pub fn new(range: Range, exclude: &[IpNet]) -> AddressFilter {
        AddressFilter { range, exclude: IpNet::aggregate(&exclude.to_vec()) }
    }

    /// Returns the filter without some more networks.
    #[must_use]
    pub fn without(&self, exclude: &[IpNet]) -> AddressFilter {
        AddressFilter::new(self.range.clone(), &[&self.exclude[..], exclude].concat())
    }

    /// Whether the network may allocate an address.
    pub fn admits(&self, ip: IpAddr) -> bool {
        let (first, last) = self.bounds();
        let is_inside = (first..=last).contains(&number(ip)) && self.range.contains(ip);
        is_inside && self.range.gateway() != Some(ip) && self.excluding(ip).is_none()
    }

    /// Returns the first and last host address in the range, as numbers.
    fn bounds(&self) -> (u128, u128) {
        let (first, last) = self.range.bounds();
        let (lowest, highest) = hosts(self.range.subnet());
        (first.max(lowest), last.min(highest))
    }

    /// Excluded network that contains an address.
    fn excluding(&self, ip: IpAddr) -> Option<&IpNet> {
        // IPv4 networks come before IPv6 networks.
        let index = self.exclude.partition_point(|net| net.broadcast() < ip);
        self.exclude.get(index).filter(|net| net.contains(&ip))
    }

    /// First admitted address with this number or a higher one.
    fn next(&self, from: u128) -> Option<u128> {
        let (first, last) = self.bounds();
        let mut at = from.max(first);
        while at <= last {
            let ip = self.range.family().address(at);
            if let Some(net) = self.excluding(ip) {
                at = number(net.broadcast()).checked_add(1)?;
            } else if self.range.gateway() == Some(ip) {
                at = at.checked_add(1)?;
            } else {
                return Some(at);
            }
        }
        None
    }

    /// Whether the filter admits no address.
    pub fn is_empty(&self) -> bool {
        self.next(0).is_none()
    }

    /// Returns how many addresses are admitted, at most `u128::MAX`.
    pub fn count(&self) -> u128 {
        self.count_between(self.bounds())
    }

    /// Number of admitted addresses in a block, at most `u128::MAX`.
    pub fn count_in(&self, block: IpNet) -> u128 {
        if block.addr().is_ipv4() != self.range.subnet().addr().is_ipv4() {
            return 0;
        }
        let (first, last) = self.bounds();
        self.count_between((first.max(number(block.network())), last.min(number(block.broadcast()))))
    }

    /// Number of admitted addresses between two numbers, which are within the bounds.
    fn count_between(&self, (first, last): (u128, u128)) -> u128 {
        let within = |from: u128, to: u128| match (from.max(first), to.min(last)) {
            (from, to) if from <= to => (to - from).saturating_add(1),
            _ => 0,
        };
        let family = |net: &&IpNet| net.addr().is_ipv4() == self.range.subnet().addr().is_ipv4();
        let excluded = self.exclude.iter().filter(family);
        let excluded: u128 = excluded.map(|net| within(number(net.network()), number(net.broadcast()))).sum();
        let gateway = self.range.gateway().filter(|ip| self.excluding(*ip).is_none());
        let gateway = gateway.map_or(0, |ip| within(number(ip), number(ip)));
        within(first, last).saturating_sub(excluded).saturating_sub(gateway)
    }

    /// Whether the filter admits an address in a block.
    pub fn overlaps(&self, block: IpNet) -> bool {
        self.next(number(block.network())).is_some_and(|ip| ip <= number(block.broadcast()))
    }

    /// Iterates over the blocks with admitted addresses, each once, from a place that `seed` determines.
    pub fn blocks<'a>(&'a self, layout: &'a PoolLayout, seed: u64) -> impl Iterator<Item = IpNet> + 'a {
        let (first, last) = self.bounds();
        let index = |number| layout.index_of(self.range.family().address(number));
        let span = index(first).zip(index(last));
        let (low, count) = span.map_or((0, 0), |(low, high)| (low, (high - low).saturating_add(1)));
        // 128 bits, because an IPv6 range may be that wide. Seed 0 starts at the first block.
        let (near, far) = (mix(seed), mix(mix(seed)));
        let start = (u128::from(far) << 64 | u128::from(near)) % count.max(1);
        let parts = [(low + start, count - start), (low, start)];
        parts.into_iter().flat_map(move |(from, count)| self.blocks_from(layout, from, count))
    }

    /// Iterates over the blocks with admitted addresses among `count` blocks from index `from`. An excluded network is
    /// skipped in one step.
    fn blocks_from<'a>(
        &'a self,
        layout: &'a PoolLayout,
        from: u128,
        count: u128,
    ) -> impl Iterator<Item = IpNet> + 'a {
        let mut at = (count > 0).then_some(from);
        let last = from.saturating_add(count.saturating_sub(1));
        std::iter::from_fn(move || {
            let next = self.next(number(layout.block(at?)?.network()))?;
            let index = layout.index_of(self.range.family().address(next)).filter(|index| *index <= last)?;
            at = index.checked_add(1);
            layout.block(index)
        })
    }

    /// Returns the spans of admitted addresses; if there are more than `most`, one from the first to the last
    /// address.
    pub fn spans(&self, most: usize) -> Vec<AddressSpan> {
        let family = self.range.family();
        let (mut spans, mut at) = (Vec::new(), self.next(0));
        while let Some(first) = at {
            // The next address that is not admitted: the gateway, an excluded network or the end.
            let excluded = self.exclude.iter().map(|net| number(net.network())).filter(|from| *from > first);
            let gateway = self.range.gateway().map(number).filter(|gateway| *gateway > first);
            let bound = excluded.chain(gateway).min().map_or(u128::MAX, |bound| bound - 1);
            let last = bound.min(self.bounds().1);
            spans.push(AddressSpan { first: family.address(first), last: family.address(last) });
            if spans.len() > most {
                let whole = AddressSpan { first: spans[0].first, last: family.address(self.bounds().1) };
                return vec![whole];
            }
            at = last.checked_add(1).and_then(|from| self.next(from));
        }
        spans
    }

    /// Iterates over the admitted addresses in a block in order.
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

/// Spreads neighbouring seeds over all 64 bits. Source: SplitMix64's finalizer.
pub(crate) fn mix(seed: u64) -> u64 {
    let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(subnet: &str, first: &str, last: &str, gateway: &str, exclude: &[&str]) -> AddressFilter {
        let ip = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
        let range = Range::between(subnet.parse().unwrap(), ip(first), ip(last)).unwrap();
        let range = match ip(gateway) {
            Some(gateway) => range.with_gateway(gateway).unwrap(),
            None => range,
        };
        let exclude: Vec<IpNet> = exclude.iter().map(|net| net.parse().unwrap()).collect();
        AddressFilter::new(range, &exclude)
    }

    #[test]
    fn address_filter_spans_have_exactly_the_admitted_addresses() {
        for (subnet, first, last, gateway, exclude, expected) in [
            ("10.0.0.0/29", "", "", "", &[][..], "10.0.0.1-10.0.0.6"),
            ("10.0.0.0/28", "10.0.0.2", "10.0.0.9", "10.0.0.5", &[], "10.0.0.2-10.0.0.4 10.0.0.6-10.0.0.9"),
            (
                "10.0.0.0/28",
                "",
                "",
                "10.0.0.1",
                &["10.0.0.4/30", "10.0.0.8/32"],
                "10.0.0.2-10.0.0.3 10.0.0.9-10.0.0.14",
            ),
            ("fd00::/64", "", "", "fd00::1", &[], "fd00::2-fd00::ffff:ffff:ffff:ffff"),
            (
                "10.0.0.0/28",
                "",
                "",
                "",
                &["10.0.0.2/32", "10.0.0.4/32", "10.0.0.6/32", "10.0.0.8/32"],
                "10.0.0.1-10.0.0.14",
            ),
        ] {
            let filter = filter(subnet, first, last, gateway, exclude);
            let spans: Vec<String> = filter.spans(4).iter().map(ToString::to_string).collect();
            assert_eq!(spans.join(" "), expected, "{subnet} {exclude:?}");
        }
    }

    #[test]
    fn address_filter_never_admits_excluded_addresses() {
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
        assert_eq!(filter.count(), 5);
        assert!(
            !filter.overlaps("10.0.0.4/30".parse().unwrap())
                && filter.overlaps("10.0.0.8/30".parse().unwrap())
        );
    }

    #[test]
    fn address_filter_never_admits_network_and_broadcast_address() {
        let all = |filter: &AddressFilter, block: &str| -> Vec<String> {
            filter.addresses(block.parse().unwrap()).map(|ip| ip.to_string()).collect()
        };
        let whole = filter("10.0.0.0/30", "10.0.0.0", "10.0.0.3", "", &[]);
        assert_eq!(all(&whole, "10.0.0.0/30"), ["10.0.0.1", "10.0.0.2"]);
        assert!(filter("10.0.0.0/24", "10.0.0.0", "10.0.0.0", "", &[]).is_empty());
        assert!(filter("10.0.0.0/24", "10.0.0.255", "10.0.0.255", "", &[]).is_empty());
        let six = filter("fd00::/126", "fd00::", "fd00::3", "", &[]);
        assert_eq!(all(&six, "fd00::/126"), ["fd00::1", "fd00::2", "fd00::3"]);
        for (filter, ip) in [(&whole, "10.0.0.0"), (&whole, "10.0.0.3"), (&six, "fd00::"), (&six, "10.0.0.1")]
        {
            assert!(!filter.admits(ip.parse().unwrap()), "{ip}");
        }
        assert_eq!(whole.blocks(&PoolLayout::new("10.0.0.0/30".parse().unwrap(), 2), 1).count(), 1);
    }

    #[test]
    fn address_filter_admits_every_address_of_a_tiny_subnet() {
        for (subnet, count) in
            [("10.0.0.7/32", 1), ("10.0.0.6/31", 2), ("fd00::7/128", 1), ("fd00::6/127", 2)]
        {
            let net: IpNet = subnet.parse().unwrap();
            let filter = AddressFilter::new(Range::of_any_size(net, None, None).unwrap(), &[]);
            assert_eq!((filter.count(), filter.addresses(net).count()), (count, count as usize), "{subnet}");
            assert!(filter.admits(net.network()) && filter.admits(net.broadcast()));
            for bits in [0, 8] {
                let layout = PoolLayout::new(net, bits);
                let blocks: u128 = filter.blocks(&layout, 1).map(crate::pool_layout::address_count).sum();
                assert_eq!(blocks, count, "{subnet}");
            }
            let text = serde_json::to_string(&filter).unwrap();
            assert_eq!(serde_json::from_str::<AddressFilter>(&text).unwrap(), filter);
        }
    }

    #[test]
    fn address_filter_looks_up_many_exclusions_in_any_order() {
        let mut exclude: Vec<IpNet> = (0..=255u8)
            .flat_map(|high| (0..=255u8).step_by(2).map(move |low| IpAddr::from([10, 1, high, low]).into()))
            .collect();
        exclude.reverse();
        exclude.push("fd00::/64".parse().unwrap());
        let range = Range::between("10.1.0.0/16".parse().unwrap(), None, None).unwrap();
        let filter = AddressFilter::new(range, &exclude);
        let all: Vec<IpAddr> = filter.addresses("10.1.0.0/16".parse().unwrap()).collect();
        assert_eq!((all.len(), filter.count()), (32_767, 32_767));
        assert!(all.iter().all(|ip| filter.admits(*ip)) && !filter.admits(IpAddr::from([10, 1, 9, 8])));
    }

    #[test]
    fn address_filter_may_exclude_everything() {
        assert!(filter("10.0.0.0/29", "", "", "", &["10.0.0.0/29"]).is_empty());
        assert!(filter("10.0.0.0/30", "", "", "10.0.0.1", &["10.0.0.2/32"]).is_empty());
        assert!(filter("::/0", "", "", "", &["::/1", "8000::/1"]).is_empty());
        assert!(!filter("fd00::/64", "", "", "", &["fd00::/65"]).is_empty());
        let halves = filter("::/0", "", "", "", &["::/1", "8000::/1"]);
        assert_eq!(
            (halves.count(), filter("10.0.0.0/30", "", "", "10.0.0.1", &["10.0.0.2/32"]).count()),
            (0, 0)
        );
        assert_eq!(filter("10.0.0.0/24", "10.0.0.0", "10.0.0.0", "", &[]).count(), 0);
    }

    #[test]
    fn address_filter_yields_each_block_once_from_any_seed() {
        let layout = PoolLayout::new("10.0.0.0/24".parse().unwrap(), 4);
        let filter = filter("10.0.0.0/24", "10.0.0.20", "10.0.0.100", "", &["10.0.0.48/28"]);
        for seed in [0, 3, 99] {
            let mut blocks: Vec<String> = filter.blocks(&layout, seed).map(|net| net.to_string()).collect();
            blocks.sort();
            let expected = ["10.0.0.16/28", "10.0.0.32/28", "10.0.0.64/28", "10.0.0.80/28", "10.0.0.96/28"];
            assert_eq!(blocks, expected);
        }
        assert_eq!(self::filter("10.0.0.0/24", "", "", "", &["10.0.0.0/24"]).blocks(&layout, 7).count(), 0);
        let six = PoolLayout::new("fd00::/64".parse().unwrap(), 8);
        let wide = self::filter("fd00::/64", "", "", "", &[]);
        assert!(wide.blocks(&six, u64::MAX).next().is_some());
    }

    #[test]
    fn address_filter_finds_blocks_behind_large_exclusions() {
        let six = PoolLayout::new("fd00:6::/64".parse().unwrap(), 8);
        for exclude in
            [&["fd00:6::/65"][..], &["fd00:6::8000:0:0:0/65"], &["fd00:6::/66", "fd00:6::8000:0:0:0/65"]]
        {
            let filter = filter("fd00:6::/64", "", "", "", exclude);
            for seed in [0, 1, 99, u64::MAX] {
                let block = filter.blocks(&six, seed).next().unwrap();
                assert!(filter.overlaps(block), "{exclude:?}: {block}");
            }
        }
        let whole = PoolLayout::new("fd00::/16".parse().unwrap(), 8);
        let wide = filter("fd00::/16", "", "", "", &[]);
        let first = |seed| wide.blocks(&whole, seed).next().unwrap().network().to_string();
        let high: std::collections::BTreeSet<String> =
            (1..9).map(|seed| first(seed)[..9].to_owned()).collect();
        assert!(high.len() > 4, "seeds differ in the high bits, too: {high:?}");
    }

    #[test]
    fn address_filter_json_is_checked_when_it_is_read() {
        let filter = filter("10.0.0.0/24", "10.0.0.9", "10.0.0.20", "10.0.0.1", &["10.0.0.12/31"]);
        let json = serde_json::to_value(&filter).unwrap();
        let expected = serde_json::json!({
            "subnet": "10.0.0.0/24", "first": "10.0.0.9", "last": "10.0.0.20", "gateway": "10.0.0.1",
            "exclude": ["10.0.0.12/31"],
        });
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<AddressFilter>(json.clone()).unwrap(), filter);
        let illegal = [
            ("subnet", "10.0.0.1/24", "has host bits set"),
            ("first", "10.0.1.1", "not in subnet"),
            ("last", "10.0.0.8", "before the first address"),
            ("gateway", "fd00::1", "not of the address family"),
        ];
        for (field, value, reason) in illegal {
            let mut json = json.clone();
            json[field] = value.into();
            let error = serde_json::from_value::<AddressFilter>(json).unwrap_err().to_string();
            assert!(error.contains(value) && error.contains(reason), "{error}");
        }
    }
}
