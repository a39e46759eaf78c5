//! Which cloud, and who we are there.
//!
//! Rules: a secret shows itself in no `Debug`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// How long a request may take unless told otherwise.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Which cloud, and who we are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Who we are.
    pub auth: Auth,
    /// Which region of the catalog; any if absent.
    pub region: Option<String>,
    /// Which of the catalog's addresses: `public`, `internal`, `admin`.
    pub interface: String,
    /// Neutron's address, instead of the catalog's.
    pub endpoint: Option<String>,
    /// The authorities to trust, instead of the machine's.
    pub ca_bundle: Option<PathBuf>,
    /// How long a request may take.
    pub patience: Duration,
}

/// Who we are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Nobody asks.
    None,
    /// A user with a password.
    Password {
        /// Keystone's address.
        auth_url: String,
        /// The user.
        user: Name,
        /// The password.
        password: Secret,
        /// In which project.
        project: Option<Name>,
    },
    /// What a user has made for a program.
    ApplicationCredential {
        /// Keystone's address.
        auth_url: String,
        /// The credential.
        credential: Credential,
        /// Its secret.
        secret: Secret,
    },
    /// A token that somebody else got.
    Token {
        /// Keystone's address.
        auth_url: String,
        /// The token.
        token: Secret,
        /// In which project.
        project: Option<Name>,
    },
}

/// An application credential: by its id, or by its name and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// By its id.
    Id(String),
    /// By its name, which is unique for its user.
    Named(String, Name),
}

/// A user or a project: by id, or by name in a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// By id.
    Id(String),
    /// By name, and the domain's id or name.
    InDomain(String, Domain),
}

/// A domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Domain {
    /// By id.
    Id(String),
    /// By name.
    Name(String),
}

/// What nobody is to read in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("***")
    }
}

impl Settings {
    /// A cloud that asks nobody who he is.
    pub fn open(endpoint: impl Into<String>) -> Settings {
        Settings::new(Auth::None, Some(endpoint.into()))
    }

    /// Somebody's, with everything else as it usually is.
    pub fn new(auth: Auth, endpoint: Option<String>) -> Settings {
        Settings {
            auth,
            region: None,
            interface: "public".to_owned(),
            endpoint,
            ca_bundle: None,
            patience: PATIENCE,
        }
    }
}
