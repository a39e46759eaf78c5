//! nfnetlink messages, which nf_tables and connection tracking have in common.
//!
//! Source: kernel `include/uapi/linux/netfilter/nfnetlink.h`.

pub mod closing;
pub(crate) mod pool;

use std::convert::Infallible;

use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};

use crate::attributes::Attributes;

/// Length of `struct nfgenmsg`, in bytes.
const HEADER: usize = 4;

/// nfnetlink message.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// Subsystem in the upper byte, message type in the lower.
    pub(crate) kind: u16,
    /// `NFPROTO_…`.
    pub(crate) family: u8,
    /// `res_id`: the subsystem in a batch's first and last message, otherwise zero.
    pub(crate) resource: u16,
    /// Attributes after the header.
    pub(crate) attributes: Attributes,
}

// === impl Message ===

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        HEADER + self.attributes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        let resource = self.resource.to_be_bytes();
        buffer[..HEADER].copy_from_slice(&[self.family, 0, resource[0], resource[1]]);
        buffer[HEADER..].copy_from_slice(self.attributes.as_bytes());
    }
}

impl NetlinkDeserializable for Message {
    type Error = Infallible;

    /// Reads a message; if it is too short for the header, it has no attributes.
    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Message, Infallible> {
        let attributes = Attributes::received(payload.get(HEADER..).unwrap_or_default());
        let family = payload.first().copied().unwrap_or_default();
        Ok(Message { kind: header.message_type, family, resource: 0, attributes })
    }
}
