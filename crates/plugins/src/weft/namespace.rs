//! Which network namespace an entry means: its path may lead to another one by now.
//!
//! A path below `/proc/PID` is another process's once that number is given again, and after a boot it is anybody's; a
//! file that was removed and made again is another namespace. What is there then is not ours to take down. (The kernel
//! gives inode numbers again, too: one that is made right after the sandbox's end may look the same.)
//!
//! Rules: a namespace is its identity in one boot; one that is not known, of entries that others wrote, is believed; our own
//! is not the sandbox's, unless `CNI_NETNS_OVERRIDE` says that it may be.
//!
//! Source: namespaces(7), "The /proc/pid/ns/ directory"; random(4) `boot_id`.

use std::path::Path;

use cni::{Error, args, environment};
use linux::Netns;
use npwg::journal::Entry;

use crate::failure::OrRefused;
use crate::ipam::host_local::boot;

/// What a path leads to now; empty if to no namespace, or if the boot has no id.
pub(super) fn identify(path: &str) -> String {
    Netns::find(Path::new(path)).ok().flatten().map_or_else(String::new, |netns| in_this_boot(&netns))
}

/// Forgets the path of an entry if it leads to another namespace than the sandbox's, so that it counts as gone.
pub(super) fn forget_another(entry: &mut Entry) {
    let now = identify(&entry.netns);
    if !now.is_empty() && is_another(entry, &now) {
        eprintln!("weft: {}: is another namespace now than that of {}", entry.netns, entry.container_id);
        entry.netns.clear();
    }
}

/// Is the sandbox's namespace where the entry says?
///
/// # Errors
/// What is there cannot be looked at.
pub(super) fn is_there(entry: &Entry) -> Result<bool, Error> {
    let found = Netns::find(Path::new(&entry.netns)).or_refused()?;
    Ok(found.is_some_and(|netns| !is_another(entry, &in_this_boot(&netns))))
}

fn is_another(entry: &Entry, now: &str) -> bool {
    let may_be_own = || args::boolean(&std::env::var(environment::NETNS_OVERRIDE).unwrap_or_default());
    let is_own = || Netns::own().is_ok_and(|own| in_this_boot(&own) == now) && may_be_own() != Some(true);
    (!entry.namespace.is_empty() && entry.namespace != now) || is_own()
}

fn in_this_boot(netns: &Netns) -> String {
    let Some((boot, identity)) = boot::id().zip(netns.identity().ok()) else { return String::new() };
    format!("{boot}/{identity}")
}
