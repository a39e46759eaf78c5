//! libcni's result cache: attachments with configuration, parameters and result.
//!
//! The files are compatible with libcni in both directions: `<directory>/results/<network>-<container id>-<ifname>`,
//! JSON of kind `cniCacheV1`. Unlike libcni, weft writes a temporary file and renames it, so that readers never see an
//! incomplete entry, and it keeps a plugin's result exactly as it was printed.
//!
//! - An entry that cannot be opened or read is treated as absent, as in libcni.
//! - An entry that can be read but is invalid is an error: DEL continues without it, CHECK does not.
//! - A file that is not an entry is read as a bare result, which old libcni versions wrote.
//! - Names in an entry are untrusted and validated again.
//!
//! Source: libcni `libcni/api.go` (`cachedInfo`, `GetCachedAttachments`): L5, L6, L9, S17, S31.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::chain::{Attached, Parameters};
use crate::args::Args;
use crate::error::{Context, Error, code};
use crate::invocation::Attachment;
use crate::name::{ContainerId, IfName, NetworkName};
use crate::network::Network;
use crate::object::{DOCUMENT_MAX, Object};
use crate::version::Version;

/// libcni's default cache directory.
pub const DIRECTORY: &str = "/var/lib/cni";

const KIND: &str = "cniCacheV1";

/// Maximum size of an entry in bytes. It contains a configuration in base64, the arguments and the result.
const ENTRY_MAX: u64 = 4 * DOCUMENT_MAX as u64;

/// Maximum length of a file name in bytes.
const FILE_NAME_MAX: usize = 255;

/// Cache in one directory.
#[derive(Clone, Debug)]
pub struct Cache {
    results: PathBuf,
}

/// Cached attachment.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Network name.
    pub network: NetworkName,
    /// Network configuration with which ADD was called.
    pub config: Vec<u8>,
    /// ADD parameters; `path` is empty, because the cache does not store it.
    pub parameters: Parameters,
}

/// File content, with libcni's key order.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    container_id: String,
    #[serde(default)]
    config: Option<String>,
    #[serde(default)]
    if_name: String,
    #[serde(default)]
    network_name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    netns: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cni_args: Option<Vec<(String, String)>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capability_args: Option<Object>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
}

impl Cache {
    /// Returns the cache in `directory`, which is created with the first write.
    pub fn new(directory: &Path) -> Cache {
        Cache { results: directory.join("results") }
    }

    /// Fails if an attachment to this network could not be cached, so that the caller can reject it before making it.
    pub fn check(&self, network: &NetworkName, who: &Attachment) -> Result<(), Error> {
        let name = file_name(network, who);
        // The temporary file has the longest name.
        match temporary(&name).len() > FILE_NAME_MAX {
            true => Err(Error::config(format!(
                "network name and container id are too long together for the file name {name}"
            ))),
            false => Ok(()),
        }
    }

