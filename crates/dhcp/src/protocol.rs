//! The protocol between plugin and daemon: one request and one answer, each a length and JSON.
//!
//! The reference plugin and its daemon use Go's RPC. If a plugin reaches the other's daemon, both fail at once.

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
/// End of a message, ignored by this protocol. For the reference plugin's daemon, an HTTP server, it ends a request,
/// which the server then refuses at once instead of waiting for more.
const END: &[u8] = b"\r\n\r\n";
/// Maximum size of a message, in bytes.
const MESSAGE_MAX: usize = 1 << 20;

/// Request to the daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DaemonRequest {
    /// Answered with `Done`.
    Ping,
    /// Acquire leases for an interface.
    Allocate {
        /// Owner of the leases.
        owner: Owner,
        /// Path of the interface's namespace.
        netns: PathBuf,
        /// DHCPv4 options.
        options: Options,
        /// Metric of the routes.
        priority: Option<u32>,
        /// Families; leases of all of them are acquired, or none.
        families: Vec<Family>,
        /// DHCPv6 request.
        #[serde(rename = "wish")]
        v6_request: V6Request,
    },
    /// Return the present leases.
    Inspect {
        /// Owner of the leases.
        owner: Owner,
        /// Families that must be present.
        families: Vec<Family>,
    },
    /// Release all leases of an owner.
    Release {
        /// Owner of the leases.
        owner: Owner,
    },
    /// Release all leases of a network except those of the valid attachments.
    Keep {
        /// Name of the network.
        network: String,
        /// Valid attachments.
        valid: Vec<ValidAttachment>,
    },
}

/// Answer of the daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DaemonAnswer {
    /// The request was executed.
    Done,
    /// Leases, as a CNI result of version 1.1.0.
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
