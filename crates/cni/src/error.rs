//! Error from a CNI call: a code, a one-sentence message, and optional details.
//!
//! - The message leads from the operation to the cause (`macvlan: create link net1 on eth9: no such device`), in lower
//!   case and without a full stop.
//! - The code depends on the kind of error, never on the text.
//! - When a delegate fails, the code and details are passed on unchanged.
//!
//! Source: SPEC 1.1.0 §5 "Error"; codes 8 and 999 are the Go library's, outside the specification.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::text::{plain, serialize_plain};
use crate::version::Version;

/// Well-known error codes. Codes from 100 on belong to plugins.
pub mod code {
    /// The plugin does not support the configuration's version.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// The plugin does not support a field; the message names key and value.
    pub const UNSUPPORTED_FIELD: u32 = 2;
    /// The container does not exist, so the runtime need not clean up.
    pub const UNKNOWN_CONTAINER: u32 = 3;
    /// A `CNI_*` variable is missing or invalid; the message names it.
    pub const INVALID_ENVIRONMENT: u32 = 4;
    /// Reading, writing or executing failed.
    pub const IO_FAILURE: u32 = 5;
    /// The input is not the expected JSON.
    pub const DECODING_FAILURE: u32 = 6;
    /// The configuration is well-formed but invalid.
    pub const INVALID_CONFIG: u32 = 7;
    /// The network namespace is unusable (Go library, outside the specification).
    pub const INVALID_NETNS: u32 = 8;
    /// Transient: the same call may succeed later.
    pub const TRY_AGAIN_LATER: u32 = 11;
    /// STATUS: an ADD would fail now.
    pub const NOT_AVAILABLE: u32 = 50;
    /// STATUS: an ADD would fail now, and running containers may have lost connectivity.
    pub const LIMITED_CONNECTIVITY: u32 = 51;
    /// No plugin ran: the kernel refuses to execute the program, or the program contains no plugin of this name. The same
    /// call fails again (weft, outside the specification; number as the exit status of a shell).
    pub const NOT_EXECUTED: u32 = 126;
    /// Any other error (Go library, outside the specification).
    pub const INTERNAL: u32 = 999;
}

/// Error in the form in which plugins print it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Error {
    /// CNI version of the call. Go plugins leave it out, weft prints it.
    #[serde(rename = "cniVersion", default, skip_serializing_if = "Option::is_none")]
    pub cni_version: Option<String>,
    /// Error code: one from [`code`], or the plugin's own from 100 on.
    #[serde(default)]
    pub code: u32,
    /// Message, one sentence.
    #[serde(default, serialize_with = "serialize_plain")]
    pub msg: String,
    /// Details for readers of the log; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty", serialize_with = "serialize_plain")]
    pub details: String,
    /// Configuration key that the error is about, if any. It is neither printed nor compared.
    #[serde(skip)]
    pub invalid_key: Option<Box<InvalidKey>>,
}

/// Configuration key that is missing or has an invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidKey {
    /// Path as it stands in the message: `ipam.ranges[0][0].subnet`.
    pub path: String,
    /// Value as it stands in the message; empty for a missing key.
    pub value: String,
    /// Reason as it stands in the message, after path and value.
    pub why: String,
}

impl PartialEq for Error {
    fn eq(&self, other: &Error) -> bool {
        let Error { cni_version, code, msg, details, invalid_key: _ } = self;
        (cni_version, code, msg, details) == (&other.cni_version, &other.code, &other.msg, &other.details)
    }
}

impl Eq for Error {}

/// Maximum length of a key or value in an error, in bytes.
const VALUE_MAX: usize = 256;

impl Error {
    /// Returns an error with this code and message.
    pub fn new(code: u32, msg: impl Into<String>) -> Error {
        Error { cni_version: None, code, msg: msg.into(), details: String::new(), invalid_key: None }
    }

    /// Returns an environment or file system error: code 5, `what: cause`.
    pub fn io(what: impl fmt::Display, cause: impl fmt::Display) -> Error {
        Error::new(code::IO_FAILURE, format!("{what}: {cause}"))
    }

    /// Returns a configuration error: code 7.
    pub fn config(msg: impl Into<String>) -> Error {
        Error::new(code::INVALID_CONFIG, msg)
    }

    /// Returns an error about one key: code 7, `key: value: why`. Key and value are shortened.
    pub fn key(key: impl fmt::Display, value: impl fmt::Display, why: impl fmt::Display) -> Error {
        Error::new(code::INVALID_CONFIG, refusal(&key, &value, &why)).about(key, value, why)
    }

    /// Returns an error about a required key that is missing: code 7, `key: missing; hint`.
    pub fn missing(key: impl fmt::Display, hint: impl fmt::Display) -> Error {
        let why = format!("missing; {hint}");
        Error::config(format!("{key}: {why}")).about(key, "", why)
    }

    /// Records the key that the error is about.
    fn about(mut self, path: impl fmt::Display, value: impl fmt::Display, why: impl fmt::Display) -> Error {
        let [value, why] = [value.to_string(), why.to_string()];
        self.invalid_key =
            Some(Box::new(InvalidKey { path: path.to_string(), value: cut(value, VALUE_MAX), why }));
        self
    }

    /// Records the key that the error is about, for a message that does not name the value.
    #[must_use]
    pub fn at(self, path: impl fmt::Display) -> Error {
        let why = self.msg.clone();
        self.about(path, "", why)
    }

