//! Network `_fallback`: the one in the node's CNI directory, which a runtime would use itself.
//!
//! - It is read on each use, so it is never stale.
//! - The first file by name wins. As in container runtimes, an invalid first file is an error and is not skipped.
//! - Lists that call the meta-plugin are skipped, because they would lead back to the proxy.

use std::path::{Path, PathBuf};

use cni::network::{Network, plugin_type};
use cni::runtime::load::Directory;

/// Plugin type by which a meta-plugin list is recognized.
const META_PLUGIN: &str = "weft";

/// CNI configuration directory.
#[derive(Clone, Debug)]
pub(crate) struct Fallback(PathBuf);

/// Network found on disk.
#[derive(Clone, Debug)]
pub(crate) enum OnDisk {
    /// There is no file.
    Absent,
    /// The first file is invalid, for this reason.
    Broken(String),
    /// The first file contains this network.
    Found(Box<Network>),
}

impl Fallback {
    /// Returns the fallback for a CNI directory.
    pub(crate) fn of(directory: &Path) -> Fallback {
        Fallback(directory.to_owned())
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.0
    }

    /// Reads the network that is on disk now.
    pub(crate) fn read(&self) -> OnDisk {
        let Directory { networks, faults } = match Directory::of_runtime(&self.0) {
            Ok(directory) => directory,
            Err(error) => return OnDisk::Broken(error.to_string()),
        };
        let first = networks
            .into_iter()
            .filter(|(_, network)| !is_ours(network))
            .min_by(|(left, _), (right, _)| left.cmp(right));
        let fault = faults.into_iter().min_by(|(left, _), (right, _)| left.cmp(right));
        match (first, fault) {
            (None, None) => OnDisk::Absent,
            (Some((path, _)), Some((broken, error))) if broken < path => broken_file(&broken, &error),
            (None, Some((broken, error))) => broken_file(&broken, &error),
            (Some((_, network)), _) => OnDisk::Found(Box::new(network)),
        }
    }
}

fn broken_file(path: &Path, error: &cni::Error) -> OnDisk {
    OnDisk::Broken(format!("{}: {error}", path.display()))
}

fn is_ours(network: &Network) -> bool {
    let first = network.plugins.first().and_then(|plugin| plugin_type(plugin).ok());
    first.is_some_and(|plugin| plugin.as_str() == META_PLUGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fallback_is_the_network_that_a_runtime_would_use() {
        let directory = std::env::temp_dir().join(format!("weft-fallback-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let list = |name: &str| {
            format!(r#"{{"cniVersion":"1.0.0","name":"{name}","plugins":[{{"type":"bridge"}}]}}"#)
        };
        let found = || match Fallback::of(&directory).read() {
            OnDisk::Found(network) => network.name.to_string(),
            other => format!("{other:?}"),
        };
        let write = |file: &str, text: &str| std::fs::write(directory.join(file), text).unwrap();
        for ignored in ["00-a.configlist", "01-a.config", "02-a.conflist.new", "03-a.yaml"] {
            write(ignored, &list("ignored"));
        }
        assert_eq!(found(), "Absent");
        write("20-b.conflist", &list("b"));
        assert_eq!(found(), "b");
        write("10-c.conf", r#"{"cniVersion":"1.0.0","name":"c","type":"bridge"}"#);
        assert_eq!(found(), "c");
        write("05-d.json", "{");
        assert!(found().starts_with("Broken("), "{}", found());
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
