//! What is in use, as runs of neighbouring addresses: a full subnet is one run.
//!
//! Made once from the caller's list (sorting it is all the work), then asked for the first gap.

use std::net::IpAddr;

use crate::number::{Family, number};

/// Addresses in use, of both families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    v4: Vec<(u128, u128)>,
    v6: Vec<(u128, u128)>,
}

impl Held {
    /// Is this address in use?
    pub fn contains(&self, ip: IpAddr) -> bool {
        let number = number(ip);
        self.first_free(Family::of(ip), number, number).is_none()
    }

    /// The first number from `from` to `to` that is not in use.
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

impl FromIterator<IpAddr> for Held {
    fn from_iter<T: IntoIterator<Item = IpAddr>>(addresses: T) -> Held {
        let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = addresses.into_iter().partition(IpAddr::is_ipv4);
        Held { v4: runs(v4), v6: runs(v6) }
    }
}

/// Neighbours joined; no two runs touch.
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

    fn held(addresses: &[&str]) -> Held {
        addresses.iter().map(|text| text.parse::<IpAddr>().unwrap()).collect()
    }

    #[test]
    fn neighbours_are_one_run_and_families_are_apart() {
        let held = held(&["10.0.0.3", "10.0.0.1", "::a00:2", "10.0.0.2", "10.0.0.2", "10.0.0.9"]);
        assert_eq!((held.v4.len(), held.v6.len()), (2, 1));
        for (ip, inside) in [("10.0.0.2", true), ("10.0.0.4", false), ("::a00:2", true), ("::a00:1", false)] {
            assert_eq!(held.contains(ip.parse().unwrap()), inside, "{ip}");
        }
    }

    #[test]
    fn the_last_address_of_all_has_no_successor() {
        let held =
            held(&["ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe"]);
        assert_eq!(held.v6.len(), 1);
        assert_eq!(held.first_free(Family::V6, u128::MAX - 1, u128::MAX), None);
        assert_eq!(held.first_free(Family::V6, u128::MAX - 2, u128::MAX), Some(u128::MAX - 2));
    }
}
