//! The list by which the runtime calls the meta-plugin, and that asks us: one file in the runtime's directory.
//!
//! Rules: it is written beside its place and renamed within the directory (runtimes overlook what comes from elsewhere);
//! it stays when the proxy ends, because sandboxes are taken down through it; somebody else's file is not replaced.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::network::Network;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::messages::{StatusInfo, StatusRequest};
use crate::agent::local_service;
use crate::failure::Failure;

/// Its name: it sorts before others, for a runtime takes the first.
const FILE: &str = "00-weft.conflist";
/// Name of the network.
pub(crate) const NAME: &str = "weft-cri";
/// What runtimes of CNI 1.0.0 and 1.1.0 understand.
const VERSION: &str = "1.0.0";

/// The method by which a runtime tells of itself, and where in its notes the lists are that it has read: containerd's.
const STATUS: &str = "/runtime.v1.RuntimeService/Status";
const LISTS: &str = "cniconfig";
/// How soon a runtime reads a list that is new.
const READ_MAX: Duration = Duration::from_secs(5);
/// How often it is asked whether it has, and how long that may take.
const LOOK_PERIOD: Duration = Duration::from_secs(30);

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

/// Warns when the runtime says that it has not read the list, and when it has; for ever.
pub(crate) async fn follow(runtime: PathBuf, directory: PathBuf) {
    let mut before = true;
    let mut wait = READ_MAX;
    loop {
        sleep(wait).await;
        wait = LOOK_PERIOD;
        let question =
            local_service::call::<_, StatusInfo>(&runtime, STATUS, StatusRequest { verbose: true });
        // Who is away says nothing.
        let Ok(Ok(StatusInfo { info })) = timeout(LOOK_PERIOD, question).await else { continue };
        let Some(Known { reads, from }) = known(&info) else { continue };
        match (reads, before) {
            (false, true) => warn!(
                from,
                "the runtime does not call the proxy: sandboxes that ask for networks are refused; its conf_dir must be {}, and max_conf_num 1; restart it then",
                directory.display()
            ),
            (true, false) => info!(from, "the runtime calls the proxy"),
            _ => {}
        }
        before = reads;
    }
}

/// What a runtime says of the lists that it has read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// Is ours among them?
    pub(crate) reads: bool,
    /// The directory where it looks.
    pub(crate) from: String,
}

/// What a runtime's notes about itself say of it; nothing, if it tells no lists.
pub(crate) fn known(info: &BTreeMap<String, String>) -> Option<Known> {
    let told: Value = serde_json::from_str(info.get(LISTS)?).ok()?;
    let networks = told.get("Networks")?.as_array();
    let named = networks.into_iter().flatten().filter_map(|network| network.pointer("/Config/Name"));
    let reads = named.into_iter().any(|name| name == NAME);
    let from = told.get("PluginConfDir").and_then(Value::as_str).unwrap_or_default().to_owned();
    Some(Known { reads, from })
}

fn is_ours(bytes: &[u8]) -> bool {
    Network::parse(bytes, FILE).is_ok_and(|network| network.name.as_str() == NAME)
}
