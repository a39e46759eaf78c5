//! Delegates that Multus stored for one sandbox: a JSON list, the default network first.
//!
//! Only `Bytes` is used as configuration: the original bytes, in base64 as Go encodes them. The decoded fields lack
//! options that Multus does not know (M27).
//!
//! Source: Multus `pkg/types/types.go` (`DelegateNetConf`).

use std::fs::File;
use std::io::Read;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use cni::name::IfName;
use cni::network::Network;
use cni::object::DOCUMENT_MAX;
use cni::{Context, Error, code};
use serde::Deserialize;

/// Maximum file size, in bytes. A file contains all delegates' configurations in base64.
const FILE_MAX: u64 = 16 * DOCUMENT_MAX as u64;

/// Delegate in a sandbox as Multus planned it.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    /// Network name in the status.
    pub(super) label: String,
    /// Configuration.
    pub(super) network: Network,
    /// Interface name that the pod requested.
    pub(super) requested: Option<String>,
}

/// Fields that a stored delegate has.
#[derive(Deserialize)]
struct Wire {
    #[serde(default, rename = "Name")]
    name: String,
    #[serde(default, rename = "ifnameRequest")]
    ifname_request: String,
    #[serde(default, rename = "Bytes")]
    bytes: Option<String>,
}

impl Planned {
    /// Returns the interface name.
    pub(super) fn interface(&self, index: usize, default: &IfName) -> Result<IfName, Error> {
        match (&self.requested, index) {
            (Some(name), _) => IfName::new(name),
            (None, 0) => Ok(default.clone()),
            (None, index) => IfName::new(&format!("net{index}")),
        }
    }
}

/// Reads one sandbox's file.
pub(super) fn read(path: &Path) -> Result<Vec<Planned>, Error> {
    let unreadable = |cause: String| Error::new(code::DECODING_FAILURE, cause);
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_MAX).read_to_end(&mut bytes))
        .map_err(|cause| Error::io("read", cause))?;
    let wires: Vec<Wire> = serde_json::from_slice(&bytes)
        .map_err(|cause| cni::wording::syntax_error(&bytes, &cause))
        .map_err(|why| unreadable(format!("not the delegates of a sandbox: {why}")))?;
    let mut all = Vec::new();
    for (index, Wire { name, ifname_request, bytes }) in wires.into_iter().enumerate() {
        let step = format!("[{index}] {name}");
        let config = bytes.ok_or_else(|| unreadable(format!("{step}: Bytes: missing")))?;
        let config = BASE64
            .decode(config)
            .map_err(|cause| unreadable(format!("{step}: Bytes: not in base64: {cause}")))?;
        let network = Network::parse(&config, "Bytes").context(&step)?;
        let label = if name.is_empty() { network.name.to_string() } else { name };
        let requested = (!ifname_request.is_empty()).then_some(ifname_request);
        all.push(Planned { label, network, requested });
    }
    match all.is_empty() {
        true => Err(unreadable("an empty list of delegates".to_owned())),
        false => Ok(all),
    }
}
