//! Writes the CNI configuration list through which the runtime calls the meta-plugin, as one file in the runtime's
//! directory. The meta-plugin then requests plans from the proxy.
//!
//! - The file is first written in the same directory, under a name that no runtime loads, and then renamed. Runtimes
//!   would not notice a file that is moved in from another directory.
//! - It stays when the proxy ends, because sandboxes are taken down through it.
//! - If the file belongs to another project, it is not replaced.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::network::Network;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use cli_support::atomic_file;
use cli_support::failure::Failure;
use cri::messages::StatusRequest;
use cri::runtime_status::{ListReport, STATUS, list_info, list_report};
use cri::unix_service;

/// File name. It sorts first, because a runtime uses the first list.
const FILE: &str = "00-weft.conflist";
/// Temporary file name. Runtimes load files that end in `.conf`, `.conflist` or `.json`, even hidden ones.
const TEMPORARY: &str = ".00-weft.conflist.new";
/// Network name in the list.
pub const NAME: &str = npwg::configuration::PROXY_NETWORK;
/// CNI version that runtimes with CNI 1.0.0 and with 1.1.0 support.
const VERSION: &str = "1.0.0";

/// Time within which a runtime loads a new list.
const READ_MAX: Duration = Duration::from_secs(5);
/// Interval between checks whether the runtime has loaded the list, and timeout for one check.
const LOOK_PERIOD: Duration = Duration::from_secs(30);

/// Values to write into the list.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeNetwork<'a> {
    /// Socket for plan requests.
    pub socket: &'a Path,
    /// Journal directory.
    pub journal: &'a Path,
    /// Plugin directories, separated by colons.
    pub plugins: &'a str,
    /// Whether network policies are enforced on this node.
    pub network_policies: bool,
}

/// Writes the list unless it is up to date.
pub fn write(directory: &Path, values: &RuntimeNetwork<'_>) -> Result<(), Failure> {
    let path = directory.join(FILE);
    let _ = fs::remove_file(directory.join(TEMPORARY));
    let failed =
        |cause: std::io::Error| Failure::new(format!("runtime's network {}: {cause}", path.display()));
    let list = list(values);
    let text = serde_json::to_string_pretty(&list)
        .map_err(|cause| Failure::new(format!("encode {}: {cause}", path.display())))?;
    match fs::read(&path) {
        Ok(there) if there == text.as_bytes() => return Ok(()),
        Ok(there) if !is_ours(&there) => {
            return Err(Failure::new(format!(
                "runtime's network {}: the file belongs to another project",
                path.display()
            ))
            .next("remove it when no pod that it attached remains, or use another directory"));
        }
        Err(cause) if cause.kind() != ErrorKind::NotFound => return Err(failed(cause)),
        _ => {}
    }
    fs::create_dir_all(directory).map_err(failed)?;
    let temporary = directory.join(TEMPORARY);
    let written = atomic_file::create_new(&temporary, 0o644)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(failed)
}

/// Whether the directory contains the proxy's list.
pub fn is_in(directory: &Path) -> bool {
    fs::read(directory.join(FILE)).is_ok_and(|bytes| is_ours(&bytes))
}

fn list(values: &RuntimeNetwork<'_>) -> Value {
    let RuntimeNetwork { socket, journal, plugins, network_policies } = values;
    let directories: Vec<&str> = plugins.split(':').filter(|directory| !directory.is_empty()).collect();
    json!({
        "cniVersion": VERSION,
        "name": NAME,
        "plugins": [{
            "type": "weft",
            // Never read, because the proxy names the network in the plan.
            "clusterNetwork": "default",
            "agentSocket": socket,
            "cniDir": journal,
            // As with CNI_PATH, the meta-plugin searches these before the runtime's directories.
            "binDir": directories.join(":"),
            "networkPolicies": network_policies,
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

/// Warns when the runtime reports that it has not loaded the list, and logs when it has; never returns.
pub async fn follow(runtime: PathBuf, directory: PathBuf) {
    let mut before = true;
    let mut wait = READ_MAX;
    loop {
        sleep(wait).await;
        wait = LOOK_PERIOD;
        let request = StatusRequest { verbose: true };
        // A runtime that does not answer is skipped.
        let Ok(Ok(answer)) = timeout(LOOK_PERIOD, unix_service::call(&runtime, STATUS, &request)).await
        else {
            continue;
        };
        let Some(ListReport { is_read, directory: from }) = list_report(&list_info(&answer).info, NAME)
        else {
            continue;
        };
        match (is_read, before) {
            (false, true) => warn!(
                from,
                "runtime does not call the proxy: sandboxes that request networks are refused; set its conf_dir to {} and max_conf_num to 1, then restart it",
                directory.display()
            ),
            (true, false) => info!(from, "runtime calls the proxy"),
            _ => {}
        }
        before = is_read;
    }
}

fn is_ours(bytes: &[u8]) -> bool {
    Network::parse(bytes, FILE).is_ok_and(|network| network.name.as_str() == NAME)
}

#[cfg(test)]
mod tests {
    use npwg::configuration::{Flavour, NodeConfiguration};

    use super::*;

    fn values() -> RuntimeNetwork<'static> {
        RuntimeNetwork {
            socket: Path::new("/run/s"),
            journal: Path::new("/var/j"),
            plugins: "/opt/cni/bin::/usr/lib/cni",
            network_policies: false,
        }
    }

    #[test]
    fn runtime_list_contains_every_plugin_directory() {
        let node = |values: &RuntimeNetwork<'_>| {
            let list = list(values);
            NodeConfiguration::read(list["plugins"][0].to_string().as_bytes(), Flavour::Weft).unwrap()
        };
        let plain = node(&values());
        assert_eq!((plain.bin_dir.as_str(), plain.network_policies), ("/opt/cni/bin:/usr/lib/cni", false));
        assert!(node(&RuntimeNetwork { network_policies: true, ..values() }).network_policies);
    }

    #[test]
    fn runtime_list_is_never_incomplete() {
        let directory = std::env::temp_dir().join(format!("weft-list-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let write = || write(&directory, &values());
        let names = || {
            let files = fs::read_dir(&directory).unwrap();
            let mut names: Vec<_> =
                files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        // A killed process left its temporary file behind.
        fs::write(directory.join(TEMPORARY), "{").unwrap();
        assert!(!is_in(&directory));
        write().unwrap();
        assert_eq!((names(), is_in(&directory)), (vec![FILE.to_owned()], true));
        // The rename fails.
        fs::remove_file(directory.join(FILE)).unwrap();
        fs::create_dir_all(directory.join(TEMPORARY).join("x")).unwrap();
        write().unwrap_err();
        let loaded = [".conf", ".conflist", ".json"];
        assert!(names().iter().all(|name| loaded.iter().all(|end| !name.ends_with(end))), "{:?}", names());
        fs::remove_dir_all(&directory).unwrap();
    }
}
