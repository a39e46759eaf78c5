//! Notification about changes to the links and the IPv6 configuration of a namespace.
//!
//! A notification only says *that* something changed, and the receiver then reads the present state. So messages that the
//! socket dropped lose nothing, and the content of messages is not used.
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
/// Maximum number of messages that are read at a time: a namespace with continuous changes must not block its watcher.
const AT_A_TIME: usize = 1024;

/// Watch on links, and on addresses and routes of IPv6.
#[derive(Debug)]
pub struct Watch {
    socket: netlink_sys::Socket,
}

impl Watch {
    /// Starts watching the calling thread's namespace. `ip -6 monitor link address route`
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

    /// Waits for a change since the last call, or since the start; returns false if there is none by `until`.
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