    /// Returns a decoding error: code 7, with the key if the decoder knows it.
    pub(crate) fn decoding(msg: String, key: Option<InvalidKey>) -> Error {
        Error { invalid_key: key.map(Box::new), ..Error::config(msg) }
    }

    /// Returns an error about a field that the plugin knows but does not support: code 2, with key and value, as the
    /// specification requires.
    pub fn unsupported(key: impl fmt::Display, value: impl fmt::Display, why: impl fmt::Display) -> Error {
        Error::new(code::UNSUPPORTED_FIELD, refusal(&key, &value, &why)).about(key, value, why)
    }

    /// Returns an unexpected error: code 999.
    pub fn internal(msg: impl Into<String>) -> Error {
        Error::new(code::INTERNAL, msg)
    }

    /// Adds details.
    #[must_use]
    pub fn details(mut self, details: impl Into<String>) -> Error {
        self.details = details.into();
        self
    }

    /// Puts the enclosing step in front of the message: `step: …`. Code and details stay the same.
    #[must_use]
    pub fn context(mut self, step: impl fmt::Display) -> Error {
        self.msg = format!("{step}: {}", self.msg);
        self
    }

    /// Sets the CNI version.
    #[must_use]
    pub fn in_version(mut self, version: Version) -> Error {
        self.cni_version = Some(version.as_str().to_owned());
        self
    }

    /// Joins all errors from a teardown into one; `None` if there are none.
    ///
    /// The result has the first error's code, and the messages are joined with `; `.
    pub fn join(errors: Vec<Error>) -> Option<Error> {
        let mut errors = errors.into_iter();
        let first = errors.next()?;
        Some(first.also(errors))
    }

    /// Adds further errors: the first code is kept, and the messages are joined with `; `.
    #[must_use]
    pub fn also(mut self, more: impl IntoIterator<Item = Error>) -> Error {
        for Error { cni_version: _, code: _, msg, details, invalid_key: _ } in more {
            self.msg = format!("{}; {msg}", self.msg);
            if !details.is_empty() {
                if !self.details.is_empty() {
                    self.details.push_str("; ");
                }
                self.details.push_str(&details);
            }
        }
        self
    }
}

/// Turns the errors from a teardown into one result, using [`Error::join`].
///
/// # Errors
/// There was at least one error.
pub fn collected(errors: Vec<Error>) -> Result<(), Error> {
    match Error::join(errors) {
        None => Ok(()),
        Some(error) => Err(error),
    }
}

fn refusal(key: &dyn fmt::Display, value: &dyn fmt::Display, why: &dyn fmt::Display) -> String {
    let [key, value] = [key, value].map(|text| cut(text.to_string(), VALUE_MAX));
    format!("{key}: {value}: {why}")
}

/// Shortens untrusted text to the beginning and the end, together at most `most` bytes.
pub(crate) fn cut(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let (head, tail) = (text.floor_char_boundary(most / 2), text.ceil_char_boundary(text.len() - most / 2));
    format!("{}…{}", &text[..head], &text[tail..])
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain(&self.msg))?;
        if !self.details.is_empty() {
            write!(f, "; {}", plain(&self.details))?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// Extension for `Result` that adds a step to an error message.
pub trait Context<T> {
    /// Puts `step: …` in front of the error message; the step is only formatted if there is an error.
    fn context(self, step: impl fmt::Display) -> Result<T, Error>;
}

impl<T> Context<T> for Result<T, Error> {
    fn context(self, step: impl fmt::Display) -> Result<T, Error> {
        self.map_err(|error| error.context(step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_shortens_a_long_value_to_its_ends() {
        let error = Error::key("master", "ä".repeat(500_000), "no such link");
        assert!(error.msg.len() < VALUE_MAX + 40, "{}", error.msg.len());
        assert!(
            error.msg.starts_with("master: ää") && error.msg.ends_with("ää: no such link"),
            "{}",
            error.msg
        );
        let short = Error::key("master", "ä".repeat(VALUE_MAX / 2), "no such link");
        assert!(!short.msg.contains('…'), "{}", short.msg);
    }

    // Requirements: trap 6
    #[test]
    fn error_version_is_optional_when_read() -> Result<(), serde_json::Error> {
        let read: Error = serde_json::from_str(r#"{"code":7,"msg":"bad"}"#)?;
        assert_eq!(read, Error::new(7, "bad"));
        let written = serde_json::to_string(&read.in_version(Version::V1_0_0))?;
        assert_eq!(written, r#"{"cniVersion":"1.0.0","code":7,"msg":"bad"}"#);
        Ok(())
    }

    // Requirements: S6
    #[test]
    fn error_of_an_unsupported_field_is_code_2() {
        let error = Error::unsupported("vlan", 4095, "this plugin does no VLANs");
        assert_eq!((error.code, error.msg.as_str()), (2, "vlan: 4095: this plugin does no VLANs"));
    }

    #[test]
    fn error_context_builds_a_path_and_keeps_the_code() {
        let failed: Result<(), Error> = Err(Error::io("create link net1 on eth9", "no such device"));
        let error = failed.context("macvlan").context("attach default/web net1").unwrap_err();
        assert_eq!(error.code, code::IO_FAILURE);
        assert_eq!(
            error.to_string(),
            "attach default/web net1: macvlan: create link net1 on eth9: no such device"
        );
    }

    #[test]
    fn error_join_keeps_all_messages() {
        assert_eq!(Error::join(vec![]), None);
        let joined = Error::join(vec![Error::new(11, "a").details("d"), Error::new(5, "b").details("e")]);
        assert_eq!(joined, Some(Error::new(11, "a; b").details("d; e")));
    }
}
