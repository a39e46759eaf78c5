//! Address range: the addresses in one subnet that may be allocated, from a first to a last one.
//!
//! - The subnet is a network address; both ends lie inside it, in order.
//! - The gateway has the same family and is never allocated; it need not lie inside the subnet.
//!
//! Source of the defaults: containernetworking/plugins `plugins/ipam/host-local` README.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::number::{Family, number};

/// Addresses in one subnet that may be allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    subnet: IpNet,
    first: u128,
    last: u128,
    gateway: Option<IpAddr>,
}

/// Which part of a range an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangePart {
    /// Subnet.
    Subnet,
    /// The first address to allocate.
    First,
    /// The last address to allocate.
    Last,
    /// Gateway.
    Gateway,
}

/// Why a range cannot be as defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeError {
    /// The part that is wrong.
    pub part: RangePart,
    /// Value that it was set to.
    pub value: String,
    /// Problem with the value.
    pub reason: String,
}

impl Range {
    /// Returns the addresses in `subnet` from `first` to `last`, both included, without a gateway.
    ///
    /// By default the range covers all hosts: from the address after the network address to the one before
    /// the broadcast address, or to the last address in an IPv6 subnet.
    ///
    /// # Errors
    /// The subnet has fewer than two hosts or host bits set, an end lies outside, or the ends are out of
    /// order.
    pub fn between(subnet: IpNet, first: Option<IpAddr>, last: Option<IpAddr>) -> Result<Range, RangeError> {
        let family = Family::of(subnet.addr());
        if has_hosts_only(subnet) {
            let reason = format!("too small to allocate addresses from: at most /{}", family.bits() - 2);
            return Err(RangeError { part: RangePart::Subnet, value: subnet.to_string(), reason });
        }
        Range::of_any_size(subnet, first, last)
    }

    /// Returns the same for a subnet as small as it may be. In a subnet with one or two addresses, every
    /// address belongs to a host (RFC 3021, RFC 6164).
    ///
    /// # Errors
    /// The subnet has host bits set, an end lies outside, or the ends are out of order.
    pub fn of_any_size(
        subnet: IpNet,
        first: Option<IpAddr>,
        last: Option<IpAddr>,
    ) -> Result<Range, RangeError> {
        let refuse = |part, value: &dyn fmt::Display, reason: String| {
            Err(RangeError { part, value: value.to_string(), reason })
        };
        if subnet.addr() != subnet.network() {
            return refuse(
                RangePart::Subnet,
                &subnet,
                format!("has host bits set: the network is {}", subnet.trunc()),
            );
        }
        let ends = [(RangePart::First, first), (RangePart::Last, last)];
        let mut explicit = ends.into_iter().filter_map(|(part, end)| Some((part, end?)));
        if let Some((part, end)) = explicit.clone().find(|(_, end)| !subnet.contains(end)) {
            return refuse(part, &end, format!("not in subnet {subnet}"));
        }
        let (lowest, highest) = hosts(subnet);
        let range = Range {
            subnet,
            first: first.map_or(lowest, number),
            last: last.map_or(highest, number),
            gateway: None,
        };
        match explicit.next_back() {
            Some((part, end)) if range.first > range.last => {
                let reason = match part {
                    RangePart::Last => format!("before the first address {}", range.first()),
                    _ => format!("after the last address {}", range.last()),
                };
                refuse(part, &end, reason)
            }
            _ => Ok(range),
        }
    }

    /// Returns the same range with a gateway, which is never allocated.
    ///
    /// # Errors
    /// The gateway belongs to the other address family.
    pub fn with_gateway(self, gateway: IpAddr) -> Result<Range, RangeError> {
        if gateway.is_ipv4() != self.subnet.addr().is_ipv4() {
            let reason = format!("not of the address family of subnet {}", self.subnet);
            return Err(RangeError { part: RangePart::Gateway, value: gateway.to_string(), reason });
        }
        Ok(Range { gateway: Some(gateway), ..self })
    }

    /// Returns the subnet; every allocated address has the subnet's prefix length.
    pub fn subnet(&self) -> IpNet {
        self.subnet
    }

    /// Returns the address after the network address: the usual gateway. None in a subnet with one or two
    /// addresses.
    pub fn usual_gateway(&self) -> Option<IpAddr> {
        let is_usual = !has_hosts_only(self.subnet);
        is_usual.then(|| self.family().address(number(self.subnet.network()) + 1))
    }

    /// Returns the first address that may be allocated.
    pub fn first(&self) -> IpAddr {
        self.family().address(self.first)
    }

    /// Returns the last address that may be allocated.
    pub fn last(&self) -> IpAddr {
        self.family().address(self.last)
    }

    /// Gateway, if one is set.
    pub fn gateway(&self) -> Option<IpAddr> {
        self.gateway
    }

