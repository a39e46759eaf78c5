//! Address ranges: an address block minus the exceptions is a list of ranges.
//!
//! The ranges of a list do not overlap and do not touch, so that the kernel accepts them in one interval set.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Addresses of one family, from the first to the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AddressRange {
    /// First address.
    pub first: IpAddr,
    /// Last address.
    pub last: IpAddr,
}

// === impl AddressRange ===

impl AddressRange {
    /// Whether the address is in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4() && self.first <= address && address <= self.last
    }
}

impl From<IpNet> for AddressRange {
    fn from(network: IpNet) -> AddressRange {
        AddressRange { first: network.network(), last: network.broadcast() }
    }
}

/// Returns the addresses of a block that are in none of the exceptions, in ascending order.
///
/// Exceptions must be within the block; others have no effect.
pub fn subtract(block: IpNet, exceptions: &[IpNet]) -> Vec<AddressRange> {
    let whole = AddressRange::from(block);
    let mut excluded: Vec<AddressRange> = exceptions
        .iter()
        .filter(|exception| block.contains(*exception))
        .map(|exception| AddressRange::from(*exception))
        .collect();
    excluded.sort_unstable();
    let (mut ranges, mut next) = (Vec::new(), Some(whole.first));
    for gap in excluded {
        let Some(first) = next else { break };
        if gap.last < first {
            continue;
        }
        if let Some(last) = before(gap.first).filter(|last| *last >= first && gap.first > first) {
            ranges.push(AddressRange { first, last });
        }
        next = after(gap.last);
    }
    ranges.extend(
        next.filter(|first| *first <= whole.last).map(|first| AddressRange { first, last: whole.last }),
    );
    ranges
}

/// Returns the same addresses as ranges that neither overlap nor touch, in ascending order.
pub(super) fn merge(mut ranges: Vec<AddressRange>) -> Vec<AddressRange> {
    ranges.sort_unstable();
    let mut merged: Vec<AddressRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last)
                if last.first.is_ipv4() == range.first.is_ipv4()
                    && after(last.last).is_none_or(|next| range.first <= next) =>
            {
                last.last = last.last.max(range.last);
            }
            _ => merged.push(range),
        }
    }
    merged
}

/// Returns the next address of the family.
pub(super) fn after(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => u32::from(address).checked_add(1).map(|next| Ipv4Addr::from(next).into()),
        IpAddr::V6(address) => u128::from(address).checked_add(1).map(|next| Ipv6Addr::from(next).into()),
    }
}

/// Returns the previous address of the family.
fn before(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => u32::from(address).checked_sub(1).map(|next| Ipv4Addr::from(next).into()),
        IpAddr::V6(address) => u128::from(address).checked_sub(1).map(|next| Ipv6Addr::from(next).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(ranges: &[AddressRange]) -> Vec<String> {
        ranges.iter().map(|range| format!("{}-{}", range.first, range.last)).collect()
    }

    #[test]
    fn ip_block_except_leaves_the_addresses_around_it() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        for (block, exceptions, expected) in [
            ("10.0.0.0/30", vec![], vec!["10.0.0.0-10.0.0.3"]),
            ("10.0.0.0/29", vec!["10.0.0.2/31"], vec!["10.0.0.0-10.0.0.1", "10.0.0.4-10.0.0.7"]),
            ("10.0.0.0/30", vec!["10.0.0.0/31"], vec!["10.0.0.2-10.0.0.3"]),
            ("10.0.0.0/30", vec!["10.0.0.2/31"], vec!["10.0.0.0-10.0.0.1"]),
            ("10.0.0.0/30", vec!["10.0.0.0/30"], vec![]),
            ("10.0.0.0/30", vec!["10.0.0.0/30", "10.0.0.1/32"], vec![]),
            (
                "10.0.0.0/30",
                vec!["10.0.0.1/32", "10.0.0.2/32"],
                vec!["10.0.0.0-10.0.0.0", "10.0.0.3-10.0.0.3"],
            ),
            ("0.0.0.0/0", vec!["255.255.255.255/32"], vec!["0.0.0.0-255.255.255.254"]),
            ("0.0.0.0/0", vec!["0.0.0.0/32"], vec!["0.0.0.1-255.255.255.255"]),
            ("fd00::/126", vec!["fd00::1/128"], vec!["fd00::-fd00::", "fd00::2-fd00::3"]),
            ("10.0.0.0/30", vec!["11.0.0.0/32"], vec!["10.0.0.0-10.0.0.3"]),
        ] {
            let exceptions: Vec<IpNet> = exceptions.into_iter().map(net).collect();
            assert_eq!(text(&subtract(net(block), &exceptions)), expected, "{block} {exceptions:?}");
        }
    }

    #[test]
    fn ip_block_ranges_are_merged_where_they_touch() {
        let range = |first: &str, last: &str| AddressRange {
            first: first.parse().unwrap(),
            last: last.parse().unwrap(),
        };
        let merged = merge(vec![
            range("10.0.0.8", "10.0.0.9"),
            range("10.0.0.0", "10.0.0.3"),
            range("10.0.0.4", "10.0.0.5"),
            range("10.0.0.1", "10.0.0.2"),
            range("255.0.0.0", "255.255.255.255"),
            range("::", "::1"),
        ]);
        assert_eq!(
            text(&merged),
            ["10.0.0.0-10.0.0.5", "10.0.0.8-10.0.0.9", "255.0.0.0-255.255.255.255", "::-::1"]
        );
    }
}
