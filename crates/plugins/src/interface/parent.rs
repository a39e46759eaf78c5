//! Parent interfaces for macvlan, ipvlan and vlan, and creation of child interfaces.
//!
//! Rules:
//! - One request creates the child in the container's namespace, under a temporary name. Before Linux 6.15 the kernel
//!   looks for the final name in the parent's namespace first, where an `eth0` may exist.
//! - A child that still has the temporary name is left from a killed ADD. DEL and the next ADD remove it.
//!
//! Source: plugins `plugins/main/macvlan` `createMacvlan`, `getDefaultRouteInterfaceName`.

use std::path::Path;

use cni::{Error, code};
use linux::link::create::NewLink;
use linux::link::{Change, Link};
use linux::route::{Family, TABLE_MAIN};
use linux::{Kind, Netns, Rtnl};
use plugin_config::parent::LinkNamespace;
use plugin_support::failure::{OrRefused, refused};
use plugin_support::hash::hashed;
use plugin_support::owner_tag::{ALIAS_MAX, OwnerTag};

use crate::interface::expect_no_link;
use crate::interface::host_device;
use crate::interface::inspection::differs;

/// Existing parent interface.
#[derive(Debug)]
pub struct Parent {
    /// Link of the parent.
    pub link: Link,
    /// Netlink socket in the parent's namespace.
    net: Rtnl,
    namespace: LinkNamespace,
}

impl Parent {
    /// Returns the interface `master`, or without a name the interface of the default route.
    pub fn find(master: Option<&str>, namespace: LinkNamespace, container: &Netns) -> Result<Parent, Error> {
        let mut net = match namespace {
            LinkNamespace::Host => Rtnl::open(),
            LinkNamespace::Container => container.rtnl(),
        }
        .or_refused()?;
        let link = match master {
            Some(name) => match net.find_link(name).or_refused()? {
                Some(link) => link,
                None => return Err(Error::key("master", format!("{name:?}"), "no such interface")),
            },
            None => default_route_link(&mut net)?,
        };
        Ok(Parent { link, net, namespace })
    }

    /// Fails if a child's MTU is greater than the parent's.
    pub fn check_mtu(&self, mtu: Option<u32>) -> Result<Option<u32>, Error> {
        match mtu {
            Some(mtu) if mtu > self.link.mtu => {
                Err(Error::key("mtu", mtu, format!("greater than {} of {}", self.link.mtu, self.link.name)))
            }
            mtu => Ok(mtu),
        }
    }

    /// Creates `child` on this parent, in the container and with the final name; it is down.
    ///
    /// # Errors
    /// Code 4 if the container already has an interface of that name (S25). A failure leaves nothing.
    pub fn create_child(
        &mut self,
        child: &NewLink<'_>,
        container: &Netns,
        tag: &OwnerTag,
    ) -> Result<Link, Error> {
        let mut inside = container.rtnl().or_refused()?;
        expect_no_link(&mut inside, child.name)?;
        let temporary = temporary_name(tag);
        let mut made = NewLink { name: &temporary, ..child.clone() };
        if self.namespace == LinkNamespace::Host {
            made.netns = Some(container);
        }
        let mut tried = self.net.add_link(&made);
        if tried.as_ref().is_err_and(|error| error.kind() == Kind::Exists)
            && let Some(leftover) = inside.find_link(&temporary).or_refused()?
            && !belongs_to_host(&leftover, tag)?
        {
            inside.delete_link(leftover.index, &temporary).or_refused()?;
            tried = self.net.add_link(&made);
        }
        let alias = tag.text(ALIAS_MAX);
        let named = tried.map_err(|error| self.creation_error(&error)).and_then(|()| {
            let link = inside.link(&temporary).or_refused()?;
            let change = Change { name: Some(child.name), alias: Some(&alias), ..Change::default() };
            inside.change_link(link.index, &temporary, &change).or_refused()?;
            inside.link_at(link.index).or_refused()
        });
        // Also if only the answer was lost. Best effort: the original error is returned.
        named.map_err(|error| {
            forget_child(container, child.name, tag);
            // The temporary name differs for each container, and tells a reader nothing.
            Error { msg: error.msg.replace(&temporary, child.name), ..error }
        })
    }

