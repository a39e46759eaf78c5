//! Protocol between plugin and daemon: one request and one answer, each sent as a length followed by JSON.
//!
//! The Go plugin and the Go daemon use Go's RPC. If a plugin reaches the wrong kind of daemon, both sides fail at once.

use std::io::{Read, Write};
use std::path::PathBuf;

use cni::invocation::ValidAttachment;
use cni::{Error, code};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::owner::{Family, Owner};
use crate::v4::options::Options;
use crate::v6::V6Request;

pub use plugin_config::dhcp::SOCKET;
/// Bytes after each message. This protocol ignores them. The Go plugin's daemon is an HTTP server: for it they end the
/// request, which it then rejects at once instead of waiting for more.
const END: &[u8] = b"\r\n\r\n";
/// Maximum message size in bytes.
const MESSAGE_MAX: usize = 1 << 20;

/// Request to the daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DaemonRequest {
    /// Checks that the daemon answers; the answer is `Done`.
    Ping,
    /// Acquires leases for an interface.
    Allocate {
        /// Lease owner.
        owner: Owner,
        /// Path of the namespace that contains the interface.
        netns: PathBuf,
        /// DHCPv4 options.
        options: Options,
        /// Route metric.
        priority: Option<u32>,
        /// Address families: the daemon acquires leases for all of them, or none.
        families: Vec<Family>,
        /// DHCPv6 settings.
        #[serde(rename = "wish")]
        v6_request: V6Request,
    },
    /// Returns the leases without acquiring any (for CHECK).
    Inspect {
        /// Lease owner.
        owner: Owner,
        /// Address families for which there must be a lease.
        families: Vec<Family>,
    },
    /// Releases all leases that an owner has.
    Release {
        /// Lease owner.
        owner: Owner,
    },
    /// Releases all leases in a network, except those of valid attachments (for GC).
    Keep {
        /// Network name.
        network: String,
        /// Attachments that are still valid.
        valid: Vec<ValidAttachment>,
    },
}

/// Answer from the daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DaemonAnswer {
    /// The request was executed.
    Done,
    /// Leases, as a CNI 1.1.0 result.
    Lease(serde_json::Value),
    /// The request failed.
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
        let why = "not the protocol of weft's dhcp daemon; does the reference plugin's daemon listen there?";
        return Err(Error::new(code::DECODING_FAILURE, why));
    }
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes).map_err(failed)?;
    let decoded = serde_json::from_slice(&bytes);
    decoded.map_err(|cause| {
        let why = cni::wording::syntax_error(&bytes, &cause);
        Error::new(code::DECODING_FAILURE, format!("unreadable message: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dhcp_message_round_trips_and_invalid_ones_are_refused() {
        let mut bytes = Vec::new();
        send(&mut bytes, &DaemonRequest::Ping).unwrap();
        assert!(matches!(receive(&mut bytes.as_slice()), Ok(DaemonRequest::Ping)));
        for hostile in [
            &b""[..],
            b"\0\0",
            b"HTTP/1.1 400 Bad Request",
            b"\0\0\0\x05\"no",
            b"\xff\xff\xff\xff",
            b"\0\0\0\x02{}",
        ] {
            assert!(receive::<DaemonRequest>(&mut &*hostile).is_err(), "{hostile:?}");
        }
        assert!(send(&mut bytes, &"x".repeat(MESSAGE_MAX)).is_err());
    }
}
