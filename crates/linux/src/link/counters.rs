//! Traffic counters for links.
//!
//! Source: kernel `include/uapi/linux/if_link.h`, `struct rtnl_link_stats64`; ip-link(8), `ip -s link`.

use super::attribute;
use crate::error::{Error, Kind};
use crate::rtnl::Rtnl;
use crate::rtnl::message::{GET_LINK, Message, NEW_LINK};

/// `IFLA_STATS64`
const STATISTICS: u16 = 23;

/// Traffic counters since the link was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Received traffic.
    pub received: Counters,
    /// Sent traffic.
    pub sent: Counters,
}

/// Counters for one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes, including link headers.
    pub bytes: u64,
    /// Number of packets with errors.
    pub errors: u64,
    /// Number of dropped packets.
    pub dropped: u64,
}

impl Rtnl {
    /// Reads one link's counters; `None` if there is no such link. `ip -s link show dev NAME`
    ///
    /// Only this link is requested, so the cost does not depend on how many links the namespace has.
    pub fn link_counters(&mut self, name: &str) -> Result<Option<LinkCounters>, Error> {
        let mut query = Message::link(GET_LINK, 0);
        query.attributes.text(attribute::NAME, name);
        let answers = match self.ask(query, || format!("read counters of {name}")) {
            Err(error) if error.kind() == Kind::Absent => return Ok(None),
            answers => answers?,
        };
        let link = answers.iter().find(|answer| answer.kind() == NEW_LINK);
        Ok(link.and_then(|link| link.attributes.find(STATISTICS)).map(read))
    }
}

/// Reads `struct rtnl_link_stats64`; fields that an older kernel lacks are 0.
fn read(value: &[u8]) -> LinkCounters {
    let field = |index: usize| {
        let bytes = value.get(index * 8..index * 8 + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u64::from_ne_bytes).unwrap_or_default()
    };
    let direction = |first: usize| Counters {
        packets: field(first),
        bytes: field(first + 2),
        errors: field(first + 4),
        dropped: field(first + 6),
    };
    LinkCounters { received: direction(0), sent: direction(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_counters_are_read_by_their_position() {
        let bytes: Vec<u8> = (1..=8_u64).flat_map(u64::to_ne_bytes).collect();
        let counters = read(&bytes);
        assert_eq!(counters.received, Counters { packets: 1, bytes: 3, errors: 5, dropped: 7 });
        assert_eq!(counters.sent, Counters { packets: 2, bytes: 4, errors: 6, dropped: 8 });
        assert_eq!(read(&[1, 2, 3]), LinkCounters::default());
    }
}
