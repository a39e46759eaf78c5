//! Hearing from the kernel that something about the IPv6 of a namespace changed.
//!
//! Rule: what is heard is *that* something changed, and whoever waits looks again: what the socket had no room for
//! loses nothing, and nothing that was said is believed.
//!
//! Source: rtnetlink(7), `RTNLGRP_*` in `include/uapi/linux/rtnetlink.h`.

use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::error::Error;

/// `RTNLGRP_LINK`
const LINKS: u32 = 1;
/// `RTNLGRP_IPV6_IFADDR`
const ADDRESSES: u32 = 9;
/// `RTNLGRP_IPV6_ROUTE`
const ROUTES: u32 = 11;
/// Announcements that are taken off at a time, at most: a namespace that is never quiet must not keep its watcher.
const AT_A_TIME: usize = 1024;

/// Hears of links, and of addresses and routes of IPv6.
#[derive(Debug)]
pub struct Watch {
    socket: netlink_sys::Socket,
}

impl Watch {
    /// Begins to listen in the calling thread's namespace. `ip -6 monitor link address route`
    pub fn open() -> Result<Watch, Error> {
        Watch::of(&[LINKS, ADDRESSES, ROUTES])
    }

    /// Begins to listen for links alone. `ip monitor link`
    pub fn links() -> Result<Watch, Error> {
        Watch::of(&[LINKS])
    }

    /// Begins to listen for links and IPv6 addresses. `ip -6 monitor link address`
    pub fn addresses() -> Result<Watch, Error> {
        Watch::of(&[LINKS, ADDRESSES])
    }

    fn of(groups: &[u32]) -> Result<Watch, Error> {
        let failed = |error: std::io::Error| Error::io("listen to netlink", &error);
        let mut socket = netlink_sys::Socket::new(netlink_sys::protocols::NETLINK_ROUTE).map_err(failed)?;
        socket.bind(&netlink_sys::SocketAddr::new(0, 0)).map_err(failed)?;
        for group in groups {
            socket.add_membership(*group).map_err(failed)?;
        }
        Ok(Watch { socket })
    }

    /// Waits until something has changed since the last call, or since it began to listen; false if nothing has by `until`.
    pub fn wait(&self, until: Instant) -> Result<bool, Error> {
        let failed = |errno: Errno| Error::kernel("listen to netlink", errno);
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(|_| failed(Errno::INVAL))?;
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(errno)),
        }
        for _ in 0..AT_A_TIME {
            match rustix::net::recv(&self.socket, &mut [0; 16], RecvFlags::DONTWAIT) {
                Ok(_) | Err(Errno::INTR | Errno::NOBUFS) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(true)
    }
}
