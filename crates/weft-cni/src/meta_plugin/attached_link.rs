//! An attachment's interface in the sandbox, identified by index and kind.
//!
//! A process in a running pod can rename interfaces, change aliases and create other interfaces. It cannot change index
//! and kind, which are in the journal. So hot-plug removes the interface that was attached, and no other one.
//!
//! - An address is released only after its interface was removed, or the end on the host.
//! - An interface that is not found may be in another namespace, so the addresses stay allocated until the sandbox's
//!   DEL.
//! - Limit: a process that moves the interface to another namespace can then create a link with the same index and
//!   kind. The kernel shows nothing that distinguishes two macvlans on one parent.
//!
//! Source: netdevice(7); kernel `net/core/dev.c` (`dev_new_index`: an index is unique in a namespace).

use std::path::Path;

use cni::{Error, code};
use linux::link::{Change, Link};
use linux::{Kind, Netns, Rtnl};
use npwg::plan::Delegate;
use plugin_support::failure::OrRefused;
use rpc::journal::{AttachedLink, Entry};

/// Way in which an attachment's interface is removed from a running sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    /// The plugin removes the end on the host, and the kernel the one in the sandbox.
    ByHostEnd,
    /// The link is in the sandbox only, and no plugin needs it at DEL.
    Inside,
    /// A plugin removes or returns it.
    ByPlugin,
}

/// Returns the interface for an attachment whose ADD has ended; none if no interface has that name. `net` is a socket
/// in the sandbox, which the first call opens for all attachments.
pub(super) fn read(net: &mut Option<Rtnl>, entry: &Entry, delegate: &Delegate) -> Option<AttachedLink> {
    if net.is_none() {
        *net = Netns::open(Path::new(&entry.netns)).and_then(|netns| netns.rtnl()).ok();
    }
    let net = net.as_mut()?;
    let link = net.find_link(delegate.ifname.as_str()).ok()??;
    Some(AttachedLink { index: link.index, kind: link.kind })
}

/// Returns the link if it still exists in the namespace.
pub(super) fn find(net: &mut Rtnl, known: &AttachedLink) -> Result<Option<Link>, Error> {
    match net.link_at(known.index) {
        Ok(link) => Ok((link.kind == known.kind).then_some(link)),
        Err(error) if error.kind() == Kind::Absent => Ok(None),
        Err(error) => Err(error).or_refused(),
    }
}

/// Whether the interface is in the sandbox's namespace. Also true if that namespace is gone.
pub(super) fn is_there(entry: &Entry, known: &AttachedLink) -> Result<bool, Error> {
    match Netns::find(Path::new(&entry.netns)).or_refused()? {
        None => Ok(true),
        Some(netns) => Ok(find(&mut netns.rtnl().or_refused()?, known)?.is_some()),
    }
}

/// Prepares DEL for one attachment in a running sandbox: removes the interface, or restores the name for a plugin that
/// finds it by name.
///
/// # Errors
/// The interface is not there, or another one has the name. DEL must not be called: it would release the addresses, or
/// remove the other interface.
pub(super) fn release(
    entry: &Entry,
    delegate: &Delegate,
    known: &AttachedLink,
    removal: Removal,
) -> Result<(), Error> {
    let Some(netns) = Netns::find(Path::new(&entry.netns)).or_refused()? else { return Ok(()) };
    let mut net = netns.rtnl().or_refused()?;
    let name = delegate.ifname.as_str();
    if net.find_link(name).or_refused()?.is_some_and(|link| link.index != known.index) {
        let why =
            format!("{name}: another interface in the pod has this name; rename or delete that interface");
        return Err(kept(&why));
    }
    let moved = || {
        let index = known.index;
        kept(&format!("{name}: the attached interface (index {index}) is no longer in the pod's namespace"))
    };
    let Some(link) = find(&mut net, known)? else {
        return if removal == Removal::ByHostEnd { Ok(()) } else { Err(moved()) };
    };
    match removal {
        Removal::ByHostEnd => Ok(()),
        Removal::Inside => match net.delete_link(link.index, &link.name) {
            Err(error) if error.kind() == Kind::Absent => Err(moved()),
            deleted => deleted.or_refused(),
        },
        Removal::ByPlugin if link.name == name => Ok(()),
        Removal::ByPlugin => rename(&mut net, &link, name),
    }
}

fn kept(why: &str) -> Error {
    let kept = "its addresses stay allocated until then, or until the pod is deleted";
    Error::new(code::TRY_AGAIN_LATER, why).details(kept)
}

/// Renames a link. Kernels before 6.5 rename an interface only while it is down.
fn rename(net: &mut Rtnl, link: &Link, name: &str) -> Result<(), Error> {
    let change = Change { name: Some(name), ..Change::default() };
    if net.change_link(link.index, &link.name, &change).is_ok() {
        return Ok(());
    }
    let down = Change { up: Some(false), ..Change::default() };
    net.change_link(link.index, &link.name, &down).or_refused()?;
    let up = Change { up: Some(link.up), ..change };
    net.change_link(link.index, &link.name, &up).or_refused()
}
