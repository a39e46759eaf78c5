//! Names of what one run of the demo makes: a prefix that every run has, and a tag of its own.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::pod_name::NAMESPACES;

/// How the names of every run begin.
pub(super) const PREFIX: &str = "weft-demo-";
/// What the pretend host is called.
const HOST: &str = "host";

/// What tells this run from others.
#[derive(Clone, Debug)]
pub(super) struct Tag(String);

impl Tag {
    /// From the process and the moment.
    pub(super) fn new() -> Tag {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Tag(format!("{:x}-{:05x}", std::process::id(), now.subsec_nanos() & 0xf_ffff))
    }

    /// The beginning of every name of this run.
    pub(super) fn prefix(&self) -> String {
        format!("{PREFIX}{}", self.0)
    }

    /// Where the pretend host is mounted.
    pub(super) fn host(&self) -> String {
        self.namespace(HOST)
    }

    /// The network namespace of the host or of a pod of this run.
    pub(super) fn namespace(&self, of: &str) -> String {
        format!("{NAMESPACES}/{}-{of}", self.prefix())
    }
}
