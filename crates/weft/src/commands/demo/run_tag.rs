//! Names for the objects in one demo run: a common prefix and the run's tag.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::pod_name::NAMESPACES;

/// Prefix that every run's names have.
pub(crate) const PREFIX: &str = "weft-demo-";
/// Suffix for the simulated host's name.
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

    /// Returns the prefix for every name in this run.
    pub(super) fn prefix(&self) -> String {
        format!("{PREFIX}{}", self.0)
    }

    /// Returns the path to the simulated host's namespace.
    pub(super) fn host(&self) -> String {
        self.namespace(HOST)
    }

    /// Returns the path to a network namespace in this run.
    pub(super) fn namespace(&self, of: &str) -> String {
        format!("{NAMESPACES}/{}-{of}", self.prefix())
    }
}
