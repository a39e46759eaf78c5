//! Which network namespace an entry means: its path may lead to another one by now.
//!
//! A path below `/proc/PID` is another process's once that number is given again, and after a boot it is anybody's; a
//! file that was removed and made again is another namespace. What is there then is not ours to take down. The kernel
//! reuses inode numbers, so the cookie of the namespace counts, which is unique in a boot. Kernels before 5.14 have none.
//!
//! Rules: a namespace is its identity in one boot; one that is not known, of entries that others wrote, is believed; our own
//! is not the sandbox's, unless `CNI_NETNS_OVERRIDE` says that it may be.
//!
//! Source: namespaces(7), "The /proc/pid/ns/ directory"; random(4) `boot_id`.

use std::path::Path;

use cni::{Error, args, environment};
use linux::Netns;
use linux::boot_id;
use plugin_support::failure::OrRefused;
use plugin_support::log;
use rpc::journal::Entry;

/// What a path leads to now; empty if to no namespace, or if the boot has no id. Of a path that cannot be followed those
/// say it who need what is there.
///
/// # Errors
/// Which namespace it is cannot be told now.
pub(super) fn identify(path: &str) -> Result<String, Error> {
    match Netns::find(Path::new(path)) {
        Ok(Some(netns)) => in_this_boot(&netns),
        _ => Ok(String::new()),
    }
}

/// Forgets the path of an entry if it leads to another namespace than the sandbox's, so that it counts as gone.
///
/// # Errors
/// Which namespace it is cannot be told now: it may be another one.
pub(super) fn forget_another(entry: &mut Entry) -> Result<(), Error> {
    if is_another(entry, &identify(&entry.netns)?)? {
        log!("weft: {}: is another namespace now than that of {}", entry.netns, entry.container_id);
        entry.netns.clear();
    }
    Ok(())
}

/// Is the sandbox's namespace where the entry says?
///
/// # Errors
/// What is there cannot be looked at.
pub(super) fn is_there(entry: &Entry) -> Result<bool, Error> {
    let found = Netns::find(Path::new(&entry.netns)).or_refused()?;
    match found {
        None => Ok(false),
        Some(netns) => is_another(entry, &in_this_boot(&netns)?).map(|is_another| !is_another),
    }
}

/// What is not known is believed.
fn is_another(entry: &Entry, now: &str) -> Result<bool, Error> {
    if now.is_empty() {
        return Ok(false);
    }
    if !entry.namespace.is_empty() && !is_same(&entry.namespace, now) {
        return Ok(true);
    }
    let may_be_own = args::boolean(&std::env::var(environment::NETNS_OVERRIDE).unwrap_or_default());
    Ok(may_be_own != Some(true) && in_this_boot(&Netns::own().or_refused()?)? == now)
}

/// Whether two identities are of one namespace. One of an earlier release or kernel has no cookie.
fn is_same(one: &str, other: &str) -> bool {
    let parts = |text: &str| {
        let mut parts = text.splitn(3, '/').map(str::to_owned);
        (parts.next(), parts.next(), parts.next())
    };
    let ((boot, inode, cookie), (other_boot, other_inode, other_cookie)) = (parts(one), parts(other));
    let cookies = cookie.is_none() || other_cookie.is_none() || cookie == other_cookie;
    (boot, inode) == (other_boot, other_inode) && cookies
}

/// Boot id, device and inode, and the cookie if there is one. Empty where boots have no id.
fn in_this_boot(netns: &Netns) -> Result<String, Error> {
    let boot = boot_id::read().map_err(|cause| Error::io(boot_id::PATH, cause))?;
    let identity = netns.identity().or_refused()?;
    let cookie = netns.cookie().map(|cookie| format!("/{cookie}")).unwrap_or_default();
    Ok(boot.map(|boot| format!("{boot}/{identity}{cookie}")).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::is_same;

    #[test]
    fn netns_identity_without_cookie_is_compared_by_inode() {
        let [known, old, reused, other] = ["b/4:17/5", "b/4:17", "b/4:17/6", "b/4:18/5"];
        assert!(is_same(known, known) && is_same(known, old) && is_same(old, reused));
        assert!(!is_same(known, reused) && !is_same(known, other) && !is_same(old, other));
        assert!(!is_same(known, "c/4:17/5"), "of another boot");
    }
}
