//! DHCPv6 client: requests one address per interface (IA_NA), from a server on the link or behind a relay.
//!
//! ```text
//!   SOLICIT ─► ADVERTISE ─► REQUEST ─► REPLY     or a REPLY at once, if the server has rapid commit
//!   RENEW ─► REPLY      REBIND ─► REPLY          from T1 to its server, from T2 to any server
//!   CONFIRM ─► REPLY                             once, when a daemon continues the leases of the previous one
//!   RELEASE ─► REPLY    DECLINE ─► REPLY         release; another host uses the address
//! ```
//!
//! Unlike DHCPv4, all messages are UDP between link-local addresses, which every interface has. They contain neither a
//! prefix length nor a route; the kernel takes those from router advertisements.
//!
//! Source: RFC 8415; RFC 3646 (23, 24), RFC 4704 (39), RFC 6355 (DUID-UUID), RFC 5942 (the prefix is not on-link).

pub mod exchange;
pub mod identity;
pub mod lease;
pub mod link;
pub mod message;
pub mod timing;

pub use plugin_config::dhcp::v6 as options;
pub use plugin_config::dhcp::{PREFIX_LENGTH, V6Request};
