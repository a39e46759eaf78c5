//! Calls that would never end: a plugin that calls itself, or the meta-plugin as a delegate.
//!
//! - [`refuse_network`] refuses such a network before anything is written or called.
//! - [`refuse_call`] bounds the calls that a process makes, and processes that call each other: a wrapper can
//!   hide a plugin.
//! - Every ADD refuses such a call, so there is nothing that DEL or GC could remove.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cni::name::PluginType;
use cni::network::{ipam_type, plugin_type};
use cni::object::Object;
use cni::runtime::exec;
use cni::{Context, Error};
use manifest::lint::plugins::canonical;
use npwg::definition::META_PLUGINS;
use plugin_config::{CHAINED, IPAM_PLUGINS};

use crate::builtins;

/// Environment variable for every delegate and child process: how many weft processes above it call each other. In
/// these processes the meta-plugin refuses to run.
pub(crate) const DELEGATE: &str = "WEFT_DELEGATE";
/// Maximum number of weft processes that call each other: meta-plugin, interface plugin and IPAM plugin are
/// three.
const DEPTH_MAX: usize = 8;

/// Refuses a call that would never end, or that no plugin answers. `as_ipam`: whether another plugin makes the call.
///
/// # Errors
/// Code 7.
pub(crate) fn refuse_call(plugin: &PluginType, as_ipam: bool) -> Result<(), Error> {
    if META_PLUGINS.contains(&plugin.as_str()) {
        return Err(refused_delegate().context(plugin));
    }
    if as_ipam && is_without_addresses(plugin) {
        return Err(refused_ipam(plugin));
    }
    match process_depth() < DEPTH_MAX {
        true => Ok(()),
        false => Err(Error::config(format!("{plugin}: plugins call each other without end"))),
    }
}

/// Whether a plugin with this name is built in and manages no addresses: as an IPAM plugin it would call
/// itself.
fn is_without_addresses(plugin: &PluginType) -> bool {
    builtins::find(plugin.as_str()).is_some_and(|builtin| !IPAM_PLUGINS.contains(&builtin.name()))
}

fn refused_ipam(plugin: &PluginType) -> Error {
    let all = IPAM_PLUGINS.join(", ");
    Error::key("ipam.type", format!("{:?}", plugin.as_str()), "not an IPAM plugin")
        .details(format!("name one of {all}, or a program that allocates addresses"))
}

/// Fails if no plugin could attach a network with this plugin and this IPAM plugin: before anything is written or
/// called.
///
/// # Errors
/// Code 7, with the key.
pub(crate) fn refuse_network(plugin: &Object, path: &str) -> Result<(), Error> {
    let name = plugin_type(plugin)?;
    refuse_own_program(&name, path).context("type")?;
    // Another plugin may have its own meaning of `ipam.type`, and a chained plugin ignores it.
    if !is_without_addresses(&name) || CHAINED.contains(&canonical(name.as_str())) {
        return Ok(());
    }
    let Some(ipam) = ipam_type(plugin)? else { return Ok(()) };
    if is_without_addresses(&ipam) {
        return Err(refused_ipam(&ipam));
    }
    refuse_own_program(&ipam, path).context("ipam.type")
}

/// Refuses a name under which this program is the meta-plugin, or none.
fn refuse_own_program(plugin: &PluginType, path: &str) -> Result<(), Error> {
    if META_PLUGINS.contains(&plugin.as_str()) {
        return Err(refused_delegate().context(plugin));
    }
    if builtins::find(plugin.as_str()).is_some() {
        return Ok(());
    }
    let Ok(program) = exec::find(plugin, path) else { return Ok(()) };
    let is_own = identity(&program).is_some_and(|found| Some(found) == own_identity());
    match is_own.then(|| builtins::find_by_link(&program)) {
        Some(None) => {
            let why = format!(
                "{:?}: {} is weft-cni, which has no plugin with this name",
                plugin.as_str(),
                program.display()
            );
            Err(Error::config(why).details("name a plugin"))
        }
        _ => Ok(()),
    }
}

/// Returns how many weft processes above this one call each other.
pub(crate) fn process_depth() -> usize {
    let depth = std::env::var_os(DELEGATE);
    depth.map_or(0, |depth| depth.to_str().and_then(|depth| depth.parse().ok()).unwrap_or(1))
}

/// Refuses to run the meta-plugin in a process that a delegate has started. A delegate passes on the
/// configuration in a definition, not the node's.
///
/// # Errors
/// This process is a delegate, or was started by one.
pub(crate) fn refuse_delegate() -> Result<(), Error> {
    match std::env::var_os(DELEGATE) {
        None => Ok(()),
        Some(_) => Err(refused_delegate()),
    }
}

fn refused_delegate() -> Error {
    Error::config("a plugin of a network calls the meta-plugin, which would attach the pod's networks again")
}

/// Returns the device and inode that this program's file has.
pub(crate) fn own_identity() -> Option<(u64, u64)> {
    identity(Path::new("/proc/self/exe"))
}

/// Returns a file's device and inode.
pub(crate) fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|meta| (meta.dev(), meta.ino()))
}
