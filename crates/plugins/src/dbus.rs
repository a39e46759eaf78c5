//! D-Bus client for firewalld: calls with string arguments that return a string or a boolean.
//!
//! Answers are limited in size and validated, and each has a timeout ([`TIMEOUT`]). A library for the whole protocol
//! would be more than half as large as this program.
//!
//! Source: D-Bus Specification 0.41, "Message Protocol", "Authentication Protocol".

use std::fmt;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use linux::error::lacks_resources;
use linux::unix::connect_within;

/// Environment variable with the bus address, in D-Bus syntax such as `unix:path=…`.
pub const ADDRESS: &str = "DBUS_SYSTEM_BUS_ADDRESS";

/// Default bus socket.
const SOCKET: &str = "/run/dbus/system_bus_socket";

/// Timeout for an answer; firewalld executes one call after the other.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum size for a message that is read, in bytes; the protocol allows 128 MiB.
const MESSAGE_MAX: usize = 1 << 20;

/// Maximum length for a line in the authentication, in bytes.
const LINE_MAX: usize = 1024;

/// Maximum number of other messages, such as signals, that are read before the answer.
const OTHERS_MAX: usize = 1000;

/// Size of a header's fixed part, in bytes.
const FIXED: usize = 16;

// Types of messages and of header fields.
const CALL: u8 = 1;
const RETURN: u8 = 2;
const ERROR: u8 = 3;
const FIELD_OBJECT: u8 = 1;
const FIELD_INTERFACE: u8 = 2;
const FIELD_MEMBER: u8 = 3;
const FIELD_ERROR: u8 = 4;
const FIELD_REPLY: u8 = 5;
const FIELD_DESTINATION: u8 = 6;
const FIELD_SIGNATURE: u8 = 8;

/// Connection to the bus.
#[derive(Debug)]
pub struct Bus {
    stream: UnixStream,
    serial: u32,
}

/// Method call to a service.
#[derive(Debug)]
pub struct Call<'a> {
    /// Service to call.
    pub destination: &'a str,
    /// Object path.
    pub object: &'a str,
    /// Interface on the object.
    pub interface: &'a str,
    /// Method name.
    pub member: &'a str,
    /// String arguments.
    pub arguments: &'a [&'a str],
}

/// Body in an answer.
#[derive(Debug)]
pub struct Reply {
    body: Vec<u8>,
    order: Order,
}

/// Reason why a call failed.
#[derive(Debug)]
pub enum Failure {
    /// The called service returned an error.
    Refused {
        /// Error name, such as `org.fedoraproject.FirewallD1.Exception`.
        name: String,
        /// Explanation for people.
        message: String,
    },
    /// This process lacks a resource, for example a file descriptor.
    Unable(String),
    /// The connection or a message is invalid.
    Broken(String),
}

/// Byte order in a message, chosen by the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

// === impl Bus ===

impl Bus {
    /// Connects to the system bus as this process's user.
    pub fn system() -> Result<Bus, Failure> {
        let address = std::env::var(ADDRESS).ok();
        let path = address.as_deref().and_then(path_of).unwrap_or_else(|| PathBuf::from(SOCKET));
        let broken =
            |cause: std::io::Error| Failure::Broken(format!("connect to {}: {cause}", path.display()));
        let stream = connect_within(&path, TIMEOUT).map_err(|cause| match lacks_resources(&cause) {
            true => Failure::Unable(format!("connect to {}: {cause}", path.display())),
            false => broken(cause),
        })?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(broken)?;
        let mut bus = Bus { stream, serial: 0 };
        bus.authenticate()?;
        bus.call(&Call { member: "Hello", ..of_bus(&[]) })?;
        Ok(bus)
    }

    /// Whether a service with this name is on the bus. Does not start one.
    pub fn has_owner(&mut self, name: &str) -> Result<bool, Failure> {
        let reply = self.call(&Call { member: "NameHasOwner", ..of_bus(&[name]) })?;
        reply.boolean().ok_or_else(|| Failure::Broken("NameHasOwner: the answer is not a boolean".to_owned()))
    }

    /// Calls a method and waits for the answer.
    pub fn call(&mut self, call: &Call<'_>) -> Result<Reply, Failure> {
        self.serial = self.serial.wrapping_add(1).max(1);
        self.stream.write_all(&message(call, self.serial)).map_err(|cause| broken(&cause))?;
        for _ in 0..OTHERS_MAX {
            let (header, reply) = self.receive()?;
            match header.kind {
                RETURN if header.reply_to == Some(self.serial) => return Ok(reply),
                ERROR if header.reply_to == Some(self.serial) => {
                    let message = reply.text().unwrap_or_default();
                    return Err(Failure::Refused { name: header.error, message });
                }
                _ => {}
            }
        }
        Err(Failure::Broken(format!("{}: no answer among {OTHERS_MAX} messages", call.member)))
    }

