//! Identity for the network namespace in a journal entry, because the entry's path may lead to another
//! namespace later.
//!
//! The kernel reuses process ids, so `/proc/PID/ns/net` may lead to another process's namespace, and after a
//! boot it always does. A mounted file may have been removed and created again. Such a namespace must not be
//! torn down. The kernel reuses inode numbers, too. A namespace's cookie is unique in a boot; kernels before
//! 5.14 have none.
//!
//! - A namespace is identified by boot id, device, inode and, if the kernel has one, the cookie.
//! - An entry without an identity (for example an imported one) is trusted: the path is assumed to lead to the
//!   sandbox's namespace.
//! - This process's namespace is never the sandbox's, unless `CNI_NETNS_OVERRIDE` allows it.
//! - Limit: without cookies, a namespace that is created directly after the sandbox ended may have the same
//!   identity.
//!
//! Source: namespaces(7), "The /proc/pid/ns/ directory"; random(4) `boot_id`.

use std::path::Path;

use cni::{Error, args, environment};
use linux::Netns;
use linux::boot_id;
use plugin_support::failure::OrRefused;
use plugin_support::log;
use rpc::diagnosis::SandboxNamespace;
use rpc::journal::{Entry, is_same_namespace};

/// Returns the identity that the namespace at a path has. Empty if there is no namespace, or the boot has no
/// id. A path that cannot be followed is no error here: the code that needs the namespace reports it.
///
/// # Errors
/// The identity cannot be read.
pub(crate) fn identify(path: &str) -> Result<String, Error> {
    match Netns::find(Path::new(path)) {
        Ok(Some(netns)) => in_this_boot(&netns),
        _ => Ok(String::new()),
    }
}

/// Clears an entry's path unless it leads to the sandbox's namespace, so that plugins get an empty `CNI_NETNS`. A
/// plugin that opens each path it gets could not complete DEL after the namespace is gone.
///
/// A path that cannot be followed for another reason is kept: the plugins report it.
///
/// # Errors
/// The identity of the namespace at the path cannot be read.
pub(super) fn forget_gone(entry: &mut Entry) -> Result<(), Error> {
    let why = match Netns::find(Path::new(&entry.netns)) {
        Ok(None) if entry.netns.is_empty() => return Ok(()),
        Ok(None) => "is not a namespace any more",
        Ok(Some(netns)) if is_another(entry, &in_this_boot(&netns)?)? => "is another namespace now",
        Ok(Some(_)) | Err(_) => return Ok(()),
    };
    log!("weft: {}: {why}: {} is detached without its namespace", entry.netns, entry.container_id);
    entry.netns.clear();
    Ok(())
}

/// Returns the path if a namespace is there, and an empty string otherwise.
pub(super) fn living(path: &str) -> &str {
    match Netns::find(Path::new(path)) {
        Ok(None) => "",
        Ok(Some(_)) | Err(_) => path,
    }
}

/// Whether the sandbox's namespace still exists at the entry's path.
///
/// # Errors
/// The namespace at the path cannot be inspected.
pub(super) fn is_there(entry: &Entry) -> Result<bool, Error> {
    let found = Netns::find(Path::new(&entry.netns)).or_refused()?;
    match found {
        None => Ok(false),
        Some(netns) => is_another(entry, &in_this_boot(&netns)?).map(|is_another| !is_another),
    }
}

/// Opens a sandbox's namespace; `None` if it is gone or the path leads to another namespace.
///
/// # Errors
/// The namespace at the path cannot be inspected.
pub(crate) fn open(sandbox: &SandboxNamespace) -> Result<Option<Netns>, Error> {
    let SandboxNamespace { netns, namespace } = sandbox;
    let Some(found) = Netns::find(Path::new(netns)).or_refused()? else { return Ok(None) };
    let is_another = is_other_than(namespace, &in_this_boot(&found)?)?;
    Ok((!is_another).then_some(found))
}

/// Whether the namespace with the identity `now` is not the entry's. An unknown identity is trusted.
fn is_another(entry: &Entry, now: &str) -> Result<bool, Error> {
    is_other_than(&entry.namespace, now)
}

fn is_other_than(known: &str, now: &str) -> Result<bool, Error> {
    if now.is_empty() {
        return Ok(false);
    }
    if !known.is_empty() && !is_same_namespace(known, now) {
        return Ok(true);
    }
    if args::boolean(&std::env::var(environment::NETNS_OVERRIDE).unwrap_or_default()) == Some(true) {
        return Ok(false);
    }
    let own = Netns::own().or_refused()?;
    let inode = own.identity().or_refused()?.to_string();
    // Two namespaces that exist have different inodes, so the cookie need not be read.
    let may_be_same = now.split('/').nth(1) == Some(inode.as_str());
    Ok(may_be_same && in_this_boot(&own)? == now)
}

/// Whether two identities are known and belong to one namespace.
pub(super) fn are_same(one: &str, other: &str) -> bool {
    !one.is_empty() && !other.is_empty() && is_same_namespace(one, other)
}

/// Returns what identifies a namespace: boot id, device and inode, and cookie; empty if the boot has no id.
fn in_this_boot(netns: &Netns) -> Result<String, Error> {
    let boot = boot_id::read().map_err(|cause| Error::io(boot_id::PATH, cause))?;
    let identity = netns.identity().or_refused()?;
    let cookie = netns.cookie().map(|cookie| format!("/{cookie}")).unwrap_or_default();
    Ok(boot.map(|boot| format!("{boot}/{identity}{cookie}")).unwrap_or_default())
}
