//! A DHCPv6 message as bytes, and what is nested in it.
//!
//! Rules: everything read is hostile. A message that is too short or has an option beyond its end is none at all, and so is
//! an association that cannot be read whole; nothing here grows beyond the datagram it came in; what a server says in words
//! is cut and has no control characters.
//!
//! A library was not taken, for the reason that the messages of DHCPv4 have: without features it still brings a resolver
//! and the tables of Unicode along.
//!
//! Source: RFC 8415 §8, §21; numbers: IANA «DHCPv6 parameters».

use std::net::Ipv6Addr;

/// Length of the part before the options, in bytes.
const FIXED: usize = 4;
/// Longest text of a server that is repeated, in characters.
const TEXT_MAX: usize = 200;

/// Numbers of options.
pub mod option {
    #![allow(missing_docs, reason = "RFC 8415 §24 and IANA name them")]
    pub const CLIENT: u16 = 1;
    pub const SERVER: u16 = 2;
    pub const ASSOCIATION: u16 = 3;
    pub const TEMPORARY: u16 = 4;
    pub const ADDRESS: u16 = 5;
    pub const REQUESTED: u16 = 6;
    pub const PREFERENCE: u16 = 7;
    pub const ELAPSED: u16 = 8;
    pub const RELAYED: u16 = 9;
    pub const AUTHENTICATION: u16 = 11;
    pub const UNICAST: u16 = 12;
    pub const STATUS: u16 = 13;
    pub const RAPID_COMMIT: u16 = 14;
    pub const USER_CLASS: u16 = 15;
    pub const VENDOR_CLASS: u16 = 16;
    pub const RELAY_INTERFACE: u16 = 18;
    pub const RECONFIGURE: u16 = 19;
    pub const RECONFIGURE_ACCEPT: u16 = 20;
    pub const NAME_SERVERS: u16 = 23;
    pub const DOMAIN_SEARCH: u16 = 24;
    pub const DELEGATION: u16 = 25;
    pub const DELEGATED: u16 = 26;
    pub const NAME: u16 = 39;
    pub const SOLICIT_MOST: u16 = 82;
}

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Is there a server?
    Solicit = 1,
    /// There is, and this is what it would give.
    Advertise = 2,
    /// I want that.
    Request = 3,
    /// Does this address still belong here?
    Confirm = 4,
    /// I want to keep it: to who gave it.
    Renew = 5,
    /// I want to keep it: to anybody.
    Rebind = 6,
    /// The answer to all but the first.
    Reply = 7,
    /// I do not need it any more.
    Release = 8,
    /// Another machine has it.
    Decline = 9,
}

/// Options in order; a number may be there more than once.
pub type Options = Vec<(u16, Vec<u8>)>;

/// One message, of a client or for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is for.
    pub kind: Kind,
    /// What answers are recognised by: 24 bits.
    pub transaction: u32,
    /// Its options.
    pub options: Options,
}

/// What became of what was asked (RFC 8415 §21.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// It was done.
    Success,
    /// It was not, and the server does not say why, or with a number that we do not know.
    Unspecified,
    /// The server has no address.
    NoAddress,
    /// The server does not know the association.
    NoBinding,
    /// The address does not belong to this link.
    NotOnLink,
    /// It has to be asked by multicast; it always is.
    UseMulticast,
}

/// The same with the server's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// What became of it.
    pub code: Code,
    /// The server's words; may be empty.
    pub text: String,
}

/// An association for addresses that are no temporary ones (IA_NA).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Association {
    /// Which one of the client's.
    pub id: u32,
    /// T1, in seconds; 0 leaves it to the client.
    pub renewal: u32,
    /// T2, in seconds; 0 leaves it to the client.
    pub rebinding: u32,
    /// Its addresses.
    pub addresses: Vec<Address>,
    /// What became of it.
    pub status: Status,
}

/// An address of an association (IAADDR).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub address: Ipv6Addr,
    /// How long it may be used for what is new, in seconds.
    pub preferred: u32,
    /// How long it may be used, in seconds.
    pub valid: u32,
    /// What became of it.
    pub status: Status,
}

// === impl Kind ===

impl Kind {
    fn of(number: u8) -> Option<Kind> {
        let all = [
            Kind::Solicit,
            Kind::Advertise,
            Kind::Request,
            Kind::Confirm,
            Kind::Renew,
            Kind::Rebind,
            Kind::Reply,
            Kind::Release,
            Kind::Decline,
        ];
        all.into_iter().find(|kind| *kind as u8 == number)
    }
}

// === impl Message ===

impl Message {
    /// A message without an option.
    pub fn new(kind: Kind, transaction: u32) -> Message {
        Message { kind, transaction: transaction & 0x00ff_ffff, options: Options::new() }
    }

    /// Sets an option; what was there under its number is replaced.
    pub fn set(&mut self, number: u16, value: impl Into<Vec<u8>>) {
        let value = value.into();
        match self.options.iter_mut().find(|(known, _)| *known == number) {
            Some((_, old)) => *old = value,
            None => self.options.push((number, value)),
        }
    }

    /// The value of an option, the first if there are several.
    pub fn option(&self, number: u16) -> Option<&[u8]> {
        find(&self.options, number)
    }

    /// An option that is a list of addresses; what is left over at the end is not one.
    pub fn addresses(&self, number: u16) -> Vec<Ipv6Addr> {
        let (list, _) = self.option(number).unwrap_or_default().as_chunks::<16>();
        list.iter().map(|octets| Ipv6Addr::from(*octets)).collect()
    }

    /// The status of the whole message; success where it says none.
    pub fn status(&self) -> Status {
        Status::among(&self.options)
    }

