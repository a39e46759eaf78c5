//! Errors from OpenStack requests, in the kinds that callers need to tell apart.
//!
//! Source: OpenStack Networking API v2.0, "Faults"; observed with Neutron 21: 409 `OverQuota`, 412
//! `RevisionNumberConstraintFailed`, and a 401 whose body has another form.

use std::fmt;

/// Error from one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Operation that failed, for example `POST /v2.0/ports` or `clouds.yaml`.
    pub what: String,
    /// Why it failed.
    pub why: Cause,
}

/// Reason why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The settings are invalid.
    Configuration(String),
    /// The server did not answer, or not in time.
    Unreachable(String),
    /// The response cannot be parsed.
    Unreadable(String),
    /// Keystone or Neutron rejected the credentials (401).
    Unauthorized(String),
    /// The server rejected the request.
    Refused {
        /// HTTP status.
        status: u16,
        /// Neutron's error type, for example `PortNotFound` or `OverQuota`; may be empty.
        kind: String,
        /// Message for people.
        message: String,
        /// Request id, by which the cloud operator finds the request in Neutron's log; may be empty.
        request: String,
    },
}

impl Error {
    pub(crate) fn new(what: impl Into<String>, why: Cause) -> Error {
        Error { what: what.into(), why }
    }

    /// Returns an error about the settings.
    pub fn configuration(what: impl Into<String>, why: impl Into<String>) -> Error {
        Error::new(what, Cause::Configuration(why.into()))
    }

    /// Returns the HTTP status if the server answered.
    pub fn status(&self) -> Option<u16> {
        match self.why {
            Cause::Refused { status, .. } => Some(status),
            Cause::Unauthorized(_) => Some(401),
            _ => None,
        }
    }

    /// Returns Neutron's error type; empty if there is none.
    pub fn kind(&self) -> &str {
        match &self.why {
            Cause::Refused { kind, .. } => kind,
            _ => "",
        }
    }

    /// Whether the object does not exist.
    pub fn is_absent(&self) -> bool {
        self.status() == Some(404)
    }

    /// Whether the object has changed since it was read.
    pub fn is_outdated(&self) -> bool {
        self.status() == Some(412)
    }

    /// Whether the project's quota is exhausted.
    pub fn is_over_quota(&self) -> bool {
        self.kind() == "OverQuota"
    }

    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        match &self.why {
            Cause::Configuration(_) => false,
            Cause::Unreachable(_) | Cause::Unreadable(_) | Cause::Unauthorized(_) => true,
            Cause::Refused { status, kind, .. } => {
                matches!(status, 408 | 412 | 429 | 500..=599)
                    || matches!(kind.as_str(), "OverQuota" | "IpAddressGenerationFailure" | "RetryRequest")
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Error { what: operation, why } = self;
        match why {
            Cause::Configuration(why) | Cause::Unreachable(why) | Cause::Unreadable(why) => {
                write!(to, "{operation}: {why}")
            }
            Cause::Unauthorized(why) => write!(to, "{operation}: credentials rejected: {why}"),
            Cause::Refused { status, kind, message, request } => {
                write!(to, "{operation}: {status}")?;
                for part in [kind, message].into_iter().filter(|part| !part.is_empty()) {
                    write!(to, " {part}")?;
                }
                if !request.is_empty() {
                    write!(to, " ({request})")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for Error {}
