//! Set of ranges from which one address is allocated, round robin over the whole set.
//!
//! - The ranges in a set have one address family and do not overlap.
//! - The search starts after the address allocated last, so that a container that restarts repeatedly does
//!   not get the address it just released; that address comes last.
//! - No gateway in the set is allocated, even if it lies in another range.
//!
//! Source: containernetworking/plugins `plugins/ipam/host-local/backend/allocator`.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::number::{Family, number};
use crate::range::Range;
use crate::used_addresses::UsedAddresses;

/// At least one range, all in one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range>,
}

/// Why a set cannot be as defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangeSetError {
    /// The set has no range.
    Empty,
    /// The range at this index has another address family than the first.
    MixedFamilies(usize),
    /// The ranges at these indexes overlap.
    Overlap(usize, usize),
}

/// Address to allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Address with the subnet's prefix length.
    pub address: IpNet,
    /// Gateway in the range.
    pub gateway: Option<IpAddr>,
}

impl RangeSet {
    /// Creates a set.
    ///
    /// # Errors
    /// The set is empty, mixes families or has overlapping ranges.
    pub fn new(ranges: Vec<Range>) -> Result<RangeSet, RangeSetError> {
        let Some(first) = ranges.first() else { return Err(RangeSetError::Empty) };
        if let Some(other) = ranges.iter().position(|range| range.family() != first.family()) {
            return Err(RangeSetError::MixedFamilies(other));
        }
        let apart = ranges.iter().enumerate().collect();
        match overlap(apart) {
            Some((a, b)) => Err(RangeSetError::Overlap(a, b)),
            None => Ok(RangeSet { ranges }),
        }
    }

    /// Returns the indexes of the first two sets that overlap.
    pub fn overlap(sets: &[RangeSet]) -> Option<(usize, usize)> {
        let mut ranges = Vec::new();
        for (index, set) in sets.iter().enumerate() {
            ranges.extend(set.ranges.iter().map(|range| (index, range)));
        }
        overlap(ranges)
    }

    /// Returns the ranges in order.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Whether an address lies in one of the ranges; this includes gateways.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.position(ip).is_some()
    }

    /// Whether an address is the gateway in one of the ranges.
    pub fn is_gateway(&self, ip: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.gateway() == Some(ip))
    }

    /// Returns the assignment for this address, if the set may allocate it.
    pub fn assign(&self, ip: IpAddr) -> Option<Assignment> {
        let range = &self.ranges[self.position(ip)?];
        (!self.is_gateway(ip)).then(|| assignment(range, ip))
    }

    /// Iterates over every address that may be allocated, once, in search order.
    ///
    /// `last` is the address allocated last; without it, or if it lies outside, the search starts at the
    /// beginning.
    pub fn after(&self, last: Option<IpAddr>) -> Candidates<'_> {
        Candidates { set: self, segments: self.segments(last).into_iter(), current: None }
    }

    /// Returns the first address in [`RangeSet::after`] that is not in use; `None` if the set is exhausted.
    ///
    /// The time depends on how many runs `used` has, not on how large the ranges are.
    pub fn choose(&self, last: Option<IpAddr>, used: &UsedAddresses) -> Option<Assignment> {
        for Segment { range, from, to } in self.segments(last) {
            let mut next = from;
            while let Some(free) = used.first_free(range.family(), next, to) {
                let ip = range.family().address(free);
                if !self.is_gateway(ip) {
                    return Some(assignment(range, ip));
                }
                // The last IPv6 address has no successor.
                let Some(after) = free.checked_add(1) else { break };
                next = after;
            }
        }
        None
    }

    fn position(&self, ip: IpAddr) -> Option<usize> {
        self.ranges.iter().position(|range| range.contains(ip))
    }

    /// Splits the whole set into the pieces to search: from after `last` round to `last` itself.
    fn segments(&self, last: Option<IpAddr>) -> Vec<Segment<'_>> {
        let whole = |range| {
            let (from, to) = Range::bounds(range);
            Segment { range, from, to }
        };
        let Some((at, last)) = last.and_then(|last| Some((self.position(last)?, number(last)))) else {
            return self.ranges.iter().map(whole).collect();
        };
        let (before, rest) = self.ranges.split_at(at);
        let (own, behind) = rest.split_at(1);
        let tail =
            own.iter().map(whole).filter(|own| last < own.to).map(|own| Segment { from: last + 1, ..own });
        let head = own.iter().map(whole).map(|own| Segment { to: last, ..own });
        tail.chain(behind.iter().map(whole)).chain(before.iter().map(whole)).chain(head).collect()
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.ranges.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{range}")?;
        }
        Ok(())
    }
}

impl fmt::Display for RangeSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RangeSetError::Empty => f.write_str("contains no range"),
            RangeSetError::MixedFamilies(index) => {
                write!(f, "range {index} is of another address family than range 0")
            }
            RangeSetError::Overlap(a, b) => write!(f, "ranges {a} and {b} overlap"),
        }
    }
}

impl std::error::Error for RangeSetError {}

/// Part of a range, both ends included.
struct Segment<'a> {
    range: &'a Range,
    from: u128,
    to: u128,
}

/// Iterator returned by [`RangeSet::after`].
pub struct Candidates<'a> {
    set: &'a RangeSet,
    segments: std::vec::IntoIter<Segment<'a>>,
    current: Option<(&'a Range, RangeInclusive<u128>)>,
}

impl Iterator for Candidates<'_> {
    type Item = Assignment;

    fn next(&mut self) -> Option<Assignment> {
        loop {
            if let Some((range, numbers)) = &mut self.current {
                for number in numbers {
                    let ip = range.family().address(number);
                    if !self.set.is_gateway(ip) {
                        return Some(assignment(range, ip));
                    }
                }
            }
            let Segment { range, from, to } = self.segments.next()?;
            self.current = Some((range, from..=to));
        }
    }
}

fn assignment(range: &Range, ip: IpAddr) -> Assignment {
    let prefix_len = range.subnet().prefix_len();
    // The prefix length comes from a subnet of the same family, so it is valid.
    let address = IpNet::new(ip, prefix_len).unwrap_or(IpNet::from(ip));
    Assignment { address, gateway: range.gateway() }
}

/// Returns the set indexes, lower first, of two ranges that overlap.
fn overlap(mut ranges: Vec<(usize, &Range)>) -> Option<(usize, usize)> {
    let key = |range: &Range| (range.family(), range.bounds());
    ranges.sort_by_key(|(_, range)| key(range));
    let mut widest: Option<(usize, Family, u128)> = None;
    for (owner, range) in ranges {
        let (family, (first, last)) = key(range);
        match widest {
            Some((other, same, reach)) if same == family && first <= reach => {
                return Some((owner.min(other), owner.max(other)));
            }
            _ => widest = Some((owner, family, last)),
        }
    }
    None
}

#[cfg(test)]
mod tests;
