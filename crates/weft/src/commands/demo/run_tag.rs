//! Names of the objects of one demo run: a common prefix and a tag of the run.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::pod_name::NAMESPACES;

/// Prefix of the names of every run.
pub(crate) const PREFIX: &str = "weft-demo-";
/// Suffix of the name of the simulated host.
const HOST: &str = "host";

/// Tag that distinguishes one run from others.
#[derive(Clone, Debug)]
pub(super) struct RunTag(String);

impl RunTag {
    /// Returns a tag from the process ID and the current time.
    pub(super) fn new() -> RunTag {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        RunTag(format!("{:x}-{:05x}", std::process::id(), now.subsec_nanos() & 0xf_ffff))
    }

    /// Returns the prefix of every name of this run.
    pub(super) fn prefix(&self) -> String {
        format!("{PREFIX}{}", self.0)
    }

    /// Returns the path of the namespace of the simulated host.
    pub(super) fn host(&self) -> String {
        self.namespace(HOST)
    }

    /// Returns the path of a network namespace of this run.
    pub(super) fn namespace(&self, of: &str) -> String {
        format!("{NAMESPACES}/{}-{of}", self.prefix())
    }
}
