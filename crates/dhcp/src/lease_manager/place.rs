//! The link that a lease is used on, and the DHCP clients for it.

use std::path::{Path, PathBuf};

use cni::Error;
use linux::Netns;
use linux::link::{Change, Link};
use linux::netns::Identity;
use plugin_support::failure::OrRefused;

use super::{LeaseManager, Settings};
use crate::owner::Owner;
use crate::v4::exchange::Client;
use crate::v4::options::Options;
use crate::v6;
use crate::v6::Wish;
use crate::v6::identity::Identity as Identity6;

/// Longest identity of a client, in bytes, without the byte that says what kind it is.
const IDENTITY_MAX: usize = 254;

/// Where a lease is used.
pub(super) struct Place {
    pub(super) netns: Netns,
    pub(super) link: Link,
}

impl LeaseManager {
    pub(super) fn client_v6<'a>(
        &self,
        place: &'a Place,
        identity: &'a Identity6,
        wish: &'a Wish,
    ) -> v6::exchange::Client<'a> {
        let Place { netns, link } = place;
        v6::exchange::Client { netns, link, identity, wish, timing: self.settings.timing }
    }

    pub(super) fn client<'a>(
        &self,
        place: &'a Place,
        identity: &'a [u8],
        options: &'a Options,
    ) -> Result<Client<'a>, Error> {
        let Place { netns, link } = place;
        let Ok(hardware) = <[u8; 6]>::try_from(link.mac.as_slice()) else {
            return Err(Error::internal(format!("{} is not Ethernet", link.name)));
        };
        let Settings { timing, broadcast, .. } = self.settings;
        Ok(Client { netns, ifname: &link.name, hardware, identity, options, timing, broadcast })
    }

    /// The link, in the namespace at the path; both must be there.
    pub(super) fn place(&self, path: &Path, ifname: &str) -> Result<Place, Error> {
        let netns = plugin_support::netns::open_netns(&self.seen_from_here(path))?;
        let link = netns.rtnl().and_then(|mut net| net.link(ifname)).or_refused()?;
        Ok(Place { netns, link })
    }

    /// The same; nothing if one of them is gone, or the namespace is another one than it was.
    pub(super) fn seek(
        &self,
        path: &Path,
        ifname: &str,
        expected: Option<u64>,
    ) -> Result<Option<Place>, Error> {
        let Some(netns) = Netns::find(&self.seen_from_here(path)).or_refused()? else { return Ok(None) };
        let own = inode(&netns)?;
        if expected.is_some_and(|expected| own != expected) {
            return Ok(None);
        }
        let link = netns.rtnl().and_then(|mut net| net.find_link(ifname)).or_refused()?;
        Ok(link.map(|link| Place { netns, link }))
    }

    fn seen_from_here(&self, path: &Path) -> PathBuf {
        PathBuf::from(format!("{}{}", self.settings.host_prefix, path.display()))
    }
}

pub(super) fn set_up(netns: &Netns, link: &Link, up: bool) -> Result<(), Error> {
    let change = Change { up: Some(up), ..Change::default() };
    netns.rtnl().and_then(|mut net| net.change_link(link.index, &link.name, &change)).or_refused()
}

pub(super) fn take_away(place: &Place, address: ipnet::IpNet) -> Result<(), Error> {
    let Place { netns, link } = place;
    let removed = netns.rtnl().and_then(|mut net| net.delete_address(link.index, &link.name, address));
    linux::error::absent_is_fine(removed).or_refused()
}

pub(super) fn inode(netns: &Netns) -> Result<u64, Error> {
    netns.identity().map(Identity::inode).or_refused()
}

/// What the server knows a client by, as the reference plugin has it: no type, and a text that is cut.
pub(super) fn identity(owner: &Owner) -> Vec<u8> {
    let Owner { container, network, ifname } = owner;
    let mut identity = vec![0];
    identity.extend(format!("{container}/{network}/{ifname}").bytes().take(IDENTITY_MAX));
    identity
}
