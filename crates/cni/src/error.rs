//! The error every verb answers with: a number, one sentence, and sometimes a longer explanation.
//!
//! Rules: the sentence is a path from what was asked to what failed (`macvlan: create link net1 on
//! eth9: no such device`), lower case, no full stop. The number says *what kind* of failure it is
//! and is never chosen from text. A delegate's number and details travel upward unchanged.
//!
//! Source: SPEC 1.1.0 §5 "Error"; codes 8 and 999 are the Go library's, outside the specification.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::version::Version;

/// The well-known error codes. 100 and above belong to plugins.
pub mod code {
    /// The configuration's version is not one the plugin speaks.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// A field the plugin does not support; the message holds key and value.
    pub const UNSUPPORTED_FIELD: u32 = 2;
    /// No such container; the runtime need not clean up.
    pub const UNKNOWN_CONTAINER: u32 = 3;
    /// A `CNI_*` variable is missing or invalid; the message names it.
    pub const INVALID_ENVIRONMENT: u32 = 4;
    /// Reading, writing or running something failed.
    pub const IO_FAILURE: u32 = 5;
    /// The input is not the JSON it should be.
    pub const DECODING_FAILURE: u32 = 6;
    /// The configuration is well-formed and wrong.
    pub const INVALID_CONFIG: u32 = 7;
    /// The network namespace is unusable (Go library, outside the specification).
    pub const INVALID_NETNS: u32 = 8;
    /// Transient: the same call may succeed later.
    pub const TRY_AGAIN_LATER: u32 = 11;
    /// STATUS: an ADD cannot be served.
    pub const NOT_AVAILABLE: u32 = 50;
    /// STATUS: an ADD cannot be served, and running containers may have lost connectivity.
    pub const LIMITED_CONNECTIVITY: u32 = 51;
    /// Everything else (Go library, outside the specification).
    pub const INTERNAL: u32 = 999;
}

/// A failure as it goes over the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    /// The protocol version in use. Absent in errors of Go plugins, present in ours.
    #[serde(rename = "cniVersion", default, skip_serializing_if = "Option::is_none")]
    pub cni_version: Option<String>,
    /// One of [`code`], or a plugin's own from 100.
    #[serde(default)]
    pub code: u32,
    /// One sentence.
    #[serde(default)]
    pub msg: String,
    /// More, for the reader of a log; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
}

/// Longest key or value in an error, in bytes.
const VALUE_MAX: usize = 256;

impl Error {
    /// An error with this code and sentence.
    pub fn new(code: u32, msg: impl Into<String>) -> Error {
        Error { cni_version: None, code, msg: msg.into(), details: String::new() }
    }

    /// An error of the environment or the file system: code 5, `what: cause`.
    pub fn io(what: impl fmt::Display, cause: impl fmt::Display) -> Error {
        Error::new(code::IO_FAILURE, format!("{what}: {cause}"))
    }

    /// A configuration error: code 7.
    pub fn config(msg: impl Into<String>) -> Error {
        Error::new(code::INVALID_CONFIG, msg)
    }

    /// A refusal of one key: code 7, `key: value: why`; key and value are cut to a bound.
    pub fn key(key: impl fmt::Display, value: impl fmt::Display, why: impl fmt::Display) -> Error {
        Error::config(refusal(&key, &value, &why))
    }

    /// A field the plugin knows and cannot serve: code 2, key and value named as the specification demands.
    pub fn unsupported(key: impl fmt::Display, value: impl fmt::Display, why: impl fmt::Display) -> Error {
        Error::new(code::UNSUPPORTED_FIELD, refusal(&key, &value, &why))
    }

    /// An unexpected failure: code 999.
    pub fn internal(msg: impl Into<String>) -> Error {
        Error::new(code::INTERNAL, msg)
    }

    /// The same error with a longer explanation.
    #[must_use]
    pub fn details(mut self, details: impl Into<String>) -> Error {
        self.details = details.into();
        self
    }

    /// The same error one step further up the path: `step: …`. Code and details stay.
    #[must_use]
    pub fn context(mut self, step: impl fmt::Display) -> Error {
        self.msg = format!("{step}: {}", self.msg);
        self
    }

    /// The same error, said in this protocol version.
    #[must_use]
    pub fn in_version(mut self, version: Version) -> Error {
        self.cni_version = Some(version.as_str().to_owned());
        self
    }

    /// Joins the failures of a teardown into one; `None` if there was none.
    ///
    /// The first failure's code is kept; the sentences are joined by `; `.
    pub fn join(errors: Vec<Error>) -> Option<Error> {
        let mut errors = errors.into_iter();
        let first = errors.next()?;
        Some(first.also(errors))
    }

    /// The same failure, and what failed besides: code of the first, sentences joined by `; `.
    #[must_use]
    pub fn also(mut self, more: impl IntoIterator<Item = Error>) -> Error {
        for Error { cni_version: _, code: _, msg, details } in more {
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

/// Returns the failures of a teardown as one result: [`Error::join`] of them.
///
/// # Errors
/// There was at least one failure.
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

/// A stranger's text as it is shown: its beginning and its end, together so many bytes at most, if it is longer.
pub(crate) fn cut(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let (head, tail) = (text.floor_char_boundary(most / 2), text.ceil_char_boundary(text.len() - most / 2));
    format!("{}…{}", &text[..head], &text[tail..])
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.msg)?;
        if !self.details.is_empty() {
            write!(f, "; {}", self.details)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// Adds a step of the path to a failing result.
pub trait Context<T> {
    /// `step: …` in front of the error's sentence; the step is only rendered on failure.
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
    fn of_a_long_value_the_ends_are_shown() {
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
    fn an_error_without_version_is_read_and_ours_carries_one() -> Result<(), serde_json::Error> {
        let read: Error = serde_json::from_str(r#"{"code":7,"msg":"bad"}"#)?;
        assert_eq!(read, Error::new(7, "bad"));
        let written = serde_json::to_string(&read.in_version(Version::V1_0_0))?;
        assert_eq!(written, r#"{"cniVersion":"1.0.0","code":7,"msg":"bad"}"#);
        Ok(())
    }

    // Requirements: S6
    #[test]
    fn an_unsupported_field_is_code_2_and_names_key_and_value() {
        let error = Error::unsupported("vlan", 4095, "this plugin does no VLANs");
        assert_eq!((error.code, error.msg.as_str()), (2, "vlan: 4095: this plugin does no VLANs"));
    }

    #[test]
    fn context_builds_a_path_and_keeps_the_code() {
        let failed: Result<(), Error> = Err(Error::io("create link net1 on eth9", "no such device"));
        let error = failed.context("macvlan").context("attach default/web net1").unwrap_err();
        assert_eq!(error.code, code::IO_FAILURE);
        assert_eq!(
            error.to_string(),
            "attach default/web net1: macvlan: create link net1 on eth9: no such device"
        );
    }

    #[test]
    fn joined_errors_lose_nothing() {
        assert_eq!(Error::join(vec![]), None);
        let joined = Error::join(vec![Error::new(11, "a").details("d"), Error::new(5, "b").details("e")]);
        assert_eq!(joined, Some(Error::new(11, "a; b").details("d; e")));
    }
}
