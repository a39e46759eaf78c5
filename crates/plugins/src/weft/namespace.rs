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

use cni::{args, environment};
use linux::Netns;
use npwg::journal::Entry;

use crate::ipam::host_local::boot;

/// What a path leads to now; empty if to no namespace, or if the boot has no id.
pub(super) fn identify(path: &str) -> String {
    Netns::find(Path::new(path)).ok().flatten().map_or_else(String::new, |netns| in_this_boot(&netns))
}

/// Forgets the path of an entry if it leads to another namespace than the sandbox's, so that it counts as gone.
pub(super) fn forget_another(entry: &mut Entry) {
    let now = identify(&entry.netns);
    if now.is_empty() {
        return;
    }
    let may_be_own = || args::boolean(&std::env::var(environment::NETNS_OVERRIDE).unwrap_or_default());
    let is_own = || Netns::own().is_ok_and(|own| in_this_boot(&own) == now) && may_be_own() != Some(true);
    if (!entry.namespace.is_empty() && entry.namespace != now) || is_own() {
        eprintln!("weft: {}: is another namespace now than that of {}", entry.netns, entry.container_id);
        entry.netns.clear();
    }
}

fn in_this_boot(netns: &Netns) -> String {
    let Some((boot, identity)) = boot::id().zip(netns.identity().ok()) else { return String::new() };
    format!("{boot}/{identity}")
}
