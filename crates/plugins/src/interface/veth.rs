//! A pair of virtual interfaces between the host and a container.
//!
//! Rules:
//! - one request makes both ends, the container's directly in its namespace under its final name:
//!   there is no moment at which a half-made or misplaced interface exists;
//! - the host end's name is derived from the attachment, so a DEL finds it without the namespace;
//! - a leftover of the same attachment (from an ADD that was killed) is removed and made anew.
//!
//! Source: plugins `pkg/ip/link_linux.go` `SetupVeth` (G2, S25); veth(4).

use cni::Error;
use cni::invocation::Attachment;
use linux::link::create::{NewKind, NewLink, Peer, Queues};
use linux::link::{Change, Link};
use linux::sysctl::{self, Family};
use linux::{Kind, Netns, Rtnl};
use plugin_support::failure::OrRefused;
use plugin_support::hash::hashed;
use plugin_support::owner_tag::{ALIAS_MAX, OwnerTag};

use crate::interface::expect_no_link;

/// How many names are tried for the host end.
const TRIES: u32 = 10;

/// What the pair is to be like.
pub struct Veth<'a> {
    /// Name of the container's end.
    pub container_name: &'a str,
    /// The container's namespace.
    pub netns: &'a Netns,
    /// MTU of both ends in bytes; the kernel's choice if absent.
    pub mtu: Option<u32>,
    /// Hardware address of the container's end.
    pub mac: Option<&'a [u8]>,
    /// Queues of either end.
    pub queues: Queues,
    /// Index of the bridge that the host end becomes a port of.
    pub master: Option<u32>,
    /// For whom.
    pub tag: &'a OwnerTag,
}

/// Returns the name that the host end of an attachment may have, at the `attempt`th try; `None` behind the last one.
pub fn candidate(network: &str, who: &Attachment, attempt: u32) -> Option<String> {
    (attempt < TRIES).then(|| name_of([network, who.container.as_str(), who.ifname.as_str()], attempt))
}

/// The name the host end of an attachment has, at the `attempt`th try (0 first).
pub fn host_name(tag: &OwnerTag, attempt: u32) -> String {
    let OwnerTag { plugin: _, network, container, ifname } = tag;
    name_of([network, container, ifname], attempt)
}

fn name_of([network, container, ifname]: [&str; 3], attempt: u32) -> String {
    let attempt = if attempt == 0 { String::new() } else { attempt.to_string() };
    hashed("veth", 12, &[network, container, ifname, &attempt])
}

impl Veth<'_> {
    /// Makes the pair; the host end is up. Returns the host end's name.
    ///
    /// `ip link add HOST up master BR type veth peer name ETH netns NS`
    ///
    /// # Errors
    /// Code 4 if the container has an interface of that name already (S25); nothing is left of a pair that failed.
    pub fn create(&self, host: &mut Rtnl) -> Result<String, Error> {
        let alias = self.tag.text(ALIAS_MAX);
        let mut attempt = 0;
        while attempt < TRIES {
            let name = host_name(self.tag, attempt);
            let peer = Peer {
                name: self.container_name,
                mtu: self.mtu,
                mac: self.mac,
                queues: self.queues,
                netns: Some(self.netns),
            };
            let mut pair = NewLink::new(&name, NewKind::Veth(peer));
            pair.mtu = self.mtu;
            pair.master = self.master;
            pair.alias = Some(&alias);
            pair.up = true;
            // A bridge's port has no use for a link-local address, and making one is a fifth of the work.
            pair.no_link_local = self.master.is_some();
            match host.add_link(&pair) {
                Ok(()) => return Ok(self.finish(name)),
                Err(error) if error.kind() == Kind::Exists => {
                    attempt += self.make_room(host, &name, &alias)?;
                }
                Err(error) => {
                    // It may have been made, and the kernel's answer been lost.
                    forget_host_end(self.tag);
                    return Err(plugin_support::failure::refused(&error));
                }
            }
        }
        Err(Error::internal(format!("{TRIES} names for the host end of {} are taken", self.container_name)))
    }

    /// Something has one of the two names: whose is it? Returns how many names to skip.
    fn make_room(&self, host: &mut Rtnl, name: &str, alias: &str) -> Result<u32, Error> {
        let mut container = self.netns.rtnl().or_refused()?;
        expect_no_link(&mut container, self.container_name)?;
        match host.find_link(name).or_refused()? {
            // Ours, and its other end is not in the container: left by an ADD into a namespace that
            // somebody keeps alive.
            Some(link) if is_own(&link, alias) => {
                linux::error::absent_is_fine(host.delete_link(link.index, &link.name))
                    .or_refused()
                    .map(|()| 0)
            }
            _ => Ok(1),
        }
    }

    /// Best effort, as upstream: the host does not take its own routes from a container. A bridge's port
    /// never sees a router.
    fn finish(&self, name: String) -> String {
        if self.master.is_none() {
            let _ = sysctl::write_interface(Family::V6, &name, "accept_ra", "0");
        }
        name
    }
}

/// Is the link of an attachment's name the attachment's? One without a tag is: whoever made it was killed
/// before it could say so.
fn is_own(link: &Link, alias: &str) -> bool {
    link.kind == "veth" && (link.alias == alias || link.alias.is_empty())
}

/// The host end of an attachment, if it is there.
pub fn find_host_end(host: &mut Rtnl, tag: &OwnerTag) -> Result<Option<Link>, Error> {
    let alias = tag.text(ALIAS_MAX);
    for attempt in 0..TRIES {
        match host.find_link(&host_name(tag, attempt)).or_refused()? {
            Some(link) if is_own(&link, &alias) => return Ok(Some(link)),
            Some(_) => {}
            None => break,
        }
    }
    Ok(None)
}

/// Removes the host end of an attachment, and with it the container's, wherever that is; whether it was still there.
pub fn remove_host_end(host: &mut Rtnl, tag: &OwnerTag) -> Result<bool, Error> {
    let Some(link) = find_host_end(host, tag)? else { return Ok(false) };
    linux::error::absent_is_fine(host.delete_link(link.index, &link.name)).or_refused()?;
    Ok(true)
}

/// [`remove_host_end`] while undoing: the error that matters is another one.
pub fn forget_host_end(tag: &OwnerTag) {
    if let Ok(mut host) = Rtnl::open() {
        let _ = remove_host_end(&mut host, tag);
    }
}

/// Sets the container's end up: it cannot be created so.
pub fn set_up(net: &mut Rtnl, link: &Link) -> Result<(), Error> {
    net.change_link(link.index, &link.name, &Change { up: Some(true), ..Change::default() }).or_refused()
}
