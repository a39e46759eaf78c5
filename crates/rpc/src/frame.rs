//! Framing of messages: a length of four bytes, big-endian, then one JSON envelope.
//!
//! ```text
//!   00 00 00 25  {"version":1,"request":"clientAlive"}
//! ```
//!
//! [`encode`] and [`decode`] work on bytes; [`send`] and [`receive`] add blocking reads and writes. An asynchronous server
//! reads four bytes, asks [`length`] how many follow, and passes those to [`decode`].
//!
//! - `version` is the first field of the envelope. A version that this release does not know is reported by number, and
//!   the body of such a message is not decoded.
//! - Every kind of message has a limit in bytes ([`Message::limit`]), which the sender and the receiver both enforce.
//! - Memory is allocated for bytes that have arrived, never for a length that was only announced.
//! - A body is parsed once, in place, so that configurations stay the same byte for byte
//!   ([`serde_json::value::RawValue`]).
//!
//! `docs/design/rpc.md` has the table of all messages.

use std::fmt;
use std::io::{self, Read, Write};
use std::marker::PhantomData;

use cni::error::{Error, code};
use serde::de::{self, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

/// Protocol version: the only one that this release sends and reads.
pub const VERSION: u32 = 1;
/// Maximum size for any message, in bytes, without the four length bytes.
pub const MESSAGE_MAX: usize = 16 << 20;
/// Maximum size for a message that reports a result, in bytes.
pub const REPORT_MAX: usize = 1 << 20;
/// Maximum size for a message without a body, in bytes.
pub const SIGNAL_MAX: usize = 1 << 10;

/// Length bytes in front of an envelope.
const PREFIX: usize = 4;
/// Envelope field that holds the version.
const VERSION_FIELD: &str = "version";

/// Message that an envelope can hold.
pub trait Message: Serialize + DeserializeOwned {
    /// Envelope field that holds the message.
    const FIELD: &'static str;

    /// Returns the maximum envelope size for this message in bytes; at most [`MESSAGE_MAX`].
    fn limit(&self) -> usize;
}

/// Reason why a message could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The connection was closed, or a deadline passed.
    #[error("{step} message: {cause}")]
    Io {
        /// `send` or `receive`.
        step: &'static str,
        /// Error that the operating system reported.
        cause: io::Error,
    },
    /// The message is larger than this kind may be.
    #[error("message of {length} bytes exceeds the limit of {limit} bytes")]
    TooLarge {
        /// Envelope size in bytes.
        length: usize,
        /// Maximum size in bytes.
        limit: usize,
    },
    /// The connection ended within a message.
    #[error("message ends after {read} of {length} bytes")]
    Truncated {
        /// Bytes that arrived.
        read: usize,
        /// Bytes that were announced.
        length: usize,
    },
    /// The message has a version that this release does not know.
    #[error("message of version {version}: this release reads version {VERSION}")]
    Version {
        /// Version that the sender announced.
        version: u32,
    },
    /// The message is not an envelope with the expected body.
    #[error("decode message: {0}")]
    Decode(String),
    /// The message has no JSON form.
    #[error("encode message: {0}")]
    Encode(serde_json::Error),
}

impl FrameError {
    /// Returns the error for a failed or late read or write; `step` is `send` or `receive`.
    pub fn io(step: &'static str, cause: impl Into<io::Error>) -> FrameError {
        FrameError::Io { step, cause: cause.into() }
    }
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Error {
        let code = match &error {
            FrameError::Io { .. } | FrameError::Truncated { .. } => code::IO_FAILURE,
            FrameError::TooLarge { .. }
            | FrameError::Version { .. }
            | FrameError::Decode(_)
            | FrameError::Encode(_) => code::DECODING_FAILURE,
        };
        Error::new(code, error.to_string())
    }
}

/// Returns a message as it is sent: length, then envelope.
///
/// # Errors
/// [`FrameError::TooLarge`] if the message is larger than this kind may be.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; PREFIX];
    serde_json::to_writer(&mut bytes, &Envelope(message)).map_err(FrameError::Encode)?;
    let (length, limit) = (bytes.len() - PREFIX, message.limit().min(MESSAGE_MAX));
    match u32::try_from(length) {
        Ok(prefix) if length <= limit => bytes[..PREFIX].copy_from_slice(&prefix.to_be_bytes()),
        _ => return Err(FrameError::TooLarge { length, limit }),
    }
    Ok(bytes)
}

