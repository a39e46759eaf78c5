//! Netlink attributes as bytes, for all kernel subsystems.
//!
//! The netlink-packet crates have no types for half the attributes that weft needs (nat, masquerade, fib, ct, user
//! data, token buckets). Typed parsers for the other half would take four times as much code, and would fail when a
//! newer kernel adds something. An attribute is therefore a kind and bytes, and the caller decodes it.
//!
//! Routing uses this machine's byte order (`ne…`), netfilter uses network byte order (`be…`).
//!
//! Source: kernel `include/uapi/linux/netlink.h`; netlink(7).

use std::net::IpAddr;

/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;

/// `NLA_TYPE_MASK`.
const KIND: u16 = 0x3fff;

/// Length of an attribute header in bytes.
const HEADER: usize = 4;

/// Attributes in wire format, either being built or as received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Attributes(Vec<u8>);

// === impl Attributes ===

impl Attributes {
    pub(crate) fn new() -> Attributes {
        Attributes::default()
    }

    /// Appends bytes as they are.
    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) -> &mut Attributes {
        let start = self.open(kind);
        self.0.extend_from_slice(value);
        self.close(start)
    }

    /// Appends a string with a NUL. The kernel ends a string at the first NUL, so the value is cut there.
    pub(crate) fn text(&mut self, kind: u16, value: &str) -> &mut Attributes {
        let start = self.open(kind);
        self.0.extend(value.bytes().take_while(|byte| *byte != 0));
        self.0.push(0);
        self.close(start)
    }

    /// Appends 32 bits in network byte order.
    pub(crate) fn be32(&mut self, kind: u16, value: u32) -> &mut Attributes {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Appends 64 bits in network byte order.
    pub(crate) fn be64(&mut self, kind: u16, value: u64) -> &mut Attributes {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Appends 32 bits in this machine's byte order.
    pub(crate) fn ne32(&mut self, kind: u16, value: u32) -> &mut Attributes {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Appends 16 bits in this machine's byte order.
    pub(crate) fn ne16(&mut self, kind: u16, value: u16) -> &mut Attributes {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Appends one byte.
    pub(crate) fn byte(&mut self, kind: u16, value: u8) -> &mut Attributes {
        self.bytes(kind, &[value])
    }

    /// Appends an IPv4 or IPv6 address.
    pub(crate) fn address(&mut self, kind: u16, value: IpAddr) -> &mut Attributes {
        match value {
            IpAddr::V4(ip) => self.bytes(kind, &ip.octets()),
            IpAddr::V6(ip) => self.bytes(kind, &ip.octets()),
        }
    }

    /// Wraps received attributes.
    pub(crate) fn received(bytes: &[u8]) -> Attributes {
        Attributes(bytes.to_vec())
    }

    /// Returns the bytes to send.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Iterates over the attributes as kind and value.
    pub(crate) fn items(&self) -> impl Iterator<Item = (u16, &[u8])> {
        items(&self.0)
    }

    /// Appends an attribute that contains other attributes, which `fill` adds.
    pub(crate) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Attributes)) -> &mut Attributes {
        let start = self.open(kind | NESTED);
        fill(self);
        self.close(start)
    }

    /// Appends all attributes of `other`.
    pub(crate) fn append(&mut self, other: &Attributes) -> &mut Attributes {
        self.0.extend_from_slice(&other.0);
        self
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    fn open(&mut self, kind: u16) -> usize {
        let start = self.0.len();
        self.0.extend_from_slice(&[0, 0]);
        self.0.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    /// Writes the length at `start` and pads. An attribute cannot exceed 64 KiB; callers write less (see `set::PIECE`),
    /// and the kernel would reject a longer one as malformed.
    fn close(&mut self, start: usize) -> &mut Attributes {
        let length = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(HEADER), 0);
        self
    }

    /// Returns the value of the first attribute with this kind.
    pub(crate) fn find(&self, kind: u16) -> Option<&[u8]> {
        find(&self.0, kind)
    }
}

/// Returns the value of the first attribute with this kind.
pub(crate) fn find(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    items(attributes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// Iterates over attributes as kind and value, up to the first malformed one.
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

/// Decodes a string up to the NUL; bytes that are not UTF-8 are replaced.
pub(crate) fn text(value: &[u8]) -> String {
    let value = value.split(|byte| *byte == 0).next().unwrap_or(value);
    String::from_utf8_lossy(value).into_owned()
}

/// Decodes 64 bits in network byte order; `None` if the value has another length.
pub(crate) fn be64_of(value: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(value.try_into().ok()?))
}

/// Decodes 32 bits in this machine's byte order; `None` if the value has another length.
pub(crate) fn ne32_of(value: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(value.try_into().ok()?))
}

/// Decodes 64 bits in this machine's byte order; `None` if the value has another length.
pub(crate) fn ne64_of(value: &[u8]) -> Option<u64> {
    Some(u64::from_ne_bytes(value.try_into().ok()?))
}

/// Decodes 16 bits in this machine's byte order; `None` if the value has another length.
pub(crate) fn ne16_of(value: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(value.try_into().ok()?))
}

/// Decodes an address; the length tells the family, and `None` means that it fits neither.
pub(crate) fn address_of(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netlink_attributes_round_trip() {
        let mut attributes = Attributes::new();
        attributes.text(1, "weft").be32(2, 7).nested(3, |inner| {
            inner.be64(1, 9).bytes(2, &[1, 2, 3]);
        });
        assert_eq!(attributes.len() % 4, 0);
        assert_eq!(attributes.find(1).map(text).as_deref(), Some("weft"));
        assert_eq!(attributes.find(2), Some(&[0, 0, 0, 7][..]));
        let inner = attributes.find(3).unwrap();
        assert_eq!(find(inner, 1).and_then(be64_of), Some(9));
        assert_eq!(items(inner).collect::<Vec<_>>(), [(1, &9_u64.to_be_bytes()[..]), (2, &[1, 2, 3])]);
        assert_eq!(attributes.find(4), None);
    }

    #[test]
    fn netlink_string_ends_at_its_first_nul() {
        let mut attributes = Attributes::new();
        attributes.text(1, "we\0ft");
        assert_eq!(attributes.find(1), Some(&b"we\0"[..]));
    }

    #[test]
    fn netlink_malformed_attributes_are_ignored() {
        for bytes in [&[255, 255, 1, 0][..], &[3, 0, 1, 0], &[8, 0, 1, 0, 1]] {
            assert_eq!(find(bytes, 1), None, "{bytes:?}");
            assert_eq!(items(bytes).count(), 0, "{bytes:?}");
        }
    }
}
