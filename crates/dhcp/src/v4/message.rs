//! DHCPv4 message codec.
//!
//! - Input is untrusted. A message is invalid if it is too short, has no cookie, or has an option that reaches beyond
//!   the end.
//! - Split options are joined (RFC 3396). Options in the file and server name fields are read, too (RFC 2131 §4.1,
//!   option 52).
//! - A decoded message is never larger than the datagram.
//!
//! No library is used: the well-maintained ones depend on a resolver and on Unicode tables, which are several times
//! larger than this program.
//!
//! Source: RFC 2131 §2, RFC 2132, RFC 3396.

use std::net::Ipv4Addr;

pub use plugin_config::dhcp::v4::option;

/// Length of the part before the options, in bytes.
const FIXED: usize = 236;
/// Magic cookie at the start of the options.
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Minimum message size that every relay forwards, in bytes.
const SHORTEST: usize = 300;
/// Fields that can contain further options: file, then server name.
const FILE: std::ops::Range<usize> = 108..236;
const SERVER_NAME: std::ops::Range<usize> = 44..108;
/// Flag that asks for broadcast answers.
const BROADCAST: u16 = 0x8000;

/// Message type (option 53).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The client searches for servers.
    Discover = 1,
    /// A server offers an address.
    Offer = 2,
    /// The client requests an offered address, or an extension.
    Request = 3,
    /// The server grants the request.
    Ack = 5,
    /// The server refuses the request.
    Nak = 6,
    /// The client releases the address.
    Release = 7,
}

/// Message from or to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Whether it is an answer.
    pub reply: bool,
    /// Transaction id, by which answers are matched to requests.
    pub transaction: u32,
    /// Whether answers should be broadcast.
    pub broadcast: bool,
    /// Address that the client already has, if any.
    pub client: Ipv4Addr,
    /// Address that the server assigns.
    pub yours: Ipv4Addr,
    /// Client MAC address.
    pub hardware: [u8; 6],
    /// Options in order, each number once.
    pub options: Vec<(u8, Vec<u8>)>,
}

// === impl Message ===

impl Message {
    /// Builds a client message that has only the type option.
    pub fn new(kind: Kind, transaction: u32, hardware: [u8; 6]) -> Message {
        let none = Ipv4Addr::UNSPECIFIED;
        let options = vec![(option::MESSAGE_TYPE, vec![kind as u8])];
        Message { reply: false, transaction, broadcast: false, client: none, yours: none, hardware, options }
    }

    /// Sets an option; replaces a previous value.
    pub fn set(&mut self, number: u8, value: impl Into<Vec<u8>>) {
        let value = value.into();
        match self.options.iter_mut().find(|(known, _)| *known == number) {
            Some((_, old)) => *old = value,
            None => self.options.push((number, value)),
        }
    }

    /// Returns the value of an option.
    pub fn option(&self, number: u8) -> Option<&[u8]> {
        self.options.iter().find(|(known, _)| *known == number).map(|(_, value)| value.as_slice())
    }

    /// Returns the type; `None` if it is one that a client never receives.
    pub fn kind(&self) -> Option<Kind> {
        match self.option(option::MESSAGE_TYPE)? {
            [2] => Some(Kind::Offer),
            [5] => Some(Kind::Ack),
            [6] => Some(Kind::Nak),
            _ => None,
        }
    }

    /// Returns an option that holds one address.
    pub fn address(&self, number: u8) -> Option<Ipv4Addr> {
        let octets: [u8; 4] = self.option(number)?.try_into().ok()?;
        Some(Ipv4Addr::from(octets))
    }

