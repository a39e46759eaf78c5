//! rtnetlink message: type, fixed part, attributes.
//!
//! Source: kernel `include/uapi/linux/rtnetlink.h`, `if_link.h`, `if_addr.h`, `fib_rules.h`.

use std::convert::Infallible;
use std::net::IpAddr;

use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};

use crate::attributes::Attributes;

/// `RTM_NEWLINK`; each object has four types in sequence: new, delete, get, set.
pub(crate) const NEW_LINK: u16 = 16;
/// `RTM_DELLINK`
pub(crate) const DELETE_LINK: u16 = 17;
/// `RTM_GETLINK`
pub(crate) const GET_LINK: u16 = 18;
/// `RTM_SETLINK`
pub(crate) const SET_LINK: u16 = 19;
/// `RTM_NEWADDR`
pub(crate) const NEW_ADDRESS: u16 = 20;
/// `RTM_DELADDR`
pub(crate) const DELETE_ADDRESS: u16 = 21;
/// `RTM_GETADDR`
pub(crate) const GET_ADDRESS: u16 = 22;
/// `RTM_NEWROUTE`
pub(crate) const NEW_ROUTE: u16 = 24;
/// `RTM_DELROUTE`
pub(crate) const DELETE_ROUTE: u16 = 25;
/// `RTM_GETROUTE`
pub(crate) const GET_ROUTE: u16 = 26;
/// `RTM_NEWRULE`
pub(crate) const NEW_RULE: u16 = 32;
/// `RTM_DELRULE`
pub(crate) const DELETE_RULE: u16 = 33;
/// `RTM_GETRULE`
pub(crate) const GET_RULE: u16 = 34;

/// `RTM_NEWQDISC`
pub(crate) const NEW_QDISC: u16 = 36;
/// `RTM_DELQDISC`
pub(crate) const DELETE_QDISC: u16 = 37;
/// `RTM_GETQDISC`
pub(crate) const GET_QDISC: u16 = 38;
/// `RTM_NEWTCLASS`
pub(crate) const NEW_CLASS: u16 = 40;
/// `RTM_GETTCLASS`
pub(crate) const GET_CLASS: u16 = 42;
/// `RTM_NEWTFILTER`
pub(crate) const NEW_FILTER: u16 = 44;
/// `RTM_GETTFILTER`
pub(crate) const GET_FILTER: u16 = 46;

/// `RTM_GETNSID`
pub(crate) const GET_NETNS_ID: u16 = 90;
/// `RTM_NEWLINKPROP`
pub(crate) const NEW_LINK_PROPERTY: u16 = 108;
/// `RTM_DELLINKPROP`
pub(crate) const DELETE_LINK_PROPERTY: u16 = 109;

/// `AF_UNSPEC`
pub(crate) const UNSPEC: u8 = 0;
/// `AF_INET`
pub(crate) const INET: u8 = 2;
/// `AF_BRIDGE`
pub(crate) const BRIDGE: u8 = 7;
/// `AF_INET6`
pub(crate) const INET6: u8 = 10;

/// Length of the longest fixed part, which is the one for traffic control, in bytes.
const FIXED_MAX: usize = 20;

/// rtnetlink message.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    kind: u16,
    fixed: [u8; FIXED_MAX],
    pub(crate) attributes: Attributes,
}

/// Returns the fixed part's length for a message type, in bytes.
fn fixed_length(kind: u16) -> usize {
    match kind {
        16..20 | 108..112 => 16,
        88..92 => 4,
        20..24 => 8,
        36..48 => 20,
        _ => 12,
    }
}

impl Message {
    /// Builds a message about a link (`struct ifinfomsg`), or about all links if `index` is 0 and no attribute names
    /// one.
    pub(crate) fn link(kind: u16, index: u32) -> Message {
        let mut message = Message { kind, fixed: [0; FIXED_MAX], attributes: Attributes::new() };
        message.put(4, &index.to_ne_bytes());
        message
    }

    /// Builds a message about namespace ids (`struct rtgenmsg`, padded).
    pub(crate) fn netns_id(kind: u16) -> Message {
        Message { kind, fixed: [0; FIXED_MAX], attributes: Attributes::new() }
    }

