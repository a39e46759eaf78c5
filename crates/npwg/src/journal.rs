//! What is known about one sandbox: what was planned for it, and what came of it.
//!
//! The hands write it, one file a sandbox, and take a sandbox down by nothing else; the brain reads it to show
//! what is there. Only the shape is here.
//!
//! Rules: a form of a newer release is refused by name, never half understood; unknown keys of an older
//! reader's future are ignored.

use cni::error::{Error, code};
use cni::name::{ContainerId, IfName};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::plan::Plan;
use crate::status;

/// The form of entry this release writes; older ones are read, newer ones are not.
pub const VERSION: u32 = 1;

/// Where the journal is unless `cniDir` says otherwise.
pub const DIRECTORY: &str = "/var/lib/weft";

/// The directory of the entries below that, a file each: `<container id>.json`.
pub const ENTRIES: &str = "sandboxes";

/// Largest entry read, in bytes.
pub const ENTRY_MAX: u64 = 16 << 20;

/// One sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The form: [`VERSION`].
    pub version: u32,
    /// Name of the meta-plugin's own network: which configuration made this.
    pub network: String,
    /// The sandbox.
    pub container_id: ContainerId,
    /// Its network namespace, as the runtime gave it.
    pub netns: String,
    /// The runtime's interface name.
    pub ifname: IfName,
    /// The runtime's `CNI_ARGS`.
    pub args: String,
    /// The `CNI_PATH` that was used, `binDir` included.
    pub path: String,
    /// Everything that was decided.
    pub plan: Plan,
    /// What came of each delegate of the plan, in its order.
    pub attachments: Vec<Attachment>,
    /// The network-status, once every network is attached.
    #[serde(default)]
    pub network_status: Vec<status::Entry>,
    /// Was the whole plan carried out?
    #[serde(default)]
    pub complete: bool,
}

/// What came of one delegate.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// How far it is.
    pub state: State,
    /// The result as it is in effect, in the version of the delegate's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    /// How long its ADD took, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microseconds: Option<u64>,
    /// Why its last DEL failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Error>,
}

/// How far an attachment is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Planned; whether its ADD was begun is not known.
    #[default]
    Planned,
    /// Attached.
    Attached,
    /// Detached.
    Detached,
}

impl State {
    /// The word for people.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Planned => "planned",
            State::Attached => "attached",
            State::Detached => "detached",
        }
    }
}

impl Entry {
    /// Reads an entry that was written as JSON.
    ///
    /// # Errors
    /// 6 not an entry, or one of a newer release; the details say what to do.
    pub fn read(bytes: &[u8]) -> Result<Entry, Error> {
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        const CURE: &str = "it is left as it is: see docs/operations.md, «an entry that cannot be read»";
        let fault = |why: String| Error::new(code::DECODING_FAILURE, why).details(CURE);
        let unreadable = |cause: serde_json::Error| fault(format!("unreadable: {cause}"));
        let Head { version } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if version == 0 || version > VERSION {
            return Err(fault(format!("version {version}: this release reads up to {VERSION}")));
        }
        serde_json::from_slice(bytes).map_err(unreadable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_or_newer_entry_is_refused_by_name() {
        let newer = Entry::read(br#"{"version":2,"anything":[]}"#).unwrap_err();
        assert_eq!((newer.code, newer.msg.as_str()), (6, "version 2: this release reads up to 1"));
        for broken in [&b""[..], b"{", b"{}", b"[]", br#"{"version":1}"#, b"\0\0\0"] {
            let error = Entry::read(broken).map(|_| ()).unwrap_err();
            assert!(error.msg.starts_with("unreadable: ") && !error.details.is_empty(), "{error}");
        }
    }
}
