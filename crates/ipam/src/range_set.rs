//! A set of ranges that serves one address: round robin over all of it.
//!
//! Rules:
//! - ranges of a set are of one family and do not overlap;
//! - the order starts behind the address given last, so that a container that is restarted again and
//!   again does not meet the address it just had; it ends where it began, with that address;
//! - no gateway of the set is given, not even one that lies in another range of it.
//!
//! Source: containernetworking/plugins `plugins/ipam/host-local/backend/allocator`.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::number::{Family, number};
use crate::range::Range;
use crate::used_addresses::Held;

/// Ranges of one family; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSet {
    ranges: Vec<Range>,
}

/// Why ranges do not make a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetRefusal {
    /// There is none.
    Empty,
    /// The range at this index is of another family than the first.
    MixedFamilies(usize),
    /// The ranges at these indexes have addresses in common.
    Overlap(usize, usize),
}

/// An address to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The address, with the prefix length of its subnet.
    pub address: IpNet,
    /// The gateway of its range.
    pub gateway: Option<IpAddr>,
}

impl RangeSet {
    /// Checks that the ranges fit together.
    pub fn new(ranges: Vec<Range>) -> Result<RangeSet, SetRefusal> {
        let Some(first) = ranges.first() else { return Err(SetRefusal::Empty) };
        if let Some(other) = ranges.iter().position(|range| range.family() != first.family()) {
            return Err(SetRefusal::MixedFamilies(other));
        }
        let apart = ranges.iter().enumerate().collect();
        match overlap(apart) {
            Some((a, b)) => Err(SetRefusal::Overlap(a, b)),
            None => Ok(RangeSet { ranges }),
        }
    }

    /// The indexes of the first two sets that have addresses in common.
    pub fn overlap(sets: &[RangeSet]) -> Option<(usize, usize)> {
        let mut ranges = Vec::new();
        for (index, set) in sets.iter().enumerate() {
            ranges.extend(set.ranges.iter().map(|range| (index, range)));
        }
        overlap(ranges)
    }

    /// The ranges, in their order.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Is it in one of the ranges? A gateway may be.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.position(ip).is_some()
    }

    /// Is it the gateway of one of the ranges?
    pub fn is_gateway(&self, ip: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.gateway() == Some(ip))
    }

    /// This very address, if the set may give it.
    pub fn assign(&self, ip: IpAddr) -> Option<Assignment> {
        let range = &self.ranges[self.position(ip)?];
        (!self.is_gateway(ip)).then(|| assignment(range, ip))
    }

    /// Every address that may be given, once, in the order in which to try them.
    ///
    /// `last` is the one given last; one from elsewhere, or none, starts at the beginning.
    pub fn after(&self, last: Option<IpAddr>) -> Candidates<'_> {
        Candidates { set: self, segments: self.segments(last).into_iter(), current: None }
    }

    /// The first of [`RangeSet::after`] that is not held; `None` if the set is exhausted.
    ///
    /// Takes time by the number of runs in `held`, not by the size of the ranges.
    pub fn choose(&self, last: Option<IpAddr>, held: &Held) -> Option<Assignment> {
        for Segment { range, from, to } in self.segments(last) {
            let mut next = from;
            while let Some(free) = held.first_free(range.family(), next, to) {
                let ip = range.family().address(free);
                if !self.is_gateway(ip) {
                    return Some(assignment(range, ip));
                }
                // The last address of all has no successor.
                let Some(after) = free.checked_add(1) else { break };
                next = after;
            }
        }
        None
    }

    fn position(&self, ip: IpAddr) -> Option<usize> {
        self.ranges.iter().position(|range| range.contains(ip))
    }

    /// The whole set from behind `last` round to `last` itself, in pieces.
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

impl fmt::Display for SetRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetRefusal::Empty => f.write_str("holds no range"),
            SetRefusal::MixedFamilies(index) => write!(f, "range {index} is of another family than range 0"),
            SetRefusal::Overlap(a, b) => write!(f, "ranges {a} and {b} overlap"),
        }
    }
}

impl std::error::Error for SetRefusal {}

/// Part of a range, both ends included.
struct Segment<'a> {
    range: &'a Range,
    from: u128,
    to: u128,
}

/// Addresses to try; see [`RangeSet::after`].
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
    // The prefix length comes from a subnet of the address's own family: it fits.
    let address = IpNet::new(ip, prefix_len).unwrap_or(IpNet::from(ip));
    Assignment { address, gateway: range.gateway() }
}

/// The owners, lower one first, of two ranges that have addresses in common; those of one owner count
/// only if owners are unique.
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
