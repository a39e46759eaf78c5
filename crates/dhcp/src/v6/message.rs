//! DHCPv6 message codec, including nested options.
//!
//! - Input is untrusted. A message is invalid if it is too short or has an option that reaches beyond the end; an
//!   association is invalid if it cannot be decoded completely.
//! - A decoded message is never larger than the datagram.
//! - Status text from a server is truncated, and has no control characters.
//!
//! No library is used, for the same reason as for DHCPv4: they depend on a resolver and on Unicode tables.
//!
//! Source: RFC 8415 §8, §21; numbers: IANA "DHCPv6 parameters".

use std::net::Ipv6Addr;

pub use plugin_config::dhcp::v6::option;

/// Length of the part before the options, in bytes.
const FIXED: usize = 4;
/// Maximum length of text from a server, in characters.
const TEXT_MAX: usize = 200;

/// Message type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The client searches for servers.
    Solicit = 1,
    /// A server offers an address.
    Advertise = 2,
    /// The client requests the offered address.
    Request = 3,
    /// The client asks whether an address still belongs on the link.
    Confirm = 4,
    /// The client asks the lease's own server to extend the lease.
    Renew = 5,
    /// The client asks any server to extend the lease.
    Rebind = 6,
    /// A server answers any message except SOLICIT without rapid commit.
    Reply = 7,
    /// The client releases the address.
    Release = 8,
    /// The client reports that another host uses the address.
    Decline = 9,
}

/// Options in order; a number may occur more than once.
pub type Options = Vec<(u16, Vec<u8>)>;

/// Message from or to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Message type.
    pub kind: Kind,
    /// 24-bit transaction id, by which answers are matched to requests.
    pub transaction: u32,
    /// Top-level options.
    pub options: Options,
}

/// Status code for a request (RFC 8415 §21.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Success.
    Success,
    /// An unspecified failure, or an unknown code.
    Unspecified,
    /// The server has no address to assign.
    NoAddress,
    /// The server does not know the association.
    NoBinding,
    /// The address does not belong on this link.
    NotOnLink,
    /// The server requires multicast, which this client always uses.
    UseMulticast,
}

/// Status, with text from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Status code.
    pub code: Code,
    /// Text from the server; may be empty.
    pub text: String,
}

/// Association for non-temporary addresses (IA_NA).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Association {
    /// IAID.
    pub id: u32,
    /// T1 in seconds; 0 leaves it to the client.
    pub renewal: u32,
    /// T2 in seconds; 0 leaves it to the client.
    pub rebinding: u32,
    /// Addresses in this association.
    pub addresses: Vec<Address>,
    /// Status for the association as a whole.
    pub status: Status,
}

/// Address in an association (IAADDR).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// IPv6 address.
    pub address: Ipv6Addr,
    /// Preferred lifetime in seconds.
    pub preferred: u32,
    /// Valid lifetime in seconds.
    pub valid: u32,
    /// Status for this address.
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
    /// Builds a message without options.
    pub fn new(kind: Kind, transaction: u32) -> Message {
        Message { kind, transaction: transaction & 0x00ff_ffff, options: Options::new() }
    }

    /// Sets an option; replaces a previous value.
    pub fn set(&mut self, number: u16, value: impl Into<Vec<u8>>) {
        let value = value.into();
        match self.options.iter_mut().find(|(known, _)| *known == number) {
            Some((_, old)) => *old = value,
            None => self.options.push((number, value)),
        }
    }

    /// Returns an option's value, the first one if there are several.
    pub fn option(&self, number: u16) -> Option<&[u8]> {
        find(&self.options, number)
    }

    /// Returns an option that holds a list of addresses; incomplete bytes at the end are ignored.
    pub fn addresses(&self, number: u16) -> Vec<Ipv6Addr> {
        let (list, _) = self.option(number).unwrap_or_default().as_chunks::<16>();
        list.iter().map(|octets| Ipv6Addr::from(*octets)).collect()
    }

    /// Returns the message status; success if it has none.
    pub fn status(&self) -> Status {
        Status::among(&self.options)
    }

    /// Returns the association with this IAID; `None` if there is none, or if T1 is after T2.
    pub fn association(&self, id: u32) -> Option<Association> {
        let all = self.options.iter().filter(|(number, _)| *number == option::ASSOCIATION);
        let read = all.filter_map(|(_, value)| Association::decode(value)).find(|found| found.id == id)?;
        let is_in_order = read.renewal == 0 || read.rebinding == 0 || read.renewal <= read.rebinding;
        is_in_order.then_some(read)
    }

    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let Message { kind, transaction, options } = self;
        let mut bytes = transaction.to_be_bytes().to_vec();
        bytes[0] = *kind as u8;
        write(options, &mut bytes);
        bytes
    }

    /// Decodes a message; `None` if it is invalid.
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
    /// Status when the answer has no status option.
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
    /// Encodes the association as an option value.
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
        // No datagram has longer options, and the ones that are sent are much shorter.
        let Ok(length) = u16::try_from(value.len()) else { continue };
        bytes.extend(number.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(value);
    }
}

/// Decodes options; `None` if one of them exceeds the end.
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