/// Returns how many bytes follow the four length bytes.
///
/// # Errors
/// [`FrameError::TooLarge`] if there are more than `limit`.
pub fn length(prefix: [u8; 4], limit: usize) -> Result<usize, FrameError> {
    match u32::from_be_bytes(prefix) as usize {
        length if length <= limit => Ok(length),
        length => Err(FrameError::TooLarge { length, limit }),
    }
}

/// Returns the message in an envelope, given without the length.
///
/// # Errors
/// [`FrameError::Version`], [`FrameError::TooLarge`], [`FrameError::Decode`].
pub fn decode<M: Message>(envelope: &[u8]) -> Result<M, FrameError> {
    let unreadable = |cause| FrameError::Decode(cni::wording::syntax_error(envelope, &cause));
    match serde_json::from_slice(envelope).map_err(unreadable)? {
        Opened::Message(message) => {
            let message: M = message;
            let (length, limit) = (envelope.len(), message.limit());
            if length > limit { Err(FrameError::TooLarge { length, limit }) } else { Ok(message) }
        }
        Opened::Unsupported(version) => Err(FrameError::Version { version }),
    }
}

/// Writes one message.
///
/// # Errors
/// Those that [`encode`] returns, and [`FrameError::Io`].
pub fn send<M: Message>(to: &mut impl Write, message: &M) -> Result<(), FrameError> {
    let bytes = encode(message)?;
    to.write_all(&bytes).and_then(|()| to.flush()).map_err(|cause| FrameError::io("send", cause))
}

/// Reads one message of any kind.
///
/// # Errors
/// Those that [`length`] and [`decode`] return, [`FrameError::Io`], [`FrameError::Truncated`].
pub fn receive<M: Message>(from: &mut impl Read) -> Result<M, FrameError> {
    let failed = |cause| FrameError::io("receive", cause);
    let mut prefix = [0; PREFIX];
    from.read_exact(&mut prefix).map_err(failed)?;
    let length = length(prefix, MESSAGE_MAX)?;
    let mut envelope = Vec::new();
    let read = from.take(length as u64).read_to_end(&mut envelope).map_err(failed)?;
    if read < length {
        return Err(FrameError::Truncated { read, length });
    }
    decode(&envelope)
}

/// Envelope to send: the version, then the message.
struct Envelope<'a, M>(&'a M);

impl<M: Message> Serialize for Envelope<'_, M> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry(VERSION_FIELD, &VERSION)?;
        map.serialize_entry(M::FIELD, self.0)?;
        map.end()
    }
}

/// Envelope as received.
enum Opened<M> {
    Message(M),
    Unsupported(u32),
}

impl<'de, M: Message> Deserialize<'de> for Opened<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Opened<M>, D::Error> {
        deserializer.deserialize_map(EnvelopeVisitor(PhantomData))
    }
}

struct EnvelopeVisitor<M>(PhantomData<M>);

impl<'de, M: Message> Visitor<'de> for EnvelopeVisitor<M> {
    type Value = Opened<M>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "an envelope with {VERSION_FIELD:?} and {:?}", M::FIELD)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Opened<M>, A::Error> {
        if map.next_key::<String>()?.is_none_or(|field| field != VERSION_FIELD) {
            return Err(de::Error::custom(format_args!("{VERSION_FIELD:?} must be the first field")));
        }
        let version: u32 = map.next_value()?;
        if version != VERSION {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(Opened::Unsupported(version));
        }
        let mut message = None;
        while let Some(field) = map.next_key::<String>()? {
            if field != M::FIELD {
                map.next_value::<IgnoredAny>()?;
            } else if message.replace(map.next_value()?).is_some() {
                return Err(de::Error::duplicate_field(M::FIELD));
            }
        }
        message.map(Opened::Message).ok_or_else(|| de::Error::missing_field(M::FIELD))
    }
}

#[cfg(test)]
mod tests;