    /// Authenticates with `EXTERNAL`: the bus reads this process's user from the socket.
    fn authenticate(&mut self) -> Result<(), Failure> {
        let user = rustix::process::geteuid().as_raw().to_string();
        let hex: String = user.bytes().map(|digit| format!("{digit:02x}")).collect();
        let greeting = format!("\0AUTH EXTERNAL {hex}\r\n");
        self.stream.write_all(greeting.as_bytes()).map_err(|cause| broken(&cause))?;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).map_err(|cause| broken(&cause))?;
            line.push(byte[0]);
            if line.len() > LINE_MAX {
                return Err(Failure::Broken("a line of the authentication is too long".to_owned()));
            }
        }
        if !line.starts_with(b"OK ") {
            let said = String::from_utf8_lossy(&line).trim().to_owned();
            return Err(Failure::Broken(format!("the bus refuses the authentication: {said:?}")));
        }
        self.stream.write_all(b"BEGIN\r\n").map_err(|cause| broken(&cause))
    }

    fn receive(&mut self) -> Result<(Header, Reply), Failure> {
        let mut fixed = [0; FIXED];
        self.stream.read_exact(&mut fixed).map_err(|cause| broken(&cause))?;
        let order = match fixed[0] {
            b'l' => Order::Little,
            b'B' => Order::Big,
            _ => return Err(Failure::Broken("a message begins with neither l nor B".to_owned())),
        };
        let number = |at: usize| number_at(&fixed, at, order).unwrap_or_default() as usize;
        let (body, fields) = (number(4), number(12));
        let head = fields.next_multiple_of(8);
        if body > MESSAGE_MAX || fields > MESSAGE_MAX {
            return Err(Failure::Broken(format!("a message is larger than {MESSAGE_MAX} bytes")));
        }
        let mut rest = vec![0; head + body];
        self.stream.read_exact(&mut rest).map_err(|cause| broken(&cause))?;
        let body = rest.split_off(head);
        rest.truncate(fields);
        let header = Header::read(fixed[1], &rest, order);
        Ok((header, Reply { body, order }))
    }
}

fn broken(cause: &std::io::Error) -> Failure {
    Failure::Broken(cause.to_string())
}

/// Returns a call to the bus itself.
fn of_bus<'a>(arguments: &'a [&'a str]) -> Call<'a> {
    Call {
        destination: "org.freedesktop.DBus",
        object: "/org/freedesktop/DBus",
        interface: "org.freedesktop.DBus",
        member: "",
        arguments,
    }
}

/// Returns the first path in an address: `unix:path=/run/x,guid=…;…`.
fn path_of(address: &str) -> Option<PathBuf> {
    let mut parts = address.split(';').filter_map(|one| one.strip_prefix("unix:"));
    parts.find_map(|keys| keys.split(',').find_map(|key| key.strip_prefix("path=")).map(PathBuf::from))
}

/// Encodes a call in little-endian byte order.
fn message(call: &Call<'_>, serial: u32) -> Vec<u8> {
    let Call { destination, object, interface, member, arguments } = call;
    let mut body = Vec::new();
    for argument in *arguments {
        put_text(&mut body, argument);
    }
    let mut fields = Vec::new();
    let named = [
        (FIELD_OBJECT, "o", *object),
        (FIELD_DESTINATION, "s", *destination),
        (FIELD_INTERFACE, "s", *interface),
        (FIELD_MEMBER, "s", *member),
    ];
    for (field, kind, text) in named {
        put_field(&mut fields, field, kind);
        put_text(&mut fields, text);
    }
    if !arguments.is_empty() {
        put_field(&mut fields, FIELD_SIGNATURE, "g");
        put_signature(&mut fields, &"s".repeat(arguments.len()));
    }
    let mut whole = vec![b'l', CALL, 0, 1];
    for number in [body.len() as u32, serial, fields.len() as u32] {
        whole.extend(number.to_le_bytes());
    }
    whole.extend(fields);
    whole.resize(whole.len().next_multiple_of(8), 0);
    whole.extend(body);
    whole
}

fn put_field(bytes: &mut Vec<u8>, field: u8, kind: &str) {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.push(field);
    put_signature(bytes, kind);
}

fn put_signature(bytes: &mut Vec<u8>, signature: &str) {
    bytes.push(signature.len() as u8);
    bytes.extend(signature.bytes());
    bytes.push(0);
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.bytes());
    bytes.push(0);
}

// === reading ===

/// Header fields that are used.
#[derive(Debug, Default, PartialEq, Eq)]
struct Header {
    kind: u8,
    reply_to: Option<u32>,
    error: String,
}

