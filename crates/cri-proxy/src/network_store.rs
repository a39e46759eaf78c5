//! The networks that were set, on disk: a file each, named by a hash of the network's name.
//!
//! Rules: a file is whole or not there (temporary name, fsync, rename, fsync of the directory), 0600; what cannot be read
//! is told and left as it is, and read again where another time may do.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;
use tracing::error;

use cli_support::failure::Failure;
use cli_support::privilege;
use cri::network_api::validation;
use cri::network_api::validation::Checked;
use cri::network_api::{Name, NetworkConfig};

/// The form of file this release writes; a newer one is not read.
const VERSION: u32 = 1;
/// Largest file, in bytes.
const FILE_MAX: u64 = 16 << 20;

/// The directory.
#[derive(Clone, Debug)]
pub(crate) struct Store(PathBuf);

/// What a file ends with that is not in its place yet.
const TEMPORARY: &str = "new";

/// A network that was set.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// What it is.
    pub(crate) checked: Checked,
    /// It goes with its last sandbox, and takes no new one.
    pub(crate) draining: bool,
}

/// What was read.
#[derive(Debug)]
pub(crate) struct Found {
    /// The networks.
    pub(crate) networks: Vec<Stored>,
    /// Are there others, which another look may find?
    pub(crate) lacks: bool,
}

/// Why a file was not read.
#[derive(Debug)]
enum Unread {
    /// The file system said so.
    Now(io::Error),
    /// It makes no sense, and will not.
    Ever(String),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unread::Now(cause) => write!(f, "{cause}"),
            Unread::Ever(why) => f.write_str(why),
        }
    }
}

/// File of a network that was not read.
#[derive(Debug, Error)]
#[error("{}: {cause}", .file.display())]
pub(crate) struct StoreError {
    /// The file.
    file: PathBuf,
    /// The reason.
    cause: Unread,
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    draining: bool,
    config: NetworkConfig,
}

impl Store {
    /// Opens the directory, which is made if it is not there.
    pub(crate) fn open(directory: &Path) -> Result<Store, Failure> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|cause| privilege::refused(&format!("networks: make {}", directory.display()), &cause))?;
        Ok(Store(directory.to_owned()))
    }

    /// Everything that can be read. What a process left that died while it wrote, nobody was told of: it is removed.
    pub(crate) fn read_all(&self) -> Result<Found, Failure> {
        let failed = |cause| privilege::refused(&format!("networks: read {}", self.0.display()), &cause);
        let mut found = Found { networks: Vec::new(), lacks: false };
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
                Err(why @ Unread::Now(_)) => {
                    found.lacks = true;
                    error!(file = %path.display(), %why, "a network cannot be read now: it is tried again");
                }
                Err(why) => error!(file = %path.display(), %why, "a network cannot be read: set it again"),
            }
        }
        Ok(found)
    }

    /// What is stored under this name.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn look(&self, name: &Name) -> Result<Option<Stored>, StoreError> {
        let path = self.file(name);
        match path.try_exists() {
            Ok(false) => Ok(None),
            _ => read(&path).map(Some).map_err(|cause| StoreError { file: path, cause }),
        }
    }

    /// Writes one, durably.
    ///
    /// # Errors
    /// It is not written; or it is, and may not outlive a loss of power.
    pub(crate) fn write(&self, stored: &Stored) -> io::Result<()> {
        let Stored { checked, draining } = stored;
        let document = Document { version: VERSION, draining: *draining, config: checked.config.clone() };
        let path = self.file(&checked.name);
        let temporary = path.with_extension(TEMPORARY);
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        let written = serde_json::to_vec_pretty(&document)
            .map_err(io::Error::other)
            .and_then(|bytes| file.write_all(&bytes))
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&temporary, &path));
        if written.is_err() {
            // An incomplete file is useless, and a full disk needs its space.
            let _ = fs::remove_file(&temporary);
        }
        written.and_then(|()| self.sync())
    }

    /// Removes one, durably; one that is not there is removed.
    ///
    /// # Errors
    /// As [`Store::write`].
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
    let file = File::open(path).map_err(Unread::Now)?;
    file.take(FILE_MAX).read_to_end(&mut bytes).map_err(Unread::Now)?;
    let document: Document =
        serde_json::from_slice(&bytes).map_err(|cause| Unread::Ever(cause.to_string()))?;
    if document.version != VERSION {
        let why = format!("version {}: this release reads version {VERSION}", document.version);
        return Err(Unread::Ever(why));
    }
    let checked = validation::check(Some(document.config))
        .map_err(|status| Unread::Ever(status.message().to_owned()))?;
    Ok(Stored { checked, draining: document.draining })
}
