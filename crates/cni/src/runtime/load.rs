//! Loads networks from a configuration directory.
//!
//! There are two readers:
//! - [`Directory`], for the node agent and the multi-network specification: list files take precedence over single
//!   files whatever the names are, and an invalid file hides no other file.
//! - [`find_strictly`], which behaves like libcni, for `cnitool` users: an invalid file that sorts before the requested
//!   one is an error.
//!
//! A `.conflist` is a list; `.conf` and `.json` are single plugins. [`Directory`] also reads `.configlist` and
//! `.config`, as the multi-network specification calls them. Files are read in name order. Plugins in
//! `<directory>/<network>/*.conf` are appended unless the list forbids it. If the extension does not fit the content,
//! the content decides, but not for the strict reader.
//!
//! Source: SPEC 1.1.0 §1; libcni `libcni/conf.go`; NPWG 3.4.1 (S3, S22, S39, L10).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::error::{Context, Error, code};
use crate::network::Network;
use crate::object::{DOCUMENT_MAX, Object};

/// File extensions for lists, for single plugins, and for plugins in a network's own directory.
const LISTS: &[&str] = &["conflist", "configlist"];
const SINGLES: &[&str] = &["conf", "json", "config"];
const STRICT_LISTS: &[&str] = &["conflist"];
const STRICT_SINGLES: &[&str] = &["conf", "json"];
const INLINED: &[&str] = &["conf"];

/// Networks in a configuration directory.
#[derive(Debug, Default)]
pub struct Directory {
    /// Networks by precedence: lists before single plugins, then by file name.
    pub networks: Vec<(PathBuf, Network)>,
    /// Files without a valid network, each with an error.
    pub faults: Vec<(PathBuf, Error)>,
}