impl Header {
    /// Reads the fields up to the first unknown type.
    fn read(kind: u8, fields: &[u8], order: Order) -> Header {
        let mut header = Header { kind, ..Header::default() };
        let mut at = 0;
        while let Some([field, length]) =
            fields.get(at..at + 2).and_then(|bytes| <[u8; 2]>::try_from(bytes).ok())
        {
            let value = at + 2 + usize::from(length) + 1;
            match fields.get(at + 2) {
                Some(b'u') => {
                    let start = value.next_multiple_of(4);
                    let number = number_at(fields, start, order);
                    if field == FIELD_REPLY {
                        header.reply_to = number;
                    }
                    at = start + 4;
                }
                Some(b's' | b'o') => {
                    let Some((text, end)) = text_at(fields, value, order) else { break };
                    if field == FIELD_ERROR {
                        header.error = text;
                    }
                    at = end;
                }
                Some(b'g') => {
                    let Some(length) = fields.get(value) else { break };
                    at = value + 1 + usize::from(*length) + 1;
                }
                _ => break,
            }
            at = at.next_multiple_of(8);
        }
        header
    }
}

impl Reply {
    /// Returns the boolean at the start of the body.
    pub fn boolean(&self) -> Option<bool> {
        match number_at(&self.body, 0, self.order)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// Returns the string at the start of the body.
    pub fn text(&self) -> Option<String> {
        text_at(&self.body, 0, self.order).map(|(text, _)| text)
    }
}

fn number_at(bytes: &[u8], at: usize, order: Order) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
    Some(match order {
        Order::Little => u32::from_le_bytes(four),
        Order::Big => u32::from_be_bytes(four),
    })
}

/// Returns a string and the position after it.
fn text_at(bytes: &[u8], at: usize, order: Order) -> Option<(String, usize)> {
    let start = at.next_multiple_of(4);
    let length = number_at(bytes, start, order)? as usize;
    let end = start.checked_add(4)?.checked_add(length)?;
    let text = bytes.get(start + 4..end)?;
    Some((String::from_utf8_lossy(text).into_owned(), end + 1))
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused { name, message } if message.is_empty() => f.write_str(name),
            Failure::Refused { name: _, message } => f.write_str(message),
            Failure::Unable(why) | Failure::Broken(why) => write!(f, "D-Bus system bus: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dbus_call_is_encoded_as_specified() {
        let call =
            Call { destination: "a.b", object: "/a", interface: "a.c", member: "M", arguments: &["x"] };
        let bytes = message(&call, 7);
        assert_eq!(bytes[..8], [b'l', 1, 0, 1, 6, 0, 0, 0]);
        assert_eq!(bytes[8..16], [7, 0, 0, 0, 71, 0, 0, 0]);
        assert_eq!(bytes[16..28], [1, 1, b'o', 0, 2, 0, 0, 0, b'/', b'a', 0, 0]);
        assert_eq!(bytes[bytes.len() - 6..], [1, 0, 0, 0, b'x', 0]);
        assert_eq!((bytes.len() - 6) % 8, 0);
    }

    #[test]
    fn dbus_answer_is_decoded_in_both_byte_orders() {
        for (order, one) in [(Order::Little, 1_u32.to_le_bytes()), (Order::Big, 1_u32.to_be_bytes())] {
            let mut fields = vec![FIELD_REPLY, 1, b'u', 0];
            fields.extend(one);
            fields.extend([FIELD_SIGNATURE, 1, b'g', 0, 1, b'b', 0]);
            let header = Header::read(RETURN, &fields, order);
            assert_eq!(header, Header { kind: RETURN, reply_to: Some(1), error: String::new() });
            assert_eq!(Reply { body: one.to_vec(), order }.boolean(), Some(true));
        }
    }

    #[test]
    fn dbus_invalid_message_is_no_answer() {
        for fields in [
            &[5][..],
            &[5, 1],
            &[5, 255, b'u'],
            &[4, 1, b's', 0, 255, 255, 255, 255],
            &[8, 1, b'g', 0],
            &[9, 1, b'?', 0],
        ] {
            let header = Header::read(RETURN, fields, Order::Little);
            assert_eq!((header.reply_to, header.error.as_str()), (None, ""), "{fields:?}");
        }
        for body in [&[][..], &[1], &[2, 0, 0, 0], &[255, 255, 255, 255, b'x']] {
            let reply = Reply { body: body.to_vec(), order: Order::Little };
            assert_eq!((reply.boolean(), reply.text()), (None, None), "{body:?}");
        }
    }

    #[test]
    fn dbus_address_is_the_first_path() {
        let path = |text: &str| path_of(text).map(|path| path.display().to_string());
        assert_eq!(path("unix:path=/run/x").as_deref(), Some("/run/x"));
        assert_eq!(path("tcp:host=a;unix:guid=1,path=/y").as_deref(), Some("/y"));
        assert_eq!(path("unix:abstract=z"), None);
    }
}