    /// Caches an attachment; afterwards the file is either complete and on disk, or unchanged.
    pub fn write(&self, network: &Network, parameters: &Parameters, result: &Attached) -> Result<(), Error> {
        let Parameters { who, netns, args, capability_args, args_cni: _, path: _ } = parameters;
        let pairs: Vec<(String, String)> =
            Args::scan(args).pairs().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let wire = Wire {
            kind: KIND.to_owned(),
            container_id: who.container.to_string(),
            config: Some(BASE64.encode(network.bytes())),
            if_name: who.ifname.to_string(),
            network_name: network.name.to_string(),
            netns: netns.clone(),
            cni_args: (!pairs.is_empty()).then_some(pairs),
            capability_args: (!capability_args.is_empty()).then(|| capability_args.clone()),
            result: Some(result.raw.clone()),
        };
        let bytes = serde_json::to_vec(&wire)
            .map_err(|cause| Error::internal(format!("encode a cache entry: {cause}")))?;
        let name = file_name(&network.name, who);
        self.replace(&name, &bytes)
            .map_err(|cause| Error::io(format_args!("write {}", self.results.join(&name).display()), cause))
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.results)?;
        let draft = self.results.join(temporary(name));
        // A crash may have left this file. After its removal, `create_new` refuses a link that another process puts
        // there.
        remove(&draft)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        let written = file
            .write_all(bytes)
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&draft, self.results.join(name)));
        if written.is_err() {
            let _ = remove(&draft);
        }
        written
    }

    /// Returns the last ADD's result in `version`; `None` if there is none.
    ///
    /// # Errors
    /// There is an entry, but it is invalid.
    pub fn result(
        &self,
        network: &NetworkName,
        who: &Attachment,
        version: Version,
    ) -> Result<Option<Attached>, Error> {
        let file = self.results.join(file_name(network, who));
        let Some(bytes) = read(&file)? else { return Ok(None) };
        let of_entry = serde_json::from_slice::<Wire>(&bytes).ok().filter(|wire| wire.kind == KIND);
        let result = match of_entry {
            Some(wire) => match wire.result {
                Some(raw) => Attached::read(raw.get().as_bytes(), version),
                None => return Ok(None),
            },
            // An old result without a version is in 0.1.0, like all results before the cache had entries.
            None => Attached::read_in(&bytes, Version::ABSENT, version),
        };
        result.context(file.display()).map(Some)
    }

    /// Returns a cached attachment without the result; `None` if there is none.
    ///
    /// # Errors
    /// There is a file, but it cannot be read or is not an entry.
    pub fn entry(&self, network: &NetworkName, who: &Attachment) -> Result<Option<Entry>, Error> {
        let file = self.results.join(file_name(network, who));
        let Some(bytes) = read(&file)? else { return Ok(None) };
        let wire: Wire = serde_json::from_slice(&bytes).map_err(|cause| {
            let why = crate::wording::syntax_error(&bytes, &cause);
            Error::new(code::DECODING_FAILURE, format!("{}: not a cache entry: {why}", file.display()))
        })?;
        entry(wire).context(file.display()).map(Some)
    }

    /// Removes an attachment; it is not an error if there is none.
    pub fn remove(&self, network: &NetworkName, who: &Attachment) -> Result<(), Error> {
        let name = file_name(network, who);
        for file in [self.results.join(temporary(&name)), self.results.join(&name)] {
            remove(&file).map_err(|cause| Error::io(format_args!("remove {}", file.display()), cause))?;
        }
        Ok(())
    }

    /// Lists all attachments, or those of one container, by file name. Files that are not entries are ignored; when all
    /// containers are listed, so are files that cannot be read.
    ///
    /// # Errors
    /// The directory exists but cannot be read, or a file cannot be read that may belong to the container.
    pub fn attachments(&self, container: Option<&ContainerId>) -> Result<Vec<Entry>, Error> {
        let failed = |cause| Error::io(format_args!("read {}", self.results.display()), cause);
        let entries = match fs::read_dir(&self.results) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let names: BTreeSet<_> =
            entries.filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.to_owned())).collect();
        let wanted = |name: &&String| match container {
            None => !name.starts_with('.'),
            // The file name is only a hint, because names may contain `-`. The content decides.
            Some(container) => name.contains(&format!("-{container}-")) && !name.starts_with('.'),
        };
        let mut found = Vec::new();
        for name in names.iter().filter(wanted) {
            let bytes = match read(&self.results.join(name)) {
                Err(_) if container.is_none() => continue,
                read => read?,
            };
            let wire = bytes.and_then(|bytes| serde_json::from_slice::<Wire>(&bytes).ok());
            let entry = wire.and_then(|wire| entry(wire).ok());
            found
                .extend(entry.filter(|entry| container.is_none_or(|c| entry.parameters.who.container == *c)));
        }
        Ok(found)
    }
}

fn entry(wire: Wire) -> Result<Entry, Error> {
    let Wire {
        kind,
        container_id,
        config,
        if_name,
        network_name,
        netns,
        cni_args,
        capability_args,
        result: _,
    } = wire;
    if kind != KIND {
        return Err(Error::new(code::DECODING_FAILURE, format!("kind: {kind:?}: expected {KIND:?}")));
    }
    let config = BASE64
        .decode(config.unwrap_or_default())
        .map_err(|cause| Error::new(code::DECODING_FAILURE, format!("config: not in base64: {cause}")))?;
    Ok(Entry {
        network: NetworkName::new(&network_name)?,
        config,
        parameters: Parameters {
            who: Attachment { container: ContainerId::new(&container_id)?, ifname: IfName::new(&if_name)? },
            netns,
            args: cni_args.unwrap_or_default().into_iter().collect::<Args>().to_string(),
            capability_args: capability_args.unwrap_or_default(),
            args_cni: Object::default(),
            path: String::new(),
        },
    })
}

fn file_name(network: &NetworkName, who: &Attachment) -> String {
    format!("{network}-{}-{}", who.container, who.ifname)
}

fn temporary(name: &str) -> String {
    format!(".{name}.new")
}

/// Reads a file, limited in size; `None` for anything but a regular file.
fn read(file: &Path) -> Result<Option<Vec<u8>>, Error> {
    let failed = |cause| Error::io(format_args!("read {}", file.display()), cause);
    // Reading a pipe could block forever.
    let open = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(file);
    let open = match open {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
        open => open.map_err(failed)?,
    };
    if !open.metadata().map_err(failed)?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    open.take(ENTRY_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}

fn remove(file: &Path) -> std::io::Result<()> {
    match fs::remove_file(file) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests;
