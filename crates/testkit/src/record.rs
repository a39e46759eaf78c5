//! Reads what `weft-test-plugin` recorded, one JSON object per call and line.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Call that the plugin recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// `CNI_COMMAND`.
    pub command: String,
    /// All environment variables that start with `CNI_`, sorted.
    pub environment: std::collections::BTreeMap<String, String>,
    /// Standard input; bytes that are not UTF-8 are replaced.
    pub stdin: String,
    /// Name under which the plugin was called, without directory.
    pub program: String,
}

impl Call {
    /// Parses the call's configuration.
    ///
    /// # Panics
    /// It is not JSON.
    #[must_use]
    #[track_caller]
    pub fn config(&self) -> Value {
        serde_json::from_str(&self.stdin)
            .unwrap_or_else(|error| panic!("configuration of {}: {error}: {}", self.command, self.stdin))
    }

    /// Returns an environment variable; empty if it was not set.
    #[must_use]
    pub fn environment(&self, name: &str) -> &str {
        self.environment.get(name).map_or("", String::as_str)
    }
}

/// Reads the recorded calls, in order; empty if the file does not exist.
///
/// # Panics
/// A line is not a record.
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
