//! Selects the default network among the files in the runtime's directory.
//!
//! - A meta-plugin, weft or another one, is never the default network, and neither is a list of `loopback` alone: runtimes
//!   ship such a list, and call `loopback` themselves.
//! - A bridge that the container runtime ships (CRI-O, containerd, podman, nerdctl) is the last choice, because every fresh
//!   node has it until the network of the cluster is installed. If it is chosen, the installer says so.
//!
//! Source: CRI-O `contrib/cni`; containerd `script/setup/install-cni`; podman and nerdctl, names of their files.

use std::path::{Path, PathBuf};

use cni::network::{Network, plugin_type};
use cni::runtime::load::Directory;

/// Plugin types that call other plugins.
const META_PLUGINS: [&str; 3] = ["weft", "multus", "multus-shim"];

/// Role of a file in the runtime's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// weft or Multus.
    MetaPlugin,
    /// Only `loopback`.
    Loopback,
    /// Bridge that the container runtime ships.
    OfRuntime,
    /// Network of the cluster.
    Network,
}

/// Returns the role of a file.
pub(super) fn role(path: &Path, network: &Network) -> Role {
    let types = || network.plugins.iter().filter_map(|plugin| plugin_type(plugin).ok());
    let first = types().next();
    if first.is_some_and(|name| META_PLUGINS.contains(&name.as_str())) {
        Role::MetaPlugin
    } else if types().all(|name| name.as_str() == "loopback") {
        Role::Loopback
    } else if is_of_runtime(path) {
        Role::OfRuntime
    } else {
        Role::Network
    }
}

/// Whether a container runtime ships a file of this name.
fn is_of_runtime(path: &Path) -> bool {
    let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let plain = name.trim_start_matches(|letter: char| letter.is_ascii_digit() || letter == '-');
    plain.starts_with("crio")
        || plain == "containerd-net"
        || plain.starts_with("podman")
        || plain.starts_with("nerdctl-")
}

/// Whether the network is that of Multus.
pub(super) fn is_multus(network: &Network) -> bool {
    let first = network.plugins.first().and_then(|plugin| plugin_type(plugin).ok());
    first.is_some_and(|name| name.as_str().starts_with("multus"))
}

/// Whether no pod can have this as the only network.
pub(super) fn is_no_network(network: &Network) -> bool {
    matches!(role(Path::new(""), network), Role::MetaPlugin | Role::Loopback)
}

/// Returns the requested network, or else the first one by file name, those of the runtime last.
pub(super) fn find<'a>(requested: Option<&str>, directory: &'a Directory) -> Option<&'a (PathBuf, Network)> {
    let is_called = |name: &str, (path, network): &(PathBuf, Network)| {
        path.file_name().is_some_and(|file| file == name) || network.name.as_str() == name
    };
    let possible = directory.networks.iter().filter(|(_, network)| !is_no_network(network));
    let wanted = possible.filter(|found| requested.is_none_or(|name| is_called(name, found)));
    wanted.min_by_key(|(path, network)| (role(path, network) == Role::OfRuntime, path.clone()))
}

/// Returns what the operator should know about the chosen network.
pub(super) fn note(path: &Path, network: &Network) -> Option<String> {
    (role(path, network) == Role::OfRuntime).then(|| {
        format!(
            "default network: {} in {}: a bridge that the container runtime ships, chosen because there is no other \
             network; if the network of the cluster is installed later, run weft install again, or keep it running with \
             --follow (install.follow of the chart)",
            network.name,
            path.display()
        )
    })
}