    /// Returns an option that holds a list of addresses; incomplete bytes at the end are ignored.
    pub fn addresses(&self, number: u8) -> Vec<Ipv4Addr> {
        let list = self.option(number).unwrap_or_default().chunks_exact(4);
        list.map(|octets| Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3])).collect()
    }

    /// Returns an option that holds a number of seconds.
    pub fn seconds(&self, number: u8) -> Option<u32> {
        Some(u32::from_be_bytes(self.option(number)?.try_into().ok()?))
    }

    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let Message { reply, transaction, broadcast, client, yours, hardware, options } = self;
        let mut bytes = vec![0; FIXED];
        // Ethernet, with six-byte addresses.
        bytes[..3].copy_from_slice(&[if *reply { 2 } else { 1 }, 1, 6]);
        bytes[4..8].copy_from_slice(&transaction.to_be_bytes());
        if *broadcast {
            bytes[10..12].copy_from_slice(&BROADCAST.to_be_bytes());
        }
        bytes[12..16].copy_from_slice(&client.octets());
        bytes[16..20].copy_from_slice(&yours.octets());
        bytes[28..34].copy_from_slice(hardware);
        bytes.extend(COOKIE);
        for (number, value) in options {
            // An empty option still needs one piece.
            let pieces = if value.is_empty() { vec![&value[..]] } else { value.chunks(255).collect() };
            for piece in pieces {
                bytes.extend([*number, u8::try_from(piece.len()).unwrap_or(u8::MAX)]);
                bytes.extend(piece);
            }
        }
        bytes.push(option::END);
        bytes.resize(bytes.len().max(SHORTEST), 0);
        bytes
    }

    /// Decodes a message; `None` if it is invalid.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let fixed = bytes.get(..FIXED)?;
        let rest = bytes.get(FIXED..)?.strip_prefix(&COOKIE)?;
        // Addresses on other hardware could not be compared.
        if fixed[1] != 1 || fixed[2] != 6 || !matches!(fixed[0], 1 | 2) {
            return None;
        }
        let number = |at: usize| u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let mut message = Message {
            reply: fixed[0] == 2,
            transaction: number(4),
            broadcast: fixed[10] & 0x80 != 0,
            client: Ipv4Addr::from(number(12)),
            yours: Ipv4Addr::from(number(16)),
            hardware: fixed[28..34].try_into().ok()?,
            options: Vec::new(),
        };
        message.read_options(rest)?;
        let overload = message.option(option::OVERLOAD).and_then(|value| value.first().copied()).unwrap_or(0);
        for (bit, field) in [(1, FILE), (2, SERVER_NAME)] {
            if overload & bit != 0 {
                message.read_options(&fixed[field])?;
            }
        }
        Some(message)
    }

    fn read_options(&mut self, mut rest: &[u8]) -> Option<()> {
        loop {
            match *rest {
                // Some servers omit the end option.
                [] | [option::END, ..] => return Some(()),
                [option::PAD, ref later @ ..] => rest = later,
                [number, length, ref later @ ..] => {
                    let value = later.get(..usize::from(length))?;
                    rest = &later[usize::from(length)..];
                    match self.options.iter_mut().find(|(known, _)| *known == number) {
                        Some((_, whole)) => whole.extend(value),
                        None => self.options.push((number, value.to_vec())),
                    }
                }
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        let mut message = Message::new(Kind::Discover, 0x0102_0304, [2, 0, 0, 0, 0, 1]);
        message.set(option::CLIENT, [&[0][..], &[b'c'; 253]].concat());
        message.set(option::HOST_NAME, b"web".to_vec());
        message
    }

    #[test]
    fn dhcp_v4_message_round_trips() {
        let mut message = message();
        message.broadcast = true;
        message.yours = Ipv4Addr::new(10, 0, 0, 5);
        message.set(option::VENDOR_CLASS, vec![b'v'; 700]);
        message.set(option::USER_CLASS, Vec::new());
        let bytes = message.encode();
        assert!(bytes.len() >= SHORTEST);
        assert_eq!(Message::decode(&bytes), Some(message));
    }

    #[test]
    fn dhcp_v4_truncated_or_damaged_message_is_harmless() {
        let bytes = message().encode();
        for length in 0..FIXED + COOKIE.len() {
            assert_eq!(Message::decode(&bytes[..length]), None, "{length}");
        }
        let mut seed = 7_u64;
        for _ in 0..20_000 {
            let mut bytes = bytes.clone();
            for _ in 0..4 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (seed >> 33) as usize % bytes.len();
                bytes[at] = (seed >> 20) as u8;
            }
            let read = Message::decode(&bytes);
            let size =
                read.iter().flat_map(|read| &read.options).map(|(_, value)| value.len()).sum::<usize>();
            assert!(size <= bytes.len());
        }
    }

    #[test]
    fn dhcp_v4_split_and_overloaded_options_are_joined() {
        let mut bytes = message().encode();
        bytes.truncate(FIXED + COOKIE.len());
        bytes.extend([option::OVERLOAD, 1, 3, option::DOMAIN_NAME, 2, b'a', b'b', option::END]);
        bytes[FILE][..5].copy_from_slice(&[option::DOMAIN_NAME, 2, b'c', b'd', option::END]);
        bytes[SERVER_NAME][..4].copy_from_slice(&[option::HOST_NAME, 1, b'h', option::END]);
        let read = Message::decode(&bytes).unwrap();
        assert_eq!(read.option(option::DOMAIN_NAME), Some(&b"abcd"[..]));
        assert_eq!(read.option(option::HOST_NAME), Some(&b"h"[..]));
        bytes[SERVER_NAME][..2].copy_from_slice(&[option::HOST_NAME, 200]);
        assert_eq!(Message::decode(&bytes), None, "an option beyond its field");
    }
}
