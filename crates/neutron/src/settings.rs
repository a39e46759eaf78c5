//! Settings of an OpenStack cloud and its credentials.
//!
//! A secret appears in no `Debug` output.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Default timeout of a request.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Settings of a cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Authentication.
    pub auth: Auth,
    /// Region in the catalog; any if absent.
    pub region: Option<String>,
    /// Interface in the catalog: `public`, `internal`, `admin`.
    pub interface: String,
    /// URL of Neutron, instead of the catalog's.
    pub endpoint: Option<String>,
    /// Bundle of trusted authorities, instead of the system's.
    pub ca_bundle: Option<PathBuf>,
    /// Timeout of a request.
    pub timeout: Duration,
}

/// Authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// No authentication.
    None,
    /// A user with a password.
    Password {
        /// URL of Keystone.
        auth_url: String,
        /// The user.
        user: Name,
        /// The password.
        password: Secret,
        /// The project.
        project: Option<Name>,
    },
    /// An application credential of a user.
    ApplicationCredential {
        /// URL of Keystone.
        auth_url: String,
        /// The credential.
        credential: Credential,
        /// Its secret.
        secret: Secret,
    },
    /// An existing token.
    Token {
        /// URL of Keystone.
        auth_url: String,
        /// The token.
        token: Secret,
        /// The project.
        project: Option<Name>,
    },
}

/// Application credential: by id, or by name and user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// Id.
    Id(String),
    /// Name, which is unique for its user.
    Named(String, Name),
}

/// User or project: by id, or by name in a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// Id.
    Id(String),
    /// Name, and the id or name of the domain.
    InDomain(String, Domain),
}

/// Domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Id.
    Id(String),
    /// Name.
    Name(String),
}

/// String that `Debug` does not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("***")
    }
}

impl Settings {
    /// Returns the settings of a cloud without authentication.
    pub fn open(endpoint: impl Into<String>) -> Settings {
        Settings::new(Auth::None, Some(endpoint.into()))
    }

    /// Returns settings with defaults for all other fields.
    pub fn new(auth: Auth, endpoint: Option<String>) -> Settings {
        Settings {
            auth,
            region: None,
            interface: "public".to_owned(),
            endpoint,
            ca_bundle: None,
            timeout: TIMEOUT,
        }
    }
}