    /// Builds a message about an address (`struct ifaddrmsg`) on the link with this index.
    pub(crate) fn address(kind: u16, family: u8, prefix_length: u8, index: u32) -> Message {
        let mut message = Message { kind, fixed: [0; FIXED_MAX], attributes: Attributes::new() };
        message.put(0, &[family, prefix_length]);
        message.put(4, &index.to_ne_bytes());
        message
    }

    /// Builds a message about neighbours (`struct ndmsg`) on the link with this index.
    pub(crate) fn neighbour(kind: u16, family: u8, index: u32) -> Message {
        let mut message = Message { kind, fixed: [0; FIXED_MAX], attributes: Attributes::new() };
        message.put(0, &[family]);
        message.put(4, &index.to_ne_bytes());
        message
    }

    /// Builds a message about routes or rules, whose headers have the same twelve bytes (`struct rtmsg`, `struct
    /// fib_rule_hdr`).
    pub(crate) fn route(kind: u16, family: u8, fields: RouteFields) -> Message {
        let RouteFields { destination, source, table, protocol, scope, action, flags } = fields;
        let mut message = Message { kind, fixed: [0; FIXED_MAX], attributes: Attributes::new() };
        message.put(0, &[family, destination, source, 0, table, protocol, scope, action]);
        message.put(8, &flags.to_ne_bytes());
        message
    }

    /// Builds a message about traffic control (`struct tcmsg`): an object with this handle below `parent` on a link.
    pub(crate) fn traffic(kind: u16, index: u32, handle: u32, parent: u32, info: u32) -> Message {
        let mut message = Message { kind, fixed: [0; FIXED_MAX], attributes: Attributes::new() };
        for (at, value) in [(4, index), (8, handle), (12, parent), (16, info)] {
            message.put(at, &value.to_ne_bytes());
        }
        message
    }

    /// Writes bytes into the fixed part.
    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(room) = self.fixed.get_mut(at..at + bytes.len()) {
            room.copy_from_slice(bytes);
        }
    }

    /// Returns the message type.
    pub(crate) fn kind(&self) -> u16 {
        self.kind
    }

    /// Returns the fixed part.
    pub(crate) fn fixed(&self) -> &[u8] {
        &self.fixed[..fixed_length(self.kind)]
    }

    /// Returns one byte of the fixed part.
    pub(crate) fn byte_at(&self, at: usize) -> u8 {
        self.fixed.get(at).copied().unwrap_or_default()
    }

    /// Returns four bytes from the fixed part, in this machine's byte order.
    pub(crate) fn word_at(&self, at: usize) -> u32 {
        let word = self.fixed.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_ne_bytes(word.unwrap_or_default())
    }
}

/// Fields that a route or rule has in the fixed part.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RouteFields {
    /// Destination prefix length.
    pub(crate) destination: u8,
    /// Source prefix length.
    pub(crate) source: u8,
    /// Table, if the number fits.
    pub(crate) table: u8,
    /// Protocol number, which tells what created the object.
    pub(crate) protocol: u8,
    /// `RT_SCOPE_…`
    pub(crate) scope: u8,
    /// `RTN_…` for a route, `FR_ACT_…` for a rule.
    pub(crate) action: u8,
    /// `RTM_F_…`, `RTNH_F_…`
    pub(crate) flags: u32,
}

/// Returns `AF_INET` or `AF_INET6`.
pub(crate) fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => INET,
        IpAddr::V6(_) => INET6,
    }
}

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.fixed().len() + self.attributes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        let (fixed, attributes) = buffer.split_at_mut(self.fixed().len());
        fixed.copy_from_slice(self.fixed());
        attributes.copy_from_slice(self.attributes.as_bytes());
    }
}

impl NetlinkDeserializable for Message {
    type Error = Infallible;

    /// Reads a message; if it is too short for the fixed part, that part is filled with zeros.
    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Message, Infallible> {
        let kind = header.message_type;
        let length = fixed_length(kind);
        let mut fixed = [0; FIXED_MAX];
        if let Some(received) = payload.get(..length) {
            fixed[..length].copy_from_slice(received);
        }
        let attributes = Attributes::received(payload.get(length..).unwrap_or_default());
        Ok(Message { kind, fixed, attributes })
    }
}
