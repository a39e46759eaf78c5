//! Cloud settings and credentials. Secrets never appear in `Debug` output.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Default request timeout.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Settings for one cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Authentication method and credentials.
    pub auth: Auth,
    /// Region to look up in the catalog; any region if absent.
    pub region: Option<String>,
    /// Catalog interface: `public`, `internal` or `admin`.
    pub interface: String,
    /// Neutron URL that replaces the one in the catalog.
    pub endpoint: Option<String>,
    /// CA bundle that replaces the system's CAs.
    pub ca_bundle: Option<PathBuf>,
    /// Request timeout.
    pub timeout: Duration,
}

/// Authentication method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// No authentication, for example with Neutron's `noauth` strategy.
    None,
    /// User and password.
    Password {
        /// Keystone URL.
        auth_url: String,
        /// User to authenticate as.
        user: Name,
        /// Password.
        password: Secret,
        /// Project scope; the user's default project if absent.
        project: Option<Name>,
    },
    /// Application credential, which a user created for weft.
    ApplicationCredential {
        /// Keystone URL.
        auth_url: String,
        /// Credential id, or name and user.
        credential: Credential,
        /// Credential secret.
        secret: Secret,
    },
    /// Existing token, for example from `openstack token issue`.
    Token {
        /// Keystone URL.
        auth_url: String,
        /// Token.
        token: Secret,
        /// Project scope.
        project: Option<Name>,
    },
}

/// Application credential, given by id or by name and user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// Credential id.
    Id(String),
    /// Name, which is unique per user, and that user.
    Named(String, Name),
}

/// User or project, given by id or by name within a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// Id of the user or project.
    Id(String),
    /// Name, and the domain in which it is unique.
    InDomain(String, Domain),
}

/// Domain, given by id or by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Domain id.
    Id(String),
    /// Domain name.
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
    /// Returns settings for a cloud without authentication.
    pub fn open(endpoint: impl Into<String>) -> Settings {
        Settings::new(Auth::None, Some(endpoint.into()))
    }

    /// Returns settings with defaults for everything else.
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