    /// Returns the error of a creation. "Exists" is temporary: another container may release, for example, the VLAN id.
    fn creation_error(&self, error: &linux::Error) -> Error {
        let parent = &self.link.name;
        match error.kind() {
            Kind::Exists => Error::new(code::TRY_AGAIN_LATER, error.to_string())
                .details(format!("on {parent}: it already has one, possibly in another container")),
            _ => refused(error).details(format!("on {parent}")),
        }
    }
}

/// Fails unless there is a parent. A parent in a container cannot be checked before the container exists.
pub fn status(master: Option<&str>, namespace: LinkNamespace) -> Result<(), Error> {
    if namespace == LinkNamespace::Container {
        return Ok(());
    }
    let found = Netns::own().or_refused().and_then(|own| Parent::find(master, namespace, &own));
    found.map(drop).map_err(|error| Error { code: code::NOT_AVAILABLE, ..error })
}

/// Fails unless the interface is on the configured parent.
pub fn inspect_parent(
    master: Option<&str>,
    namespace: LinkNamespace,
    container: &Netns,
    link: &Link,
) -> Result<(), Error> {
    let Some(master) = master else { return Ok(()) };
    let parent = Parent::find(Some(master), namespace, container)?.link.index;
    match link.link == Some(parent) {
        true => Ok(()),
        false => Err(differs(&link.name, "parent index", &format!("{:?}", link.link), &parent.to_string())),
    }
}

/// Returns a link's name until it gets the final name and the owner tag.
pub fn temporary_name(tag: &OwnerTag) -> String {
    hashed("weft", 15, &[&tag.network, &tag.container, &tag.ifname])
}

/// Removes a child that has the temporary name, or the final name with the owner tag: best effort.
fn forget_child(container: &Netns, name: &str, tag: &OwnerTag) {
    let Ok(mut inside) = container.rtnl() else { return };
    let (temporary, alias) = (temporary_name(tag), tag.text(ALIAS_MAX));
    for name in [temporary.as_str(), name] {
        if let Ok(Some(link)) = inside.find_link(name)
            && (name == temporary || link.alias == alias)
            && belongs_to_host(&link, tag).is_ok_and(|belongs| !belongs)
        {
            let _ = inside.delete_link(link.index, name);
        }
    }
}

/// Whether a link in the container is hardware or a device of the host, to which a process gave the name or the tag.
///
/// # Errors
/// The records of moved devices cannot be read.
fn belongs_to_host(link: &Link, tag: &OwnerTag) -> Result<bool, Error> {
    Ok(link.kind.is_empty() || host_device::is_moved(link, &tag.container)?)
}

/// Removes a link that a killed ADD left with the temporary name; succeeds if there is none.
pub fn remove_unnamed(netns: Option<&Path>, tag: &OwnerTag) -> Result<(), Error> {
    let Some(netns) = netns.map(Netns::find).transpose().or_refused()?.flatten() else { return Ok(()) };
    let mut inside = netns.rtnl().or_refused()?;
    match inside.find_link(&temporary_name(tag)).or_refused()? {
        None => Ok(()),
        // A process in the container can give any link this name.
        Some(link) if belongs_to_host(&link, tag)? => Ok(()),
        Some(link) => linux::error::absent_is_fine(inside.delete_link(link.index, &link.name)).or_refused(),
    }
}

/// Returns the interface of the default route with the lowest metric, IPv4 before IPv6.
fn default_route_link(net: &mut Rtnl) -> Result<Link, Error> {
    for family in [Family::V4, Family::V6] {
        let routes = net.routes(family).or_refused()?;
        let best = routes
            .iter()
            .filter(|route| route.is_default() && route.table == TABLE_MAIN && route.link != 0)
            .min_by_key(|route| route.priority.unwrap_or(0));
        if let Some(route) = best {
            return net.link_at(route.link).or_refused();
        }
    }
    Err(Error::config("master: missing, and there is no default route; set it to an interface"))
}
