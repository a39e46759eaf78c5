//! Finds the link that uses a lease, and builds the DHCP clients for it.

use std::path::{Path, PathBuf};

use cni::Error;
use linux::link::{Change, Link};
use linux::netns::Identity;
use linux::{Netns, Rtnl};
use plugin_support::failure::OrRefused;

use super::{LeaseManager, Settings};
use crate::owner::Owner;
use crate::v4::exchange::Client;
use crate::v4::options::Options;
use crate::v6;
use crate::v6::V6Request;
use crate::v6::identity::Identity as Identity6;

/// Maximum length of a client identity in bytes, without the type byte.
const IDENTITY_MAX: usize = 254;

/// Link that uses a lease, and the namespace.
pub(super) struct LeaseLink {
    pub(super) netns: Netns,
    pub(super) link: Link,
}

impl LeaseManager {
    pub(super) fn client_v6<'a>(
        &self,
        lease_link: &'a LeaseLink,
        identity: &'a Identity6,
        v6_request: &'a V6Request,
    ) -> v6::exchange::Client<'a> {
        let LeaseLink { netns, link } = lease_link;
        v6::exchange::Client { netns, link, identity, v6_request, timing: self.settings.timing }
    }

    pub(super) fn client<'a>(
        &self,
        lease_link: &'a LeaseLink,
        identity: &'a [u8],
        options: &'a Options,
    ) -> Result<Client<'a>, Error> {
        let LeaseLink { netns, link } = lease_link;
        let Ok(hardware) = <[u8; 6]>::try_from(link.mac.as_slice()) else {
            return Err(Error::internal(format!("{} is not Ethernet", link.name)));
        };
        let Settings { timing, broadcast, .. } = self.settings;
        Ok(Client { netns, ifname: &link.name, hardware, identity, options, timing, broadcast })
    }

    /// Finds the link in the namespace at `path`; both must exist.
    pub(super) fn lease_link(&self, path: &Path, ifname: &str) -> Result<LeaseLink, Error> {
        let netns = plugin_support::netns::open_netns(&self.with_host_prefix(path))?;
        let link = netns.rtnl().and_then(|mut net| net.link(ifname)).or_refused()?;
        Ok(LeaseLink { netns, link })
    }

    /// Like [`lease_link`](Self::lease_link), but returns `None` if the namespace or the link does not exist, or if the
    /// namespace is not the `expected` one.
    pub(super) fn find_lease_link(
        &self,
        path: &Path,
        ifname: &str,
        expected: Option<u64>,
    ) -> Result<Option<LeaseLink>, Error> {
        let Some(netns) = Netns::find(&self.with_host_prefix(path)).or_refused()? else { return Ok(None) };
        let own = inode(&netns)?;
        if expected.is_some_and(|expected| own != expected) {
            return Ok(None);
        }
        let link = netns.rtnl().and_then(|mut net| net.find_link(ifname)).or_refused()?;
        Ok(link.map(|link| LeaseLink { netns, link }))
    }

    fn with_host_prefix(&self, path: &Path) -> PathBuf {
        PathBuf::from(format!("{}{}", self.settings.host_prefix, path.display()))
    }
}

/// Reads a link that has just been set up, then the other end or parent in another namespace, and the bridge there.
///
/// Since Linux 6.8, reading a link makes the kernel process a carrier change at once. Until then, the kernel drops what
/// the link sends; so does a bridge whose port is the other end, and a bridge without another port. The first message
/// to the server, or the answer to it, would be lost.
pub(super) fn settle_carrier(netns: &Netns, link: &Link) {
    // The messages are repeated, so a failure here only delays the lease.
    let _ = netns.rtnl().and_then(|mut net| net.link_at(link.index));
    if let (Some(other), true) = (link.link, link.link_netns_id.is_some()) {
        // The other end may be in a third namespace; then this reads an unrelated link, which changes nothing.
        let _ = Rtnl::open().and_then(|mut host| match host.link_at(other)?.master {
            Some(bridge) => host.link_at(bridge).map(drop),
            None => Ok(()),
        });
    }
}

pub(super) fn set_up(netns: &Netns, link: &Link, up: bool) -> Result<(), Error> {
    let change = Change { up: Some(up), ..Change::default() };
    netns.rtnl().and_then(|mut net| net.change_link(link.index, &link.name, &change)).or_refused()
}

pub(super) fn remove_address(lease_link: &LeaseLink, address: ipnet::IpNet) -> Result<(), Error> {
    let LeaseLink { netns, link } = lease_link;
    let removed = netns.rtnl().and_then(|mut net| net.delete_address(link.index, &link.name, address));
    linux::error::absent_is_fine(removed).or_refused()
}

pub(super) fn inode(netns: &Netns) -> Result<u64, Error> {
    netns.identity().map(Identity::inode).or_refused()
}

/// Returns the client identity that the Go plugin would use: type 0, and a text that may be truncated.
pub(super) fn identity(owner: &Owner) -> Vec<u8> {
    let Owner { container, network, ifname } = owner;
    let mut identity = vec![0];
    identity.extend(format!("{container}/{network}/{ifname}").bytes().take(IDENTITY_MAX));
    identity
}
