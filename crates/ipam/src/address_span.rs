//! Span of addresses.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::number::Family;

/// Span of addresses, from the first to the last, both included and of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressSpan {
    /// First address.
    pub first: IpAddr,
    /// Last address.
    pub last: IpAddr,
}

impl AddressSpan {
    /// Reads `FIRST-LAST`; `None` if the text is not a span.
    pub fn parse(text: &str) -> Option<AddressSpan> {
        let (first, last) = text.split_once('-')?;
        let (first, last): (IpAddr, IpAddr) = (first.parse().ok()?, last.parse().ok()?);
        let is_ordered = Family::of(first) == Family::of(last) && first <= last;
        is_ordered.then_some(AddressSpan { first, last })
    }
}

impl fmt::Display for AddressSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}
