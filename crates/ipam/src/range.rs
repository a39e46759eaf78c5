//! A range: the addresses of one subnet that may be given, from a first to a last one.
//!
//! Rules: the subnet is a network address with room for hosts; both ends are inside it and in order; a
//! gateway is of the same family and never given, but need not be inside.
//!
//! Source: containernetworking/plugins `plugins/ipam/host-local` README, whose defaults these are.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::number::{Family, number};

/// Addresses that may be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    subnet: IpNet,
    first: u128,
    last: u128,
    gateway: Option<IpAddr>,
}

/// Which part of a range is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The subnet.
    Subnet,
    /// The first address to give.
    First,
    /// The last address to give.
    Last,
    /// The gateway.
    Gateway,
}

/// Why a range cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The part that is wrong.
    pub part: Part,
    /// Its value.
    pub value: String,
    /// What is wrong with it.
    pub why: String,
}

impl Range {
    /// The addresses of `subnet` from `first` to `last`, both included, without a gateway.
    ///
    /// By default they are all hosts: from the address after the network's own to the one before the
    /// broadcast address, or to the very last of an IPv6 subnet.
    ///
    /// # Errors
    /// A subnet without room for two hosts or with host bits set; an end outside; the ends in the wrong order.
    pub fn between(subnet: IpNet, first: Option<IpAddr>, last: Option<IpAddr>) -> Result<Range, Refusal> {
        let family = Family::of(subnet.addr());
        let refuse = |part, value: &dyn fmt::Display, why: String| {
            Err(Refusal { part, value: value.to_string(), why })
        };
        if subnet.prefix_len() > family.bits() - 2 {
            let why = format!("too small to give addresses from: at most /{}", family.bits() - 2);
            return refuse(Part::Subnet, &subnet, why);
        }
        if subnet.addr() != subnet.network() {
            return refuse(
                Part::Subnet,
                &subnet,
                format!("has host bits set: the network is {}", subnet.trunc()),
            );
        }
        let ends = [(Part::First, first), (Part::Last, last)];
        let mut given = ends.into_iter().filter_map(|(part, end)| Some((part, end?)));
        if let Some((part, end)) = given.clone().find(|(_, end)| !subnet.contains(end)) {
            return refuse(part, &end, format!("not in subnet {subnet}"));
        }
        let broadcast = number(subnet.broadcast());
        let range = Range {
            subnet,
            first: first.map_or(number(subnet.network()) + 1, number),
            last: last.map_or(if family == Family::V4 { broadcast - 1 } else { broadcast }, number),
            gateway: None,
        };
        match given.next_back() {
            Some((part, end)) if range.first > range.last => {
                let why = match part {
                    Part::Last => format!("before the first address {}", range.first()),
                    _ => format!("after the last address {}", range.last()),
                };
                refuse(part, &end, why)
            }
            _ => Ok(range),
        }
    }

    /// The same range with a gateway, which is never given.
    ///
    /// # Errors
    /// A gateway of the other family.
    pub fn with_gateway(self, gateway: IpAddr) -> Result<Range, Refusal> {
        if gateway.is_ipv4() != self.subnet.addr().is_ipv4() {
            let why = format!("not of the family of subnet {}", self.subnet);
            return Err(Refusal { part: Part::Gateway, value: gateway.to_string(), why });
        }
        Ok(Range { gateway: Some(gateway), ..self })
    }

    /// The subnet; its prefix length is that of every address given.
    pub fn subnet(&self) -> IpNet {
        self.subnet
    }

    /// The address after the network's own: the usual gateway.
    pub fn first_host(&self) -> IpAddr {
        self.family().address(number(self.subnet.network()) + 1)
    }

    /// The first address.
    pub fn first(&self) -> IpAddr {
        self.family().address(self.first)
    }

    /// The last address.
    pub fn last(&self) -> IpAddr {
        self.family().address(self.last)
    }

    /// The gateway, if there is one.
    pub fn gateway(&self) -> Option<IpAddr> {
        self.gateway
    }

    /// Is it between first and last? A gateway may be.
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

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first(), self.last())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(subnet: &str, first: &str, last: &str) -> Result<Range, Refusal> {
        let end = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
        Range::between(subnet.parse().unwrap(), end(first), end(last))
    }

    #[test]
    fn the_defaults_are_all_hosts() {
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
        let given = range("10.1.2.0/24", "10.1.2.0", "10.1.2.255").unwrap();
        assert_eq!(given.first_host().to_string(), "10.1.2.1");
        assert_eq!(given.to_string(), "10.1.2.0-10.1.2.255", "what is asked for is taken");
    }

    #[test]
    fn a_refusal_names_the_part_its_value_and_the_reason() {
        let cases = [
            (("10.1.2.0/31", "", ""), Part::Subnet, "10.1.2.0/31", "too small"),
            (("fd00::/127", "", ""), Part::Subnet, "fd00::/127", "at most /126"),
            (("10.1.2.3/24", "", ""), Part::Subnet, "10.1.2.3/24", "the network is 10.1.2.0/24"),
            (("10.1.2.0/24", "10.1.3.1", ""), Part::First, "10.1.3.1", "not in subnet 10.1.2.0/24"),
            (("10.1.2.0/24", "fd00::1", ""), Part::First, "fd00::1", "not in subnet"),
            (("10.1.2.0/24", "", "10.1.1.255"), Part::Last, "10.1.1.255", "not in subnet"),
            (
                ("10.1.2.0/24", "10.1.2.9", "10.1.2.8"),
                Part::Last,
                "10.1.2.8",
                "before the first address 10.1.2.9",
            ),
            (
                ("10.1.2.0/24", "10.1.2.255", ""),
                Part::First,
                "10.1.2.255",
                "after the last address 10.1.2.254",
            ),
            (("10.1.2.0/24", "", "10.1.2.0"), Part::Last, "10.1.2.0", "before the first address 10.1.2.1"),
        ];
        for ((subnet, first, last), part, value, why) in cases {
            let refusal = range(subnet, first, last).unwrap_err();
            assert_eq!((refusal.part, refusal.value.as_str()), (part, value));
            assert!(refusal.why.contains(why), "{}", refusal.why);
        }
        let refusal =
            range("10.1.2.0/24", "", "").unwrap().with_gateway("fd00::1".parse().unwrap()).unwrap_err();
        assert_eq!((refusal.part, refusal.value.as_str()), (Part::Gateway, "fd00::1"));
    }
}
