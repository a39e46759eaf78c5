//! Interface for calling a plugin, which may be a process or a function in this program.
//!
//! Both follow the contract for processes: variables and stdin go in, stdout or an error comes out. Built-in and
//! external plugins therefore behave the same, and the tests run both.

use crate::environment::Environment;
use crate::error::Error;
use crate::fold;
use crate::name::PluginType;

/// Calls plugins.
pub trait Invoke {
    /// Runs `plugin` with these variables and this stdin, and returns stdout (empty for verbs without output).
    ///
    /// # Errors
    /// The plugin's error with code and details, or the reason why it could not be run.
    fn invoke(&self, plugin: &PluginType, environment: &Environment, stdin: &[u8]) -> Result<Vec<u8>, Error>;

    /// Whether the IPAM plugin with this name releases addresses through the container's interface
    /// ([`crate::plugin::Plugin::releases_through_interface`]).
    fn releases_through_interface(&self, _plugin: &str) -> bool {
        false
    }
}

/// Error about output that is not a CNI error.
#[derive(Debug, thiserror::Error)]
pub enum ErrorOutput {
    /// The output is not JSON.
    #[error(transparent)]
    NotJson(#[from] serde_json::Error),
    /// The output is JSON in another form.
    #[error("{0}")]
    Malformed(String),
    /// The output has neither code nor message.
    #[error("neither code nor msg")]
    Empty,
}

/// Reads the error that a failing plugin printed.
///
/// Old Go plugins may print a result and then an error (trap 8), so the last document counts.
///
/// # Errors
/// The output is not a CNI error.
pub fn read_error(stdout: &[u8]) -> Result<Error, ErrorOutput> {
    let documents = serde_json::Deserializer::from_slice(stdout).into_iter::<serde_json::Value>();
    let mut last = serde_json::Value::Null;
    for document in documents {
        last = document?;
    }
    let error: Error = fold::from_value(&last, "").map_err(|cause| ErrorOutput::Malformed(cause.msg))?;
    match error.code == 0 && error.msg.is_empty() && error.details.is_empty() {
        true => Err(ErrorOutput::Empty),
        false => Ok(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Requirements: trap 8
    #[test]
    fn plugin_error_after_a_result_counts() {
        let both = br#"{"cniVersion":"1.0.0","ips":[]} {"code":8,"msg":"same netns"}"#;
        assert_eq!(read_error(both).unwrap(), Error::new(8, "same netns"));
        for garbage in [&b"{\"code\":"[..], b"", b"null", b"[]", b"{}", b"oops", b"\xff\xfe"] {
            assert!(read_error(garbage).is_err(), "{garbage:?}");
        }
    }

    // Requirements: trap 6
    #[test]
    fn plugin_error_keys_match_without_case() {
        let error = read_error(br#"{"Code":11,"MSG":"later","Details":"soon"}"#);
        assert_eq!(error.unwrap(), Error::new(11, "later").details("soon"));
    }
}
