//! The list by which the runtime calls the meta-plugin, and that asks us: one file in the runtime's directory.
//!
//! Rules: it is written beside its place, by a name that no runtime loads, and renamed within the directory (runtimes overlook
//! what comes from elsewhere);
//! it stays when the proxy ends, because sandboxes are taken down through it; somebody else's file is not replaced.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::network::Network;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use cli_support::failure::Failure;
use cri::messages::StatusRequest;
use cri::runtime_status::{Known, STATUS, known, of_lists};
use cri::unix_service;

/// Its name: it sorts before others, for a runtime takes the first.
const FILE: &str = "00-weft.conflist";
/// What it is called until it is whole: runtimes load what ends in `.conf`, `.conflist` or `.json`, hidden or not.
const TEMPORARY: &str = ".00-weft.conflist.new";
/// Name of the network.
pub const NAME: &str = "weft-cri";
/// What runtimes of CNI 1.0.0 and 1.1.0 understand.
const VERSION: &str = "1.0.0";

/// How soon a runtime reads a list that is new.
const READ_MAX: Duration = Duration::from_secs(5);
/// How often it is asked whether it has, and how long that may take.
const LOOK_PERIOD: Duration = Duration::from_secs(30);

/// Writes it, unless it is there as it should be.
pub fn write(directory: &Path, socket: &Path, journal: &Path, plugins: &str) -> Result<(), Failure> {
    let path = directory.join(FILE);
    let _ = fs::remove_file(directory.join(TEMPORARY));
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
    let temporary = directory.join(TEMPORARY);
    let written = fs::File::create(&temporary)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(failed)
}

/// Is our list in this directory?
pub fn is_in(directory: &Path) -> bool {
    fs::read(directory.join(FILE)).is_ok_and(|bytes| is_ours(&bytes))
}

fn list(socket: &Path, journal: &Path, plugins: &str) -> Value {
    let directories: Vec<&str> = plugins.split(':').filter(|directory| !directory.is_empty()).collect();
    json!({
        "cniVersion": VERSION,
        "name": NAME,
        "plugins": [{
            "type": "weft",
            // Never looked up: the proxy says which network it is.
            "clusterNetwork": "default",
            "agentSocket": socket,
            "cniDir": journal,
            // As in CNI_PATH: the meta-plugin puts it before what the runtime says.
            "binDir": directories.join(":"),
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
pub async fn follow(runtime: PathBuf, directory: PathBuf) {
    let mut before = true;
    let mut wait = READ_MAX;
    loop {
        sleep(wait).await;
        wait = LOOK_PERIOD;
        let request = StatusRequest { verbose: true };
        // Who is away says nothing.
        let Ok(Ok(answer)) = timeout(LOOK_PERIOD, unix_service::call(&runtime, STATUS, &request)).await
        else {
            continue;
        };
        let Some(Known { reads, from }) = known(&of_lists(&answer).info, NAME) else { continue };
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

fn is_ours(bytes: &[u8]) -> bool {
    Network::parse(bytes, FILE).is_ok_and(|network| network.name.as_str() == NAME)
}

#[cfg(test)]
mod tests {
    use npwg::configuration::{Flavour, NodeConfiguration};

    use super::*;

    #[test]
    fn the_meta_plugin_is_told_of_every_directory_of_plugins() {
        let list = list(Path::new("/run/s"), Path::new("/var/j"), "/opt/cni/bin::/usr/lib/cni");
        let node = NodeConfiguration::read(list["plugins"][0].to_string().as_bytes(), Flavour::Weft).unwrap();
        assert_eq!(node.bin_dir, "/opt/cni/bin:/usr/lib/cni");
    }

    #[test]
    fn nothing_that_a_runtime_loads_is_there_by_half() {
        let directory = std::env::temp_dir().join(format!("weft-list-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let write = || write(&directory, Path::new("/run/s"), Path::new("/var/j"), "/opt/cni/bin");
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
        // It cannot be put in its place.
        fs::remove_file(directory.join(FILE)).unwrap();
        fs::create_dir_all(directory.join(TEMPORARY).join("x")).unwrap();
        write().unwrap_err();
        let loaded = [".conf", ".conflist", ".json"];
        assert!(names().iter().all(|name| loaded.iter().all(|end| !name.ends_with(end))), "{:?}", names());
        fs::remove_dir_all(&directory).unwrap();
    }
}
