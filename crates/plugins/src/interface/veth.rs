//! veth pair between the host and a container.
//!
//! Rules:
//! - One request creates both ends, the container end directly in the namespace under the final name, so no other
//!   process sees an incomplete or misplaced interface.
//! - The host end's name is derived from the attachment, so DEL finds it without the namespace.
//! - A leftover that the same attachment has from a killed ADD is removed and created again.
//!
//! Source: plugins `pkg/ip/link_linux.go` `SetupVeth` (G2, S25); veth(4).

use cni::Error;
use cni::invocation::Attachment;
use linux::link::create::{NewKind, NewLink, Peer, Queues};
use linux::link::removal::LinkRemoval;
use linux::link::{Change, Link};
use linux::sysctl::{self, Family};
use linux::{Kind, Netns, Rtnl};
use plugin_support::failure::OrRefused;
use plugin_support::hash::hashed;
use plugin_support::owner_tag::{ALIAS_MAX, OwnerTag};

use crate::interface::expect_no_link;

/// Number of names to try for the host end.
const TRIES: u32 = 10;

/// Properties that the pair should have.
pub struct Veth<'a> {
    /// Name at the container's end.
    pub container_name: &'a str,
    /// The container's namespace.
    pub netns: &'a Netns,
    /// MTU at both ends in bytes; the kernel's choice if absent.
    pub mtu: Option<u32>,
    /// Hardware address at the container's end.
    pub mac: Option<&'a [u8]>,
    /// Queues at each end.
    pub queues: Queues,
    /// Index of the bridge on which the host end becomes a port.
    pub master: Option<u32>,
    /// The attachment's owner tag.
    pub tag: &'a OwnerTag,
}

/// Returns the queues at an end, a number that the configuration has validated.
pub fn queues(number: u32) -> Queues {
    Queues::new(number).unwrap_or(Queues::ONE)
}

/// Returns the name that an attachment's host end gets at attempt `attempt`; `None` after the last name.
pub fn candidate(network: &str, who: &Attachment, attempt: u32) -> Option<String> {
    (attempt < TRIES).then(|| name_of([network, who.container.as_str(), who.ifname.as_str()], attempt))
}

/// Returns the name that an attachment's host end gets at attempt `attempt`, counted from 0.
pub fn host_name(tag: &OwnerTag, attempt: u32) -> String {
    let OwnerTag { plugin: _, network, container, ifname } = tag;
    name_of([network, container, ifname], attempt)
}

fn name_of([network, container, ifname]: [&str; 3], attempt: u32) -> String {
    let attempt = if attempt == 0 { String::new() } else { attempt.to_string() };
    hashed("veth", 12, &[network, container, ifname, &attempt])
}

impl Veth<'_> {
    /// Creates the pair with the host end up. Returns the host end's name.
    ///
    /// `ip link add HOST up master BR type veth peer name ETH netns NS`
    ///
    /// # Errors
    /// Code 4 if the container already has an interface with that name (S25). A failure leaves nothing.
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
            // A port of a bridge needs no link-local address, which would take a fifth of the time to add.
            pair.no_link_local = self.master.is_some();
            match host.add_link(&pair) {
                Ok(()) => return Ok(self.finish(name)),
                Err(error) if error.kind() == Kind::Exists => {
                    attempt += self.resolve_name_conflict(host, &name, &alias)?;
                }
                Err(error) => {
                    // The kernel may have created the pair, and its answer been lost.
                    forget_host_end(self.tag);
                    return Err(plugin_support::failure::refused(&error));
                }
            }
        }
        Err(Error::internal(format!("{TRIES} names for the host end of {} are in use", self.container_name)))
    }

    /// Handles a name that exists already. Returns how many names to skip.
    fn resolve_name_conflict(&self, host: &mut Rtnl, name: &str, alias: &str) -> Result<u32, Error> {
        let mut container = self.netns.rtnl().or_refused()?;
        expect_no_link(&mut container, self.container_name)?;
        match host.find_link(name).or_refused()? {
            // Left by an ADD of this attachment, whose container end is in a namespace that still exists.
            Some(link) if is_own(&link, alias) => {
                linux::error::absent_is_fine(host.delete_link(link.index, &link.name))
                    .or_refused()
                    .map(|()| 0)
            }
            _ => Ok(1),
        }
    }

    /// Disables router advertisements on the host end: best effort, as in the reference plugin. A bridge port
    /// receives none.
    fn finish(&self, name: String) -> String {
        if self.master.is_none() {
            let _ = sysctl::write_interface(Family::V6, &name, "accept_ra", "0");
        }
        name
    }
}

/// Whether the link belongs to the attachment. A link without an owner tag counts, because the ADD was killed before it
/// set the tag.
fn is_own(link: &Link, alias: &str) -> bool {
    link.kind == "veth" && (link.alias == alias || link.alias.is_empty())
}

/// Returns an attachment's host end, if it exists.
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

/// Removes an attachment's host end and thereby the container's end; returns whether it existed.
pub fn remove_host_end(host: &mut Rtnl, tag: &OwnerTag) -> Result<bool, Error> {
    let Some(link) = find_host_end(host, tag)? else { return Ok(false) };
    LinkRemoval::open().and_then(|removal| removal.delete(&[link.index])).or_refused()?;
    Ok(true)
}

/// Calls [`remove_host_end`] during an undo. Errors are ignored: the caller returns the original error.
pub fn forget_host_end(tag: &OwnerTag) {
    if let Ok(mut host) = Rtnl::open() {
        let _ = remove_host_end(&mut host, tag);
    }
}

/// Sets the container's end up, which the creating request cannot do.
pub fn set_up(net: &mut Rtnl, link: &Link) -> Result<(), Error> {
    net.change_link(link.index, &link.name, &Change { up: Some(true), ..Change::default() }).or_refused()
}
