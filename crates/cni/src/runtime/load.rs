//! Networks from a configuration directory.
//!
//! Two readers. A *directory* ([`Directory`]) is what a node agent and the multi-network standard need:
//! list files win over single files whatever they are called, and one broken file hides no other. A
//! *strict* look-up ([`find_strictly`]) behaves as libcni's does, for `cnitool`'s users: a broken file
//! that sorts before the one looked for is an error.
//!
//! Rules: `.conflist` is a list, `.conf` and `.json` single plugins (the standard's own text says
//! `.configlist` and `.config`: a directory takes them too); files in the order of their names; plugins
//! in `<directory>/<network>/*.conf` are appended unless the list forbids it. A list file found under a
//! single file's name (and the other way round) is read as what it is, but not by the strict reader.
//!
//! Source: SPEC 1.1.0 §1; libcni `libcni/conf.go`; NPWG 3.4.1 (S3, S22, S39, L10).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use crate::error::{Context, Error, code};
use crate::network::Network;
use crate::object::{DOCUMENT_MAX, Object};

/// File extensions of lists, of single plugins, and of plugins in a network's own directory.
const LISTS: &[&str] = &["conflist", "configlist"];
const SINGLES: &[&str] = &["conf", "json", "config"];
const STRICT_LISTS: &[&str] = &["conflist"];
const STRICT_SINGLES: &[&str] = &["conf", "json"];
const INLINED: &[&str] = &["conf"];

/// All that a configuration directory holds.
#[derive(Debug, Default)]
pub struct Directory {
    /// The networks by precedence: lists before single plugins, then by file name.
    pub networks: Vec<(PathBuf, Network)>,
    /// Files that hold no network, and why.
    pub faults: Vec<(PathBuf, Error)>,
}

impl Directory {
    /// What stands at `path`: the network of one file, or those of a directory; nothing there is empty.
    ///
    /// # Errors
    /// As [`Directory::read`].
    pub fn at(path: &Path) -> Result<Directory, Error> {
        if !fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
            return Directory::read(path);
        }
        Ok(match network(path) {
            Ok(network) => Directory { networks: vec![(path.to_owned(), network)], faults: Vec::new() },
            Err(error) => Directory { networks: Vec::new(), faults: vec![(path.to_owned(), error)] },
        })
    }

    /// Reads every configuration file; a directory that is not there is empty.
    ///
    /// # Errors
    /// Code 5 if the directory itself cannot be read.
    pub fn read(path: &Path) -> Result<Directory, Error> {
        Directory::with(path, [LISTS, SINGLES])
    }

    /// The same of what libcni takes for one, and container runtimes with it: no `.configlist`, no `.config`.
    ///
    /// # Errors
    /// As [`Directory::read`].
    pub fn of_runtime(path: &Path) -> Result<Directory, Error> {
        Directory::with(path, [STRICT_LISTS, STRICT_SINGLES])
    }

    fn with(path: &Path, kinds: [&[&str]; 2]) -> Result<Directory, Error> {
        let mut directory = Directory::default();
        for extensions in kinds {
            for file in files(path, extensions)? {
                match network(&file) {
                    Ok(network) => directory.networks.push((file, network)),
                    Err(error) => directory.faults.push((file, error)),
                }
            }
        }
        Ok(directory)
    }

    /// The network of this name: of a list file if there is one, else of a single file.
    pub fn find(&self, name: &str) -> Option<&Network> {
        self.networks.iter().find(|(_, network)| network.name.as_str() == name).map(|(_, network)| network)
    }

    /// The network whose file comes first by name, list or not: what a container runtime takes as its default.
    pub fn first(&self) -> Option<(&Path, &Network)> {
        let by_name = |(path, _): &&(PathBuf, Network)| path.clone();
        self.networks.iter().min_by_key(by_name).map(|(path, network)| (path.as_path(), network))
    }

    /// The first file by name that is there and cannot be read: nobody knows what it configures.
    pub fn unread(&self) -> Option<(&Path, &Error)> {
        let unread = self.faults.iter().filter(|(_, error)| error.code == code::IO_FAILURE);
        unread.min_by_key(|(path, _)| path).map(|(path, error)| (path.as_path(), error))
    }

    /// Is it certain that no file before this one, or none at all, could be meant?
    ///
    /// # Errors
    /// That of the first one that cannot be read.
    pub fn is_first(&self, file: Option<&Path>) -> Result<(), Error> {
        match self.unread() {
            Some((unread, error)) if file.is_none_or(|file| unread < file) => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

/// The network `name` in the directory `path`.
///
/// # Errors
/// Code 7 if it is not there, naming also the files that could not be read; code 5 if the directory cannot.
pub fn find(path: &Path, name: &str) -> Result<Network, Error> {
    let mut directory = Directory::read(path)?;
    if let Some(index) = directory.networks.iter().position(|(_, network)| network.name.as_str() == name) {
        return Ok(directory.networks.swap_remove(index).1);
    }
    let unread: Vec<String> = directory.faults.iter().map(|(_, error)| error.to_string()).collect();
    Err(not_found(path, name).details(unread.join("; ")))
}

/// The network `name` in the directory `path`, as libcni finds it.
///
/// # Errors
/// As [`find`]; and the error of any file that cannot be read and sorts before it.
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
        // Unlike a list's, a single configuration's name may be missing as long as nobody asks for it.
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

/// The network in one file, with the plugins that stand beside it.
pub fn network(file: &Path) -> Result<Network, Error> {
    let what = file.display().to_string();
    let mut network = Network::parse_open(&bytes(file)?, &what)?;
    add_plugins_beside(&mut network, file)?;
    closed(network, &what)
}

/// The same, but only of a list.
fn list(file: &Path) -> Result<Network, Error> {
    let what = file.display().to_string();
    let bytes = bytes(file)?;
    let object = Object::parse(&bytes, &what)?;
    if !object.contains("plugins") && object.get("type").is_some() {
        return Err(Error::config(format!("{what}: plugins: missing: no plugin configs found")));
    }
    let mut network = Network::parse_open(&bytes, &what)?;
    add_plugins_beside(&mut network, file)?;
    closed(network, &what)
}

fn closed(network: Network, what: &str) -> Result<Network, Error> {
    match network.plugins.is_empty() {
        true => Err(Error::config(format!("{what}: plugins: missing: no plugin configs found"))),
        false => Ok(network),
    }
}

/// Appends the plugins of `<directory>/<network>/*.conf` (S39).
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

/// A file's content, bounded.
fn bytes(file: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|open| open.take(DOCUMENT_MAX as u64 + 1).read_to_end(&mut bytes))
        .map_err(|cause| Error::io(format_args!("read {}", file.display()), cause))?;
    Ok(bytes)
}

/// The regular files of these extensions, by name; none if the directory is not there.
fn files(directory: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, Error> {
    let failed = |cause| Error::new(code::IO_FAILURE, format!("read {}: {cause}", directory.display()));
    let entries = match fs::read_dir(directory) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
        if !extensions.contains(&extension) {
            continue;
        }
        // Metadata follows links: an administrator may link a file here, and a fifo would hang us.
        match fs::metadata(&path) {
            Ok(metadata) if !metadata.is_file() => {}
            Err(cause) if cause.kind() == ErrorKind::NotFound => {}
            // What cannot be looked at is not gone: to read it says why.
            Ok(_) | Err(_) => files.push(path),
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests;