    /// Whether an address lies between first and last; this includes a gateway inside the range.
    pub fn contains(&self, ip: IpAddr) -> bool {
        Family::of(ip) == self.family() && (self.first..=self.last).contains(&number(ip))
    }

    pub(crate) fn family(&self) -> Family {
        Family::of(self.subnet.addr())
    }

    pub(crate) fn bounds(&self) -> (u128, u128) {
        (self.first, self.last)
    }
}

/// Whether a subnet has neither a network nor a broadcast address: it has one or two addresses.
pub(crate) fn has_hosts_only(subnet: IpNet) -> bool {
    subnet.prefix_len() > subnet.max_prefix_len() - 2
}

/// Returns the first and last host address in a subnet, as numbers.
pub(crate) fn hosts(subnet: IpNet) -> (u128, u128) {
    let (network, broadcast) = (number(subnet.network()), number(subnet.broadcast()));
    match (has_hosts_only(subnet), Family::of(subnet.addr())) {
        (true, _) => (network, broadcast),
        (false, Family::V4) => (network + 1, broadcast - 1),
        (false, Family::V6) => (network + 1, broadcast),
    }
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.value, self.reason)
    }
}

impl std::error::Error for RangeError {}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first(), self.last())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(subnet: &str, first: &str, last: &str) -> Result<Range, RangeError> {
        let end = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
        Range::between(subnet.parse().unwrap(), end(first), end(last))
    }

    #[test]
    fn range_defaults_cover_all_hosts() {
        let cases = [
            ("10.1.2.0/24", "10.1.2.1-10.1.2.254"),
            ("10.0.0.0/30", "10.0.0.1-10.0.0.2"),
            ("0.0.0.0/0", "0.0.0.1-255.255.255.254"),
            ("fd00::/120", "fd00::1-fd00::ff"),
            ("::/0", "::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ];
        for (subnet, expected) in cases {
            assert_eq!(range(subnet, "", "").unwrap().to_string(), expected);
        }
        let all = range("10.1.2.0/24", "10.1.2.0", "10.1.2.255").unwrap();
        assert_eq!(all.usual_gateway(), "10.1.2.1".parse().ok());
        assert_eq!(all.to_string(), "10.1.2.0-10.1.2.255", "explicit ends are used as given");
    }

    #[test]
    fn range_of_one_or_two_addresses_has_hosts_only() {
        for (subnet, expected) in [
            ("10.1.2.7/32", "10.1.2.7-10.1.2.7"),
            ("10.1.2.6/31", "10.1.2.6-10.1.2.7"),
            ("fd00::7/128", "fd00::7-fd00::7"),
            ("fd00::6/127", "fd00::6-fd00::7"),
            ("10.1.2.4/30", "10.1.2.5-10.1.2.6"),
        ] {
            let range = Range::of_any_size(subnet.parse().unwrap(), None, None).unwrap();
            assert_eq!(range.to_string(), expected);
            assert_eq!(range.usual_gateway().is_some(), subnet.ends_with("/30"), "{subnet}");
        }
    }

    #[test]
    fn range_error_names_part_value_and_reason() {
        let cases = [
            (("10.1.2.0/31", "", ""), RangePart::Subnet, "10.1.2.0/31", "too small"),
            (("fd00::/127", "", ""), RangePart::Subnet, "fd00::/127", "at most /126"),
            (("10.1.2.3/24", "", ""), RangePart::Subnet, "10.1.2.3/24", "the network is 10.1.2.0/24"),
            (("10.1.2.0/24", "10.1.3.1", ""), RangePart::First, "10.1.3.1", "not in subnet 10.1.2.0/24"),
            (("10.1.2.0/24", "fd00::1", ""), RangePart::First, "fd00::1", "not in subnet"),
            (("10.1.2.0/24", "", "10.1.1.255"), RangePart::Last, "10.1.1.255", "not in subnet"),
            (
                ("10.1.2.0/24", "10.1.2.9", "10.1.2.8"),
                RangePart::Last,
                "10.1.2.8",
                "before the first address 10.1.2.9",
            ),
            (
                ("10.1.2.0/24", "10.1.2.255", ""),
                RangePart::First,
                "10.1.2.255",
                "after the last address 10.1.2.254",
            ),
            (
                ("10.1.2.0/24", "", "10.1.2.0"),
                RangePart::Last,
                "10.1.2.0",
                "before the first address 10.1.2.1",
            ),
        ];
        for ((subnet, first, last), part, value, reason) in cases {
            let error = range(subnet, first, last).unwrap_err();
            assert_eq!((error.part, error.value.as_str()), (part, value));
            assert!(error.reason.contains(reason), "{}", error.reason);
        }
        let error =
            range("10.1.2.0/24", "", "").unwrap().with_gateway("fd00::1".parse().unwrap()).unwrap_err();
        assert_eq!((error.part, error.value.as_str()), (RangePart::Gateway, "fd00::1"));
    }
}