    /// The association of this number; `None` if there is none, or none that may be believed: T1 after T2.
    pub fn association(&self, id: u32) -> Option<Association> {
        let all = self.options.iter().filter(|(number, _)| *number == option::ASSOCIATION);
        let read = all.filter_map(|(_, value)| Association::decode(value)).find(|found| found.id == id)?;
        let is_in_order = read.renewal == 0 || read.rebinding == 0 || read.renewal <= read.rebinding;
        is_in_order.then_some(read)
    }

    /// As it is sent.
    pub fn encode(&self) -> Vec<u8> {
        let Message { kind, transaction, options } = self;
        let mut bytes = transaction.to_be_bytes().to_vec();
        bytes[0] = *kind as u8;
        write(options, &mut bytes);
        bytes
    }

    /// As it was received; `None` if it is none.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let (fixed, rest) = bytes.split_first_chunk::<FIXED>()?;
        let [kind, transaction @ ..] = *fixed;
        let [high, middle, low] = transaction;
        let transaction = u32::from_be_bytes([0, high, middle, low]);
        Some(Message { kind: Kind::of(kind)?, transaction, options: read(rest)? })
    }
}

// === impl Status ===

impl Status {
    /// Nothing is said, and so all is well.
    pub const SUCCESS: Status = Status { code: Code::Success, text: String::new() };

    fn among(options: &Options) -> Status {
        let Some((code, text)) =
            find(options, option::STATUS).and_then(|value| value.split_first_chunk::<2>())
        else {
            return Status::SUCCESS;
        };
        let code = match u16::from_be_bytes(*code) {
            0 => Code::Success,
            2 => Code::NoAddress,
            3 => Code::NoBinding,
            4 => Code::NotOnLink,
            5 => Code::UseMulticast,
            _ => Code::Unspecified,
        };
        let text = String::from_utf8_lossy(text);
        let text = text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect();
        Status { code, text }
    }

    fn encode(&self) -> Vec<u8> {
        let code: u16 = match self.code {
            Code::Success => 0,
            Code::Unspecified => 1,
            Code::NoAddress => 2,
            Code::NoBinding => 3,
            Code::NotOnLink => 4,
            Code::UseMulticast => 5,
        };
        [&code.to_be_bytes(), self.text.as_bytes()].concat()
    }

    fn append(&self, options: &mut Options) {
        if *self != Status::SUCCESS {
            options.push((option::STATUS, self.encode()));
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.code {
            Code::Success => "Success",
            Code::Unspecified => "UnspecFail",
            Code::NoAddress => "NoAddrsAvail",
            Code::NoBinding => "NoBinding",
            Code::NotOnLink => "NotOnLink",
            Code::UseMulticast => "UseMulticast",
        };
        match self.text.as_str() {
            "" => f.write_str(name),
            text => write!(f, "{name}, {text:?}"),
        }
    }
}

// === impl Association ===

impl Association {
    /// The value of the option.
    pub fn encode(&self) -> Vec<u8> {
        let Association { id, renewal, rebinding, addresses, status } = self;
        let mut options: Options =
            addresses.iter().map(|address| (option::ADDRESS, address.encode())).collect();
        status.append(&mut options);
        let mut bytes = [id, renewal, rebinding].map(|number| number.to_be_bytes()).concat();
        write(&options, &mut bytes);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Association> {
        let (fixed, rest) = bytes.split_first_chunk::<12>()?;
        let options = read(rest)?;
        let addresses = options.iter().filter(|(number, _)| *number == option::ADDRESS);
        Some(Association {
            id: word(fixed, 0),
            renewal: word(fixed, 4),
            rebinding: word(fixed, 8),
            addresses: addresses.map(|(_, value)| Address::decode(value)).collect::<Option<_>>()?,
            status: Status::among(&options),
        })
    }
}

// === impl Address ===

impl Address {
    fn encode(&self) -> Vec<u8> {
        let Address { address, preferred, valid, status } = self;
        let mut options = Options::new();
        status.append(&mut options);
        let mut bytes = address.octets().to_vec();
        bytes.extend([preferred, valid].map(|number| number.to_be_bytes()).concat());
        write(&options, &mut bytes);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Address> {
        let (address, rest) = bytes.split_first_chunk::<16>()?;
        let (times, rest) = rest.split_first_chunk::<8>()?;
        let status = Status::among(&read(rest)?);
        Some(Address {
            address: Ipv6Addr::from(*address),
            preferred: word(times, 0),
            valid: word(times, 4),
            status,
        })
    }
}

// === options ===

fn find(options: &Options, number: u16) -> Option<&[u8]> {
    options.iter().find(|(known, _)| *known == number).map(|(_, value)| value.as_slice())
}

fn write(options: &Options, bytes: &mut Vec<u8>) {
    for (number, value) in options {
        // No datagram is longer than this; what is sent is shorter by far.
        let Ok(length) = u16::try_from(value.len()) else { continue };
        bytes.extend(number.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(value);
    }
}

/// `None` if one of them goes beyond the end.
fn read(mut rest: &[u8]) -> Option<Options> {
    let mut options = Options::new();
    while !rest.is_empty() {
        let (head, later) = rest.split_first_chunk::<4>()?;
        let [number_high, number_low, length_high, length_low] = *head;
        let length = usize::from(u16::from_be_bytes([length_high, length_low]));
        let (value, later) = later.split_at_checked(length)?;
        options.push((u16::from_be_bytes([number_high, number_low]), value.to_vec()));
        rest = later;
    }
    Some(options)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    word.map_or(0, |word| u32::from_be_bytes(*word))
}

#[cfg(test)]
mod tests;
