//! DHCPv4: messages, options and the client.
//!
//! Source: RFC 2131, RFC 2132.

pub mod exchange;
pub mod frame;
pub mod lease;
pub mod message;
pub use plugin_config::dhcp::v4 as options;
