//! What `weft-test-plugin` writes down about each call, one JSON object a line.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One call of the recording plugin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// `CNI_COMMAND`.
    pub command: String,
    /// Every environment variable that starts with `CNI_`, sorted.
    pub environment: std::collections::BTreeMap<String, String>,
    /// Standard input, as it came; bytes that are no UTF-8 are replaced.
    pub stdin: String,
    /// The name it was called under, without directory.
    pub program: String,
}

impl Call {
    /// The configuration it was given.
    ///
    /// # Panics
    /// If that was no JSON.
    #[must_use]
    #[track_caller]
    pub fn config(&self) -> Value {
        serde_json::from_str(&self.stdin)
            .unwrap_or_else(|error| panic!("configuration of {}: {error}: {}", self.command, self.stdin))
    }

    /// One environment variable; empty if it was not set.
    #[must_use]
    pub fn environment(&self, name: &str) -> &str {
        self.environment.get(name).map_or("", String::as_str)
    }
}

/// The calls in a record, in order; none if the file is not there.
///
/// # Panics
/// If a line is no record.
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
