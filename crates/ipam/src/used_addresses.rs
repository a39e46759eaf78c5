//! Addresses in use, stored as runs of consecutive addresses: a full subnet is one run.
//!
//! A value is built once from the caller's list, which costs one sort, and then searched for the first gap.

use std::net::IpAddr;

use crate::number::{Family, number};

/// Addresses in use, in both families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsedAddresses {
    v4: Vec<(u128, u128)>,
    v6: Vec<(u128, u128)>,
}

impl UsedAddresses {
    /// Whether an address is in use.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let number = number(ip);
        self.first_free(Family::of(ip), number, number).is_none()
    }

    /// First number from `from` to `to`, both included, that is not in use.
    pub(crate) fn first_free(&self, family: Family, from: u128, to: u128) -> Option<u128> {
        let runs = self.runs(family);
        let at = runs.partition_point(|(_, last)| *last < from);
        let free = match runs.get(at) {
            Some((first, last)) if *first <= from => last.checked_add(1)?,
            _ => from,
        };
        (free <= to).then_some(free)
    }

    fn runs(&self, family: Family) -> &[(u128, u128)] {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }
}

impl FromIterator<IpAddr> for UsedAddresses {
    fn from_iter<T: IntoIterator<Item = IpAddr>>(addresses: T) -> UsedAddresses {
        let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = addresses.into_iter().partition(IpAddr::is_ipv4);
        UsedAddresses { v4: runs(v4), v6: runs(v6) }
    }
}

/// Joins consecutive addresses; no two runs in the result touch.
fn runs(addresses: Vec<IpAddr>) -> Vec<(u128, u128)> {
    let mut numbers: Vec<u128> = addresses.into_iter().map(number).collect();
    numbers.sort_unstable();
    let mut runs: Vec<(u128, u128)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if number <= last.saturating_add(1) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(addresses: &[&str]) -> UsedAddresses {
        addresses.iter().map(|text| text.parse::<IpAddr>().unwrap()).collect()
    }

    #[test]
    fn used_addresses_join_neighbours_within_one_family() {
        let used = used(&["10.0.0.3", "10.0.0.1", "::a00:2", "10.0.0.2", "10.0.0.2", "10.0.0.9"]);
        assert_eq!((used.v4.len(), used.v6.len()), (2, 1));
        for (ip, inside) in [("10.0.0.2", true), ("10.0.0.4", false), ("::a00:2", true), ("::a00:1", false)] {
            assert_eq!(used.contains(ip.parse().unwrap()), inside, "{ip}");
        }
    }

    #[test]
    fn used_addresses_end_at_the_last_ipv6_address() {
        let used =
            used(&["ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"]);
        assert_eq!(used.v6.len(), 1);
        assert_eq!(used.first_free(Family::V6, u128::MAX - 1, u128::MAX), None);
        assert_eq!(used.first_free(Family::V6, u128::MAX - 2, u128::MAX), Some(u128::MAX - 2));
    }
}
