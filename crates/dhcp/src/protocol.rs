//! What the plugin and its daemon say to each other: one question and one answer, each a length and JSON.
//!
//! The reference plugin and its daemon speak Go's own remote calls; neither side understands the other, and both
//! find out at once.

use std::io::{Read, Write};
use std::path::PathBuf;

use cni::invocation::ValidAttachment;
use cni::{Error, code};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::owner::{Family, Owner};
use crate::v4::options::Options;
use crate::v6::Wish;

/// Where the plugin looks for its daemon, unless `daemonSocketPath` says otherwise.
pub const SOCKET: &str = "/run/cni/dhcp.sock";
/// What a message ends with: nothing to us; to a server of HTTP, which the reference plugin's daemon is, the end of a
/// request that it refuses at once instead of waiting for more.
const END: &[u8] = b"\r\n\r\n";
/// Longest message, in bytes.
const MESSAGE_MAX: usize = 1 << 20;

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Question {
    /// Are you there?
    Ping,
    /// A lease for this interface.
    Allocate {
        /// Whose.
        owner: Owner,
        /// The namespace the interface is in.
        netns: PathBuf,
        /// What is said to servers of DHCPv4.
        options: Options,
        /// Metric of the routes.
        priority: Option<u32>,
        /// What addresses are wanted; all of them, or none is given.
        families: Vec<Family>,
        /// What is wished for of DHCPv6.
        wish: Wish,
    },
    /// The leases as they are.
    Inspect {
        /// Whose.
        owner: Owner,
        /// Which must be there.
        families: Vec<Family>,
    },
    /// No lease any more.
    Release {
        /// Whose.
        owner: Owner,
    },
    /// No lease of this network but these.
    Keep {
        /// The network.
        network: String,
        /// What is valid.
        valid: Vec<ValidAttachment>,
    },
}

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// It is done.
    Done,
    /// The lease, as a result of version 1.1.0.
    Lease(serde_json::Value),
    /// It is not.
    Refused(Error),
}

/// Sends one message.
pub fn send<T: Serialize>(to: &mut impl Write, message: &T) -> Result<(), Error> {
    let mut bytes =
        serde_json::to_vec(message).map_err(|cause| Error::internal(format!("encode: {cause}")))?;
    bytes.extend(END);
    let length = u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= MESSAGE_MAX);
    let Some(length) = length else {
        return Err(Error::internal(format!("a message of {} bytes is too large", bytes.len())));
    };
    let whole = [&length.to_be_bytes()[..], &bytes].concat();
    to.write_all(&whole).map_err(|cause| Error::io("send", cause))
}

/// Receives one message.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read) -> Result<T, Error> {
    let failed = |cause| Error::io("receive", cause);
    let mut length = [0; 4];
    from.read_exact(&mut length).map_err(failed)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MESSAGE_MAX {
        let why = "not what weft's dhcp daemon says: does the reference plugin's listen there?";
        return Err(Error::new(code::DECODING_FAILURE, why));
    }
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes).map_err(failed)?;
    let decoded = serde_json::from_slice(&bytes);
    decoded.map_err(|cause| Error::new(code::DECODING_FAILURE, format!("unreadable message: {cause}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_reads_back_and_what_is_none_is_refused() {
        let mut bytes = Vec::new();
        send(&mut bytes, &Question::Ping).unwrap();
        assert!(matches!(receive(&mut bytes.as_slice()), Ok(Question::Ping)));
        for hostile in [
            &b""[..],
            b"\0\0",
            b"HTTP/1.1 400 Bad Request",
            b"\0\0\0\x05\"no",
            b"\xff\xff\xff\xff",
            b"\0\0\0\x02{}",
        ] {
            assert!(receive::<Question>(&mut &*hostile).is_err(), "{hostile:?}");
        }
        assert!(send(&mut bytes, &"x".repeat(MESSAGE_MAX)).is_err());
    }
}
