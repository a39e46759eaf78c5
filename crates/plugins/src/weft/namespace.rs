//! Which network namespace an entry means: its path may lead to another one by now.
//!
//! A path below `/proc/PID` is another process's once that number is given again, and after a boot it is anybody's; a
//! file that was removed and made again is another namespace. What is there then is not ours to take down.
//!
//! Rules: a namespace is its device and inode, in one boot; one that is not known, of entries that others wrote, is
//! believed; our own is not the sandbox's, unless `CNI_NETNS_OVERRIDE` says that it may be.
//!
//! Source: namespaces(7), "The /proc/pid/ns/ directory"; random(4) `boot_id`.

use std::os::unix::fs::MetadataExt;

use cni::{args, environment};
use npwg::journal::Entry;

use crate::ipam::host_local::boot;

/// The caller's own.
const OWN: &str = "/proc/thread-self/ns/net";

/// What a path leads to now; empty if to nothing, or if the boot has no id.
pub(super) fn identify(path: &str) -> String {
    let (Ok(found), Some(boot)) = (std::fs::metadata(path), boot::id()) else { return String::new() };
    format!("{boot}/{}:{}", found.dev(), found.ino())
}

/// Forgets the path of an entry if it leads to another namespace than the sandbox's, so that it counts as gone.
pub(super) fn forget_another(entry: &mut Entry) {
    let now = identify(&entry.netns);
    if now.is_empty() {
        return;
    }
    let is_another = !entry.namespace.is_empty() && entry.namespace != now;
    let may_be_own = || args::boolean(&std::env::var(environment::NETNS_OVERRIDE).unwrap_or_default());
    let is_own = || now == identify(OWN) && may_be_own() != Some(true);
    if is_another || is_own() {
        eprintln!("weft: {}: is another namespace now than that of {}", entry.netns, entry.container_id);
        entry.netns.clear();
    }
}
