//! List of addresses in a PolicyAddressSet: `ADDRESS`, or `FIRST-LAST` for addresses that follow each other.

use std::collections::BTreeSet;
use std::net::IpAddr;

use thiserror::Error;

/// Error of a list.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ListError {
    /// An element is neither an address nor a range of one family.
    #[error("\"{0}\": is not ADDRESS or FIRST-LAST")]
    Element(String),
    /// The list has too many addresses.
    #[error("has more than {0} addresses")]
    TooLong(usize),
}

/// Returns the elements for addresses, in ascending order.
pub fn write(addresses: &BTreeSet<IpAddr>) -> Vec<String> {
    let mut elements = Vec::new();
    let mut all = addresses.iter().copied().peekable();
    while let Some(first) = all.next() {
        let mut last = first;
        while let Some(next) = all.next_if(|next| after(last) == Some(*next)) {
            last = next;
        }
        elements.push(if first == last { first.to_string() } else { format!("{first}-{last}") });
    }
    elements
}

/// Returns the addresses of elements, at most `max`.
///
/// # Errors
/// An element is invalid, or there are too many addresses.
pub fn read<'a>(
    elements: impl IntoIterator<Item = &'a str>,
    max: usize,
) -> Result<BTreeSet<IpAddr>, ListError> {
    let mut addresses = BTreeSet::new();
    for element in elements {
        let (first, last) = element.split_once('-').unwrap_or((element, element));
        let parsed = first.parse::<IpAddr>().ok().zip(last.parse::<IpAddr>().ok());
        let (first, last) = parsed
            .filter(|(first, last)| first.is_ipv4() == last.is_ipv4() && first <= last)
            .ok_or_else(|| ListError::Element(element.chars().take(80).collect()))?;
        let mut next = Some(first);
        while let Some(address) = next.filter(|address| *address <= last) {
            if addresses.len() >= max && !addresses.contains(&address) {
                return Err(ListError::TooLong(max));
            }
            addresses.insert(address);
            next = after(address);
        }
    }
    Ok(addresses)
}

/// Returns the next address of the family.
fn after(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => address.to_bits().checked_add(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(address) => address.to_bits().checked_add(1).map(|bits| IpAddr::V6(bits.into())),
    }
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
            let addresses: BTreeSet<IpAddr> = addresses.iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(write(&addresses), elements);
            assert_eq!(read(elements, 5), Ok(addresses));
        }
    }

    #[test]
    fn policy_address_list_from_elsewhere_is_bounded_and_validated() {
        for element in ["", "-", "x", "10.0.0.2-10.0.0.1", "10.0.0.1-fd00::1", "10.0.0.0/24", "10.0.0.1-"] {
            assert_eq!(read([element], 5), Err(ListError::Element(element.to_owned())));
        }
        for elements in [vec!["10.0.0.1-10.0.0.6"], vec!["::-ffff::"], vec!["10.0.0.1-10.0.0.4", "::-::1"]] {
            assert_eq!(read(elements, 5), Err(ListError::TooLong(5)));
        }
        let twice = ["10.0.0.1-10.0.0.5", "10.0.0.1-10.0.0.5"];
        assert_eq!(read(twice, 5).map(|all| all.len()), Ok(5), "an address counts once");
    }
}
