//! IP addresses as numbers, so that the next address is an addition in both families.
//!
//! An IPv4 address is a 32-bit number. A number alone does not tell the family; the caller keeps that beside it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Address family; IPv4 sorts first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn of(ip: IpAddr) -> Family {
        match ip {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// Returns how many bits an address has.
    pub(crate) fn bits(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }

    /// Address with this number; for IPv4 the low 32 bits count.
    pub(crate) fn address(self, number: u128) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::from_bits(number as u32).into(),
            Family::V6 => Ipv6Addr::from_bits(number).into(),
        }
    }
}

/// Returns an address as a number.
pub(crate) fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}
