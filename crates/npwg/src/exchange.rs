//! How the hands ask the brain for a plan: one question, one answer, each a length and JSON.
//!
//! The same exchange runs over the agent's socket and over the pipes of `weft plan --once`.
//!
//! Rules: a length is four bytes, big-endian; both sides refuse more than [`MESSAGE_MAX`]; either side may be a
//! release older or newer, so unknown keys are ignored and a newer [`VERSION`] is refused by name.

use std::io::{Read, Write};

use cni::error::{Error, code};
use cni::name::{ContainerId, IfName};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::plan::{Plan, PodIdentity};

/// The form of question this release asks.
pub const VERSION: u32 = 1;
/// Largest message, in bytes.
pub const MESSAGE_MAX: usize = 16 << 20;

/// What the hands know.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// The form: [`VERSION`].
    pub version: u32,
    /// The pod, as the runtime names it.
    pub pod: PodIdentity,
    /// The sandbox.
    pub container: ContainerId,
    /// The runtime's interface name.
    pub ifname: IfName,
    /// The meta-plugin's configuration as the runtime gave it, `runtimeConfig` included.
    pub configuration: Box<RawValue>,
    /// Was the meta-plugin called as `multus`?
    #[serde(default)]
    pub multus: bool,
}

/// What the brain decides.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// Do this.
    Plan(Box<Plan>),
    /// Do nothing; this is why.
    Refused(Error),
}

impl Question {
    /// Refuses a question of a newer release.
    pub fn check(&self) -> Result<(), Error> {
        match self.version {
            1..=VERSION => Ok(()),
            other => Err(fault(format!("question of version {other}: this release answers up to {VERSION}"))),
        }
    }
}

/// Writes one message.
pub fn send<T: Serialize>(to: &mut impl Write, message: &T) -> Result<(), Error> {
    let bytes = serde_json::to_vec(message).map_err(|cause| fault(format!("encode: {cause}")))?;
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length as usize <= MESSAGE_MAX);
    let Some(length) = length else {
        return Err(fault(format!("a message of {} bytes is too large", bytes.len())));
    };
    let sent =
        to.write_all(&length.to_be_bytes()).and_then(|()| to.write_all(&bytes)).and_then(|()| to.flush());
    sent.map_err(|cause| Error::io("plan exchange: send", cause))
}

/// Reads one message.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read) -> Result<T, Error> {
    let failed = |cause| Error::io("plan exchange: receive", cause);
    let mut length = [0; 4];
    from.read_exact(&mut length).map_err(failed)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MESSAGE_MAX {
        return Err(fault(format!("a message of {length} bytes is too large")));
    }
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() < length {
        return Err(fault(format!("the message ends after {} of {length} bytes", bytes.len())));
    }
    serde_json::from_slice(&bytes).map_err(|cause| fault(format!("decode: {cause}")))
}

fn fault(why: impl std::fmt::Display) -> Error {
    Error::new(code::DECODING_FAILURE, format!("plan exchange: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_as_it_was_sent() -> Result<(), Error> {
        let mut wire = Vec::new();
        send(&mut wire, &Answer::Refused(Error::new(7, "no")))?;
        assert_eq!(&wire[..4], u32::try_from(wire.len() - 4).unwrap().to_be_bytes());
        let answer: Answer = receive(&mut wire.as_slice())?;
        assert!(matches!(answer, Answer::Refused(error) if error == Error::new(7, "no")));
        Ok(())
    }

    #[test]
    fn hostile_lengths_are_refused_without_room_being_made() {
        let huge = [0xff, 0xff, 0xff, 0xff, b'{'];
        assert!(receive::<Answer>(&mut huge.as_slice()).unwrap_err().msg.contains("too large"));
        let short = [0, 0, 0, 9, b'{'];
        assert!(receive::<Answer>(&mut short.as_slice()).unwrap_err().msg.contains("ends after 1 of 9"));
        assert!(receive::<Answer>(&mut [0u8, 0].as_slice()).is_err());
    }
}