impl Directory {
    /// Reads the network in the file `path`, or all networks in the directory `path`; empty if the path does not exist.
    ///
    /// # Errors
    /// The same as for [`Directory::read`].
    pub fn at(path: &Path) -> Result<Directory, Error> {
        if !fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
            return Directory::read(path);
        }
        Ok(match network(path) {
            Ok(network) => Directory { networks: vec![(path.to_owned(), network)], faults: Vec::new() },
            Err(error) => Directory { networks: Vec::new(), faults: vec![(path.to_owned(), error)] },
        })
    }

    /// Reads every configuration file; a missing directory counts as empty.
    ///
    /// # Errors
    /// Code 5: the directory itself cannot be read.
    pub fn read(path: &Path) -> Result<Directory, Error> {
        Directory::with(path, [LISTS, SINGLES], &Path::to_owned)
    }

    /// Reads every configuration file from the path that `locate` returns for the file name: an absolute link leads
    /// elsewhere if the directory is part of another root.
    ///
    /// # Errors
    /// The same as for [`Directory::read`].
    pub fn read_located(path: &Path, locate: &dyn Fn(&Path) -> PathBuf) -> Result<Directory, Error> {
        Directory::with(path, [LISTS, SINGLES], locate)
    }

    /// Reads only files that libcni and container runtimes read, that is, neither `.configlist` nor `.config`.
    ///
    /// # Errors
    /// The same as for [`Directory::read`].
    pub fn of_runtime(path: &Path) -> Result<Directory, Error> {
        Directory::with(path, [STRICT_LISTS, STRICT_SINGLES], &Path::to_owned)
    }

    fn with(path: &Path, kinds: [&[&str]; 2], locate: &dyn Fn(&Path) -> PathBuf) -> Result<Directory, Error> {
        let mut directory = Directory::default();
        let [lists, _] = kinds;
        let (first, second): (Vec<_>, Vec<_>) = files_at(path, &kinds.concat(), locate)?
            .into_iter()
            .partition(|file| lists.contains(&extension(file)));
        for file in first.into_iter().chain(second) {
            match network_at(&file, &locate(&file)) {
                Ok(network) => directory.networks.push((file, network)),
                Err(error) => directory.faults.push((file, error)),
            }
        }
        Ok(directory)
    }

    /// Finds the network with this name, in a list file if there is one, otherwise in a single file.
    pub fn find(&self, name: &str) -> Option<&Network> {
        self.networks.iter().find(|(_, network)| network.name.as_str() == name).map(|(_, network)| network)
    }

    /// Returns the network whose file comes first by name: the one that a container runtime uses by default.
    pub fn first(&self) -> Option<(&Path, &Network)> {
        let by_name = |(path, _): &&(PathBuf, Network)| path.clone();
        self.networks.iter().min_by_key(by_name).map(|(path, network)| (path.as_path(), network))
    }

    /// Returns the first file by name that exists but cannot be read, so that the content is unknown.
    pub fn unread(&self) -> Option<(&Path, &Error)> {
        let unread = self.faults.iter().filter(|(_, error)| error.code == code::IO_FAILURE);
        unread.min_by_key(|(path, _)| path).map(|(path, error)| (path.as_path(), error))
    }

    /// Fails if an unreadable file sorts before `file`, or if there is any and `file` is `None`.
    ///
    /// # Errors
    /// The error for the first such file.
    pub fn is_first(&self, file: Option<&Path>) -> Result<(), Error> {
        match self.unread() {
            Some((unread, error)) if file.is_none_or(|file| unread < file) => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

/// Finds the network `name` in the directory `path`.
///
/// # Errors
/// Code 7: it does not exist; the error also names files that could not be read. Code 5: the directory cannot be read.
pub fn find(path: &Path, name: &str) -> Result<Network, Error> {
    let mut directory = Directory::read(path)?;
    if let Some(index) = directory.networks.iter().position(|(_, network)| network.name.as_str() == name) {
        return Ok(directory.networks.swap_remove(index).1);
    }
    let unread: Vec<String> = directory.faults.iter().map(|(_, error)| error.to_string()).collect();
    Err(not_found(path, name).details(unread.join("; ")))
}

/// Finds the network `name` in the directory `path` the way libcni does.
///
/// # Errors
/// The same as for [`find`], and the error for any invalid file that sorts before the network's.
pub fn find_strictly(path: &Path, name: &str) -> Result<Network, Error> {
    let lists = files(path, STRICT_LISTS)?;
    for file in &lists {
        let network = list(file)?;
        if network.name.as_str() == name {
            return Ok(network);
        }
    }
    let singles = files(path, STRICT_SINGLES)?;
    for file in &singles {
        let plugin = object(file)?;
        if plugin.get("type").is_none() {
            return Err(Error::config(format!("{}: missing plugin type", file.display())));
        }
        // Unlike a list, a single configuration may lack a name as long as another network is requested.
        if plugin.text("name")?.as_deref() == Some(name) {
            return Network::from_object(plugin).context(file.display());
        }
    }
    match lists.is_empty() && singles.is_empty() {
        true => Err(Error::config(format!("no net configurations found in {}", path.display()))),
        false => Err(not_found(path, name)),
    }
}

fn not_found(path: &Path, name: &str) -> Error {
    Error::config(format!("no net configuration with name {name:?} in {}", path.display()))
}

/// Reads the network in one file, with the plugins from separate files.
pub fn network(file: &Path) -> Result<Network, Error> {
    network_at(file, file)
}

/// Reads the network of a file whose bytes are at another path.
fn network_at(file: &Path, located: &Path) -> Result<Network, Error> {
    let path = file.display().to_string();
    let mut network = Network::parse_open(&bytes(located)?, &path)?;
    add_plugins_beside(&mut network, file)?;
    closed(network, &path)
}

/// Reads the network in one file if it is a list.
fn list(file: &Path) -> Result<Network, Error> {
    let path = file.display().to_string();
    let bytes = bytes(file)?;
    let object = Object::parse(&bytes, &path)?;
    if !object.contains("plugins") && object.get("type").is_some() {
        return Err(Error::config(format!("{path}: plugins: missing: no plugin configs found")));
    }
    let mut network = Network::parse_open(&bytes, &path)?;
    add_plugins_beside(&mut network, file)?;
    closed(network, &path)
}

fn closed(network: Network, path: &str) -> Result<Network, Error> {
    match network.plugins.is_empty() {
        true => Err(Error::config(format!("{path}: plugins: missing: no plugin configs found"))),
        false => Ok(network),
    }
}

/// Appends the plugins in `<directory>/<network>/*.conf` (S39).
fn add_plugins_beside(network: &mut Network, file: &Path) -> Result<(), Error> {
    if network.load_only_inlined_plugins {
        return Ok(());
    }
    let directory = file.parent().unwrap_or(Path::new(".")).join(network.name.as_str());
    for file in files(&directory, INLINED)? {
        network.append(object(&file)?).context(file.display())?;
    }
    Ok(())
}

fn object(file: &Path) -> Result<Object, Error> {
    Object::parse(&bytes(file)?, &file.display().to_string())
}

/// Reads a file, limited in size.
fn bytes(file: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|open| open.take(DOCUMENT_MAX as u64 + 1).read_to_end(&mut bytes))
        .map_err(|cause| Error::io(format_args!("read {}", file.display()), cause))?;
    Ok(bytes)
}

fn extension(file: &Path) -> &str {
    file.extension().and_then(OsStr::to_str).unwrap_or_default()
}

/// Lists the regular files with these extensions, by name; empty if the directory does not exist.
fn files(directory: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, Error> {
    files_at(directory, extensions, &Path::to_owned)
}

fn files_at(
    directory: &Path,
    extensions: &[&str],
    locate: &dyn Fn(&Path) -> PathBuf,
) -> Result<Vec<PathBuf>, Error> {
    let failed = |cause| Error::new(code::IO_FAILURE, format!("read {}: {cause}", directory.display()));
    let entries = match fs::read_dir(directory) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if !extensions.contains(&extension(&path)) {
            continue;
        }
        // Metadata follows links, which an administrator may use here. Opening a FIFO would block.
        match fs::metadata(locate(&path)) {
            Ok(metadata) if !metadata.is_file() => {}
            Err(cause) if cause.kind() == ErrorKind::NotFound => {}
            // A file whose metadata cannot be read may exist; reading it then returns the error.
            Ok(_) | Err(_) => files.push(path),
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests;
