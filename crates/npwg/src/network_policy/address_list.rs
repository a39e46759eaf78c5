//! Lists of addresses, kept as ranges: the written form has `ADDRESS`, or `FIRST-LAST` for addresses that follow each other.
//!
//! - The memory size depends on the ranges, so a list with 65,536 consecutive addresses has one element.
//! - Equal addresses have equal lists.

use std::fmt;
use std::net::IpAddr;

use thiserror::Error;

use super::address_range::{AddressRange, after, merge};

/// Addresses in ascending order, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressList {
    ranges: Vec<AddressRange>,
    count: usize,
}

/// Error of a written list.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ListError {
    /// An element is neither an address nor a range of one family.
    #[error("\"{0}\": is not ADDRESS or FIRST-LAST")]
    Element(String),
    /// The list has too many addresses.
    #[error("has more than {0} addresses")]
    TooLong(usize),
}

// === impl AddressList ===

impl AddressList {
    /// Reads the elements of a list with at most `max` addresses.
    ///
    /// # Errors
    /// An element is invalid, or there are too many addresses.
    pub fn read<'a>(
        elements: impl IntoIterator<Item = &'a str>,
        max: usize,
    ) -> Result<AddressList, ListError> {
        let mut ranges = Vec::new();
        for element in elements {
            let (first, last) = element.split_once('-').unwrap_or((element, element));
            let parsed = first.parse::<IpAddr>().ok().zip(last.parse::<IpAddr>().ok());
            let (first, last) = parsed
                .filter(|(first, last)| first.is_ipv4() == last.is_ipv4() && first <= last)
                .ok_or_else(|| ListError::Element(element.chars().take(80).collect()))?;
            ranges.push(AddressRange { first, last });
        }
        let list = AddressList::from_ranges(ranges);
        if list.count > max { Err(ListError::TooLong(max)) } else { Ok(list) }
    }

    /// Returns the written form.
    pub fn elements(&self) -> impl Iterator<Item = String> {
        self.ranges.iter().map(ToString::to_string)
    }

    /// Returns the number of addresses.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no address.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether the list has this address.
    pub fn contains(&self, address: &IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(*address))
    }

    /// Returns each address.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> {
        self.ranges.iter().flat_map(|range| {
            std::iter::successors(Some(range.first), |address| after(*address))
                .take_while(|address| *address <= range.last)
        })
    }

    fn from_ranges(ranges: Vec<AddressRange>) -> AddressList {
        let ranges = merge(ranges);
        let count = ranges.iter().map(length).fold(0_usize, usize::saturating_add);
        AddressList { ranges, count }
    }
}

impl FromIterator<IpAddr> for AddressList {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> AddressList {
        AddressList::from_ranges(
            addresses.into_iter().map(|address| AddressRange { first: address, last: address }).collect(),
        )
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AddressRange { first, last } = self;
        if first == last { write!(f, "{first}") } else { write!(f, "{first}-{last}") }
    }
}

/// Returns the number of addresses in a range.
fn length(range: &AddressRange) -> usize {
    let difference = match (range.first, range.last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => u128::from(last.to_bits().saturating_sub(first.to_bits())),
        (IpAddr::V6(first), IpAddr::V6(last)) => last.to_bits().saturating_sub(first.to_bits()),
        _ => 0,
    };
    usize::try_from(difference).map_or(usize::MAX, |difference| difference.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_address_list_joins_addresses_that_follow_each_other() {
        for (addresses, elements) in [
            (vec![], vec![]),
            (vec!["10.0.0.1"], vec!["10.0.0.1"]),
            (
                vec!["10.0.0.2", "10.0.0.1", "10.0.0.9", "10.0.1.0"],
                vec!["10.0.0.1-10.0.0.2", "10.0.0.9", "10.0.1.0"],
            ),
            (
                vec!["255.255.255.255", "::", "fd00::1", "fd00::2", "fd00::3"],
                vec!["255.255.255.255", "::", "fd00::1-fd00::3"],
            ),
        ] {
            let mut addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
            let list: AddressList = addresses.iter().copied().collect();
            assert_eq!(list.elements().collect::<Vec<_>>(), elements);
            assert_eq!(AddressList::read(elements, 5).as_ref(), Ok(&list));
            addresses.sort_unstable();
            assert_eq!((list.iter().collect::<Vec<_>>(), list.len()), (addresses.clone(), addresses.len()));
        }
    }

    #[test]
    fn policy_address_list_from_elsewhere_is_bounded_and_validated() {
        for element in ["", "-", "x", "10.0.0.2-10.0.0.1", "10.0.0.1-fd00::1", "10.0.0.0/24", "10.0.0.1-"] {
            assert_eq!(AddressList::read([element], 5), Err(ListError::Element(element.to_owned())));
        }
        let all = ["::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "0.0.0.0-255.255.255.255"];
        for elements in
            [vec!["10.0.0.1-10.0.0.6"], vec!["::-ffff::"], vec!["10.0.0.1-10.0.0.4", "::-::1"], all.to_vec()]
        {
            assert_eq!(AddressList::read(elements, 5), Err(ListError::TooLong(5)));
        }
        let twice = ["10.0.0.1-10.0.0.5", "10.0.0.1-10.0.0.5"];
        assert_eq!(AddressList::read(twice, 5).map(|all| all.len()), Ok(5), "an address counts once");
    }
}
