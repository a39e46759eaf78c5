//! Record of the calls of `weft-test-plugin`, one JSON object a line.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Call of the recording plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// `CNI_COMMAND`.
    pub command: String,
    /// Every environment variable that starts with `CNI_`, sorted.
    pub environment: std::collections::BTreeMap<String, String>,
    /// Standard input; bytes that are not UTF-8 are replaced.
    pub stdin: String,
    /// Name under which it was called, without directory.
    pub program: String,
}

impl Call {
    /// Configuration of the call.
    ///
    /// # Panics
    /// If it is not JSON.
    #[must_use]
    #[track_caller]
    pub fn config(&self) -> Value {
        serde_json::from_str(&self.stdin)
            .unwrap_or_else(|error| panic!("configuration of {}: {error}: {}", self.command, self.stdin))
    }

    /// Value of an environment variable; empty if it was not set.
    #[must_use]
    pub fn environment(&self, name: &str) -> &str {
        self.environment.get(name).map_or("", String::as_str)
    }
}

/// Calls in a record, in order; none if the file does not exist.
///
/// # Panics
/// If a line is not a record.
#[must_use]
#[track_caller]
pub fn calls(path: &Path) -> Vec<Call> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(|line| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{}: {error}: {line}", path.display()))
        })
        .collect()
}
