//! The client of DHCPv6: one address for an interface (IA_NA), from a server on its link or behind a relay.
//!
//! ```text
//!   SOLICIT ─► ADVERTISE ─► REQUEST ─► REPLY     or at once a REPLY, where the server has rapid commit
//!   RENEW ─► REPLY      REBIND ─► REPLY          from T1 on its server, from T2 on any
//!   CONFIRM ─► REPLY                             once, when a daemon goes on with what the last one left
//!   RELEASE ─► REPLY    DECLINE ─► REPLY         given back; another machine has it
//! ```
//!
//! Unlike DHCPv4 everything travels in UDP between link-local addresses, which an interface has by itself; and there is
//! neither a prefix length nor a route in it: those come by router advertisements, which the kernel takes.
//!
//! Source: RFC 8415; RFC 3646 (23, 24), RFC 4704 (39), RFC 6355 (DUID-UUID), RFC 5942 (no prefix is on the link for it).

pub mod exchange;
pub mod identity;
pub mod lease;
pub mod link;
pub mod message;
pub mod options;
pub mod timing;

use serde::{Deserialize, Serialize};

use self::options::Options;

/// What is wished for beside an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wish {
    /// What is said to servers.
    pub options: Options,
    /// The length of the prefix that the address is used with.
    pub prefix_length: u8,
    /// Whether another machine has the address is asked before it is used.
    pub detect_duplicates: bool,
}

/// A whole address and nothing beside it.
pub const PREFIX_LENGTH: u8 = 128;

impl Default for Wish {
    fn default() -> Wish {
        Wish { options: Options::default(), prefix_length: PREFIX_LENGTH, detect_duplicates: false }
    }
}
