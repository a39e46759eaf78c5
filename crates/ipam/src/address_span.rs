//! Address span, from a first to a last address.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::number::Family;

/// Addresses from the first to the last, both included and in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressSpan {
    /// Where it begins.
    pub first: IpAddr,
    /// Where it ends.
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
