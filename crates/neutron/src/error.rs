//! What goes wrong with a cloud, told apart as far as somebody does something different about it.
//!
//! Source: OpenStack Networking API v2.0, "Faults"; facts of Neutron 21: 409 `OverQuota`, 412
//! `RevisionNumberConstraintFailed`, 401 with another body than the rest.

use std::fmt;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What was tried: `POST /v2.0/ports`, `clouds.yaml`.
    pub what: String,
    /// Why it failed.
    pub why: Why,
}

/// Why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// What we were told to use cannot be used.
    Configuration(String),
    /// Nobody answers, or not in time.
    Unreachable(String),
    /// An answer that cannot be read.
    Unreadable(String),
    /// The credentials are not taken (401).
    Unauthorized(String),
    /// The server says no.
    Refused {
        /// The status.
        status: u16,
        /// Neutron's name for it: `PortNotFound`, `OverQuota`; may be empty.
        kind: String,
        /// For people.
        message: String,
        /// To be named to the cloud's operator; may be empty.
        request: String,
    },
}

impl Error {
    pub(crate) fn new(what: impl Into<String>, why: Why) -> Error {
        Error { what: what.into(), why }
    }

    /// An error of what we were told to use.
    pub fn configuration(what: impl Into<String>, why: impl Into<String>) -> Error {
        Error::new(what, Why::Configuration(why.into()))
    }

    /// The status, if a server answered.
    pub fn status(&self) -> Option<u16> {
        match self.why {
            Why::Refused { status, .. } => Some(status),
            Why::Unauthorized(_) => Some(401),
            _ => None,
        }
    }

    /// Neutron's name for it.
    pub fn kind(&self) -> &str {
        match &self.why {
            Why::Refused { kind, .. } => kind,
            _ => "",
        }
    }

    /// There is no such thing.
    pub fn is_absent(&self) -> bool {
        self.status() == Some(404)
    }

    /// Somebody was faster: what it was based on has changed.
    pub fn is_outdated(&self) -> bool {
        self.status() == Some(412)
    }

    /// No more of it may be made.
    pub fn is_over_quota(&self) -> bool {
        self.kind() == "OverQuota"
    }

    /// May it be otherwise in a while, with nobody changing what was asked for?
    pub fn passes(&self) -> bool {
        match &self.why {
            Why::Configuration(_) => false,
            Why::Unreachable(_) | Why::Unreadable(_) | Why::Unauthorized(_) => true,
            Why::Refused { status, kind, .. } => {
                matches!(status, 408 | 412 | 429 | 500..=599)
                    || matches!(kind.as_str(), "OverQuota" | "IpAddressGenerationFailure" | "RetryRequest")
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Error { what, why } = self;
        match why {
            Why::Configuration(why) | Why::Unreachable(why) | Why::Unreadable(why) => {
                write!(to, "{what}: {why}")
            }
            Why::Unauthorized(why) => write!(to, "{what}: the credentials are not taken: {why}"),
            Why::Refused { status, kind, message, request } => {
                write!(to, "{what}: {status}")?;
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
