//! The list by which the runtime calls the meta-plugin, and that asks us: one file in the runtime's directory.
//!
//! Rules: it is written beside its place and renamed within the directory (runtimes overlook what comes from elsewhere);
//! it stays when the proxy ends, because sandboxes are taken down through it; somebody else's file is not replaced.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

use cni::network::Network;
use serde_json::{Value, json};

use crate::failure::Failure;

/// Its name: it sorts before others, for a runtime takes the first.
const FILE: &str = "00-weft.conflist";
/// Name of the network.
pub(crate) const NAME: &str = "weft-cri";
/// What runtimes of CNI 1.0.0 and 1.1.0 understand.
const VERSION: &str = "1.0.0";

/// Writes it, unless it is there as it should be.
pub(crate) fn write(directory: &Path, socket: &Path, journal: &Path, plugins: &str) -> Result<(), Failure> {
    let path = directory.join(FILE);
    let failed =
        |cause: std::io::Error| Failure::new(format!("runtime's network {}: {cause}", path.display()));
    let list = list(socket, journal, plugins);
    let text = serde_json::to_string_pretty(&list)
        .map_err(|cause| Failure::new(format!("encode {}: {cause}", path.display())))?;
    match fs::read(&path) {
        Ok(there) if there == text.as_bytes() => return Ok(()),
        Ok(there) if !is_ours(&there) => {
            return Err(Failure::new(format!("runtime's network {}: it is another one", path.display()))
                .next("remove it once no pod is left that it attached, or name another directory"));
        }
        Err(cause) if cause.kind() != ErrorKind::NotFound => return Err(failed(cause)),
        _ => {}
    }
    fs::create_dir_all(directory).map_err(failed)?;
    let temporary = directory.join(format!(".{FILE}"));
    let mut file = fs::File::create(&temporary).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    fs::rename(&temporary, &path).map_err(failed)
}

fn list(socket: &Path, journal: &Path, plugins: &str) -> Value {
    let first = plugins.split(':').next().unwrap_or_default();
    json!({
        "cniVersion": VERSION,
        "name": NAME,
        "plugins": [{
            "type": "weft",
            // Never looked up: the proxy says which network it is.
            "clusterNetwork": "default",
            "agentSocket": socket,
            "cniDir": journal,
            "binDir": first,
            "capabilities": {
                "io.kubernetes.cri.pod-annotations": true,
                "portMappings": true,
                "bandwidth": true,
                "dns": true,
                "cgroupPath": true,
            },
        }],
    })
}

fn is_ours(bytes: &[u8]) -> bool {
    Network::parse(bytes, FILE).is_ok_and(|network| network.name.as_str() == NAME)
}
