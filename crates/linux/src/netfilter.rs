//! What nf_tables and connection tracking share: nfnetlink messages and their attributes.
//!
//! A message is its type, family and attributes as bytes. Half of the expressions we need (nat, masquerade,
//! fib, ct, counter, user data) have no typed form in the netlink-packet crates, so all of them are
//! written in one way, here, instead of some in one and some in another.
//!
//! Numbers are in network byte order unless said otherwise.
//!
//! Source: kernel `include/uapi/linux/netfilter/nfnetlink.h`, `include/uapi/linux/netlink.h`.

use std::convert::Infallible;

use netlink_packet_core::{NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};

/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;

/// `NLA_TYPE_MASK`.
const KIND: u16 = 0x3fff;

/// Length of an attribute's own header, in bytes.
const HEADER: usize = 4;

/// One nfnetlink message.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// Subsystem in the upper byte, type in the lower.
    pub(crate) kind: u16,
    /// `NFPROTO_…`.
    pub(crate) family: u8,
    /// `res_id`: zero but for the brackets of a batch, where it is the subsystem.
    pub(crate) resource: u16,
    /// What follows the header.
    pub(crate) attributes: Attributes,
}

/// Attributes as bytes, being written or as received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Attributes(Vec<u8>);

// === impl Message ===

impl NetlinkSerializable for Message {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        HEADER + self.attributes.0.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        let resource = self.resource.to_be_bytes();
        buffer[..HEADER].copy_from_slice(&[self.family, 0, resource[0], resource[1]]);
        buffer[HEADER..].copy_from_slice(&self.attributes.0);
    }
}

impl NetlinkDeserializable for Message {
    type Error = Infallible;

    /// A message too short for its header has no attributes: whoever looks for some finds none.
    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Message, Infallible> {
        let attributes = payload.get(HEADER..).unwrap_or_default().to_vec();
        let family = payload.first().copied().unwrap_or_default();
        Ok(Message { kind: header.message_type, family, resource: 0, attributes: Attributes(attributes) })
    }
}

// === impl Attributes ===

impl Attributes {
    pub(crate) fn new() -> Attributes {
        Attributes::default()
    }

    /// An attribute of plain bytes.
    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) -> &mut Attributes {
        let start = self.open(kind);
        self.0.extend_from_slice(value);
        self.close(start)
    }

    /// A string with its NUL. One inside would end it early for the kernel, so it ends here, too.
    pub(crate) fn text(&mut self, kind: u16, value: &str) -> &mut Attributes {
        let start = self.open(kind);
        self.0.extend(value.bytes().take_while(|byte| *byte != 0));
        self.0.push(0);
        self.close(start)
    }

    pub(crate) fn u32(&mut self, kind: u16, value: u32) -> &mut Attributes {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(crate) fn u64(&mut self, kind: u16, value: u64) -> &mut Attributes {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Attributes within an attribute.
    pub(crate) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Attributes)) -> &mut Attributes {
        let start = self.open(kind | NESTED);
        fill(self);
        self.close(start)
    }

    /// Attributes that were written before.
    pub(crate) fn append(&mut self, other: &Attributes) -> &mut Attributes {
        self.0.extend_from_slice(&other.0);
        self
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    fn open(&mut self, kind: u16) -> usize {
        let start = self.0.len();
        self.0.extend_from_slice(&[0, 0]);
        self.0.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    /// Writes the length at `start` and pads. Longer than 64 KiB cannot be said in an attribute; callers
    /// write less (see `set::PIECE`), and what is longer here would be refused by the kernel as malformed.
    fn close(&mut self, start: usize) -> &mut Attributes {
        let length = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(HEADER), 0);
        self
    }

    /// The value of the first attribute of this kind.
    pub(crate) fn find(&self, kind: u16) -> Option<&[u8]> {
        find(&self.0, kind)
    }
}

/// The value of the first attribute of this kind among those in `attributes`.
pub(crate) fn find(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    items(attributes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// Kind and value of each attribute, up to the first malformed one.
pub(crate) fn items(attributes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = attributes;
    std::iter::from_fn(move || {
        let [low, high, kind_low, kind_high, ..] = *rest else { return None };
        let length = usize::from(u16::from_ne_bytes([low, high]));
        let kind = u16::from_ne_bytes([kind_low, kind_high]) & KIND;
        let value = rest.get(HEADER..length)?;
        rest = rest.get(length.next_multiple_of(HEADER)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// A string without its NUL; what is no UTF-8 is replaced.
pub(crate) fn text(value: &[u8]) -> String {
    let value = value.split(|byte| *byte == 0).next().unwrap_or(value);
    String::from_utf8_lossy(value).into_owned()
}

/// A number in network byte order; none if it has another length.
pub(crate) fn u64_of(value: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(value.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_found_again() {
        let mut attributes = Attributes::new();
        attributes.text(1, "weft").u32(2, 7).nested(3, |inner| {
            inner.u64(1, 9).bytes(2, &[1, 2, 3]);
        });
        assert_eq!(attributes.len() % 4, 0);
        assert_eq!(attributes.find(1).map(text).as_deref(), Some("weft"));
        assert_eq!(attributes.find(2), Some(&[0, 0, 0, 7][..]));
        let inner = attributes.find(3).unwrap();
        assert_eq!(find(inner, 1).and_then(u64_of), Some(9));
        assert_eq!(items(inner).collect::<Vec<_>>(), [(1, &9_u64.to_be_bytes()[..]), (2, &[1, 2, 3])]);
        assert_eq!(attributes.find(4), None);
    }

    #[test]
    fn a_string_ends_at_its_first_nul() {
        let mut attributes = Attributes::new();
        attributes.text(1, "we\0ft");
        assert_eq!(attributes.find(1), Some(&b"we\0"[..]));
    }

    #[test]
    fn malformed_attributes_are_not_there() {
        for bytes in [&[255, 255, 1, 0][..], &[3, 0, 1, 0], &[8, 0, 1, 0, 1]] {
            assert_eq!(find(bytes, 1), None, "{bytes:?}");
            assert_eq!(items(bytes).count(), 0, "{bytes:?}");
        }
    }
}
