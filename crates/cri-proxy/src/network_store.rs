//! Stores networks on disk, one file per network. The file name is a hash of the network name.
//!
//! Each write goes to a temporary file, which is synced and renamed before the directory is synced; a file is therefore
//! either complete or missing. The mode is 0600. A file that cannot be read is logged and kept; if the cause may be
//! temporary, it is read again later.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;
use tracing::error;

use cli_support::atomic_file;
use cli_support::failure::Failure;
use cli_support::privilege;
use cni::fold;
use cri::network_api::validation;
use cri::network_api::validation::Checked;
use cri::network_api::{Name, NetworkConfig};

/// File format version; newer ones are not read.
const VERSION: u32 = 1;
/// Maximum file size in bytes.
const FILE_MAX: u64 = 16 << 20;

/// Store in a directory.
#[derive(Clone, Debug)]
pub(crate) struct Store(PathBuf);

/// Extension for temporary files, which are renamed when they are complete.
const TEMPORARY: &str = "new";

/// Network as stored.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// Configuration, already validated.
    pub(crate) checked: Checked,
    /// Whether the network is draining: it accepts no new sandbox and is removed with the last one.
    pub(crate) draining: bool,
}

/// Result from reading the whole store.
#[derive(Debug)]
pub(crate) struct Found {
    /// Networks that could be read.
    pub(crate) networks: Vec<Stored>,
    /// Whether there are more files, which may become readable later.
    pub(crate) has_unread: bool,
}

/// Reason why a file was not read.
#[derive(Debug)]
enum Unread {
    /// An I/O error, which may be temporary.
    Io(io::Error),
    /// The content is invalid.
    Invalid(String),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unread::Io(cause) => write!(f, "{cause}"),
            Unread::Invalid(why) => f.write_str(why),
        }
    }
}

/// Error from reading a network file.
#[derive(Debug, Error)]
#[error("{}: {cause}", .file.display())]
pub(crate) struct StoreError {
    /// File path.
    file: PathBuf,
    /// Why it was not read.
    cause: Unread,
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    draining: bool,
    config: NetworkConfig,
}

impl Store {
    /// Opens a directory; creates it if it is missing.
    pub(crate) fn open(directory: &Path) -> Result<Store, Failure> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|cause| {
            privilege::refused(&format!("networks: create {}", directory.display()), &cause)
        })?;
        Ok(Store(directory.to_owned()))
    }

    /// Reads all networks. Removes temporary files, because the writers were killed before they reported success.
    pub(crate) fn read_all(&self) -> Result<Found, Failure> {
        let failed = |cause| privilege::refused(&format!("networks: read {}", self.0.display()), &cause);
        let mut found = Found { networks: Vec::new(), has_unread: false };
        for file in fs::read_dir(&self.0).map_err(failed)? {
            let path = file.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == TEMPORARY) {
                let _ = fs::remove_file(&path);
            }
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match read(&path) {
                Ok(stored) => found.networks.push(stored),
                Err(why @ Unread::Io(_)) => {
                    found.has_unread = true;
                    error!(file = %path.display(), error = %why, "failed to read network, retrying later");
                }
                Err(why) => {
                    error!(file = %path.display(), error = %why, "invalid network file: store the network again");
                }
            }
        }
        Ok(found)
    }

    /// Reads the network stored under a name.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn find(&self, name: &Name) -> Result<Option<Stored>, StoreError> {
        let path = self.file(name);
        match path.try_exists() {
            Ok(false) => Ok(None),
            _ => read(&path).map(Some).map_err(|cause| StoreError { file: path, cause }),
        }
    }

    /// Writes a network durably.
    ///
    /// # Errors
    /// Either nothing was written, or it was written but may not survive a power loss.
    pub(crate) fn write(&self, stored: &Stored) -> io::Result<()> {
        let Stored { checked, draining } = stored;
        let document = Document { version: VERSION, draining: *draining, config: checked.config.clone() };
        let path = self.file(&checked.name);
        let temporary = path.with_extension(TEMPORARY);
        let mut file = atomic_file::create_new(&temporary, 0o600)?;
        let written = serde_json::to_vec_pretty(&document)
            .map_err(io::Error::other)
            .and_then(|bytes| file.write_all(&bytes))
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&temporary, &path));
        if written.is_err() {
            // An incomplete file is useless and only takes space, perhaps on a full disk.
            let _ = fs::remove_file(&temporary);
        }
        written.and_then(|()| self.sync())
    }

    /// Removes a network durably; a missing network is not an error.
    ///
    /// # Errors
    /// As for [`Store::write`].
    pub(crate) fn remove(&self, name: &Name) -> io::Result<()> {
        match fs::remove_file(self.file(name)) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => Err(cause),
            _ => self.sync(),
        }
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }

    fn file(&self, name: &Name) -> PathBuf {
        let hash = Sha256::digest(name.to_string());
        let short: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        self.0.join(format!("{short}.json"))
    }
}

fn read(path: &Path) -> Result<Stored, Unread> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(Unread::Io)?;
    file.take(FILE_MAX).read_to_end(&mut bytes).map_err(Unread::Io)?;
    let document: Document =
        fold::strict_from_slice(&bytes, "network").map_err(|error| Unread::Invalid(error.to_string()))?;
    if document.version != VERSION {
        let why = format!("version {}: this release reads version {VERSION}", document.version);
        return Err(Unread::Invalid(why));
    }
    let checked = validation::check(Some(document.config))
        .map_err(|status| Unread::Invalid(status.message().to_owned()))?;
    Ok(Stored { checked, draining: document.draining })
}
